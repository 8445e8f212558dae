"""Making a gang's objects and waiting until it is whole; on any failure nothing of it stays."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import base64
import time
from collections.abc import Mapping
from functools import partial
from typing import cast

from gpufabric._frozen import frozen, thaw
from gpufabric._pause import pause
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._carry import CODE_LABEL
from gpufabric.backends.kubernetes._code import Code, packed
from gpufabric.backends.kubernetes._objects import Found, find, path_of, selector
from gpufabric.backends.kubernetes._patience import RETRY_S, Patience, again
from gpufabric.backends.kubernetes._remove import leftovers, remove
from gpufabric.backends.kubernetes._share import Sharing, storage
from gpufabric.backends.kubernetes._wait import Waiting
from gpufabric.errors import (
    BackendError,
    ConflictError,
    GpuFabricError,
    Problem,
    SpecError,
    TransientError,
)
from gpufabric.plan import LaunchPlan, Step
from gpufabric.task import PythonCall, Task

__all__ = ["Launch", "again", "leftovers", "remove"]

_OWNERS = ("JobSet", "Job", "LeaderWorkerSet")
_TURNS = 5
_TURN_S = 0.2
#: Linux takes no argument and no variable, with its name, of 128 KiB: MAX_ARG_STRLEN,
#: https://man7.org/linux/man-pages/man2/execve.2.html
_ARGUMENT_BYTES = 131_071
#: Of all values of a Secret: https://kubernetes.io/docs/concepts/configuration/secret/
_SECRET_BYTES = 1 << 20


@frozen(kw_only=True)
class Launch:
    """One plan to be applied. `retry_s` is how long a server is borne that fails."""

    api: Api
    plan: LaunchPlan
    namespace: str
    workdir_limit_bytes: float
    jobsets: bool
    retry_s: float = RETRY_S

    @property
    def name(self) -> str:
        """The job's name."""
        return self._owner_step.name

    @property
    def _owner_step(self) -> Step:
        for step in self.plan.steps:
            if step.verb == "create" and step.kind in _OWNERS:
                return step
        raise SpecError(
            f"this is no plan of the kubernetes backend: it makes no {' and no '.join(_OWNERS)}"
        )

    def run(self) -> None:
        """Makes the gang and gives when it is whole; on any failure nothing of it stays."""
        step = self._owner_step
        _refuse_large(self.plan.task)
        with packed(self.plan.task, limit_bytes=self.workdir_limit_bytes) as code:
            _Making(launch=self, step=step, code=code, patience=Patience(self.retry_s)).run()


