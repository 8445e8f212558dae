"""What a server refuses beyond an object's shape: k8s.io/kubernetes/pkg/apis/*/validation."""

import base64
import binascii
import re
from collections.abc import Iterator

from . import schemas
from .errors import Json, invalid
from .kinds import Resource
from .quantities import quantity

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")
_LABEL_1035 = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
_SUBDOMAIN = re.compile(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$")
_QUALIFIED = re.compile(r"^([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$")
_VALUE = re.compile(r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$")
_KEY = re.compile(r"^[-._a-zA-Z0-9]+$")
_ENV = re.compile(r"^[\x20-\x3c\x3e-\x7e]+$")
SECRET_BYTES = 1 << 20
_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.',"
    " and must start and end with an alphanumeric character (e.g. 'example.com', regex used for"
    " validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_DNS_LABEL_KINDS = {"namespaces": _LABEL, "services": _LABEL_1035}
_STANDARD = {"cpu", "memory", "ephemeral-storage"}


def check(resource: Resource, body: Json) -> None:
    """Refuses an object that is not valid, with every fault."""
    problems = [*_meta(resource, body["metadata"])]
    problems += [f"{path}: Required value" for path in _missing(resource, body)]
    if not problems:
        checks = {
            "pods": lambda: pod(body["spec"], "spec"),
            "jobs.batch": lambda: _job(body["spec"], "spec"),
            "jobsets.jobset.x-k8s.io": lambda: _jobset(body),
            "secrets": lambda: _data(body),
            "configmaps": lambda: _data(body),
        }
        problems += checks.get(resource.table, lambda: iter(()))()
    if problems:
        raise invalid(resource.qualified_kind, body["metadata"]["name"], problems)


def _missing(resource: Resource, body: Json) -> Iterator[str]:
    schema = schemas.schema_of(resource)
    yield from schemas.missing({k: v for k, v in body.items() if k != "status"}, schema)


def _meta(resource: Resource, meta: Json) -> Iterator[str]:
    name = meta["name"]
    form = _DNS_LABEL_KINDS.get(resource.table)
    if form is not None and not (form.match(name) and len(name) <= 63):
        yield f"metadata.name: Invalid value: {name!r}: a DNS label is wanted"
    elif resource.group == "rbac.authorization.k8s.io":
        pass
    elif not (_SUBDOMAIN.match(name) and len(name) <= 253):
        yield f'metadata.name: Invalid value: "{name}": {_SUBDOMAIN_WORDS}'
    yield from _labels(meta.get("labels"), "metadata.labels")
    size = sum(len(k) + len(v) for k, v in (meta.get("annotations") or {}).items())
    if size > 256 * 1024:
        yield "metadata.annotations: Too long: may not be more than 262144 bytes"
    for number, owner in enumerate(meta.get("ownerReferences") or ()):
        for field in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(field):
                yield f"metadata.ownerReferences[{number}].{field}: Required value"
    if sum(bool(owner.get("controller")) for owner in meta.get("ownerReferences") or ()) > 1:
        yield "metadata.ownerReferences: only one reference can have Controller set to true"


def _labels(labels: Json | None, path: str) -> Iterator[str]:
    for key, value in (labels or {}).items():
        prefix, _, name = key.rpartition("/")
        if (
            not _QUALIFIED.match(name)
            or len(name) > 63
            or (prefix and not _SUBDOMAIN.match(prefix))
        ):
            yield f'{path}: Invalid value: "{key}": name part must consist of alphanumeric'
        if not isinstance(value, str) or not _VALUE.match(value):
            yield f'{path}: Invalid value: "{value}": a valid label must be an empty string or'
        elif len(value) > 63:
            yield f'{path}: Invalid value: "{value}": must be no more than 63 bytes'


def _data(body: Json) -> Iterator[str]:
    size = 0
    for name, value in (body.get("data") or {}).items():
        if not _KEY.match(name) or len(name) > 253:
            yield f'data[{name}]: Invalid value: "{name}": a valid config key must consist of'
        size += len(value)
        if body["kind"] == "Secret":
            try:
                size += len(base64.b64decode(value, validate=True)) - len(value)
            except (binascii.Error, ValueError):
                yield f"data[{name}]: Invalid value: illegal base64 data"
    for name, value in (body.get("binaryData") or {}).items():
        size += len(value) * 3 // 4
        if name in (body.get("data") or {}):
            yield f"data[{name}]: Invalid value: duplicate of key present in binaryData"
    if size > SECRET_BYTES:
        yield f"data: Too long: may not be more than {SECRET_BYTES} bytes"


# ---- pods


def pod(spec: Json, path: str) -> Iterator[str]:
    """The faults of a pod's spec."""
    volumes = {one["name"] for one in spec.get("volumes") or ()}
    if len(volumes) != len(spec.get("volumes") or ()):
        yield f"{path}.volumes: Duplicate value"
    if not spec.get("containers"):
        yield f"{path}.containers: Required value"
    names: set[str] = set()
    claims = {one["name"] for one in spec.get("resourceClaims") or ()}
    for kind in ("initContainers", "containers"):
        for number, one in enumerate(spec.get(kind) or ()):
            at = f"{path}.{kind}[{number}]"
            if one["name"] in names:
                yield f'{at}.name: Duplicate value: "{one["name"]}"'
            names.add(one["name"])
            yield from _container(one, at, volumes, claims)
    if spec.get("restartPolicy") not in {"Always", "OnFailure", "Never"}:
        yield (
            f'{path}.restartPolicy: Unsupported value: "{spec.get("restartPolicy")}":'
            ' supported values: "Always", "OnFailure", "Never"'
        )
    for field in ("hostname", "subdomain"):
        value = spec.get(field)
        if value and not (_LABEL.match(value) and len(value) <= 63):
            yield f'{path}.{field}: Invalid value: "{value}": a DNS label is wanted'
    yield from _labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    for number, row in enumerate(spec.get("tolerations") or ()):
        yield from _toleration(row, f"{path}.tolerations[{number}]")


def _container(one: Json, path: str, volumes: set[str], claims: set[str]) -> Iterator[str]:
    if not (_LABEL.match(one["name"]) and len(one["name"]) <= 63):
        yield f'{path}.name: Invalid value: "{one["name"]}": a DNS label is wanted'
    if not one.get("image"):
        yield f"{path}.image: Required value"
    elif one["image"] != one["image"].strip():
        yield f'{path}.image: Invalid value: "{one["image"]}": must not have leading or trailing'
    mounted: set[str] = set()
    for number, mount in enumerate(one.get("volumeMounts") or ()):
        at = f"{path}.volumeMounts[{number}]"
        if mount["name"] not in volumes:
            yield f'{at}.name: Not found: "{mount["name"]}"'
        if mount["mountPath"] in mounted:
            yield f'{at}.mountPath: Invalid value: "{mount["mountPath"]}": must be unique'
        mounted.add(mount["mountPath"])
    for number, row in enumerate(one.get("env") or ()):
        if not _ENV.match(row["name"]):
            yield f'{path}.env[{number}].name: Invalid value: "{row["name"]}"'
        if row.get("value") and row.get("valueFrom"):
            yield f'{path}.env[{number}].valueFrom: Invalid value: "": may not be specified when'
    yield from _resources(one.get("resources") or {}, f"{path}.resources", claims)
    security = one.get("securityContext") or {}
    if security.get("privileged") and security.get("allowPrivilegeEscalation") is False:
        yield (
            f"{path}.securityContext: Invalid value: cannot set `allowPrivilegeEscalation` to"
            " false and `privileged` to true"
        )


def _resources(  # noqa: PLR0912  # one branch a rule
    resources: Json, path: str, claims: set[str]
) -> Iterator[str]:
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    wrong = False
    for part, listed in (("limits", limits), ("requests", requests)):
        for name, value in listed.items():
            try:
                amount = quantity(value)
            except ValueError as exc:
                wrong = True
                yield f'{path}.{part}[{name}]: Invalid value: "{value}": {exc}'
                continue
            if "/" in name and amount.denominator != 1:
                yield f'{path}.{part}[{name}]: Invalid value: "{value}": must be an integer'
            if "/" not in name and name not in _STANDARD and not name.startswith("hugepages-"):
                yield f'{path}.{part}[{name}]: Invalid value: "{name}": must be a standard resource'
    if wrong:
        return
    for name, value in requests.items():
        extended = "/" in name or name.startswith("hugepages-")
        if name not in limits:
            if extended:
                yield f"{path}.limits: Required value: Limit must be set for non overcommitable"
            continue
        if extended and quantity(value) != quantity(limits[name]):
            yield (
                f'{path}.requests: Invalid value: "{value}": must be equal to {name} limit of'
                f" {limits[name]}"
            )
        elif quantity(value) > quantity(limits[name]):
            yield (
                f'{path}.requests: Invalid value: "{value}": must be less than or equal to {name}'
                f" limit of {limits[name]}"
            )
    for number, claim in enumerate(resources.get("claims") or ()):
        if claim["name"] not in claims:
            yield f'{path}.claims[{number}].name: Not found: "{claim["name"]}"'


def _toleration(row: Json, path: str) -> Iterator[str]:
    if row.get("operator") == "Exists" and row.get("value"):
        yield f'{path}.operator: Invalid value: value must be empty when `operator` is "Exists"'
    if not row.get("key") and row.get("operator") != "Exists":
        yield f"{path}.operator: Invalid value: operator must be Exists when `key` is empty"


# ---- jobs


def _job(spec: Json, path: str) -> Iterator[str]:
    indexed = spec.get("completionMode") == "Indexed"
    if indexed and spec.get("completions") is None:
        yield (
            f"{path}.completions: Required value: when completion mode is Indexed, completions"
            " must be set"
        )
    for field in ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds"):
        if (spec.get(field) or 0) < 0:
            yield (
                f"{path}.{field}: Invalid value: {spec[field]}: must be greater than or equal to 0"
            )
    if indexed and (spec.get("completions") or 0) > 100_000 and spec["parallelism"] > 10_000:
        yield f"{path}.parallelism: Invalid value: must be less than or equal to 10000"
    template = spec["template"]
    policy = (template.get("spec") or {}).get("restartPolicy")
    if policy not in {"Never", "OnFailure"}:
        yield (
            f'{path}.template.spec.restartPolicy: Required value: valid values: "OnFailure",'
            ' "Never"'
        )
    if spec.get("podFailurePolicy") is not None and policy != "Never":
        yield f'{path}.template.spec.restartPolicy: Invalid value: "{policy}": only "Never" is'
    yield from _labels((template.get("metadata") or {}).get("labels"), f"{path}.template.labels")
    yield from pod(template["spec"], f"{path}.template.spec")


def _jobset(body: Json) -> Iterator[str]:
    """What JobSet's webhook refuses: names that become too long, above all."""
    name, spec = body["metadata"]["name"], body["spec"]
    if not spec.get("replicatedJobs"):
        return
    for number, row in enumerate(spec["replicatedJobs"]):
        path = f"spec.replicatedJobs[{number}]"
        job = f"{name}-{row['name']}-{row['replicas'] - 1}"
        template = row["template"]["spec"]
        pods = f"{job}-{(template.get('completions') or 1) - 1}-abcde"
        for made in (job, pods):
            if not (_LABEL_1035.match(made) and len(made) <= 63):
                yield (
                    f'{path}.name: Invalid value: "{job}": a DNS-1035 label must consist of lower'
                    " case alphanumeric characters or '-', and be no more than 63 characters"
                )
                break
    subdomain = spec["network"].get("subdomain")
    if subdomain and not (_LABEL_1035.match(subdomain) and len(subdomain) <= 63):
        yield f'spec.network.subdomain: Invalid value: "{subdomain}": a DNS-1035 label is wanted'
