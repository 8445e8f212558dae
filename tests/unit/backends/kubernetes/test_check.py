"""What check() tells: login, rights, and what the cluster lacks for the nodes it has."""
# ruff: noqa: PLR0917  # a fixture asked for is an argument

import json
import re
from pathlib import Path

import pytest
import yaml
from tlsstub import encoded, in_an_hour, jwt, printed

from gpufabric.backends.kubernetes._equipment import PAGES, equipment, namespace_item
from gpufabric.backends.kubernetes._objects import _PLURALS, path_of
from gpufabric.backends.kubernetes._role import (
    CLUSTER,
    NAMED,
    NEEDED,
    SERVING,
    WISHED,
    role_text,
)
from gpufabric.backends.kubernetes.check import TESTED, check_cluster
from gpufabric.errors import TransientError

ROOT = Path(__file__).parents[4]
COMPLETE = [
    "eks-p5", "eks-p5en", "eks-p6e-gb200", "hyperpod-p5", "gke-a3-mega", "gke-a3-high", "gke-a4",
    "aks-nd-h100", "aks-nd-h100-shared", "oke-h100", "oke-h100-vf", "coreweave-h100",
    "coreweave-gb200", "nebius-h100", "crusoe-h100",
]  # fmt: skip
ORDINARY = ("cpu", "memory", "pods", "ephemeral-storage", "nvidia.com/gpu")


def without_nics(node):
    """The same node where nothing gives its NICs to pods."""
    has = node["status"]["allocatable"]
    kept = {
        name: value
        for name, value in has.items()
        if name in ORDINARY or name.startswith("hugepages-")
    }
    return {**node, "status": {**node["status"], "allocatable": kept}}


@pytest.fixture
def told(site_of, catalog):
    def tell(*nodes, **facts):
        items = equipment(site_of(*nodes, **facts), catalog)
        return {item.name: item for item in items}

    return tell


@pytest.fixture
def of_nodes(told):
    def tell(*nodes):
        items = told(*nodes).items()
        (found,) = [item for name, item in items if name.startswith("nodes ")]
        return found

    return tell


# ---- what nodes lack


@pytest.mark.parametrize("profile", COMPLETE)
def test_nodes_that_lack_nothing_are_told_with_the_way_to_their_nics(of_nodes, dressed, profile):
    item = of_nodes(dressed(profile))
    assert (item.ok, item.warn) == (True, False)
    assert "NICs by" in item.message


@pytest.mark.parametrize(
    ("profile", "words", "page"),
    [
        ("eks-p5", "0 vpc.amazonaws.com/efa, pods need 32", "kubernetes-eks"),
        ("eks-p5", "Needed there: aws-efa-k8s-device-plugin", "kubernetes-eks"),
        ("hyperpod-p5", "dependencies-aws-efa-k8s-device-plugin", "kubernetes-hyperpod"),
        ("gke-a3-mega", "nodes are not in the network 'vpc1'", "kubernetes-gke"),
        ("gke-a4", "Needed there: nccl-rdma-installer; GKE 1.32", "kubernetes-gke"),
        ("aks-nd-h100", "Needed there: NVIDIA Network Operator", "kubernetes-aks"),
        ("coreweave-h100", "0 rdma/ib, pods need 1", "kubernetes-coreweave"),
        ("crusoe-h100", "0 nvidia.com/hostdev, pods need 8", "kubernetes-crusoe"),
    ],
)
def test_nodes_without_their_nics_are_told_with_what_gives_them(
    of_nodes, dressed, profile, words, page
):
    item = of_nodes(without_nics(dressed(profile)))
    assert (item.ok, item.warn) == (True, True)
    assert words in item.message
    assert item.message.endswith(f"(how-to: {page})")


def test_what_only_other_kinds_of_jobs_need_is_not_called_needed(of_nodes, dressed):
    assert "MPI Operator" not in of_nodes(without_nics(dressed("aks-nd-h100"))).message
    assert "optmem" not in of_nodes(without_nics(dressed("gke-a3-high"))).message


def test_nebius_nodes_outside_of_a_gpu_cluster_are_told(of_nodes, dressed):
    item = of_nodes(dressed("nebius-h100-no-cluster"))
    assert item.warn
    assert "topology.nebius.com/gpu-cluster-id" in item.message


def test_gpu_nodes_whose_device_plugin_is_missing_are_told(of_nodes, dressed):
    node = without_nics(dressed("eks-p5"))
    del node["status"]["allocatable"]["nvidia.com/gpu"]
    item = of_nodes(node)
    assert item.warn
    assert "8 x H100, and the nodes offer no nvidia.com/gpu" in item.message


def test_nodes_of_a_type_that_no_catalog_has_are_told(of_nodes, dressed):
    item = of_nodes(dressed("gpu-operator-h100-ib"))
    assert item.warn
    assert "Only `standard` is offered" in item.message
    assert "rdma/rdma_shared_device_a" in item.message


