"""Making a gang's objects, waiting until it is whole, and removing all of it again."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import base64
import gzip
import io
import tarfile
import time
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from gpufabric._frozen import frozen, thaw
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._objects import Found, find, path_of, selector
from gpufabric.backends.kubernetes._wait import Waiting
from gpufabric.errors import (
    BackendError,
    ConflictError,
    GpuFabricError,
    NotFoundError,
    Problem,
    SpecError,
    TransientError,
)
from gpufabric.plan import LaunchPlan, Step
from gpufabric.task import PythonCall

__all__ = ["CODE_LIMIT", "Launch", "again", "remove"]

T = TypeVar("T")
CODE_LIMIT = 900_000
"""Bytes of packed code that one Secret holds beside its names; the API server takes 1 MiB."""
_TRIES = 4
_GONE_S = 90.0


def again(call: Callable[[], T]) -> T:
    """Tries a request again that failed for a reason that may pass."""
    import tenacity

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=2),
        reraise=True,
    )
    return retrying(call)


def remove(
    api: Api, namespace: str, name: str, *, jobsets: bool, timeout_s: float = _GONE_S
) -> None:
    """Removes a job: its owner, and with it all that it owns. Gives when all is gone.

    Raises `BackendError` with `.leftovers` for what is still there.
    """
    found = again(lambda: find(api, namespace, name, jobsets=jobsets))
    if found is not None:
        _delete(api, found.path, foreground=True)
    deadline = time.monotonic() + timeout_s
    pause = 0.05
    while True:
        left = again(lambda: leftovers(api, namespace, name, jobsets=jobsets))
        if not left:
            return
        if found is None:  # what a killed teardown left, or what the collector has not yet seen
            for path in left:
                _delete(api, path, foreground=False)
        if time.monotonic() > deadline:
            raise BackendError(
                f"still there after {timeout_s:g} s: {', '.join(left)}",
                backend=api.backend, operation="teardown", leftovers=left,
            )  # fmt: skip
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _delete(api: Api, path: str, *, foreground: bool) -> None:
    policy = "Foreground" if foreground else "Background"
    body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": policy}
    try:
        again(lambda: api.request("DELETE", path, body=body))
    except NotFoundError:
        return


def leftovers(api: Api, namespace: str, name: str, *, jobsets: bool) -> list[str]:
    """The paths of all that exists of a job."""
    kinds = [("batch/v1", "Job"), ("v1", "Pod"), ("v1", "Service"), ("v1", "Secret")]
    if jobsets:
        kinds.insert(0, ("jobset.x-k8s.io/v1alpha2", "JobSet"))
    found: list[str] = []
    for version, kind in kinds:
        listed = api.items(path_of(version, kind, namespace), selector(name))
        found += [path_of(version, kind, namespace, str(o["metadata"]["name"])) for o in listed]
    return found


@frozen(kw_only=True)
class Launch:
    """One plan to be applied."""

    api: Api
    plan: LaunchPlan
    namespace: str
    workdir_limit_bytes: float
    jobsets: bool

    @property
    def name(self) -> str:
        """The job's name."""
        return self._owner_step.name

    @property
    def _owner_step(self) -> Step:
        for step in self.plan.steps:
            if step.verb == "create" and step.kind in {"JobSet", "Job"}:
                return step
        raise SpecError("this is no plan of the kubernetes backend: it makes no JobSet and no Job")

    def run(self) -> None:
        """Makes the gang and gives when it is whole; on any failure nothing of it stays."""
        step = self._owner_step
        contents = self._contents()  # a secret without a value, a folder too large: nothing is made
        made = False
        try:
            found = self._find()
            while found is None or found.owner["metadata"].get("deletionTimestamp"):
                if found is not None:
                    remove(self.api, self.namespace, self.name, jobsets=self.jobsets)
                made = True  # from here on it may exist because of us, whatever the answer was
                made = self._create(step, step.body)
                found = self._made(step)
            if found.cancelled is None and not found.condition("Complete", "Completed", "Failed"):
                self._complete(found, contents)
                Waiting(
                    api=self.api, namespace=self.namespace, name=self.name, jobsets=self.jobsets,
                    gang_timeout_s=self.plan.gang_timeout_s,
                ).until_whole()  # fmt: skip
        except BaseException as exc:
            verdict = isinstance(exc, BackendError) and not isinstance(
                exc, TransientError | ConflictError
            )
            if made or verdict:
                self._undo(exc)
            raise

    def _find(self) -> Found | None:
        return again(lambda: find(self.api, self.namespace, self.name, jobsets=self.jobsets))

    def _made(self, step: Step) -> Found:
        found = self._find()
        if found is None:
            raise ConflictError(
                f"{step} exists and is no job of gpufabric, or vanished meanwhile",
                backend=self.api.backend, operation="launch",
            )  # fmt: skip
        return found

    def _create(self, step: Step, body: Mapping[str, object]) -> bool:
        """Creates it; False where someone else has."""
        plain = cast("Json", thaw(body))
        path = path_of(plain["apiVersion"], step.kind, self.namespace)
        tries = 0

        def create() -> None:
            nonlocal tries
            tries += 1
            self.api.request("POST", path, body=plain)

        try:
            again(create)
        except ConflictError:
            return tries > 1  # an answer was lost: it may well be ours
        return True

    def _complete(self, found: Found, contents: Mapping[str, str]) -> None:
        uid = str(found.owner["metadata"]["uid"])
        for step in self.plan.steps:
            if step.verb == "create" and step is not self._owner_step:
                body = cast("Json", _filled(thaw(step.body), uid, contents))
                self._create(step, body)
            elif step.verb == "patch":
                self._patch(found.path, thaw(step.body))

    def _patch(self, path: str, body: object) -> None:
        kind = "application/merge-patch+json"
        again(lambda: self.api.request("PATCH", path, body=body, content_type=kind))

    def _undo(self, exc: BaseException | None) -> None:
        try:
            remove(self.api, self.namespace, self.name, jobsets=self.jobsets)
        except GpuFabricError as failed:
            left = getattr(failed, "leftovers", ()) or (
                path_of("batch/v1", "Job", self.namespace, self.name),
            )
            if isinstance(exc, BackendError):
                exc.leftovers = tuple(left)
            elif exc is not None:
                exc.add_note(f"could not be removed: {', '.join(left)}")

    # ---- contents

    def _contents(self) -> dict[str, str]:
        """The values of secrets and the packed code, base64, by key of the Secret."""
        task = self.plan.task
        missing = sorted(name for name, secret in task.secrets.items() if secret.value is None)
        if missing:
            raise SpecError(
                f"secrets without a value: {', '.join(missing)}; supply them in secrets"
            )
        raw = {name: (secret.value or "").encode() for name, secret in task.secrets.items()}
        if task.workdir is not None:
            raw["workdir.tar.gz"] = self._packed(task.workdir)
        if task.files:
            raw["files.tar.gz"] = _tar(task.files)
        if isinstance(task.run, PythonCall):
            raw["function.pickle"] = task.run.payload
        size = sum(map(len, raw.values()))
        if size > CODE_LIMIT:
            parts = ", ".join(f"{name} {len(value) / 1000:.0f} kB" for name, value in raw.items()
                              if len(value) > 10_000)  # fmt: skip
            raise SpecError(
                [
                    Problem(
                        path="workdir",
                        message=f"code of {size / 1000:.0f} kB packed ({parts}) exceeds the"
                        f" {CODE_LIMIT / 1000:.0f} kB that travel in a Secret: leave files out with"
                        " .gpufabricignore, or put them into the image or a volume",
                    )
                ]
            )
        return {name: base64.b64encode(value).decode("ascii") for name, value in raw.items()}

    def _packed(self, workdir: str) -> bytes:
        from pathlib import Path

        from gpufabric._workdir import pack

        out = io.BytesIO()
        pack(Path(workdir).expanduser(), out, limit_bytes=self.workdir_limit_bytes)
        return gzip.compress(out.getvalue(), mtime=0)


def _tar(files: Mapping[str, str]) -> bytes:
    from gpufabric._workdir import DATE

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            data = text.encode()
            entry.size, entry.mtime, entry.mode = len(data), DATE, 0o644
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(out.getvalue(), mtime=0)


def _filled(value: object, uid: str, contents: Mapping[str, str]) -> object:
    """The body as it is sent: the owner's uid, secrets and code in their places."""
    if isinstance(value, list):
        return [_filled(one, uid, contents) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    body = cast("dict[str, object]", value)
    if len(body) == 1:
        ((name, what),) = body.items()
        if name == "uid_of":
            return uid
        if name in {"secret", "content"} and isinstance(what, str):
            return contents[what]
    return {name: _filled(one, uid, contents) for name, one in body.items()}
