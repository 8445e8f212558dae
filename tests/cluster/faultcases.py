"""What the tests of faults share: proof that nothing is left, and states that are waited for."""

from gfcluster.shell import wait_until

# What the library makes itself must be gone when a call returns; controllers' own objects follow.
OURS = {
    "configmaps", "jobs", "jobsets", "persistentvolumeclaims", "pods", "resourceclaims",
    "resourceclaimtemplates", "secrets", "services",
}  # fmt: skip
# What a namespace has by itself, or a test has given it.
_OF_THE_PLACE = {
    "events", "leases", "limitranges", "localqueues", "networkpolicies", "poddisruptionbudgets",
    "resourcequotas", "rolebindings", "roles", "serviceaccounts",
}  # fmt: skip
_FOLLOW_S = 30.0
_kinds = {}  # by server: what it has cannot change while tests run


def impatient(make, kubeconfig, **fields):
    """A backend that gives up soon: a request after a second, a failing server after two."""
    backend = make(retry_s=2.0, kubeconfig=str(kubeconfig), **fields)
    backend._api._timeout_s = 1.0
    return backend


def _kinds_of(api):
    """Path and plural of every namespaced kind, by what the server itself says it has."""
    server = api._server
    if server not in _kinds:
        groups = api.call("GET", "/apis")["groups"]
        bases = {"/api/v1": ""} | {
            f"/apis/{version['groupVersion']}": group["name"]
            for group in groups
            for version in group["versions"]
        }
        found = {}
        for base, group in bases.items():
            for row in api.call("GET", base)["resources"]:
                listed = row["namespaced"] and "list" in row["verbs"] and "/" not in row["name"]
                if listed and row["name"] not in _OF_THE_PLACE:
                    found.setdefault((group, row["name"]), base)
        _kinds[server] = [(base, plural) for (_, plural), base in found.items()]
    return _kinds[server]


def objects_in(cluster, namespace):
    """All objects of a namespace as `plural/name`."""
    api = cluster.api
    found = {
        f"{plural}/{item['metadata']['name']}"
        for base, plural in _kinds_of(api)
        for item in api.call("GET", f"{base}/namespaces/{namespace}/{plural}")["items"]
    }
    return found - {"configmaps/kube-root-ca.crt"}


def assert_nothing_left(cluster, namespace):
    """None of our objects is there now, and of controllers' own (Workloads, ...) none stays."""
    ours = {one for one in objects_in(cluster, namespace) if one.partition("/")[0] in OURS}
    assert ours == set()
    wait_until(
        "the controllers' own objects are gone",
        lambda: not objects_in(cluster, namespace),
        timeout_s=_FOLLOW_S,
        diagnose=lambda: str(objects_in(cluster, namespace)),
    )


def until(backend, ref, *states, timeout_s=60.0):
    """The status of a job once it is in one of these states."""

    def there():
        status = backend.status(ref)
        return status if status.state in states else None

    return wait_until(
        f"{ref} is {' or '.join(states)}", there, timeout_s=timeout_s,
        diagnose=lambda: str(backend.status(ref)),
    )  # fmt: skip


def ended(backend, ref, timeout_s=60.0):
    """The status of a job once it has ended."""

    def there():
        status = backend.status(ref)
        return status if status.state.ended else None

    return wait_until(
        f"{ref} has ended", there, timeout_s=timeout_s,
        diagnose=lambda: str(backend.status(ref)),
    )  # fmt: skip


def pods_of(cluster, namespace):
    """The pods of the namespace by rank."""
    items = cluster.api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
    label = "batch.kubernetes.io/job-completion-index"
    return {int(item["metadata"]["labels"][label]): item for item in items}


def launch(kubeconfig, namespace, image, plan):
    """What a process of its own does that is to be killed."""
    from gpufabric.backends.kubernetes import Kubernetes
    from gpufabric.config import Settings

    settings = Settings(stop_grace_s=1.0, trust_env=False)
    Kubernetes(
        namespace=namespace, kubeconfig=kubeconfig, settings=settings, image=image
    ).apply(plan)  # fmt: skip
