"""Steps on which the fake and a real API server must agree: this keeps the fake honest.

Codes and reasons are equal; of messages, the part that the library or a person reads.
"""

import json
import urllib.error
import urllib.parse
import urllib.request

import pytest
from gfcluster.api import JSON_PATCH, MERGE
from gfcluster.shell import wait_until

STRATEGIC = "application/strategic-merge-patch+json"


class Asker:
    """Requests of one test: answers as they come, refusals too."""

    def __init__(self, cluster, namespace):
        self.cluster = cluster
        self.api = cluster.api
        self.space = f"/api/v1/namespaces/{namespace}"
        self.maps = f"{self.space}/configmaps"
        self.jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        self.jobsets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"

    def __call__(self, method, path, body=None, kind="application/json"):
        request = urllib.request.Request(  # noqa: S310  # the address is of a kubeconfig of ours
            self.api._server + path,
            data=None
            if body is None
            else body
            if isinstance(body, bytes)
            else json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": kind, "Accept": "application/json"},
        )
        try:
            with self.api._opener.open(request, timeout=30) as answer:
                return answer.status, _parsed(answer.read())
        except urllib.error.HTTPError as exc:
            with exc:
                return exc.code, _parsed(exc.read())

    def good(self, *words, **options):
        code, said = self(*words, **options)
        assert code < 300, said
        return said

    def refused(self, *words, **options):
        code, said = self(*words, **options)
        assert code >= 400, said
        return code, said.get("reason"), said.get("message", "")

    def lines(self, path):
        """The lines of a stream, as they come."""
        request = urllib.request.Request(self.api._server + path)  # noqa: S310  # the same
        with self.api._opener.open(request, timeout=20) as answer:
            for line in answer:
                yield line.rstrip(b"\n")

    def events(self, path):
        return (json.loads(line) for line in self.lines(path))


def _parsed(data):
    try:
        return json.loads(data)
    except ValueError:
        return {"text": data.decode()}


@pytest.fixture
def ask(cluster, namespace):
    return Asker(cluster, namespace)


def config(name="one", **fields):
    meta = {"name": name, **fields.pop("meta", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"a": "b"}, **fields}


def secret(name="one", **fields):
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, **fields}


def pod(cluster, command="sleep 60", name="one", **spec):
    container = {
        "name": "job", "image": cluster.image, "command": ["/bin/sh", "-c", command],
        **spec.pop("container", {}),
    }  # fmt: skip
    spec = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, **spec}
    return {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {**spec, "containers": [container]},
    }  # fmt: skip


def job(cluster, command="true", name="one", **spec):
    made = pod(cluster, command)
    return {
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"completions": 2, "parallelism": 2, "completionMode": "Indexed",
                 "backoffLimit": 0, **spec, "template": {"spec": made["spec"]}},
    }  # fmt: skip


def phase(ask, name="one", *wanted):
    def reached():
        status = ask.good("GET", f"{ask.space}/pods/{name}")["status"]
        return status if status["phase"] in wanted else None

    return wait_until(f"{name} is {wanted}", reached, timeout_s=40)


# ---- objects


def test_an_object_gets_its_identity(ask):
    made = ask.good("POST", ask.maps, config())
    meta = made["metadata"]
    assert {"uid", "resourceVersion", "creationTimestamp", "namespace"} <= set(meta)
    assert ask.good("GET", f"{ask.maps}/one")["metadata"]["uid"] == meta["uid"]
    code, reason, told = ask.refused("POST", ask.maps, config())
    assert (code, reason, told) == (409, "AlreadyExists", 'configmaps "one" already exists')


def test_what_is_not_there_is_not_found(ask):
    code, reason, told = ask.refused("GET", f"{ask.maps}/none")
    assert (code, reason, told) == (404, "NotFound", 'configmaps "none" not found')
    assert ask.refused("DELETE", f"{ask.maps}/none")[0] == 404
    assert ask.refused("PATCH", f"{ask.maps}/none", {"data": {}}, kind=MERGE)[0] == 404
    assert ask.refused("GET", "/apis/none.example/v1/things")[0] == 404
    code, reason, told = ask.refused("POST", "/api/v1/namespaces/no-such/configmaps", config())
    assert (code, reason, told) == (404, "NotFound", 'namespaces "no-such" not found')


