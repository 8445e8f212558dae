"""The HTTP side: one aiohttp application over the objects, in a thread of this process."""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping

from aiohttp import web

from . import access, schemas, selectors
from .access import ANONYMOUS, User
from .errors import (
    Json,
    Refusal,
    bad_request,
    forbidden,
    unknown_path,
)
from .kinds import Resource
from .objects import Objects
from .requests import Asked, read
from .streams import Streams
from .watching import Wanted, Watch, bookmark

BODY_BYTES = 3 * 1024 * 1024
_JSON = "application/json"
_VERSION = {
    "major": "1", "minor": "36", "gitVersion": "v1.36.3-fake", "gitCommit": "", "buildDate": "",
    "gitTreeState": "", "goVersion": "none", "compiler": "none", "platform": "fake",
}  # fmt: skip
_BOOKMARK_S = 1.0
_NO_STREAMED_LISTS = (
    "a watch stream was requested by the client but the required storage feature"
    " RequestWatchProgress is disabled"
)


class Front:
    """Answers requests."""

    def __init__(
        self,
        objects: Objects,
        users: Mapping[str, User],
        streams: Streams,
        broke: Callable[[BaseException], None],
    ) -> None:
        self.objects = objects
        self.users = users
        self.streams = streams
        self._broke = broke
        self.requests = 0
        self.working = asyncio.Event()
        self.working.set()

    def app(self) -> web.Application:
        """The application."""
        made = web.Application(client_max_size=BODY_BYTES)
        made.router.add_route("*", "/{path:.*}", self.handle)
        return made

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """One request; refusals become a Status."""
        self.requests += 1
        await self.working.wait()
        try:
            return await self._answer(request)
        except Refusal as exc:
            return _json(exc.status(), exc.code)
        except web.HTTPRequestEntityTooLarge:
            told = f"Request entity too large: limit is {BODY_BYTES}"
            return _json(Refusal(413, "RequestEntityTooLarge", told).status(), 413)
        except ConnectionError:  # the caller is gone
            return web.Response()
        except Exception as exc:
            self._broke(exc)
            raise

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = read(request.method, request.path, request.query)
        user = self._user(request)
        if not access.allowed(self.objects.store, user, asked.ask):
            raise forbidden(access.refusal(user, asked.ask))
        if not asked.plural:
            return self._discovery(asked)
        resource = self.objects.kinds.find(asked.group, asked.version, asked.plural)
        if resource is None:
            return web.Response(status=404, text="404 page not found\n")
        if asked.subresource:
            known = {name for name, _, _ in resource.subresources}
            if asked.subresource not in known:
                raise unknown_path()
            if asked.subresource != "status":
                return await self.streams.answer(request, asked, await _body(request))
        return await self._resource(request, asked, resource, user)

    def _user(self, request: web.Request) -> User:
        header = request.headers.get("Authorization", "")
        if not header:
            return ANONYMOUS
        user = self.users.get(header.removeprefix("Bearer "))
        if user is None:
            raise Refusal(401, "Unauthorized", "Unauthorized")
        return user

    # ---- what is no object

    def _discovery(self, asked: Asked) -> web.Response:  # noqa: PLR0911  # one a path
        kinds = self.objects.kinds
        match [part for part in asked.path.split("/") if part]:
            case ["version"]:
                return _json(_VERSION)
            case ["healthz" | "readyz" | "livez"]:
                return web.Response(text="ok")
            case ["api"]:
                return _json({"kind": "APIVersions", "versions": ["v1"]})
            case ["apis"]:
                return _json(kinds.groups())
            case ["api", version] if found := kinds.resources("", version):
                return _json(found)
            case ["apis", group] if found := kinds.group(group):
                return _json(found)
            case ["apis", group, version] if found := kinds.resources(group, version):
                return _json(found)
        return web.Response(status=404, text="404 page not found\n")

    # ---- objects

    async def _resource(
        self, request: web.Request, asked: Asked, resource: Resource, user: User
    ) -> web.StreamResponse:
        if asked.verb not in resource.verbs:
            told = "the server does not allow this method on the requested resource"
            raise Refusal(405, "MethodNotAllowed", told)
        if resource.namespaced and not asked.namespace and asked.name:
            raise unknown_path()
        space = asked.namespace if resource.namespaced else ""
        if asked.verb == "watch":
            return await self._watch(request, asked, resource, space)
        if asked.verb == "list":
            return self._list(asked, resource, space)
        if asked.verb == "get":
            return _raw(self.objects.get(resource, space, asked.name).raw)
        body = _parsed(await _body(request), request.content_type)
        if asked.verb == "create":
            return self._create(asked, resource, space, user, body)
        if asked.verb in {"delete", "deletecollection"}:
            return self._delete(asked, resource, space, body)
        write = {"subresource": asked.subresource, "dry_run": asked.dry_run}
        if asked.verb == "update":
            made = self.objects.update(resource, space, asked.name, _object(body), **write)
        else:
            made = self.objects.patch(
                resource, space, asked.name, body, request.content_type, **write
            )
        return _raw(made.raw)

    def _create(
        self, asked: Asked, resource: Resource, space: str, user: User, body: object
    ) -> web.Response:
        plain = _object(body)
        if resource.group == "authorization.k8s.io":
            schemas.check(plain, resource)
            answer = access.review if resource.kind.endswith("AccessReview") else (
                access.rules_review
            )  # fmt: skip
            return _json(answer(self.objects.store, user, plain), 201)
        made = self.objects.create(resource, space, plain, dry_run=asked.dry_run)
        return _raw(made.raw, 201)

    def _delete(self, asked: Asked, resource: Resource, space: str, body: object) -> web.Response:
        options = _object(body) if body else {}
        for name in ("propagationPolicy", "gracePeriodSeconds"):
            if name in asked.query:
                options[name] = asked.query[name]
        if not asked.name:
            fits = _fits(asked, resource)
            rows = [e for _, e in self.objects.store.sorted(resource.table, space) if fits(e.obj)]
            for entry in rows:
                name = entry.obj["metadata"]["name"]
                self.objects.delete(resource, space, name, options, dry_run=asked.dry_run)
            return _listed(resource, rows, {"resourceVersion": str(self.objects.store.version)})
        entry, gone = self.objects.delete(
            resource, space, asked.name, options, dry_run=asked.dry_run
        )
        if not gone or resource.table == "pods":
            return _raw(entry.raw)
        details = {
            "name": asked.name, "group": resource.group, "kind": resource.plural,
            "uid": entry.obj["metadata"]["uid"],
        }  # fmt: skip
        if not resource.group:
            del details["group"]
        return _json({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
            "details": details,
        })  # fmt: skip

    def _list(self, asked: Asked, resource: Resource, space: str) -> web.Response:
        page = self.objects.list(
            resource, space, fits=_fits(asked, resource),
            limit=_number(asked, "limit"), token=asked.query.get("continue", ""),
        )  # fmt: skip
        meta: Json = {"resourceVersion": str(page.version)}
        if page.token:
            meta["continue"] = page.token
            if not asked.query.get("labelSelector") and not asked.query.get("fieldSelector"):
                meta["remainingItemCount"] = page.remaining
        return _listed(resource, page.entries, meta)

    async def _watch(
        self, request: web.Request, asked: Asked, resource: Resource, space: str
    ) -> web.StreamResponse:
        wanted = Wanted(
            resource=resource, namespace=space, name=asked.name, fits=_fits(asked, resource)
        )
        watch = Watch(self.objects.store, wanted)
        response = web.StreamResponse(headers={"Content-Type": _JSON})
        response.enable_chunked_encoding()
        loop = asyncio.get_running_loop()
        ends = loop.time() + (_number(asked, "timeoutSeconds") or 1800)
        marks = asked.query.get("allowWatchBookmarks") in {"true", "1"}
        try:
            if asked.query.get("sendInitialEvents") == "true":  # as with an etcd before 3.4.31
                raise Refusal(500, "InternalError", _NO_STREAMED_LISTS)
            watch.begin(asked.query.get("resourceVersion", ""))
            await response.prepare(request)
            while (left := ends - loop.time()) > 0:
                try:
                    async with asyncio.timeout(min(left, _BOOKMARK_S)):
                        told = await watch.lines.get()
                except TimeoutError:
                    if marks:
                        await response.write(bookmark(wanted, self.objects.store.version))
                    continue
                while not watch.lines.empty():
                    told += watch.lines.get_nowait()
                await response.write(told)
        except ConnectionError:
            pass
        finally:
            watch.close()
        with contextlib.suppress(ConnectionError):
            await response.write_eof()
        return response


