"""A pod's volumes as folders, its environment, and the paths in its command lines.

Pods run as processes of this machine without root, so nothing is mounted: where a command, an
argument or a variable names a mount path, it is given the folder's real path instead.
"""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from .errors import Json
from .store import Store

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class NotReadyError(Exception):
    """Something that the pod names is not there (yet)."""


class Paths:
    """Mount paths of one container, and what stands for them here."""

    def __init__(self, mounts: Mapping[str, Path]) -> None:
        self._mounts = dict(mounts)
        longest = sorted(map(re.escape, mounts), key=len, reverse=True)
        joined = "|".join(longest)
        self._form = re.compile(rf"(?<![\w./~-])({joined})(?![\w.-])") if joined else None

    def here(self, text: str) -> str:
        """The text with real paths."""
        if self._form is None:
            return text
        return self._form.sub(lambda found: str(self._mounts[found[1]]), text)


def folders(spec: Json, store: Store, namespace: str, root: Path, pod: Json) -> dict[str, Path]:
    """Makes a folder for each volume. Raises `NotReadyError`, in a kubelet's words."""
    made: dict[str, Path] = {}
    for volume in spec.get("volumes") or ():
        path = root / "volumes" / volume["name"]
        made[volume["name"]] = path
        if path.exists():
            continue
        files = dict(_files(volume, store, namespace, pod))
        path.mkdir(parents=True)
        for name, data in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
    return made


def _files(volume: Json, store: Store, namespace: str, pod: Json) -> Iterator[tuple[str, bytes]]:
    if source := volume.get("secret"):
        yield from _of(store, "secrets", source["secretName"], namespace, volume["name"], source)
    elif source := volume.get("configMap"):
        yield from _of(store, "configmaps", source["name"], namespace, volume["name"], source)
    elif source := volume.get("persistentVolumeClaim"):
        if store.find("persistentvolumeclaims", namespace, source["claimName"]) is None:
            raise NotReadyError(f'persistentvolumeclaim "{source["claimName"]}" not found')
    elif source := volume.get("downwardAPI"):
        for item in source.get("items") or ():
            yield item["path"], field(pod, item["fieldRef"]["fieldPath"]).encode()
    elif source := volume.get("projected"):
        for one in source.get("sources") or ():
            if "secret" in one:
                yield from _of(store, "secrets", one["secret"]["name"], namespace,
                               volume["name"], one["secret"])  # fmt: skip
            elif "configMap" in one:
                yield from _of(store, "configmaps", one["configMap"]["name"], namespace,
                               volume["name"], one["configMap"])  # fmt: skip
            elif "downwardAPI" in one:
                for item in one["downwardAPI"].get("items") or ():
                    yield item["path"], field(pod, item["fieldRef"]["fieldPath"]).encode()


def _of(  # noqa: PLR0917  # where it is, and how it is asked for
    store: Store, table: str, name: str, namespace: str, volume: str, source: Json
) -> Iterator[tuple[str, bytes]]:
    found = store.find(table, namespace, name)
    kind = table.removesuffix("s").replace("configmap", "configmap")
    if found is None:
        if source.get("optional"):
            return
        raise NotReadyError(
            f'MountVolume.SetUp failed for volume "{volume}" : {kind} "{name}" not found'
        )
    data = contents(found.obj)
    items = source.get("items")
    if items is None:
        yield from data.items()
        return
    for item in items:
        if item["key"] in data:
            yield item["path"], data[item["key"]]
        elif not source.get("optional"):
            raise NotReadyError(
                f'MountVolume.SetUp failed for volume "{volume}" : references non-existent {kind}'
                f" key: {item['key']}"
            )


def contents(obj: Json) -> dict[str, bytes]:
    """The files of a Secret or ConfigMap."""
    if obj["kind"] == "Secret":
        return {k: base64.b64decode(v) for k, v in (obj.get("data") or {}).items()}
    plain = {k: v.encode() for k, v in (obj.get("data") or {}).items()}
    binary = {k: base64.b64decode(v) for k, v in (obj.get("binaryData") or {}).items()}
    return {**plain, **binary}


def mounts(container: Json, volumes: Mapping[str, Path]) -> dict[str, Path]:
    """Mount path -> folder."""
    return {
        one["mountPath"].rstrip("/"): volumes[one["name"]] / one.get("subPath", "")
        for one in container.get("volumeMounts") or ()
    }


# ---- environment


def field(pod: Json, path: str) -> str:
    """What a fieldRef stands for."""
    if found := re.match(r"metadata\.(labels|annotations)\['(.+)'\]$", path):
        return str((pod["metadata"].get(found[1]) or {}).get(found[2], ""))
    value: object = pod
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if isinstance(value, list):
        return ",".join(str(one.get("ip", one)) for one in value)
    return "" if value is None else str(value)


def environment(container: Json, pod: Json, store: Store) -> dict[str, str]:
    """A container's variables, with `$(NAME)` put in. Raises `NotReadyError`."""
    namespace = pod["metadata"]["namespace"]
    made: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        for table, key in (("secrets", "secretRef"), ("configmaps", "configMapRef")):
            if key in source:
                data = _data(store, table, namespace, source[key])
                prefix = source.get("prefix", "")
                made |= {f"{prefix}{name}": value.decode() for name, value in data.items()}
    for row in container.get("env") or ():
        value = _value(row, pod, store, made)
        if value is not None:
            made[row["name"]] = value
    return made


def _value(row: Json, pod: Json, store: Store, known: Mapping[str, str]) -> str | None:
    source = row.get("valueFrom")
    if source is None:
        return expanded(row.get("value") or "", known)
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    namespace = pod["metadata"]["namespace"]
    for table, key in (("secrets", "secretKeyRef"), ("configmaps", "configMapKeyRef")):
        if key not in source:
            continue
        data = _data(store, table, namespace, source[key])
        if source[key]["key"] in data:
            return data[source[key]["key"]].decode()
        if not source[key].get("optional"):
            kind = "Secret" if table == "secrets" else "ConfigMap"
            raise NotReadyError(
                f"couldn't find key {source[key]['key']} in {kind} {namespace}/"
                f"{source[key]['name']}"
            )
    return None


def _data(store: Store, table: str, namespace: str, ref: Json) -> dict[str, bytes]:
    found = store.find(table, namespace, ref["name"])
    if found is not None:
        return contents(found.obj)
    if ref.get("optional"):
        return {}
    raise NotReadyError(f'{table.removesuffix("s")} "{ref["name"]}" not found')


def expanded(text: str, known: Mapping[str, str]) -> str:
    """`$(NAME)` put in where it is known, `$$` made `$`: k8s.io/kubernetes third_party/forked."""

    def one(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        return known.get(found[1], found[0])

    return _REFERENCE.sub(one, text)


Expand = Callable[[str], str]