@pytest.mark.parametrize(
    ("body", "code", "told"),
    [
        (b"{", 400, ""),
        ({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}}, 400, ""),
        (config("Upper"), 422, "RFC 1123 subdomain"),
        (config("a", meta={"labels": {"a": "b c"}}), 422, "valid label"),
        (config("a", meta={"namespace": "other"}), 400, "does not match the namespace"),
        (config("a", data={"a": 1}), 400, "cannot unmarshal number"),
        (config("a", data={"a/b": "1"}), 422, "valid config key"),
        ({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {}}, 422, "generateName"),
    ],
    ids=["no-json", "other-kind", "name", "label", "namespace", "type", "key", "none"],
)  # fmt: skip
def test_what_is_wrong_is_refused(ask, body, code, told):
    answer = ask.refused("POST", ask.maps, body)
    assert answer[0] == code, answer
    assert told in answer[2]


def test_unknown_fields_are_refused_where_asked_for(ask):
    wrong = config("a", dtaa={"a": "b"})
    code, reason, told = ask.refused("POST", f"{ask.maps}?fieldValidation=Strict", wrong)
    assert (code, reason) == (400, "BadRequest")
    assert 'unknown field "dtaa"' in told


def test_a_dry_run_changes_nothing(ask):
    ask.good("POST", f"{ask.maps}?dryRun=All", config())
    assert ask.refused("GET", f"{ask.maps}/one")[0] == 404
    ask.good("POST", ask.maps, config())
    ask.good("DELETE", f"{ask.maps}/one?dryRun=All")
    ask.good("GET", f"{ask.maps}/one")


