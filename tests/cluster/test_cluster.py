"""The test cluster itself: what the tests of the Kubernetes backend stand on."""

import json
import subprocess

import pytest
from gfcluster import build, control, dress, layout, lifecycle, machine
from gfcluster.api import Api, ApiError
from gfcluster.shell import wait_until

pytestmark = pytest.mark.cluster

_TWO_NODES = {
    "maxSkew": 1,
    "topologyKey": "kubernetes.io/hostname",
    "whenUnsatisfiable": "DoNotSchedule",
}


def _container(cluster, *command, **more):
    return {"name": "main", "image": cluster.image, "command": list(command), **more}


def _pod(cluster, namespace, name, *command, spec=None, **more):
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [_container(cluster, *command, **more)],
            **(spec or {}),
        },
    }


def _pods(api, namespace):
    return api.call("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]


def _phase(api, namespace, name):
    return (api.get(f"/api/v1/namespaces/{namespace}/pods/{name}") or {})["status"]["phase"]


def _wait_phase(api, namespace, name, *phases, timeout_s=40):
    wait_until(
        f"pod {name} is {' or '.join(phases)}",
        lambda: _phase(api, namespace, name) in phases,
        timeout_s=timeout_s,
        diagnose=lambda: json.dumps(
            api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")["status"]
        ),
    )


def _log(api, namespace, pod):
    return api.text("GET", f"/api/v1/namespaces/{namespace}/pods/{pod}/log")


def _jobset(cluster, namespace, name, *command, pods=2, labels=None, **more):
    template = {
        "metadata": {"labels": {"gang": name}},
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "topologySpreadConstraints": [
                {**_TWO_NODES, "labelSelector": {"matchLabels": {"gang": name}}}
            ],
            "containers": [_container(cluster, *command, **more)],
        },
    }
    job = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": template,
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}},
        "spec": {"replicatedJobs": [{"name": "node", "template": {"spec": job}}]},
    }


def test_a_jobset_of_two_runs_on_two_nodes_and_finds_itself_by_name(own_cluster, namespace):
    api = own_cluster.api
    script = (
        "import socket, time\n"
        "server = socket.create_server(('', 5000))\n"
        "for other in range(2):\n"
        "    name = f'gang-node-0-{other}.gang'\n"
        "    for _ in range(300):\n"
        "        try:\n"
        "            socket.create_connection((name, 5000), timeout=1).close()\n"
        "            print('reached', name, flush=True)\n"
        "            break\n"
        "        except OSError:\n"
        "            time.sleep(0.1)\n"
        "time.sleep(600)\n"
    )
    api.create(_jobset(own_cluster, namespace, "gang", "python3", "-c", script))

    def both_said():
        logs = [
            _log(api, namespace, pod["metadata"]["name"])
            for pod in _pods(api, namespace)
            if pod["status"]["phase"] == "Running"
        ]
        return len(logs) == 2 and all(log.count("reached") == 2 for log in logs)

    wait_until("both pods reached both", both_said, timeout_s=60)
    pods = _pods(api, namespace)
    assert {pod["spec"]["nodeName"] for pod in pods} == {"node-1", "node-2"}
    for pod in pods:
        name = pod["metadata"]["name"]
        said = own_cluster.kubectl("exec", "-n", namespace, name, "--", "hostname")
        assert said.startswith("gang-node-0-")


def test_a_pod_reaches_the_api_server_as_its_service_account(own_cluster, namespace):
    script = (
        "import json, ssl, urllib.request\n"
        "place = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
        "context = ssl.create_default_context(cafile=place + 'ca.crt')\n"
        "url = 'https://kubernetes.default.svc/apis/authentication.k8s.io/v1/selfsubjectreviews'\n"
        "body = {'apiVersion': 'authentication.k8s.io/v1', 'kind': 'SelfSubjectReview'}\n"
        "request = urllib.request.Request(url, data=json.dumps(body).encode(), headers={\n"
        "    'Authorization': 'Bearer ' + open(place + 'token').read(),\n"
        "    'Content-Type': 'application/json'})\n"
        "answer = json.load(urllib.request.urlopen(request, context=context))\n"
        "print(answer['status']['userInfo']['username'])\n"
    )
    api = own_cluster.api
    api.create(_pod(own_cluster, namespace, "asks", "python3", "-c", script))
    _wait_phase(api, namespace, "asks", "Succeeded")
    assert _log(api, namespace, "asks") == f"system:serviceaccount:{namespace}:default\n"