@frozen(kw_only=True)
class _Making:
    """A launch whose code is packed."""

    launch: Launch
    step: Step
    code: Code
    patience: Patience

    @property
    def api(self) -> Api:
        return self.launch.api

    @property
    def namespace(self) -> str:
        return self.launch.namespace

    @property
    def name(self) -> str:
        return self.launch.name

    @property
    def serves(self) -> bool:
        return self.step.kind == "LeaderWorkerSet"

    def run(self) -> None:
        made, uid = False, None
        try:
            found = self._find()
            while found is None or found.owner["metadata"].get("deletionTimestamp"):
                if found is not None:
                    self._remove(str(found.owner["metadata"]["uid"]))
                made = True  # from here on it may exist because of us, whatever the answer was
                made, found = self._create_owner()
            uid = str(found.owner["metadata"]["uid"])
            self._refuse_other_code(found)
            if found.cancelled is None and not found.condition("Complete", "Completed", "Failed"):
                self._complete(found, uid)
                self._wait()
        except BaseException as exc:
            verdict = isinstance(exc, BackendError) and not isinstance(
                exc, TransientError | ConflictError
            )
            if made or (verdict and uid is not None):
                self._undo(exc, uid)
            raise

    def _wait(self) -> None:
        Waiting(
            api=self.api, namespace=self.namespace, name=self.name, jobsets=self.launch.jobsets,
            serves=self.serves, gang_timeout_s=self.launch.plan.gang_timeout_s,
            patience=self.patience,
        ).until_whole()  # fmt: skip

    def _find(self) -> Found | None:
        jobsets = self.launch.jobsets
        return self.patience.again(
            lambda: find(self.api, self.namespace, self.name, jobsets=jobsets, serves=self.serves)
        )

    # ---- the owner

    def _create_owner(self) -> tuple[bool, Found]:
        """Creates it, or finds that of another launcher: whether it may be ours, and it."""
        body = self._filled(thaw(self.step.body))
        root = path_of(body["apiVersion"], self.step.kind, self.namespace)
        refused: ConflictError | None = None
        for _ in range(_TURNS):
            tries = 0

            def create() -> None:
                nonlocal tries
                tries += 1
                self.api.request("POST", root, body=body)

            try:
                self.patience.again(create)
                refused = None
            except ConflictError as exc:
                refused = exc
            found = self._find()
            if found is not None:  # after a lost answer it may well be ours
                return refused is None or tries > 1, found
            pause(_TURN_S)  # a conflict over a quota, or it vanished meanwhile
        raise ConflictError(
            f"{self.step} exists and is no job of gpufabric, or vanishes each time: {refused}",
            backend=self.api.backend, operation="launch",
        )  # fmt: skip

    def _refuse_other_code(self, found: Found) -> None:
        mine = self.code.name if self.code.parts else None
        notes = cast("Json", found.owner["metadata"].get("annotations") or {})
        if notes.get(CODE_LABEL) != mine:
            raise ConflictError(
                f"{self.name} exists with other code ({notes.get(CODE_LABEL) or 'none'}) than the"
                f" work folder, files and function have now ({mine or 'none'}). Tear it down"
                " first, or launch with another `run` beside it",
                backend=self.api.backend, operation="launch",
            )  # fmt: skip

    # ---- what it owns

    def _complete(self, found: Found, uid: str) -> None:
        """Makes what is missing and lets the gang go, also of a launcher that died on the way."""
        steps = self.launch.plan.steps
        release = [step for step in steps if step.verb == "patch"]
        if release and not found.held:
            return  # it was let go, so all was there
        sharing = self._sharing(uid) if self.code.parts else None
        for step in steps:
            if step.verb == "create" and step is not self.step:
                self._own(step, uid)
        if sharing is not None and sharing.run():
            sharing.run()  # the collector may have removed what had no owner before us
        for step in release:
            self.patience.again(partial(self.api.merge, found.path, thaw(step.body)))

    def _sharing(self, uid: str) -> Sharing:
        steps = [step for step in self.launch.plan.steps if step.verb in {"share", "serve"}]
        return Sharing(
            api=self.api, namespace=self.namespace, patience=self.patience, code=self.code,
            bodies={(step.verb, step.kind): cast("Json", thaw(step.body)) for step in steps},
            fill=lambda body, known: self._filled(body, uid, known),
            gang_timeout_s=self.launch.plan.gang_timeout_s,
        )  # fmt: skip

    def _own(self, step: Step, uid: str) -> None:
        """Creates an object of the gang; one of an earlier gang of that name is removed first."""
        body = self._filled(thaw(step.body), uid)
        root = path_of(body["apiVersion"], step.kind, self.namespace)
        refused: ConflictError | None = None
        for _ in range(_TURNS):
            try:
                self.patience.again(lambda: self.api.request("POST", root, body=body))
            except ConflictError as exc:
                refused = exc
            else:
                return
            there = self._there(root, step.name)
            if there is None:
                pause(_TURN_S)
                continue
            owners = cast("list[Json]", there.get("ownerReferences") or [])
            if any(one["uid"] == uid for one in owners):
                return
            gone = partial(self.api.delete, f"{root}/{step.name}", str(there["uid"]))
            self.patience.again(gone)
        raise ConflictError(
            f"{step} exists and is not of this job: {refused}",
            backend=self.api.backend, operation="launch",
        )  # fmt: skip

    def _there(self, root: str, name: str) -> Json | None:
        def listed() -> list[Json]:
            return list(self.api.items(root, selector(self.name), metadata_only=True))

        for one in self.patience.again(listed):
            if one["metadata"]["name"] == name:
                return cast("Json", one["metadata"])
        return None

    # ---- back

    @property
    def _domains(self) -> str | None:
        """The API version of the plan's ComputeDomain, None without one."""
        steps = self.launch.plan.steps
        made = (str(one.body["apiVersion"]) for one in steps if one.kind == "ComputeDomain")
        return next(made, None)

    def _remove(self, uid: str | None) -> None:
        remove(
            self.api, self.namespace, self.name, jobsets=self.launch.jobsets,
            sets=self.serves, domains=self._domains, patience=self.patience, uid=uid,
        )  # fmt: skip

    def _undo(self, exc: BaseException, uid: str | None) -> None:
        try:
            self._remove(uid)
        except GpuFabricError as failed:
            body = self.step.body
            owner = path_of(str(body["apiVersion"]), self.step.kind, self.namespace, self.name)
            left = tuple(getattr(failed, "leftovers", ())) or (owner,)
            exc.add_note(f"could not be removed again ({failed}): {', '.join(left)}")
            if isinstance(exc, BackendError):
                exc.leftovers = left

    # ---- contents

    def _filled(
        self, body: object, uid: str | None = None, known: Mapping[str, str] | None = None
    ) -> Json:
        """The body as it is sent: the owner's uid, secrets and code in their places."""
        values: dict[str, dict[str, str]] = {
            "packed": {
                "name": self.code.name, "manifest": self.code.manifest,
                "storage": storage(self.code.size), **(known or {}),
            },
            "launched": {"seconds": str(int(time.time()))},
            "served": {key: _base64(value.encode()) for key, value in (known or {}).items()},
            "secret": {
                name: _base64((secret.value or "").encode())
                for name, secret in self.launch.plan.task.secrets.items()
            },
        }  # fmt: skip
        return cast("Json", _put(body, uid, values, self.code))