def test_names_are_generated(ask):
    body = config()
    body["metadata"] = {"generateName": "gen-"}
    names = {ask.good("POST", ask.maps, body)["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3
    assert all(name.startswith("gen-") and len(name) == 9 for name in names)


def test_updates_are_of_the_version_that_was_read(ask):
    made = ask.good("POST", ask.maps, config())
    old = json.loads(json.dumps(made))
    made["data"]["a"] = "c"
    newer = ask.good("PUT", f"{ask.maps}/one", made)
    assert newer["metadata"]["resourceVersion"] != old["metadata"]["resourceVersion"]
    code, reason, told = ask.refused("PUT", f"{ask.maps}/one", old)
    assert (code, reason) == (409, "Conflict")
    assert "the object has been modified" in told
    stale = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "data": {}}
    assert ask.refused("PATCH", f"{ask.maps}/one", stale, kind=MERGE)[0] == 409
    other = {"metadata": {"uid": "00000000-0000-0000-0000-000000000000"}}
    assert ask.refused("PATCH", f"{ask.maps}/one", other, kind=MERGE)[0] in {409, 422}
    same = ask.good("PATCH", f"{ask.maps}/one", {"data": {"a": "c"}}, kind=MERGE)
    assert same["metadata"]["resourceVersion"] == newer["metadata"]["resourceVersion"]


def test_patches_of_three_kinds(ask, cluster):
    ask.good("POST", ask.maps, config(data={"a": "1", "b": "2"}))
    path = f"{ask.maps}/one"
    assert ask.good("PATCH", path, {"data": {"a": None, "c": "3"}}, kind=MERGE)["data"] == {
        "b": "2", "c": "3",
    }  # fmt: skip
    steps = [{"op": "test", "path": "/data/b", "value": "2"},
             {"op": "replace", "path": "/data/b", "value": "x"},
             {"op": "remove", "path": "/data/c"}]  # fmt: skip
    assert ask.good("PATCH", path, steps, kind=JSON_PATCH)["data"] == {"b": "x"}
    assert ask.refused("PATCH", path, steps, kind=JSON_PATCH)[0] == 422
    ask.good("POST", ask.jobs, job(cluster, suspend=True))
    extra = {"name": "more", "image": cluster.image}
    change = {"spec": {"template": {"spec": {"containers": [extra]}}}}
    code, said = ask("PATCH", f"{ask.jobs}/one?dryRun=All", change, kind=STRATEGIC)
    assert code == 422, said  # containers are merged by name, and then may not change
    assert ask.refused("PATCH", path, {}, kind="application/json")[0] == 415


def test_immutable_secrets_stay_as_they_are(ask):
    ask.good("POST", f"{ask.space}/secrets", secret(stringData={"a": "b"}, immutable=True))
    path = f"{ask.space}/secrets/one"
    assert ask.good("GET", path)["data"] == {"a": "Yg=="}
    code, reason, told = ask.refused("PATCH", path, {"data": {"a": "Yw=="}}, kind=MERGE)
    assert (code, reason) == (422, "Invalid")
    assert "field is immutable when `immutable` is set" in told
    ask.good("PATCH", path, {"metadata": {"labels": {"a": "b"}}}, kind=MERGE)


def test_what_is_too_large_is_refused(ask):
    big = secret(stringData={"a": "x" * (1 << 20), "b": "y"})
    code, reason, _ = ask.refused("POST", f"{ask.space}/secrets", big)
    assert (code, reason) == (422, "Invalid")
    code, reason, _ = ask.refused("POST", ask.maps, config(data={"a": "x" * (3 << 20)}))
    assert (code, reason) == (413, "RequestEntityTooLarge")


# ---- lists


def test_lists_are_paged_and_select(ask):
    for number in range(5):
        labels = {"even": str(number % 2 == 0).lower(), "number": str(number)}
        ask.good("POST", ask.maps, config(f"c-{number}", meta={"labels": labels}))
    first = ask.good("GET", f"{ask.maps}?limit=2&labelSelector=number")
    assert [one["metadata"]["name"] for one in first["items"]] == ["c-0", "c-1"]
    assert all("kind" not in one for one in first["items"])
    assert first["kind"] == "ConfigMapList"
    ask.good("DELETE", f"{ask.maps}/c-3")
    token = urllib.parse.quote(first["metadata"]["continue"])
    rest = ask.good("GET", f"{ask.maps}?limit=10&labelSelector=number&continue={token}")
    assert [one["metadata"]["name"] for one in rest["items"]] == ["c-2", "c-3", "c-4"]
    assert "continue" not in rest["metadata"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    for selector, names in (
        ("even=true", ["c-0", "c-2", "c-4"]), ("even!=true,number", ["c-1"]),
        ("number in (1,4)", ["c-1", "c-4"]), ("number notin (1),number", ["c-0", "c-2", "c-4"]),
        ("!number,even", []),
    ):  # fmt: skip
        found = ask.good("GET", f"{ask.maps}?labelSelector={urllib.parse.quote(selector)}")
        assert [one["metadata"]["name"] for one in found["items"]] == names, selector
    found = ask.good("GET", f"{ask.maps}?fieldSelector=metadata.name%3Dc-2")
    assert [one["metadata"]["name"] for one in found["items"]] == ["c-2"]
    code, _, told = ask.refused("GET", f"{ask.maps}?fieldSelector=data.a%3Db")
    assert code == 400
    assert "is not a known field selector" in told
    code, _, told = ask.refused("GET", f"{ask.space}/pods?fieldSelector=spec.none%3Db")
    assert (code, told) == (400, "field label not supported: spec.none")


def test_a_token_that_means_nothing_is_refused(ask):
    assert ask.refused("GET", f"{ask.maps}?limit=1&continue=nonsense")[0] == 400


def test_a_collection_is_deleted_by_labels(ask):
    for name, value in (("a", "x"), ("b", "x"), ("c", "y")):
        ask.good("POST", ask.maps, config(name, meta={"labels": {"group": value}}))
    ask.good("DELETE", f"{ask.maps}?labelSelector=group%3Dx")
    found = ask.good("GET", f"{ask.maps}?labelSelector=group")
    assert [one["metadata"]["name"] for one in found["items"]] == ["c"]


# ---- watches


def test_a_watch_tells_what_changes_and_what_leaves_the_selection(ask):
    version = ask.good("GET", ask.maps)["metadata"]["resourceVersion"]
    ask.good("POST", ask.maps, config("a", meta={"labels": {"mine": "1"}}))
    ask.good("POST", ask.maps, config("b"))
    ask.good("PATCH", f"{ask.maps}/b", {"metadata": {"labels": {"mine": "1"}}}, kind=MERGE)
    ask.good("PATCH", f"{ask.maps}/a", {"metadata": {"labels": {"mine": None}}}, kind=MERGE)
    ask.good("DELETE", f"{ask.maps}/b")
    path = f"{ask.maps}?watch=true&labelSelector=mine&resourceVersion={version}&timeoutSeconds=2"
    told = [(one["type"], one["object"]["metadata"]["name"]) for one in ask.events(path)]
    assert told == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "a"), ("DELETED", "b")]


def test_a_watch_without_a_version_begins_with_what_there_is(ask):
    ask.good("POST", ask.maps, config("a", meta={"labels": {"mine": "1"}}))
    path = f"{ask.maps}?watch=true&labelSelector=mine&timeoutSeconds=1"
    told = [(one["type"], one["object"]["metadata"]["name"]) for one in ask.events(path)]
    assert told == [("ADDED", "a")]


def test_a_watch_from_the_distant_past_is_expired(ask):
    path = f"{ask.maps}?watch=true&resourceVersion=1&timeoutSeconds=1"
    code, said = ask("GET", path)
    if code == 200:  # a real server says it in the stream
        assert (said["type"], said["object"]["code"]) == ("ERROR", 410)
        code, said = said["object"]["code"], said["object"]
    assert (code, said["reason"]) == (410, "Expired")