def _queue(api, namespace, gpus):
    flavor = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": namespace},
    }
    amounts = {"nvidia.com/gpu": gpus, "cpu": "1000", "memory": "1000Gi"}
    quota = [{"name": name, "nominalQuota": amount} for name, amount in amounts.items()]
    cluster_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ClusterQueue",
        "metadata": {"name": namespace},
        "spec": {
            "namespaceSelector": {},
            "resourceGroups": [
                {
                    "coveredResources": list(amounts),
                    "flavors": [{"name": namespace, "resources": quota}],
                }
            ],
        },
    }
    local_queue = {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "LocalQueue",
        "metadata": {"name": "queue", "namespace": namespace},
        "spec": {"clusterQueue": namespace},
    }
    for item in (flavor, cluster_queue, local_queue):
        api.create(item)
    return [cluster_queue, flavor]


def test_kueue_admits_what_its_quota_has_room_for_and_suspends_the_rest(own_cluster, namespace):
    own_cluster.dress("gpu-operator-h100")
    api = own_cluster.api
    global_objects = _queue(api, namespace, "16")
    labels = {"kueue.x-k8s.io/queue-name": "queue"}
    resources = {"limits": {"nvidia.com/gpu": "8"}}

    def gang(name):
        return _jobset(own_cluster, namespace, name, "sleep", "600", labels=labels,
                       resources=resources)  # fmt: skip

    first, second = gang("first"), gang("second")
    api.create(first)
    wait_until(
        "the first gang runs",
        lambda: [p["status"]["phase"] for p in _pods(api, namespace)] == ["Running"] * 2,
        timeout_s=60,
    )
    api.create(second)
    workloads = f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{namespace}/workloads"

    def waits():
        for item in api.call("GET", workloads)["items"]:
            if "second" in item["metadata"]["name"]:
                return [
                    c["message"]
                    for c in item.get("status", {}).get("conditions", [])
                    if c["type"] == "QuotaReserved" and c["status"] == "False"
                ]
        return []

    assert "insufficient unused quota for nvidia.com/gpu" in wait_until(
        "Kueue says why the second waits", waits, timeout_s=30
    )[0]  # fmt: skip
    assert api.get(api.object_path(second))["spec"]["suspend"] is True
    assert len(_pods(api, namespace)) == 2
    api.delete(first)
    wait_until(
        "the second gang runs in its place",
        lambda: (
            [(p["metadata"]["labels"]["gang"], p["status"]["phase"]) for p in _pods(api, namespace)]
            == [("second", "Running")] * 2
        ),
        timeout_s=60,
    )
    api.delete(second)
    for item in global_objects:
        api.delete(item)


def _pod_group(api, namespace, count):
    version = "scheduling.k8s.io/v1alpha2"
    return {
        "apiVersion": version,
        "kind": "PodGroup",
        "metadata": {"name": "gang", "namespace": namespace},
        "spec": {"schedulingPolicy": {"gang": {"minCount": count}}},
    }


def test_the_scheduler_places_a_gang_whole_or_not_at_all(own_cluster, namespace):
    own_cluster.dress("gpu-operator-h100")
    api = own_cluster.api
    group = _pod_group(api, namespace, 3)
    api.create(group)

    def member(name):
        return _pod(
            own_cluster, namespace, name, "sleep", "600",
            resources={"limits": {"nvidia.com/gpu": "8"}},
            spec={"schedulingGroup": {"podGroupName": "gang"}},
        )  # fmt: skip

    for number in range(3):
        api.create(member(f"three-{number}"))

    def refused():
        conditions = (api.get(api.object_path(group)).get("status") or {}).get("conditions") or []
        return [
            c for c in conditions if c["type"] == "PodGroupScheduled" and c["status"] == "False"
        ]

    assert wait_until("the gang is refused", refused, timeout_s=60)[0]["reason"] == "Unschedulable"
    assert [pod["spec"].get("nodeName") for pod in _pods(api, namespace)] == [None] * 3

    for pod in _pods(api, namespace):
        api.delete({"apiVersion": "v1", "kind": "Pod", "metadata": pod["metadata"]})
    api.delete(group)
    api.wait_gone(api.object_path(group))
    api.create(_pod_group(api, namespace, 2))
    for number in range(2):
        api.create(member(f"two-{number}"))
    for number in range(2):
        _wait_phase(api, namespace, f"two-{number}", "Running")