async def _body(request: web.Request) -> bytes:
    return await request.read() if request.can_read_body else b""


def _parsed(data: bytes, content_type: str) -> object:
    if not data:
        return None
    if not content_type.endswith(("json", "octet-stream")):
        told = (
            "the body of the request was in an unknown format - accepted media types include:"
            " application/json, application/yaml, application/vnd.kubernetes.protobuf"
        )
        raise Refusal(415, "UnsupportedMediaType", told)
    try:
        return json.loads(data)
    except ValueError as exc:
        raise bad_request(f"couldn't get version/kind; json parse error: {exc}") from exc


def _object(body: object) -> Json:
    if not isinstance(body, dict):
        raise bad_request("couldn't get version/kind; json parse error: not an object")
    return body


def _number(asked: Asked, name: str) -> int:
    text = asked.query.get(name) or "0"
    try:
        return int(text)
    except ValueError as exc:
        raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from exc


def _fits(asked: Asked, resource: Resource) -> Callable[[Json], bool]:
    labels = selectors.by_labels(asked.query.get("labelSelector", ""))
    fields = selectors.by_fields(asked.query.get("fieldSelector", ""), resource.table)
    tests = [test for test in (labels, fields) if test is not None]
    return lambda one: all(test(one) for test in tests)


def _json(body: Json, code: int = 200) -> web.Response:
    return _raw(json.dumps(body, separators=(",", ":")).encode(), code)


def _raw(data: bytes, code: int = 200) -> web.Response:
    return web.Response(body=data, status=code, content_type=_JSON)


def _listed(resource: Resource, entries: list, meta: Json) -> web.Response:
    """A list. Items of Kubernetes' own kinds carry no type, as a real server sends them."""
    head: Json = {
        "kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": meta,
    }  # fmt: skip
    text = json.dumps(head, separators=(",", ":")).encode()
    skip = 0
    if not resource.custom:
        typed = {"kind": resource.kind, "apiVersion": resource.api_version}
        skip = len(json.dumps(typed, separators=(",", ":")).encode())
    items = b",".join(b"{" + e.raw[skip:] if skip else e.raw for e in entries)
    return _raw(b'%s,"items":[%s]}' % (text[:-1], items))