def test_nodes_that_are_not_ready_are_told_by_name(of_nodes, dressed):
    node = dressed("eks-p5", "node-7")
    node["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    item = of_nodes(node)
    assert item.warn
    assert "none of its nodes is usable now" in item.message
    assert "node-7" in item.message


def test_nodes_without_accelerators_are_not_mentioned(told, dressed):
    assert not [name for name in told(dressed("bare")) if name.startswith("nodes ")]


def test_what_is_lost_without_controllers_is_told(told, dressed):
    node = dressed("bare")
    assert "max_restarts is refused" in told(node, controllers=())["JobSet"].message
    assert "rolled back, not queued" in told(node, controllers=())["Kueue"].message
    assert "has no LocalQueue" in told(node, controllers=("kueue",))["Kueue"].message
    queued = told(node, controllers=("kueue",), queues=("team",))["Kueue"].message
    assert queued.endswith("LocalQueues: team")


@pytest.mark.parametrize(
    ("level", "words"),
    [
        (None, "no level of its own"),
        ("privileged", "nothing is kept out"),
        ("baseline", "are not offered"),
        ("restricted", "run as user 1000"),
    ],
)
def test_what_pod_security_means_here_is_told(told, dressed, level, words):
    assert words in told(dressed("bare"), pod_security=level)["Pod Security"].message


def test_a_namespace_that_is_not_there_or_goes_away_is_told():
    assert "kubectl create namespace ml" in namespace_item(None, "ml").message
    going = {"status": {"phase": "Terminating"}}
    assert "being removed" in namespace_item(going, "ml").message
    assert namespace_item({"status": {"phase": "Active"}}, "ml") is None


def test_every_kubernetes_platform_of_the_catalog_has_its_page(catalog):
    platforms = {
        name for cloud in catalog for name, row in cloud.platforms.items()
        if row.kind == "kubernetes"
    }  # fmt: skip
    assert platforms == set(PAGES)
    missing = [p for p in PAGES.values() if not (ROOT / "docs" / "how-to" / f"{p}.md").exists()]
    assert missing == []


def test_the_version_that_is_called_tested_is_that_of_the_test_cluster():
    text = "".join(p.read_text() for p in (ROOT / "tests/cluster/gfcluster").glob("*.py"))
    assert f'"v{TESTED}.' in text


# ---- the whole report, against a server


def rules_of(*rows, names=()):
    return [
        {"apiGroups": [group], "resources": [resource], "verbs": list(verbs),
         "resourceNames": list(names)}
        for group, resource, verbs in rows
    ]  # fmt: skip


class Server:
    """Says what rights there are, in one review or one by one."""

    def __init__(self, rules, *, incomplete=False, allowed=frozenset(), missing=()):
        self.rules, self.incomplete, self.allowed = rules, incomplete, allowed
        self.missing = missing
        self.asked = []

    def __call__(self, request):  # noqa: PLR0911  # one return an API
        path = request["path"].partition("?")[0]
        if any(word in path for word in self.missing):
            return 404, {"message": f"{path} not found", "reason": "NotFound"}
        if path.endswith("selfsubjectrulesreviews"):
            return 201, {"status": {"resourceRules": self.rules, "incomplete": self.incomplete}}
        if path.endswith("selfsubjectaccessreviews"):
            asked = json.loads(request["body"])["spec"]["resourceAttributes"]
            name = asked["resource"] + (
                "/" + asked["subresource"] if "subresource" in asked else ""
            )
            self.asked.append((asked.get("namespace"), name, asked["verb"]))
            return 201, {"status": {"allowed": (name, asked["verb"]) in self.allowed}}
        if path == "/version":
            return 200, {"gitVersion": "v1.36.3"}
        if path == "/apis":
            groups = {right[0] for right in (*NEEDED, *WISHED, *CLUSTER)} - {""}
            versions = {n: [{"groupVersion": f"{n}/v1", "version": "v1"}] for n in groups}
            return 200, {
                "groups": [
                    {"name": n, "preferredVersion": v[0], "versions": v}
                    for n, v in versions.items()
                ]
            }
        if path.startswith("/apis/") and path.count("/") == 3:
            group = path.split("/")[2]
            names = {right[1] for right in (*NEEDED, *WISHED, *CLUSTER) if right[0] == group}
            return 200, {"resources": [{"name": name} for name in sorted(names - {*self.missing})]}
        return 200, {"metadata": {}, "items": []}


@pytest.fixture
def report(stub, kubeconfig, open_api, site_of, dressed, catalog):
    def make(server, user=None, *, look=None, now=0.0, **cluster):
        stub.respond = server
        api = open_api(kubeconfig(stub, user or {"token": "abc"}, **cluster))
        return check_cluster(
            api, "kubernetes", lambda: ("prod", "ml"), look or (lambda: site_of(dressed("eks-p5"))),
            catalog, clock=lambda: now,
        )  # fmt: skip

    return make


EVERY_CLUSTER_RIGHT = frozenset(
    (resource, verb) for _, resource, verbs in CLUSTER for verb in verbs
)


def test_enough_rights_are_told_after_one_review_of_the_namespace(report, stub):
    server = Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT)
    made = report(server)
    assert made.ok, str(made)
    assert "permissions: enough in ml" in str(made)
    assert not [i for i in made.items if i.warn]
    reviews = [r for r in stub.seen if r["path"].endswith("selfsubjectrulesreviews")]
    assert len(reviews) == 1
    assert {space for space, _, _ in server.asked} == {None}


