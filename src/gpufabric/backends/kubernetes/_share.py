"""Putting packed code where a gang's nodes find it: beside it there, or once more as its owner."""

# The API server's objects are plain JSON, whose parts have no types of their own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownLambdaType=false

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from secrets import token_urlsafe
from typing import BinaryIO, cast

from gpufabric._frozen import frozen
from gpufabric._pause import pause
from gpufabric.backends.kubernetes._api import Api, Json
from gpufabric.backends.kubernetes._carry import FOLDER, SERVED_BY
from gpufabric.backends.kubernetes._code import CODE_LIMIT, Code
from gpufabric.backends.kubernetes._gang import CONTAINER
from gpufabric.backends.kubernetes._helper import ASK, PORT, TAKE
from gpufabric.backends.kubernetes._objects import path_of
from gpufabric.backends.kubernetes._patience import Patience
from gpufabric.backends.kubernetes._stream import exec_in
from gpufabric.backends.kubernetes._wait import LIMITS_S, SCALING, Why, why_waiting
from gpufabric.errors import (
    BackendError,
    CapacityError,
    ConflictError,
    CredentialsError,
    NotFoundError,
    Remedy,
    TransientError,
)

__all__ = ["Sharing"]

_TURNS = 20
_VANISHING_S = 60.0
_LOOK_S = 0.3
_SLOWEST = 0.5e6  # bytes a second; an upload below it is given up


