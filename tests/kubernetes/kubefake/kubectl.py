"""The few commands of kubectl that tests use; any other is refused."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from gfcluster.api import MERGE, Api

_PATHS = {
    "namespace": "/api/v1/namespaces/{name}", "ns": "/api/v1/namespaces/{name}",
    "node": "/api/v1/nodes/{name}", "nodes": "/api/v1/nodes/{name}",
    "pod": "/api/v1/namespaces/{space}/pods/{name}",
    "job": "/apis/batch/v1/namespaces/{space}/jobs/{name}",
    "jobset": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{space}/jobsets/{name}",
    "secret": "/api/v1/namespaces/{space}/secrets/{name}",
    "service": "/api/v1/namespaces/{space}/services/{name}",
    "quota": "/api/v1/namespaces/{space}/resourcequotas/{name}",
}  # fmt: skip


def kubectl(api: Api, words: Sequence[str]) -> str:  # noqa: PLR0911, PLR0912  # one a command
    """One command; what it says."""
    rest, flags = [], {}
    given = iter(words)
    for word in given:
        if word in {"-n", "--namespace", "-o", "-p", "--type", "-f"}:
            flags[word.lstrip("-")] = next(given)
        elif word.startswith("-"):
            name, _, value = word.lstrip("-").partition("=")
            flags[name] = value or "true"
        else:
            rest.append(word)
    space = flags.get("n") or flags.get("namespace") or "default"
    match rest:
        case ["create", "quota", name]:
            hard = dict(part.split("=", 1) for part in flags["hard"].split(","))
            api.create({"apiVersion": "v1", "kind": "ResourceQuota",
                        "metadata": {"name": name, "namespace": space},
                        "spec": {"hard": hard}})  # fmt: skip
            return f"resourcequota/{name} created\n"
        case ["label" | "annotate" as what, kind, name, *pairs]:
            part = "labels" if what == "label" else "annotations"
            made: dict[str, Any] = {}
            for pair in pairs:
                key, sign, value = pair.partition("=")
                made[key.removesuffix("-") if not sign else key] = value if sign else None
            path = _path(kind, space, name)
            api.call("PATCH", path, {"metadata": {part: made}}, content_type=MERGE)
            return f"{kind}/{name} {what}ed\n"
        case ["delete", kind, name]:
            policy = "Background" if flags.get("cascade") != "foreground" else "Foreground"
            path = _path(kind, space, name)
            grace = (
                f"&gracePeriodSeconds={flags['grace-period']}" if "grace-period" in flags else ""
            )
            api.call("DELETE", f"{path}?propagationPolicy={policy}{grace}")
            if flags.get("wait", "true") != "false":
                api.wait_gone(path)
            return f'{kind} "{name}" deleted\n'
        case ["apply" | "create"] if "f" in flags:
            made_ = [one for one in yaml.safe_load_all(Path(flags["f"]).read_text()) if one]
            for one in made_:
                if space != "default":
                    one["metadata"].setdefault("namespace", space)
                api.ensure(one)
            return "".join(f"{one['kind']}/{one['metadata']['name']} applied\n" for one in made_)
        case ["get", kind, name] if flags.get("o") == "json":
            return json.dumps(api.call("GET", _path(kind, space, name)))
        case ["patch", kind, name]:
            api.call("PATCH", _path(kind, space, name), json.loads(flags["p"]), content_type=MERGE)
            return f"{kind}/{name} patched\n"
        case ["cordon" | "uncordon" as what, name]:
            body = {"spec": {"unschedulable": True if what == "cordon" else None}}
            api.call("PATCH", _path("node", space, name), body, content_type=MERGE)
            return f"node/{name} {what}ed\n"
    raise NotImplementedError(f"the fake's kubectl does not know: {' '.join(words)}")


def _path(kind: str, space: str, name: str) -> str:
    single = kind if kind in _PATHS else kind.removesuffix("s")
    return _PATHS[single].format(space=space, name=name)