@pytest.mark.parametrize(
    "rules",
    [
        [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
        [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"], "resourceNames": ["x"]},
            *rules_of(*[row for row in (*NEEDED, *WISHED) if "/" not in row[1]]),
            {"apiGroups": [""], "resources": ["*/log", "*/exec", "*/portforward"], "verbs": ["*"]},
        ],
    ],
)
def test_wildcards_are_rights(report, rules):
    assert report(Server(rules, allowed=EVERY_CLUSTER_RIGHT)).ok


def test_a_right_to_some_names_alone_is_none(report):
    made = report(Server(rules_of(*NEEDED, *WISHED, names=["x"]), allowed=EVERY_CLUSTER_RIGHT))
    assert not made.ok


@pytest.mark.parametrize("right", NEEDED, ids=lambda right: right[1])
def test_each_missing_verb_that_is_needed_is_named_with_its_object(report, right):
    group, resource, verbs = right
    rows = [row for row in (*NEEDED, *WISHED) if row[1] != resource]
    made = report(Server(rules_of(*rows), allowed=EVERY_CLUSTER_RIGHT))
    label = f"{resource}.{group}" if group else resource
    (item,) = [i for i in made.items if not i.ok]
    assert item.message.startswith(f"may not {', '.join(verbs)}")
    assert f" {label} in ml" in item.message
    assert "python -m gpufabric kubernetes-role --namespace ml" in item.message


@pytest.mark.parametrize("right", WISHED, ids=lambda right: right[1])
def test_a_missing_right_that_is_wished_for_is_told_with_what_is_lost(report, right):
    group, resource, verbs = right
    others = [row for row in WISHED if row != right]
    made = report(Server(rules_of(*NEEDED, *others), allowed=EVERY_CLUSTER_RIGHT))
    label = f"{resource}.{group}" if group else resource
    (item,) = [i for i in made.items if i.warn]
    assert item.message.startswith(f"may not {', '.join(verbs)} {label} in ml: ")
    assert "less is known" not in item.message  # each has words of its own
    assert made.ok


@pytest.mark.parametrize("right", CLUSTER, ids=lambda right: right[1])
def test_a_missing_right_in_the_cluster_is_told_and_the_rest_works(report, right):
    group, resource, verbs = right
    allowed = EVERY_CLUSTER_RIGHT - {(resource, verb) for verb in verbs}
    made = report(Server(rules_of(*NEEDED, *WISHED), allowed=allowed))
    (item,) = [i for i in made.items if i.warn]
    label = f"{resource}.{group}" if group else resource
    assert item.message.startswith(f"may not {', '.join(verbs)} {label} in the cluster: ")
    assert made.ok


def test_rights_that_a_server_cannot_list_are_asked_for_one_by_one(report):
    rows = [row for row in (*NEEDED, *WISHED) if row[1] != "secrets"]
    allowed = EVERY_CLUSTER_RIGHT | {("secrets", "create"), ("secrets", "list")}
    server = Server(rules_of(*rows), incomplete=True, allowed=allowed)
    made = report(server)
    (item,) = [i for i in made.items if not i.ok]
    assert item.message.startswith("may not delete, get, patch secrets in ml")
    assert {name for space, name, _ in server.asked if space == "ml"} == {"secrets"}


def test_a_server_without_rules_reviews_is_asked_right_by_right(report):
    allowed = {(r, v) for _, r, verbs in (*NEEDED, *WISHED, *CLUSTER) for v in verbs}
    server = Server([], allowed=frozenset(allowed), missing=("selfsubjectrulesreviews",))
    assert report(server).ok


def test_a_right_to_what_the_server_does_not_have_is_not_missed(report):
    rows = [row for row in (*NEEDED, *WISHED) if row[1] not in {"podgroups", "jobsets"}]
    server = Server(rules_of(*rows), allowed=EVERY_CLUSTER_RIGHT, missing=("podgroups", "jobsets"))
    made = report(server)
    assert made.ok
    assert not [item for item in made.items if item.warn]


def test_a_namespace_that_does_not_exist_fails_the_check(report):
    server = Server(
        rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT, missing=("/namespaces/ml",)
    )
    made = report(server)
    assert not made.ok
    assert "FAIL namespace: there is no namespace ml" in str(made)


def test_a_failing_look_at_the_nodes_is_told_and_not_raised(report):
    def look():
        raise TransientError("the list broke off", backend="kubernetes", operation="GET /nodes")

    made = report(Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT), look=look)
    assert not made.ok
    assert "FAIL nodes: kubernetes GET /nodes: the list broke off" in str(made)