def test_a_third_pod_of_eight_gpus_waits_and_the_scheduler_says_for_what(own_cluster, namespace):
    own_cluster.dress("eks-p5")
    api = own_cluster.api
    limits = {
        "nvidia.com/gpu": "8",
        "vpc.amazonaws.com/efa": "32",
        "hugepages-2Mi": "5120Mi",
        "memory": "1000Gi",
        "cpu": "96",
    }
    tolerate = {"tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    for number in range(3):
        api.create(
            _pod(own_cluster, namespace, f"pod-{number}", "sleep", "600",
                 resources={"limits": limits}, spec=tolerate)
        )  # fmt: skip

    def phases():
        return sorted(pod["status"]["phase"] for pod in _pods(api, namespace))

    wait_until("two run", lambda: phases() == ["Pending", "Running", "Running"], timeout_s=60)
    [waiting] = [pod for pod in _pods(api, namespace) if pod["status"]["phase"] == "Pending"]
    [condition] = waiting["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert "2 Insufficient nvidia.com/gpu" in condition["message"]
    assert "2 Insufficient vpc.amazonaws.com/efa" in condition["message"]


def test_a_claim_of_network_cards_is_allocated_from_the_node_that_has_them(own_cluster, namespace):
    own_cluster.dress("dra-nics", "node-2")
    api = own_cluster.api
    request = {"deviceClassName": "rdma.dra.net", "allocationMode": "ExactCount", "count": 8}
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "nics", "namespace": namespace},
        "spec": {"devices": {"requests": [{"name": "nics", "exactly": request}]}},
    }
    api.create(claim)
    api.create(
        _pod(own_cluster, namespace, "claims", "sleep", "600",
             resources={"claims": [{"name": "nics"}]},
             spec={"resourceClaims": [{"name": "nics", "resourceClaimName": "nics"}]})
    )  # fmt: skip

    def allocated():
        status = api.get(api.object_path(claim)).get("status") or {}
        return status.get("allocation", {}).get("devices", {}).get("results")

    results = wait_until("the claim is allocated", allocated, timeout_s=40)
    assert {(row["driver"], row["pool"]) for row in results} == {("dra.net", "node-2")}
    assert sorted(row["device"] for row in results) == [f"nic{number}" for number in range(8)]
    pod = api.get(f"/api/v1/namespaces/{namespace}/pods/claims")
    assert pod["spec"]["nodeName"] == "node-2"


def test_leader_and_worker_of_a_set_run_and_know_their_leader(own_cluster, namespace):
    api = own_cluster.api
    script = "echo leader $LWS_LEADER_ADDRESS; sleep 600"
    template = {
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [_container(own_cluster, "bash", "-c", script)],
        }
    }
    api.create(
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "serve", "namespace": namespace},
            "spec": {
                "replicas": 1,
                "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
            },
        }
    )
    for name in ("serve-0", "serve-0-1"):
        wait_until(
            f"{name} is there",
            lambda name=name: api.get(f"/api/v1/namespaces/{namespace}/pods/{name}"),
            timeout_s=40,
        )
        _wait_phase(api, namespace, name, "Running")
    said = wait_until("it speaks", lambda: _log(api, namespace, "serve-0-1"), timeout_s=20)
    assert said == f"leader serve-0.serve.{namespace}\n"