# ---- owners


def owner(made, **more):
    return {"apiVersion": "v1", "kind": "ConfigMap", "name": made["metadata"]["name"],
            "uid": made["metadata"]["uid"], **more}  # fmt: skip


def gone(ask, path):
    wait_until(f"{path} is gone", lambda: ask("GET", path)[0] == 404, timeout_s=30)


def test_what_is_owned_goes_with_the_last_owner(ask):
    owners = [ask.good("POST", ask.maps, config(name)) for name in ("first", "second")]
    refs = [owner(one) for one in owners]
    ask.good("POST", ask.maps, config("owned", meta={"ownerReferences": refs}))
    ask.good("DELETE", f"{ask.maps}/first?propagationPolicy=Background")

    def disowned():
        left = ask.good("GET", f"{ask.maps}/owned")["metadata"]["ownerReferences"]
        return [one["name"] for one in left] == ["second"]

    wait_until("the lost owner is taken off", disowned, timeout_s=30)
    ask.good("DELETE", f"{ask.maps}/second?propagationPolicy=Background")
    gone(ask, f"{ask.maps}/owned")


def test_foreground_deletion_waits_for_what_blocks_it(ask):
    made = ask.good("POST", ask.maps, config("first"))
    meta = {"ownerReferences": [owner(made, blockOwnerDeletion=True)], "finalizers": ["test.io/a"]}
    ask.good("POST", ask.maps, config("owned", meta=meta))
    going = ask.good("DELETE", f"{ask.maps}/first?propagationPolicy=Foreground")
    assert going["metadata"]["finalizers"] == ["foregroundDeletion"]
    wait_until("the owned one is going", lambda: ask.good("GET", f"{ask.maps}/owned")["metadata"]
               .get("deletionTimestamp"), timeout_s=30)  # fmt: skip
    assert ask("GET", f"{ask.maps}/first")[0] == 200
    ask.good("PATCH", f"{ask.maps}/owned", {"metadata": {"finalizers": None}}, kind=MERGE)
    gone(ask, f"{ask.maps}/first")


def test_what_is_orphaned_stays(ask):
    made = ask.good("POST", ask.maps, config("first"))
    ask.good("POST", ask.maps, config("owned", meta={"ownerReferences": [owner(made)]}))
    ask.good("DELETE", f"{ask.maps}/first?propagationPolicy=Orphan")
    gone(ask, f"{ask.maps}/first")
    assert (
        "ownerReferences" not in ask.good("GET", f"{ask.maps}/owned")["metadata"]
        or not (ask.good("GET", f"{ask.maps}/owned")["metadata"]["ownerReferences"])
    )


# ---- pods


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"container": {"resources": {"limits": {"nvidia.com/gpu": "2"},
                                      "requests": {"nvidia.com/gpu": "1"}}}}, "must be equal to"),
        ({"container": {"resources": {"requests": {"nvidia.com/gpu": "1"}}}}, "Limit must be set"),
        ({"container": {"resources": {"limits": {"cpu": "lots"}}}}, ""),
        ({"container": {"volumeMounts": [{"name": "x", "mountPath": "/x"}]}}, "Not found"),
        ({"restartPolicy": "Sometimes"}, "Unsupported value"),
        ({"container": {"name": "Job"}}, "name"),
        ({"container": {"image": ""}}, "image"),
    ],
    ids=["gpu-requests", "gpu-limits", "quantity", "mount", "policy", "name", "image"],
)  # fmt: skip
def test_pods_that_cannot_be_are_refused(ask, cluster, change, told):
    code, _, said = ask.refused("POST", f"{ask.space}/pods", pod(cluster, **change))
    assert code in {400, 422}, said
    assert told in said


def test_a_pod_runs_and_tells_how_it_ended(ask, cluster):
    command = "echo out; echo why > /dev/termination-log; exit 3"
    ask.good("POST", f"{ask.space}/pods", pod(cluster, command))
    status = phase(ask, "one", "Failed", "Succeeded")
    assert status["phase"] == "Failed"
    ended = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"], ended["message"]) == (3, "Error", "why\n")
    assert {"startedAt", "finishedAt", "containerID"} <= set(ended)
    assert status["containerStatuses"][0]["restartCount"] == 0
    made = ask.good("DELETE", f"{ask.space}/pods/one")
    assert made["kind"] in {"Pod", "Status"}
    gone(ask, f"{ask.space}/pods/one")