# ---- the login


def login(made):
    return next(item for item in made.items if item.name == "login")


def test_who_asks_and_until_when_is_told(report, plugin):
    server = Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT)
    assert login(report(server)).message.startswith("the token of user 'u'")
    ending = login(report(server, {"token": jwt(1000)}, now=0.0))
    assert ending.warn
    assert "it ends at 1970-01-01 00:16 UTC, and nothing renews it" in ending.message
    far = login(report(server, {"token": jwt(10**9)}, now=0.0))
    assert not far.warn
    renewed = plugin(printed(token="abc", expirationTimestamp=in_an_hour()))
    assert login(report(server, renewed)).message.endswith("is renewed by then")


def test_a_token_that_has_ended_fails_the_check(report):
    server = Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT)
    ended = login(report(server, {"token": jwt(1000)}, now=2000.0))
    assert not ended.ok
    assert "it ended at 1970-01-01 00:16 UTC" in ended.message


def test_a_client_certificate_that_has_ended_fails_the_check(report, certificates):
    user = {
        "client-certificate-data": encoded(certificates.text("past-client.crt")),
        "client-key-data": encoded(certificates.text("past-client.key")),
    }
    server = Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT)
    made = login(report(server, user, now=1_900_000_000.0))
    assert not made.ok
    assert "it ended at 2021-01-01 00:00 UTC" in made.message


def test_a_failing_plugin_is_the_reports_last_word(report, plugin):
    made = report(Server([]), plugin("echo 'run: sso login' >&2; exit 1"))
    assert [(item.name, item.ok) for item in made.items] == [("context", True), ("login", False)]
    assert "run: sso login" in login(made).message


@pytest.mark.filterwarnings("ignore:Unverified HTTPS request")
def test_a_server_that_is_not_verified_is_told(report):
    server = Server(rules_of(*NEEDED, *WISHED), allowed=EVERY_CLUSTER_RIGHT)
    made = report(server, **{"certificate-authority-data": None, "insecure-skip-tls-verify": True})
    (item,) = [i for i in made.items if i.name == "TLS"]
    assert item.warn
    assert "insecure-skip-tls-verify" in item.message


def test_the_report_reads_line_by_line(report):
    server = Server(rules_of(*NEEDED), allowed=EVERY_CLUSTER_RIGHT)
    lines = str(report(server)).splitlines()
    assert lines[0] == "kubernetes: usable"
    assert all(re.match(r"  (ok  |warn|FAIL) \S.*: \S", line) for line in lines[1:])


# ---- the Role


def golden_kinds():
    """API group and plural of every object that the golden plans make."""
    for file in sorted((ROOT / "tests/data/plans").glob("kubernetes-*.yaml")):
        for step in yaml.safe_load(file.read_text())["steps"]:
            verb, kind, _ = step["step"].split(" ", 2)
            if verb in {"create", "share", "serve"}:
                version = step["body"]["apiVersion"]
                yield version.rpartition("/")[0], path_of(version, kind, "ml").split("/")[-1]


def test_the_role_lets_every_object_of_the_golden_plans_be_made_and_removed():
    given = {(g, r, verb) for g, r, verbs in (*NEEDED, *WISHED, *SERVING) for verb in verbs}
    made = set(golden_kinds())
    assert made >= {("jobset.x-k8s.io", "jobsets"), ("resource.nvidia.com", "computedomains")}
    wanted = {(g, r, v) for g, r in made for v in ("create", "delete", "list")}
    assert wanted - given == set()


def test_the_role_names_every_kind_that_the_backend_has_a_path_for():
    assert set(_PLURALS.values()) <= {right[1] for right in (*NEEDED, *WISHED)}


def test_the_printed_role_is_the_rights_and_nothing_else():
    role, cluster = yaml.safe_load_all(role_text("ml", cluster=True))
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", "ml")

    def told(rules):
        return [
            (r["apiGroups"][0], r["resources"][0], *r.get("resourceNames", ()), tuple(r["verbs"]))
            for r in rules
        ]

    assert told(role["rules"]) == [*NEEDED, *WISHED]
    assert told(cluster["rules"]) == [*CLUSTER, *NAMED]
    assert cluster["kind"] == "ClusterRole"
    every = f"{role}{cluster}"
    assert "'*'" not in every
