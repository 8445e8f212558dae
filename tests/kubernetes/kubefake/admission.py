"""What is asked after an object is valid: Pod Security, LimitRange, quotas, Kueue's and priorities.

The words are those of k8s.io/pod-security-admission/policy and the quota plug-in.
"""

from collections.abc import Iterator
from fractions import Fraction

from .errors import Json, forbidden
from .kinds import Resource
from .quantities import Amounts, amounts, limits_of, quantity, requests_of, told
from .store import Store

_LEVEL = "pod-security.kubernetes.io/enforce"
_BASELINE_CAPS = {
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
    "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}  # fmt: skip
_RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
_COUNTED = {
    "pods": "pods", "secrets": "secrets", "configmaps": "configmaps", "services": "services",
    "persistentvolumeclaims": "persistentvolumeclaims", "resourcequotas": "resourcequotas",
}  # fmt: skip


def admit(store: Store, resource: Resource, body: Json, *, kueue: bool) -> None:
    """Changes a new object as plug-ins do, or refuses it."""
    namespace = body["metadata"].get("namespace") or ""
    if resource.table == "pods":
        _priority(store, body["spec"])
        _limit_ranges(store, namespace, body)
        _pod_security(store, namespace, body)
    if kueue and resource.table in {"jobs.batch", "jobsets.jobset.x-k8s.io"}:
        owned = any(o.get("controller") for o in body["metadata"].get("ownerReferences") or ())
        if QUEUE_LABEL in (body["metadata"].get("labels") or {}) and not owned:
            body["spec"]["suspend"] = True
    if resource.namespaced:
        _quotas(store, resource, namespace, body)


def _refuse(resource: str, body: Json, why: str) -> None:
    meta = body["metadata"]
    raise forbidden(f'{resource} "{meta["name"]}" is forbidden: {why}')


def _priority(store: Store, spec: Json) -> None:
    name = spec.get("priorityClassName")
    if not name:
        return
    found = store.find("priorityclasses.scheduling.k8s.io", "", name)
    fixed = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}
    if found is None and name not in fixed:
        raise forbidden(f"pods is forbidden: no PriorityClass with name {name} was found")
    spec["priority"] = fixed.get(name) or (found.obj["value"] if found else 0)


# ---- LimitRange


def _limit_ranges(store: Store, namespace: str, body: Json) -> None:
    rows = [row for one in store.all("limitranges", namespace)
            for row in one.obj["spec"].get("limits") or ()]  # fmt: skip
    for row in rows:
        if row["type"] != "Container":
            continue
        for one in body["spec"]["containers"]:
            resources = one.setdefault("resources", {})
            for part, given in (("limits", row.get("default")),
                                ("requests", row.get("defaultRequest"))):  # fmt: skip
                for name, value in (given or {}).items():
                    resources.setdefault(part, {}).setdefault(name, value)
            for why in _beyond(row, resources):
                _refuse("pods", body, why)


def _beyond(row: Json, resources: Json) -> Iterator[str]:
    for name, most in (row.get("max") or {}).items():
        for part, word in (("limits", "limit"), ("requests", "request")):
            value = (resources.get(part) or {}).get(name)
            head = f"maximum {name} usage per Container is {most}"
            if value is None and part == "limits":
                yield f"{head}.  No limit is specified"
            elif value is not None and quantity(value) > quantity(most):
                yield f"{head}, but {word} is {value}"
    for name, least in (row.get("min") or {}).items():
        value = (resources.get("requests") or {}).get(name)
        head = f"minimum {name} usage per Container is {least}"
        if value is None:
            yield f"{head}.  No request is specified"
        elif quantity(value) < quantity(least):
            yield f"{head}, but request is {value}"


# ---- Pod Security


def _pod_security(store: Store, namespace: str, body: Json) -> None:
    space = store.find("namespaces", "", namespace)
    labels = (space.obj["metadata"].get("labels") or {}) if space else {}
    level = labels.get(_LEVEL, "privileged")
    if level == "privileged":
        return
    why = list(_baseline(body["spec"]))
    if level == "restricted":
        why += _restricted(body["spec"])
    if why:
        version = labels.get(f"{_LEVEL}-version", "latest")
        _refuse("pods", body, f'violates PodSecurity "{level}:{version}": {", ".join(why)}')


def _containers(spec: Json) -> list[Json]:
    return [*(spec.get("initContainers") or ()), *spec["containers"]]


def _named(names: list[str]) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"container{'s' if len(names) > 1 else ''} {listed}"


def _security(one: Json) -> Json:
    return one.get("securityContext") or {}