def test_a_pod_that_is_deleted_is_told_first(ask, cluster):
    command = "trap 'exit 0' TERM; echo up; while :; do sleep 0.1; done"
    ask.good("POST", f"{ask.space}/pods", pod(cluster, command, terminationGracePeriodSeconds=20))
    phase(ask, "one", "Running")
    lines = ask.lines(f"{ask.space}/pods/one/log?follow=true")
    assert next(lines) == b"up"
    going = ask.good("DELETE", f"{ask.space}/pods/one")
    assert going["metadata"]["deletionGracePeriodSeconds"] == 20
    assert list(lines) == []
    gone(ask, f"{ask.space}/pods/one")


def test_logs_have_times_ends_and_beginnings(ask, cluster):
    ask.good("POST", f"{ask.space}/pods", pod(cluster, "seq 1 5; printf end"))
    phase(ask, "one", "Succeeded")
    log = f"{ask.space}/pods/one/log"
    assert list(ask.lines(log)) == [b"1", b"2", b"3", b"4", b"5", b"end"]
    assert list(ask.lines(f"{log}?tailLines=2&container=job")) == [b"5", b"end"]
    assert list(ask.lines(f"{log}?limitBytes=3")) == [b"1", b"2"[:1]]
    stamped = next(ask.lines(f"{log}?timestamps=true")).decode()
    when, _, text = stamped.partition(" ")
    assert text == "1"
    assert len(when) == len("2026-11-30T10:37:38.123456789Z")
    assert list(ask.lines(f"{log}?sinceTime={when[:19]}Z"))[-1] == b"end"
    assert list(ask.lines(f"{log}?sinceTime=2999-01-01T00:00:00Z")) == []
    code, reason, told = ask.refused("GET", f"{log}?container=none")
    assert (code, reason, told) == (400, "BadRequest", "container none is not valid for pod one")
    code, _, told = ask.refused("GET", f"{log}?previous=true")
    assert code == 400
    assert 'previous terminated container "job" in pod "one" not found' in told


def test_variables_come_from_fields_secrets_and_each_other(ask, cluster):
    ask.good("POST", f"{ask.space}/secrets", secret(stringData={"token": "s3cr3t"}))
    env = [
        {"name": "A", "value": "a"}, {"name": "B", "value": "$(A)b $$(A) $(NONE)"},
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "T", "valueFrom": {"secretKeyRef": {"name": "one", "key": "token"}}},
        {"name": "OPT", "valueFrom": {"secretKeyRef": {"name": "no", "key": "x",
                                                       "optional": True}}},
    ]  # fmt: skip
    command = 'echo "$B"; echo "$NAME ${IP:+has} $T ${OPT-unset}"; echo $(A) $$'
    ask.good("POST", f"{ask.space}/pods", pod(cluster, command, container={"env": env}))
    phase(ask, "one", "Succeeded", "Failed")
    lines = list(ask.lines(f"{ask.space}/pods/one/log"))
    assert lines[:3] == [b"ab $(A) $(NONE)", b"one has s3cr3t unset", b"a $"]


def test_a_secret_that_is_missing_keeps_the_container_waiting(ask, cluster):
    env = [{"name": "T", "valueFrom": {"secretKeyRef": {"name": "later", "key": "token"}}}]
    ask.good("POST", f"{ask.space}/pods", pod(cluster, "echo $T", container={"env": env}))

    def waits():
        status = ask.good("GET", f"{ask.space}/pods/one")["status"]
        rows = status.get("containerStatuses") or [{}]
        return (rows[0].get("state") or {}).get("waiting", {}).get("message")

    wait_until("it is told", lambda: waits() == 'secret "later" not found', timeout_s=30)
    code, _, told = ask.refused("GET", f"{ask.space}/pods/one/log")
    assert code == 400
    assert 'container "job" in pod "one" is waiting to start' in told
    ask.good("POST", f"{ask.space}/secrets", secret("later", stringData={"token": "x"}))
    phase(ask, "one", "Succeeded")


