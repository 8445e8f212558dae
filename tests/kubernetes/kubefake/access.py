"""Who asks, and whether Roles let them: the RBAC authorizer."""

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import Json
from .store import Store

MASTERS = "system:masters"
_AUTHENTICATED = "system:authenticated"
_GROUP = "rbac.authorization.k8s.io"
_OPEN = ("/api", "/apis", "/version", "/healthz", "/readyz", "/livez", "/openapi")


@dataclass(frozen=True, kw_only=True)
class User:
    """Who sent a request."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def master(self) -> bool:
        """Whether no rule is asked."""
        return MASTERS in self.groups


SYSTEM = User(name="system:apiserver", groups=(MASTERS,))
ANONYMOUS = User(name="system:anonymous", groups=("system:unauthenticated",))


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What someone wants to do."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""  # of what is no resource

    @property
    def full(self) -> str:
        """As rules name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


def allowed(store: Store, user: User, ask: Ask) -> bool:
    """Whether a rule lets the user do it."""
    if user.master:
        return True
    if ask.path:
        known = ask.path.startswith(_OPEN)
        return known and ask.verb == "get" and user is not ANONYMOUS
    if user is not ANONYMOUS and ask.group == "authorization.k8s.io" and ask.verb == "create":
        return ask.resource in {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
    return any(_permits(rule, ask) for rule in rules(store, user, ask.namespace))


def refusal(user: User, ask: Ask) -> str:
    """The words of a 403: k8s.io/apiserver/pkg/endpoints/handlers/responsewriters/errors.go."""
    if ask.path:
        return f'forbidden: User "{user.name}" cannot {ask.verb} path "{ask.path}"'
    what = f"{ask.resource}.{ask.group}" if ask.group else ask.resource
    head = f'{what} "{ask.name}" is forbidden' if ask.name else f"{what} is forbidden"
    where = f'in the namespace "{ask.namespace}"' if ask.namespace else "at the cluster scope"
    return (
        f'{head}: User "{user.name}" cannot {ask.verb} resource "{ask.full}" in API group'
        f' "{ask.group}" {where}'
    )


def rules(store: Store, user: User, namespace: str) -> Iterator[Json]:
    """Every rule that binds the user in a namespace, or in the whole cluster."""
    for entry in store.all(f"clusterrolebindings.{_GROUP}"):
        if _binds(entry.obj, user):
            yield from _role(store, entry.obj["roleRef"], "")
    if not namespace:
        return
    for entry in store.all(f"rolebindings.{_GROUP}", namespace):
        if _binds(entry.obj, user):
            yield from _role(store, entry.obj["roleRef"], namespace)


def _binds(binding: Json, user: User) -> bool:
    for subject in binding.get("subjects") or ():
        if subject["kind"] == "User" and subject["name"] == user.name:
            return True
        if subject["kind"] == "Group" and subject["name"] in (*user.groups, _AUTHENTICATED):
            return True
        account = f"system:serviceaccount:{subject.get('namespace')}:{subject['name']}"
        if subject["kind"] == "ServiceAccount" and user.name == account:
            return True
    return False


def _role(store: Store, ref: Json, namespace: str) -> Iterator[Json]:
    table = "roles" if ref["kind"] == "Role" else "clusterroles"
    space = namespace if ref["kind"] == "Role" else ""
    found = store.find(f"{table}.{_GROUP}", space, ref["name"])
    if found is not None:
        yield from found.obj.get("rules") or ()


def _permits(rule: Json, ask: Ask) -> bool:
    def has(field: str, *words: str) -> bool:
        given = rule.get(field) or ()
        return any(word in given for word in (*words, "*"))

    wild = (f"*/{ask.subresource}",) if ask.subresource else ()
    if not (has("verbs", ask.verb) and has("apiGroups", ask.group)):
        return False
    if not has("resources", ask.full, *wild):
        return False
    names = rule.get("resourceNames")
    return not names or ask.name in names


def review(store: Store, user: User, body: Json) -> Json:
    """The answer to a SelfSubjectAccessReview."""
    asked = (body.get("spec") or {}).get("resourceAttributes")
    path = (body.get("spec") or {}).get("nonResourceAttributes")
    if asked is not None:
        ask = Ask(
            verb=asked.get("verb", ""), group=asked.get("group", ""),
            resource=asked.get("resource", ""), subresource=asked.get("subresource", ""),
            namespace=asked.get("namespace", ""), name=asked.get("name", ""),
        )  # fmt: skip
    else:
        ask = Ask(verb=(path or {}).get("verb", ""), path=(path or {}).get("path", "/"))
    status: Json = {"allowed": allowed(store, user, ask)}
    if status["allowed"]:
        status["reason"] = "RBAC: allowed by a rule"
    return {**body, "metadata": {}, "status": status}


def rules_review(store: Store, user: User, body: Json) -> Json:
    """The answer to a SelfSubjectRulesReview."""
    namespace = (body.get("spec") or {}).get("namespace", "")
    found = list(rules(store, user, namespace))
    if user.master:
        found.append({"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]})
    status = {"resourceRules": found, "nonResourceRules": [], "incomplete": False}
    return {**body, "metadata": {}, "status": status}