def test_a_port_of_a_pod_can_be_forwarded_to_this_machine(own_cluster, namespace):
    api = own_cluster.api
    probe = {"httpGet": {"port": 8000}, "periodSeconds": 1}
    item = _pod(own_cluster, namespace, "web", "python3", "-m", "http.server", "8000",
                readinessProbe=probe)  # fmt: skip
    api.create(item)
    api.wait_true(api.object_path(item), "Ready", timeout_s=40)
    forward = [build.program("kubectl"), f"--kubeconfig={own_cluster.kubeconfig}", "-n", namespace]
    with subprocess.Popen(
        [*forward, "port-forward", "pod/web", ":8000"], stdout=subprocess.PIPE, text=True
    ) as process:
        line = process.stdout.readline()
        url = f"http://{line.split()[2]}/"
        wait_until("the pod's server answers", lambda: control.responds(url), timeout_s=20)
        process.terminate()


@pytest.mark.parametrize("profile", sorted(dress.profiles()))
def test_a_node_wears_a_profile_and_takes_it_off(own_cluster, profile):
    api = own_cluster.api

    def look():
        item = api.get("/api/v1/nodes/node-1")
        status = item["status"]
        return {
            "labels": item["metadata"]["labels"],
            "annotations": item["metadata"]["annotations"],
            "taints": item["spec"].get("taints", []),
            "capacity": {k: v for k, v in status["capacity"].items() if "/" in k},
            "allocatable": {k: v for k, v in status["allocatable"].items() if "/" in k},
            "provider": item["spec"].get("providerID"),
        }

    before = look()
    own_cluster.dress(profile, "node-1")
    worn, wanted = look(), dress.profiles()[profile]
    assert worn["labels"].keys() - before["labels"].keys() <= wanted.get("labels", {}).keys()
    assert worn["labels"].keys() >= wanted.get("labels", {}).keys()
    assert worn["capacity"] == worn["allocatable"] == wanted.get("capacity", {})
    assert [taint["key"] for taint in worn["taints"]] == [
        taint["key"] for taint in wanted.get("taints", [])
    ]
    assert (worn["provider"] is None) == ("provider_id" not in wanted)
    assert not any("{" in text for text in worn["labels"].values())
    dress.undress_all(api, lifecycle.running_nodes())
    assert look() == before


def test_what_a_pod_writes_to_its_node_stays_off_this_machine(own_cluster, namespace, tmp_path):
    folder = f"/opt/{namespace}"
    api = own_cluster.api
    volumes = [{"name": "host", "hostPath": {"path": folder}}]
    api.create(
        _pod(own_cluster, namespace, "writes", "touch", "/host/file",
             volumeMounts=[{"name": "host", "mountPath": "/host"}],
             spec={"volumes": volumes, "nodeName": "node-1"})
    )  # fmt: skip
    _wait_phase(api, namespace, "writes", "Succeeded")
    assert machine.execute(layout.node("node-1"), "ls", folder) == "file\n"
    assert not (tmp_path.parents[-1] / folder.lstrip("/")).exists()


def test_a_pod_over_its_memory_limit_is_killed_for_it(own_cluster, namespace):
    api = own_cluster.api
    api.create(
        _pod(own_cluster, namespace, "greedy", "python3", "-c", "bytearray(200 << 20)",
             resources={"limits": {"memory": "64Mi"}})
    )  # fmt: skip
    _wait_phase(api, namespace, "greedy", "Failed")
    [state] = api.get(f"/api/v1/namespaces/{namespace}/pods/greedy")["status"]["containerStatuses"]
    assert state["state"]["terminated"]["reason"] == "OOMKilled"


def test_a_user_may_do_what_its_role_says_and_nothing_else(own_cluster, namespace, limited_user):
    kubeconfig = limited_user({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    api = Api(kubeconfig)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    wait_until("the role is in force", lambda: _may(api, pods), timeout_s=10)
    assert api.call("GET", pods)["items"] == []
    with pytest.raises(ApiError, match='cannot list resource "secrets"') as refused:
        api.call("GET", f"/api/v1/namespaces/{namespace}/secrets")
    assert refused.value.code == 403
    with pytest.raises(ApiError, match='cannot list resource "nodes"'):
        api.call("GET", "/api/v1/nodes")


def _may(api, path):
    try:
        api.call("GET", path)
    except ApiError:
        return False
    return True