def _baseline(spec: Json) -> Iterator[str]:
    host = [name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    if host:
        yield f"host namespaces ({', '.join(f'{name}=true' for name in host)})"
    paths = [v["name"] for v in spec.get("volumes") or () if v.get("hostPath")]
    if paths:
        word = "volumes" if len(paths) > 1 else "volume"
        yield f"hostPath volumes ({word} {', '.join(f'{chr(34)}{p}{chr(34)}' for p in paths)})"
    big = [one["name"] for one in _containers(spec) if _security(one).get("privileged")]
    if big:
        yield f"privileged ({_named(big)} must not set securityContext.privileged=true)"
    for one in _containers(spec):
        added = (_security(one).get("capabilities") or {}).get("add") or ()
        more = [f'"{name}"' for name in added if name not in _BASELINE_CAPS]
        if more:
            yield (
                f"non-default capabilities ({_named([one['name']])} must not include"
                f" {', '.join(more)} in securityContext.capabilities.add)"
            )


def _restricted(spec: Json) -> Iterator[str]:
    every, pod = _containers(spec), spec.get("securityContext") or {}
    open_ = [o["name"] for o in every if _security(o).get("allowPrivilegeEscalation") is not False]
    if open_:
        yield (
            f"allowPrivilegeEscalation != false ({_named(open_)} must set"
            " securityContext.allowPrivilegeEscalation=false)"
        )
    caps = [
        one["name"] for one in every
        if "ALL" not in ((_security(one).get("capabilities") or {}).get("drop") or ())
    ]  # fmt: skip
    if caps:
        yield (
            f"unrestricted capabilities ({_named(caps)} must set"
            ' securityContext.capabilities.drop=["ALL"])'
        )
    for volume in spec.get("volumes") or ():
        kinds = {kind for kind in volume if kind != "name"}
        if not kinds <= _RESTRICTED_VOLUMES:
            yield (
                f'restricted volume types (volume "{volume["name"]}" uses restricted volume type'
                f' "{min(kinds)}")'
            )
    root = [o["name"] for o in every if _security(o).get("runAsNonRoot") is not True]
    if pod.get("runAsNonRoot") is not True and root:
        yield (
            f"runAsNonRoot != true (pod or {_named(root)} must set"
            " securityContext.runAsNonRoot=true)"
        )
    loose = [o["name"] for o in every if not _security(o).get("seccompProfile")]
    if not pod.get("seccompProfile") and loose:
        yield (
            f"seccompProfile (pod or {_named(loose)} must set securityContext.seccompProfile.type"
            ' to "RuntimeDefault" or "Localhost")'
        )


# ---- quotas


def usage(resource: Resource, body: Json) -> Amounts:
    """What one object takes of a quota."""
    one = Fraction(1)
    counted: Amounts = {f"count/{resource.qualified}": one}
    if resource.table in _COUNTED:
        counted[_COUNTED[resource.table]] = one
    if resource.table != "pods":
        return counted
    if (body.get("status") or {}).get("phase") in {"Succeeded", "Failed"}:
        return {"count/pods": one}
    for name, amount in requests_of(body["spec"]).items():
        counted[f"requests.{name}"] = amount
        if "/" not in name:
            counted[name] = amount
    counted |= {f"limits.{name}": value for name, value in limits_of(body["spec"]).items()}
    return counted


def used_of(store: Store, namespace: str, hard: Amounts, resources: Iterator[Resource]) -> Amounts:
    """How much of a quota is taken."""
    total = {name: Fraction(0) for name in hard}
    for resource in resources:
        if not resource.namespaced:
            continue
        for entry in store.all(resource.table, namespace):
            for name, amount in usage(resource, entry.obj).items():
                if name in total:
                    total[name] += amount
    return total


def _quotas(store: Store, resource: Resource, namespace: str, body: Json) -> None:
    for entry in store.all("resourcequotas", namespace):
        hard = amounts(entry.obj["spec"].get("hard"))
        asked = {n: v for n, v in usage(resource, body).items() if n in hard}
        if not asked and resource.table != "pods":
            continue
        name = entry.obj["metadata"]["name"]
        if resource.table == "pods":
            _must_specify(name, hard, body)
        used = used_of(store, namespace, hard, iter((resource,)))
        over = sorted(n for n, amount in asked.items() if used[n] + amount > hard[n])
        if over:
            _refuse(
                resource.qualified, body,
                f"exceeded quota: {name}, requested: {_list(asked, over)}, used:"
                f" {_list(used, over)}, limited: {_list(hard, over)}",
            )  # fmt: skip


def _must_specify(quota: str, hard: Amounts, body: Json) -> None:
    problems: dict[str, list[str]] = {}
    for name in sorted(hard):
        part, _, plain = name.rpartition(".") if "/" not in name else ("", "", name)
        if plain not in {"cpu", "memory"}:
            continue
        field = "limits" if part == "limits" else "requests"
        for one in body["spec"]["containers"]:
            if plain not in ((one.get("resources") or {}).get(field) or {}):
                problems.setdefault(name, []).append(one["name"])
    if problems:
        listed = "; ".join(f"{name} for: {','.join(who)}" for name, who in problems.items())
        _refuse("pods", body, f"failed quota: {quota}: must specify {listed}")


def _list(values: Amounts, names: list[str]) -> str:
    return ",".join(f"{name}={told(values[name])}" for name in names)