def test_volumes_hold_secrets_and_share_files(ask, cluster):
    ask.good("POST", f"{ask.space}/secrets", secret(stringData={"a": "1", "b": "2"}))
    volumes = [{"name": "s", "secret": {"secretName": "one", "items": [{"key": "a", "path": "x"}]}},
               {"name": "w", "emptyDir": {}}]  # fmt: skip
    mounts = [{"name": "s", "mountPath": "/given/s"}, {"name": "w", "mountPath": "/given/w"}]
    first = {"name": "first", "image": cluster.image, "volumeMounts": mounts,
             "command": ["/bin/sh", "-c", "echo made > /given/w/f"]}  # fmt: skip
    body = pod(cluster, "cat /given/s/x; echo; ls /given/s; cat /given/w/f", volumes=volumes,
               initContainers=[first], container={"volumeMounts": mounts})  # fmt: skip
    ask.good("POST", f"{ask.space}/pods", body)
    phase(ask, "one", "Succeeded")
    for query in ("", "?container=job"):  # init containers are not counted
        assert list(ask.lines(f"{ask.space}/pods/one/log{query}")) == [b"1", b"x", b"made"]
    assert list(ask.lines(f"{ask.space}/pods/one/log?container=first")) == []


def test_of_several_containers_one_must_be_named(ask, cluster):
    body = pod(cluster, "echo one")
    body["spec"]["containers"].append({**body["spec"]["containers"][0], "name": "other"})
    ask.good("POST", f"{ask.space}/pods", body)
    code, _, told = ask.refused("GET", f"{ask.space}/pods/one/log")
    words = "a container name must be specified for pod one, choose one of: [job other]"
    assert (code, told) == (400, words)


def test_a_pod_that_fits_nowhere_says_why(ask, cluster):
    resources = {"requests": {"cpu": "100k"}}
    ask.good("POST", f"{ask.space}/pods", pod(cluster, container={"resources": resources}))

    def words():
        rows = ask.good("GET", f"{ask.space}/pods/one")["status"].get("conditions") or ()
        return next((r.get("message") for r in rows if r["type"] == "PodScheduled"), None)

    told = wait_until("it is told", words, timeout_s=30)
    assert "nodes are available" in told
    assert "Insufficient cpu" in told

    def reasons():
        path = f"{ask.space}/events?fieldSelector=involvedObject.name%3Done"
        return [one["reason"] for one in ask.good("GET", path)["items"]]

    wait_until("its event is there", lambda: "FailedScheduling" in reasons(), timeout_s=30)
    assert ask("GET", f"{ask.space}/pods/one/log") == (204, {"text": ""})
    code, _, said = ask.refused("GET", f"{ask.space}/pods/one/exec?command=true&stdout=true")
    assert (code, said) == (400, "pod one does not have a host assigned")


# ---- jobs


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"completions": None}, "completions"),
        ({"parallelism": -1}, "greater than or equal to 0"),
        ({"backoffLimit": "none"}, ""),
    ],
)
def test_jobs_that_cannot_be_are_refused(ask, cluster, change, told):
    body = job(cluster)
    body["spec"].update(change)
    code, _, said = ask.refused("POST", ask.jobs, body)
    assert code in {400, 422}, said
    assert told in said
    body = job(cluster)
    del body["spec"]["template"]["spec"]["restartPolicy"]
    code, _, said = ask.refused("POST", ask.jobs, body)
    assert code == 422
    assert "restartPolicy" in said


def conditions(ask, path):
    rows = (ask.good("GET", path).get("status") or {}).get("conditions") or ()
    return {row["type"]: row for row in rows if row["status"] == "True"}


def test_an_indexed_job_gives_ranks_and_ends(ask, cluster):
    ask.good("POST", ask.jobs, job(cluster, "echo $JOB_COMPLETION_INDEX $(hostname 2>/dev/null)"))
    path = f"{ask.jobs}/one"
    wait_until("it is complete", lambda: "Complete" in conditions(ask, path), timeout_s=40)
    status = ask.good("GET", path)["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")
    assert conditions(ask, path)["Complete"]["reason"] == "CompletionsReached"
    pods = ask.good("GET", f"{ask.space}/pods?labelSelector=job-name%3Done")["items"]
    key = "batch.kubernetes.io/job-completion-index"
    seen = sorted((one["metadata"]["labels"][key], one["metadata"]["annotations"][key],
                   one["spec"]["hostname"]) for one in pods)  # fmt: skip
    assert seen == [("0", "0", "one-0"), ("1", "1", "one-1")]
    for one in pods:
        name, rank = one["metadata"]["name"], one["metadata"]["labels"][key]
        assert name.startswith(f"one-{rank}-")
        assert next(ask.lines(f"{ask.space}/pods/{name}/log")).split()[0] == rank.encode()
        ref = one["metadata"]["ownerReferences"][0]
        assert (ref["kind"], ref["controller"], ref["blockOwnerDeletion"]) == ("Job", True, True)