def _put(
    value: object, uid: str | None, values: Mapping[str, Mapping[str, str]], code: Code
) -> object:
    if isinstance(value, list):
        return [_put(one, uid, values, code) for one in cast("list[object]", value)]
    if not isinstance(value, dict):
        return value
    body = cast("dict[str, object]", value)
    if len(body) == 1:
        ((name, what),) = body.items()
        if name == "uid_of" and uid is not None:
            return uid
        if name == "content" and any(part.key == what for part in code.parts):
            return _base64(code.read(str(what)))
        if isinstance(what, str) and what in values.get(name, ()):
            return values[name][what]
    return {name: _put(one, uid, values, code) for name, one in body.items()}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _refuse_large(task: Task) -> None:
    """Refuses, before anything is made, what no container could be started with."""
    missing = sorted(name for name, secret in task.secrets.items() if secret.value is None)
    if missing:
        raise SpecError(f"secrets without a value: {', '.join(missing)}; supply them in secrets")
    secrets = {name: (secret.value or "").encode() for name, secret in task.secrets.items()}
    sizes = {f"secrets.{name}": len(name) + 1 + len(value) for name, value in secrets.items()}
    sizes |= {f"envs.{name}": len(name) + 1 + len(v.encode()) for name, v in task.envs.items()}
    sizes["setup"] = len((task.setup or "").encode())
    if not isinstance(task.run, PythonCall):
        words = (task.run,) if isinstance(task.run, str) else task.run
        sizes["run"] = max(len(word.encode()) for word in words)
    problems = [
        Problem(path=path, message=f"{size} bytes; no program starts with a variable or argument"
                f" above {_ARGUMENT_BYTES}. Put it into a file: files, workdir, or a volume")
        for path, size in sizes.items() if size > _ARGUMENT_BYTES
    ]  # fmt: skip
    total = sum(map(len, secrets.values()))
    if total > _SECRET_BYTES:
        told = f"{total} bytes in all, more than the {_SECRET_BYTES} that a Secret holds"
        problems.append(Problem(path="secrets", message=told))
    if problems:
        raise SpecError(problems)
