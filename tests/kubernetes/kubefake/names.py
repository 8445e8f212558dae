"""Names of pods and Services: a file a namespace, and a `getent` that reads it.

Only `getent hosts NAME` knows these names, since a name server would need root. Programs that ask
the C library for them do not find them: such tests are for a real cluster.
"""

import shutil
import sys
from pathlib import Path

from gpufabric.backends.kubernetes._script import _STALE_S

from .errors import Json
from .selectors import fits_selector
from .store import Change, Store

_GETENT = """\
#!/bin/sh
# getent of the fake cluster: names of one namespace
case "$1" in hosts|ahosts|ahostsv4) ;; *) exec /usr/bin/getent "$@" ;; esac
if [ "$2" = localhost ]; then echo "127.0.0.1       localhost"; exit 0; fi
while read -r address name; do
  if [ "$name" = "$2" ]; then echo "$address $name"; exit 0; fi
done < {hosts}
exit 2
"""

_SLEEP = """\
#!/bin/sh
# The fake's names are never stale, so a node that starts again need not wait until they are not.
if [ "$1" = {stale} ] && [ "${{GPUFABRIC_ATTEMPT:-0}}$LWS_WORKER_INDEX" != 0 ]; then exit 0; fi
exec {sleep} "$@"
"""


class Names:
    """Who is where, told to processes by files."""

    def __init__(self, store: Store, root: Path) -> None:
        self._store = store
        self._root = root / "names"
        store.listen(self._changed)

    def shims(self, namespace: str) -> Path:
        """The folder that goes first on PATH."""
        folder = self._root / namespace
        if not folder.exists():
            folder.mkdir(parents=True)
            self._write(namespace)
            for name, text in (
                ("getent", _GETENT.format(hosts=folder / "hosts")),
                ("sleep", _SLEEP.format(stale=_STALE_S, sleep=shutil.which("sleep"))),
            ):
                (folder / name).write_text(text)
                (folder / name).chmod(0o755)
            (folder / "python3").symlink_to(sys._base_executable)  # type: ignore[attr-defined]
        return folder

    def _changed(self, change: Change) -> None:
        if change.table not in {"pods", "services"}:
            return
        if change.table == "pods" and change.before is not None and change.type == "MODIFIED":
            before, after = change.before.obj, change.entry.obj
            if _address(before) == _address(after) and _ready(before) == _ready(after):
                return
        self._write(change.entry.obj["metadata"]["namespace"])

    def _write(self, namespace: str) -> None:
        folder = self._root / namespace
        if not folder.exists():
            return
        rows: list[str] = []
        for service in self._store.all("services", namespace):
            spec = service.obj["spec"]
            name = service.obj["metadata"]["name"]
            for pod in self._store.all("pods", namespace):
                rows += _rows(name, spec, pod.obj, namespace)
        new = folder / "hosts.new"
        new.write_text("".join(rows))
        new.replace(folder / "hosts")


def _rows(service: str, spec: Json, pod: Json, namespace: str) -> list[str]:
    address = _address(pod)
    selector = spec.get("selector")
    if not address or not selector or spec.get("clusterIP") != "None":
        return []
    if not fits_selector({"matchLabels": selector}, pod["metadata"].get("labels") or {}):
        return []
    if not spec.get("publishNotReadyAddresses") and not _ready(pod):
        return []
    names = [service]
    host = pod["spec"].get("hostname")
    if host and pod["spec"].get("subdomain") == service:
        names.insert(0, f"{host}.{service}")
    ends = ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local")
    return [f"{address} {name}{end}\n" for name in names for end in ends]


def _address(pod: Json) -> str:
    """Where it is known to be, until it ends.

    ShouldPodBeInEndpoints: https://pkg.go.dev/k8s.io/endpointslice@v0.36.3/util
    """
    status = pod.get("status") or {}
    ended = status.get("phase") in {"Succeeded", "Failed"}
    if ended or pod["metadata"].get("deletionTimestamp"):
        return ""
    return str(status.get("podIP") or "")


def _ready(pod: Json) -> bool:
    rows = (pod.get("status") or {}).get("conditions") or ()
    return any(row["type"] == "Ready" and row["status"] == "True" for row in rows)