@frozen(kw_only=True)
class Sharing:
    """The objects of one gang's code. `bodies` are the plan's, by verb and kind.

    `fill` puts the owner's uid, the content and what is packed into a body.
    """

    api: Api
    namespace: str
    patience: Patience
    code: Code
    bodies: dict[tuple[str, str], Json]
    fill: Callable[[object, dict[str, str]], Json]
    gang_timeout_s: float | None = None

    @property
    def _name(self) -> str:
        return self.code.name

    def run(self) -> bool:
        """Gives when the nodes will find the code, and this gang is one of its owners.

        True where it was there before.
        """
        secret = self.metadata("Secret")
        served = secret is not None and SERVED_BY in (secret.get("annotations") or {})
        if served or (secret is None and self.code.size > CODE_LIMIT):
            self._serve()
        else:
            self._join("Secret", self._filled(("share", "Secret")))
        return secret is not None

    def metadata(self, kind: str) -> Json | None:
        """What is known of the Secret or pod beside its content; None where there is none."""
        path = path_of("v1", kind, self.namespace, self._name)
        try:
            found = self.patience.again(lambda: self.api.get(path, metadata_only=True))
        except NotFoundError:
            return None
        return cast("Json", found["metadata"])

    def _filled(self, step: tuple[str, str], **known: str) -> Json:
        return self.fill(self.bodies[step], known)

    # ---- one more owner

    def _join(
        self, kind: str, body: Json, change: Json | None = None, *, make: bool = True
    ) -> bool:
        """Makes an object, or adds our owner to those of the one that is there.

        `change` is a merge patch of the latter. False where there is none and `make` is not
        asked. Another launcher, a teardown or the collector may
        act at the same time: each change is made of the very version that was read.
        """
        root = path_of("v1", kind, self.namespace)
        (mine,) = body["metadata"]["ownerReferences"]
        until = time.monotonic() + _VANISHING_S
        for _ in range(_TURNS):
            there = self.metadata(kind)
            try:
                if there is None and not make:
                    return False
                if there is None:
                    self.patience.again(lambda: self.api.request("POST", root, body=body))
                    return True
                if there.get("deletionTimestamp"):
                    self._await_gone(kind, until)
                    continue
                owners = cast("list[Json]", there.get("ownerReferences") or [])
                owned = any(one["uid"] == mine["uid"] for one in owners)
                if owned and change is None:
                    return True
                meta = {"resourceVersion": there["resourceVersion"], "uid": there["uid"],
                        "ownerReferences": owners if owned else [*owners, mine]}  # fmt: skip
                patch = {**(change or {})}
                patch["metadata"] = {**(patch.get("metadata") or {}), **meta}
                self.patience.again(partial(self.api.merge, f"{root}/{self._name}", patch))
            except (ConflictError, NotFoundError):
                continue
            return True
        raise ConflictError(
            f"{kind} {self._name} is changed by others faster than a launch can join it",
            backend=self.api.backend, operation="launch",
        )  # fmt: skip

    def _await_gone(self, kind: str, until: float) -> None:
        if time.monotonic() > until:
            raise BackendError(
                f"{kind} {self._name} of the same code is being removed and does not go; look at"
                " its finalizers", backend=self.api.backend, operation="launch",
            )  # fmt: skip
        pause(_LOOK_S)

    # ---- code above what a Secret holds

    def _serve(self) -> None:
        """A pod has the code, our gang is an owner of it, and the Secret says where it is."""
        for _ in range(_TURNS):
            self._join("Pod", self._filled(("serve", "Pod")))
            pod = self._pod()
            if pod is None:
                continue  # gone meanwhile
            uid = str(pod["metadata"]["uid"])
            if (pod.get("status") or {}).get("phase") in {"Failed", "Succeeded"}:
                self._remove(uid)  # evicted, or its node was shut down: another takes its place
                continue
            known = self.metadata("Secret")
            if known is None or (known.get("annotations") or {}).get(SERVED_BY) != uid:
                running = self._running(uid)
                if running is None:
                    continue
                self._announce(running, self._given(self._name))
                return
            body = self._filled(("serve", "Secret"), pod_uid=uid)
            if self._join("Secret", body, make=False):
                return
        raise ConflictError(
            f"pod {self._name}, which serves code of {self.code.size / 1e6:.1f} MB, was removed as"
            " often as it was made", backend=self.api.backend, operation="launch",
        )  # fmt: skip

    def _pod(self) -> Json | None:
        path = path_of("v1", "Pod", self.namespace, self._name)
        try:
            return self.patience.again(lambda: self.api.get(path))
        except NotFoundError:
            return None

    def _remove(self, uid: str) -> None:
        path = path_of("v1", "Pod", self.namespace, self._name)
        self.patience.again(lambda: self.api.delete(path, uid))

    def _announce(self, pod: Json, token: str) -> None:
        """Writes where the code is, and the token that it is given for."""
        ip = str(pod["status"]["podIP"])
        body = self._filled(
            ("serve", "Secret"), pod_uid=str(pod["metadata"]["uid"]), token=token,
            pod=self._name, address=f"[{ip}]:{PORT}" if ":" in ip else f"{ip}:{PORT}",
        )  # fmt: skip
        notes = body["metadata"]["annotations"]
        self._join("Secret", body, {"metadata": {"annotations": notes}, "data": body["data"]})

    def _running(self, uid: str) -> Json | None:
        """The pod once it runs; None where it is gone. Raises why it will not run."""
        since: dict[str, float] = {}
        began = time.monotonic()
        while True:
            pod = self._pod()
            if pod is None or pod["metadata"]["uid"] != uid:
                return None
            self._refuse_broken(pod)
            why = why_waiting([pod], 1)
            if why is None and (pod.get("status") or {}).get("podIP"):
                return pod
            if why is not None:
                why = self._with_events(why, uid)
                waited = time.monotonic() - since.setdefault(why.kind, time.monotonic())
                late = time.monotonic() - began > (self.gang_timeout_s or math.inf)
                if why.final or late or waited > LIMITS_S.get(why.kind, 0.0):
                    raise self._late(why)
            pause(_LOOK_S)

    def _with_events(self, why: Why, uid: str) -> Why:
        """The reason; an autoscaler may have said that it makes a node."""
        if why.kind != "unschedulable":
            return why
        path = f"/api/v1/namespaces/{self.namespace}/events"
        query = {"fieldSelector": f"involvedObject.uid={uid}"}
        try:
            events = self.patience.again(lambda: list(self.api.items(path, query)))
        except CredentialsError:
            return why
        said = [str(one.get("message")) for one in events if one.get("reason") in SCALING]
        return Why(kind="scaling up", words=said[-1]) if said else why

    def _refuse_broken(self, pod: Json) -> None:
        for one in (pod.get("status") or {}).get("containerStatuses") or ():
            state = cast("Json", one.get("state") or {})
            last = cast("Json", one.get("lastState") or {})
            ended = state.get("terminated") or last.get("terminated")
            if one.get("name") != CONTAINER or not ended or "running" in state:
                continue
            words = str(ended.get("message") or ended.get("reason") or "").strip()
            raise BackendError(
                f"code of {self.code.size / 1e6:.1f} MB packed is more than the"
                f" {CODE_LIMIT / 1000:.0f} kB that travel in a Secret, and the pod that would"
                f" serve it cannot run python3 of the image {one.get('image')}: exit code"
                f" {ended.get('exitCode')}, {words}. Use an image with python3, leave files out"
                " with .gpufabricignore, or put them into the image or a volume",
                backend=self.api.backend, operation="launch", remedy=Remedy.FIX_REQUEST,
            )  # fmt: skip

    def _late(self, why: Why) -> BackendError:
        words = f"pod {self._name}, which serves the code, is not up ({why.kind}): {why.words}"
        if why.kind in {"unschedulable", "scaling up"}:
            return CapacityError(words, backend=self.api.backend, operation="launch")
        return BackendError(words, backend=self.api.backend, operation="launch")

    # ---- the upload

    def _given(self, pod: str) -> str:
        """The token that the pod gives the code for, once it has it."""
        asked = self.patience.again(lambda: self._exec(pod, ASK, None))
        if asked is not None:
            return asked
        token = token_urlsafe(32)
        taken = self.patience.again(lambda: self._exec(pod, TAKE, token))
        if taken is None:
            raise BackendError(
                f"pod {pod} took the code and does not have it", backend=self.api.backend,
                operation="launch",
            )  # fmt: skip
        return taken

    def _exec(self, pod: str, program: str, token: str | None) -> str | None:
        source = None if token is None else cast("BinaryIO", _Source(self._sent(token)))
        limit_s = 60.0 + self.code.size / _SLOWEST
        try:
            result = exec_in(
                self.api, self.namespace, pod, CONTAINER, ["python3", "-c", program, FOLDER],
                stdin=source, timeout_s=limit_s,
            )  # fmt: skip
        except TimeoutError:
            raise TransientError(
                f"the code did not reach pod {pod} within {limit_s:.0f} s",
                backend=self.api.backend, operation="launch",
            ) from None  # fmt: skip
        if result.exit_code:
            words = result.stderr.decode("utf-8", "replace").strip()[-500:]
            killed = result.exit_code > 128  # by a signal: 128 and its number
            raise (TransientError if killed else BackendError)(
                f"pod {pod} did not take the code (exit code {result.exit_code}): {words}",
                backend=self.api.backend, operation="launch",
            )  # fmt: skip
        return result.stdout.decode("ascii").strip() or None

    def _sent(self, token: str) -> Iterator[bytes]:
        """What `TAKE` reads."""
        import hashlib

        parts = [[part.key, part.size] for part in self.code.parts]
        head = {"id": uuid.uuid4().hex, "token": token, "parts": parts}
        yield json.dumps(head).encode() + b"\n"
        for part in self.code.parts:
            sha256 = hashlib.sha256()
            for chunk in self.code.chunks(part.key):
                sha256.update(chunk)
                yield chunk
            yield sha256.hexdigest().encode()


class _Source:
    """Pieces as a stream that is read once."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end."""
        self._left = self._left or next(self._pieces, b"")
        part, self._left = self._left[:size], self._left[size:]
        return part


def storage(size: int) -> str:
    """What the serving pod needs on its node's disk: the code, and once more while it comes."""
    return f"{math.ceil(size * 2 / 2**20) + 1}Mi"
