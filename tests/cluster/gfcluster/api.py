"""Just enough of a Kubernetes client, on the standard library: JSON in, JSON out."""

import base64
import json
import ssl
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .shell import wait_until

Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"


class ApiError(Exception):
    """The server's refusal."""

    def __init__(self, code: int, message: str, where: str) -> None:
        super().__init__(f"{where}: {code} {message}")
        self.code = code
        self.message = message


class Api:
    """An API server, reached with the client certificate of a kubeconfig that we wrote."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        user = config["users"][0]["user"]
        self._server = cluster["server"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        context = ssl.create_default_context(cadata=authority)
        with tempfile.NamedTemporaryFile("wb") as pem:  # ssl reads certificates from files only
            for part in ("client-certificate-data", "client-key-data"):
                pem.write(base64.b64decode(user[part]))
            pem.flush()
            context.load_cert_chain(pem.name)
        # No proxy: the cluster is on this machine, whatever the environment says.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        self._plurals: dict[str, dict[str, tuple[str, bool]]] = {}

    def call(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 30,
    ) -> dict[str, Any]:
        """One request; the answer, or an ApiError."""
        answer: dict[str, Any] = json.loads(self.text(method, path, body, content_type, timeout_s))
        return answer

    def text(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        content_type: str = "application/json",
        timeout_s: float = 30,
    ) -> str:
        """One request; the answer as it came."""
        request = urllib.request.Request(  # noqa: S310 - the address is of a kubeconfig that we wrote
            self._server + path,
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": content_type, "Accept": "application/json"},
        )
        try:
            with self._opener.open(request, timeout=timeout_s) as response:
                raw: bytes = response.read()
                return raw.decode()
        except urllib.error.HTTPError as exc:
            said = exc.read().decode(errors="replace")
            try:
                message = json.loads(said).get("message", said)
            except ValueError:
                message = said
            raise ApiError(exc.code, message, f"{method} {path}") from exc

    def get(self, path: str) -> dict[str, Any] | None:
        """An object, or None where there is none."""
        try:
            return self.call("GET", path)
        except ApiError as exc:
            if exc.code == 404:
                return None
            raise

    def is_true(self, path: str, condition: str) -> bool:
        """Whether an object is there and has a condition that is true."""
        status: dict[str, Any] = (self.get(path) or {}).get("status") or {}
        conditions: list[dict[str, str]] = status.get("conditions") or []
        return any(row["type"] == condition and row["status"] == "True" for row in conditions)

    def wait_true(self, path: str, condition: str, timeout_s: float = 20) -> None:
        """Wait until an object has a condition that is true."""
        wait_until(
            f"{path} is {condition}", lambda: self.is_true(path, condition), timeout_s=timeout_s
        )

    def wait_gone(self, path: str, timeout_s: float = 60) -> None:
        """Wait until an object is there no more."""
        wait_until(f"{path} is gone", lambda: self.get(path) is None, timeout_s=timeout_s)

    def path(self, api_version: str, kind: str, namespace: str | None = None) -> str:
        """The path of a kind's collection, by what the server itself says of it."""
        base = f"/api/{api_version}" if "/" not in api_version else f"/apis/{api_version}"
        if kind not in self._plurals.get(api_version, {}):
            rows = self.call("GET", base)["resources"]
            self._plurals[api_version] = {
                row["kind"]: (row["name"], row["namespaced"])
                for row in rows
                if "/" not in row["name"]
            }
        plural, namespaced = self._plurals[api_version][kind]
        return (
            f"{base}/namespaces/{namespace or 'default'}/{plural}"
            if namespaced
            else f"{base}/{plural}"
        )

    def object_path(self, item: Mapping[str, Any]) -> str:
        """The path of one object."""
        meta = item["metadata"]
        collection = self.path(item["apiVersion"], item["kind"], meta.get("namespace"))
        return f"{collection}/{urllib.parse.quote(meta['name'])}"

    def create(self, item: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object."""
        collection = self.path(item["apiVersion"], item["kind"], item["metadata"].get("namespace"))
        return self.call("POST", collection + ("?dryRun=All" if dry_run else ""), item)

    def ensure(self, item: Mapping[str, Any]) -> None:
        """Create an object, or merge it over the one that is there."""
        try:
            self.create(item)
        except ApiError as exc:
            if exc.code != 409:
                raise
            self.call("PATCH", self.object_path(item), item, content_type=MERGE)

    def delete(self, item: Mapping[str, Any]) -> None:
        """Delete an object, if it is there; what it owns goes with it."""
        try:
            self.call("DELETE", f"{self.object_path(item)}?propagationPolicy=Background")
        except ApiError as exc:
            if exc.code != 404:
                raise