def test_a_job_fails_as_one_and_stops_the_others(ask, cluster):
    command = '[ "$JOB_COMPLETION_INDEX" = 1 ] && exit 4; sleep 100'
    ask.good("POST", ask.jobs, job(cluster, command))
    path = f"{ask.jobs}/one"
    wait_until("it has failed", lambda: "Failed" in conditions(ask, path), timeout_s=60)
    row = conditions(ask, path)["Failed"]
    assert (row["reason"], row["message"]) == (
        "BackoffLimitExceeded", "Job has reached the specified backoff limit",
    )  # fmt: skip
    pods = ask.good("GET", f"{ask.space}/pods?labelSelector=job-name%3Done")["items"]
    assert [one["metadata"]["labels"]["batch.kubernetes.io/job-completion-index"]
            for one in pods] == ["1"]  # fmt: skip


def test_a_job_that_takes_too_long_fails(ask, cluster):
    ask.good("POST", ask.jobs, job(cluster, "sleep 100", activeDeadlineSeconds=1))
    path = f"{ask.jobs}/one"
    wait_until("it has failed", lambda: "Failed" in conditions(ask, path), timeout_s=60)
    assert conditions(ask, path)["Failed"]["reason"] == "DeadlineExceeded"


def test_a_suspended_job_has_no_pods(ask, cluster):
    ask.good("POST", ask.jobs, job(cluster, "sleep 100", suspend=True))
    path = f"{ask.jobs}/one"
    wait_until("it is suspended", lambda: "Suspended" in conditions(ask, path), timeout_s=30)
    listed = f"{ask.space}/pods?labelSelector=job-name%3Done"
    assert ask.good("GET", listed)["items"] == []
    ask.good("PATCH", path, {"spec": {"suspend": False}}, kind=MERGE)
    wait_until("it runs", lambda: ask.good("GET", path)["status"].get("ready") == 2, timeout_s=40)
    ask.good("PATCH", path, {"spec": {"suspend": True}}, kind=MERGE)
    wait_until("its pods are gone", lambda: not ask.good("GET", listed)["items"], timeout_s=40)
    assert "Failed" not in conditions(ask, path)
    code, _, told = ask.refused("PATCH", path, {"spec": {"completions": 5}}, kind=MERGE)
    assert code == 422
    assert told.startswith('Job.batch "one" is invalid: spec.completions: Invalid value: 5:')
    assert told.endswith("can only be modified in tandem with spec.parallelism")
    change = {"spec": {"completionMode": "NonIndexed"}}
    code, _, told = ask.refused("PATCH", path, change, kind=MERGE)
    assert code == 422
    assert "field is immutable" in told


def test_quota_is_counted_and_told_by_the_job(ask, cluster):
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
             "spec": {"hard": {"pods": "1"}}}  # fmt: skip
    path = f"{ask.space}/resourcequotas"
    ask.good("POST", path, quota)
    wait_until("it is counted", lambda: (ask.good("GET", f"{path}/q").get("status") or {})
               .get("used") == {"pods": "0"}, timeout_s=20)  # fmt: skip
    ask.good("POST", ask.jobs, job(cluster, "sleep 100"))

    def told():
        events = ask.good("GET", f"{ask.space}/events?fieldSelector=involvedObject.kind%3DJob")
        return [one["message"] for one in events["items"] if one["reason"] == "FailedCreate"]

    words = wait_until("it is told", told, timeout_s=30)[0]
    assert words.startswith('Error creating: pods "one-')
    assert words.endswith(
        "is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1"
    )


# ---- JobSet


def jobset(cluster, command="true", name="one", **spec):
    inner = job(cluster, command)["spec"]
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": name},
        "spec": {"failurePolicy": {"maxRestarts": 0}, **spec,
                 "replicatedJobs": [{"name": "n", "template": {"spec": inner}}]},
    }  # fmt: skip


def test_a_jobset_makes_a_job_and_a_service_and_ends(ask, cluster):
    ask.good("POST", ask.jobsets, jobset(cluster, "echo hi"))
    path = f"{ask.jobsets}/one"
    wait_until("it is complete", lambda: "Completed" in conditions(ask, path), timeout_s=60)
    assert conditions(ask, path)["Completed"]["reason"] == "AllJobsCompleted"
    made = ask.good("GET", f"{ask.jobs}/one-n-0")
    assert made["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "0"
    service = ask.good("GET", f"{ask.space}/services/one")
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"jobset.sigs.k8s.io/jobset-name": "one"}
    pods = ask.good("GET", f"{ask.space}/pods?labelSelector=jobset.sigs.k8s.io/jobset-name%3Done")
    assert {one["spec"]["hostname"] for one in pods["items"]} == {"one-n-0-0", "one-n-0-1"}
    assert {one["spec"]["subdomain"] for one in pods["items"]} == {"one"}
    ask.good("DELETE", f"{path}?propagationPolicy=Foreground")
    for left in (path, f"{ask.jobs}/one-n-0", f"{ask.space}/services/one"):
        gone(ask, left)


def test_a_jobset_starts_again_and_gives_up(ask, cluster):
    ask.good("POST", ask.jobsets, jobset(cluster, "exit 3", failurePolicy={"maxRestarts": 1}))
    path = f"{ask.jobsets}/one"
    wait_until("it has failed", lambda: "Failed" in conditions(ask, path), timeout_s=90)
    row = conditions(ask, path)["Failed"]
    assert row["reason"] == "ReachedMaxRestarts"
    assert row["message"].startswith("jobset failed due to reaching max number of restarts")
    assert ask.good("GET", path)["status"]["restarts"] == 1
    made = ask.good("GET", f"{ask.jobs}/one-n-0")
    assert made["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"] == "1"


def test_jobsets_that_cannot_be_are_refused(ask, cluster):
    code, _, told = ask.refused("POST", ask.jobsets, jobset(cluster, name="a" * 60))
    assert code in {403, 422}
    assert "63 characters" in told or "too long" in told
    ask.good("POST", ask.jobsets, jobset(cluster, suspend=True))
    change = {"spec": {"failurePolicy": {"maxRestarts": 5}}}
    assert ask.refused("PATCH", f"{ask.jobsets}/one", change, kind=MERGE)[0] in {403, 422}


# ---- who may


def test_a_user_may_do_what_rules_say(ask, limited_user, cluster, namespace):
    path = limited_user({"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]})
    mine = Asker(cluster, namespace)
    mine.api = type(cluster.api)(path)
    assert mine.good("GET", f"{mine.space}/pods")["items"] == []
    user = json.loads(path.read_text())["users"][0]["name"]
    code, reason, told = mine.refused("GET", f"{mine.space}/secrets/x")
    assert (code, reason) == (403, "Forbidden")
    wanted = f'cannot get resource "secrets" in API group "" in the namespace "{namespace}"'
    assert told.startswith('secrets "x" is forbidden: User "user-')
    assert told.endswith(wanted)
    assert user
    code, _, told = mine.refused("POST", mine.jobs, job(cluster))
    assert code == 403
    assert 'cannot create resource "jobs" in API group "batch"' in told
    code, _, told = mine.refused("GET", "/api/v1/nodes")
    assert code == 403
    assert told.endswith('cannot list resource "nodes" in API group "" at the cluster scope')
    code, _, told = mine.refused("GET", f"{mine.space}/pods/x/log")
    assert 'cannot get resource "pods/log"' in told
    review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    for verb, may in (("list", True), ("delete", False)):
        asked = {"verb": verb, "resource": "pods", "namespace": namespace}
        body = {**review, "spec": {"resourceAttributes": asked}}
        answer = mine.good("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
        assert answer["status"]["allowed"] is may
    mine.good("GET", "/version")
    mine.good("GET", "/apis")


# ---- namespaces


def test_a_namespace_takes_all_of_it_along(ask, cluster, namespace):
    name = f"{namespace}-x"
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    ask.good("POST", "/api/v1/namespaces", space)
    path = f"/api/v1/namespaces/{name}"
    held = config("held", meta={"finalizers": ["test.io/a"]})
    ask.good("POST", f"{path}/configmaps", held)
    ask.good("DELETE", path)
    assert ask.good("GET", path)["status"]["phase"] == "Terminating"
    code, reason, told = ask.refused("POST", f"{path}/configmaps", config("late"))
    assert (code, reason) == (403, "Forbidden")
    assert "because it is being terminated" in told
    ask.good("PATCH", f"{path}/configmaps/held", {"metadata": {"finalizers": None}}, kind=MERGE)
    gone(ask, path)


# ---- discovery


def test_what_is_served_is_listed(ask):
    groups = {one["name"]: one for one in ask.good("GET", "/apis")["groups"]}
    assert {"batch", "jobset.x-k8s.io", "kueue.x-k8s.io", "scheduling.k8s.io"} <= set(groups)
    assert groups["batch"]["preferredVersion"] == {"groupVersion": "batch/v1", "version": "v1"}
    rows = {one["name"]: one for one in ask.good("GET", "/api/v1")["resources"]}
    assert rows["pods"]["namespaced"] is True
    assert rows["nodes"]["namespaced"] is False
    assert {"pods/log", "pods/exec", "pods/portforward", "pods/eviction"} <= set(rows)
    assert ask.good("GET", "/version")["major"] == "1"
