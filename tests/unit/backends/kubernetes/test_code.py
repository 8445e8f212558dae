"""What a task brings along: packed once, named by its content, in objects that a plan prints."""

import gzip
import hashlib
import json
import os
import tracemalloc

import pytest

from gpufabric._frozen import thaw
from gpufabric.backends.kubernetes._apply import Launch
from gpufabric.backends.kubernetes._code import CODE_LIMIT, packed
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.errors import SpecError
from gpufabric.task import PythonCall, Task

IMAGE = "registry.test/train:1"


@pytest.fixture
def workdir(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "train.py").write_text("print('hi')")
    return folder


@pytest.fixture
def plan(catalog, site_of, dressed):
    def make(site=None, patch=None, **fields):
        site = site or site_of(*[dressed("bare", f"n{i}") for i in (1, 2)])
        task = Task.from_dict({"run": "x", "num_nodes": 2, "resources": {"image": IMAGE}, **fields})
        offer = make_offers(task, site, catalog, image=None, patch={}).best
        return make_plan(
            task, offer, site, catalog, run="", image=None, patch=patch or {}, grace_s=10
        )

    return make


def code_of(**fields):
    return packed(Task(run=fields.pop("run", "x"), **fields), limit_bytes=1e9)


def test_equal_content_has_one_name_and_other_content_another(workdir):
    with code_of(workdir=str(workdir)) as first:
        os.utime(workdir / "train.py", (1, 1))
        with code_of(workdir=str(workdir)) as second:
            assert first.name == second.name
    (workdir / "train.py").write_text("print('ho')")
    with code_of(workdir=str(workdir)) as third, code_of(files={"a": "b"}) as fourth:
        assert len({first.name, third.name, fourth.name}) == 3


def test_the_name_does_not_depend_on_how_well_it_was_packed(workdir, monkeypatch):
    with code_of(workdir=str(workdir)) as first:
        plain = gzip.GzipFile

        def worse(**fields):
            return plain(compresslevel=1, **fields)

        monkeypatch.setattr("gpufabric.backends.kubernetes._code.gzip.GzipFile", worse)
        (workdir / "data").write_text("x" * 1000)
        with code_of(workdir=str(workdir)) as other:
            monkeypatch.undo()
            with code_of(workdir=str(workdir)) as same:
                assert same.name == other.name != first.name


def test_the_manifest_is_the_hash_of_what_each_part_holds(workdir):
    call = PythonCall(name="f", payload=b"\x80pickle")
    with code_of(run=call, workdir=str(workdir), files={"a.txt": "ä"}) as code:
        for line in code.manifest.splitlines():
            digest, key = line.split("  ")
            data = code.read(key)
            plain = gzip.decompress(data) if key.endswith(".gz") else data
            assert hashlib.sha256(plain).hexdigest() == digest
        assert [part.key for part in code.parts] == [
            "workdir.tar.gz", "files.tar.gz", "function.pickle",
        ]  # fmt: skip


def test_a_large_folder_is_packed_without_being_held_in_memory(workdir):
    (workdir / "data.bin").write_bytes(os.urandom(20_000_000))
    tracemalloc.start()
    try:
        with code_of(workdir=str(workdir)) as code:
            assert sum(map(len, code.chunks("workdir.tar.gz"))) == code.size > 20_000_000
        assert tracemalloc.get_traced_memory()[1] < 6_000_000
    finally:
        tracemalloc.stop()


# ---- the plan


def test_the_plan_prints_both_ways_that_code_may_travel(plan):
    made = plan(workdir="/src", secrets={"TOKEN": "s3cr3t"})
    said = [(step.verb, step.kind) for step in made.steps]
    assert said == [
        ("pack", "workdir"), ("create", "JobSet"), ("create", "Secret"), ("share", "Secret"),
        ("serve", "Pod"), ("serve", "Secret"), ("patch", "JobSet"),
    ]  # fmt: skip
    text = "\n".join(map(str, made.steps))
    assert "share Secret gpufabric-code-<hash>, for code up to 900 kB packed" in text
    assert "serve Pod gpufabric-code-<hash>, for code above 900 kB packed" in text


def test_a_task_that_brings_nothing_has_none_of_it(plan):
    made = plan(secrets={"TOKEN": "s3cr3t"})
    assert {step.verb for step in made.steps} == {"create", "patch"}
    assert "gpufabric-code" not in json.dumps(thaw(made.steps[0].body))


def test_shared_code_holds_no_secret_and_each_job_owns_it_without_blocking(plan):
    made = plan(workdir="/src", secrets={"TOKEN": "s3cr3t"})
    for step in made.steps:
        if step.verb in {"share", "serve"}:
            assert "TOKEN" not in json.dumps(thaw(step.body))
            (owner,) = step.body["metadata"]["ownerReferences"]
            assert owner["name"] == made.steps[1].name
            assert owner["blockOwnerDeletion"] is False
            assert "gpufabric.io/job" not in step.body["metadata"]["labels"]


def helper_of(made):
    return thaw(next(step.body for step in made.steps if step.kind == "Pod"))["spec"]


def test_the_pod_that_serves_asks_for_no_gpu_and_no_right(plan, site_of, dressed):
    site = site_of(*[dressed("eks-p5", f"n{i}") for i in (1, 2)], dressed("bare", "cpu"))
    made = plan(site, workdir="/src", resources={"accelerators": "H100:8", "image": IMAGE})
    spec = helper_of(made)
    (container,) = spec["containers"]
    assert "nvidia.com/gpu" not in json.dumps(spec)
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert "tolerations" not in spec


def test_the_pod_that_serves_tolerates_gpu_taints_only_where_no_other_node_is(
    plan, site_of, dressed
):
    taint = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
    nodes = [dressed("eks-p5", f"n{i}", taints=[taint]) for i in (1, 2)]
    asked = {"workdir": "/src", "resources": {"accelerators": "H100:8", "image": IMAGE}}
    alone = helper_of(plan(site_of(*nodes), **asked))
    assert alone["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert "tolerations" not in helper_of(plan(site_of(*nodes, dressed("bare", "cpu")), **asked))


def test_the_pod_that_serves_takes_of_the_users_patch_what_lets_it_run(plan):
    patch = {
        "imagePullSecrets": [{"name": "registry"}], "serviceAccountName": "train",
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "nodeSelector": {"gpu": "yes"}, "containers": [{"name": "job", "tty": True}],
    }  # fmt: skip
    spec = helper_of(plan(workdir="/src", patch=patch))
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert spec["serviceAccountName"] == "train"
    assert spec["tolerations"] == [{"key": "team", "operator": "Exists"}]
    assert "gpu" not in spec.get("nodeSelector", {})
    assert "tty" not in spec["containers"][0]


# ---- what can never start is refused before anything is made


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"secrets": {"TOKEN": "x" * 131_072}}, "secrets.TOKEN"),
        ({"secrets": {f"T{i}": "x" * 130_000 for i in range(9)}}, "secrets"),
        ({"envs": {"A": "ä" * 70_000}}, "envs.A"),
    ],
)
def test_what_no_program_can_be_started_with_is_refused_at_once(plan, fields, path):
    launch = Launch(
        api=None, plan=plan(**fields), namespace="ml", workdir_limit_bytes=1e8, jobsets=True
    )
    with pytest.raises(SpecError) as caught:
        launch.run()
    assert [problem.path for problem in caught.value.problems] == [path]


def test_the_limit_leaves_room_for_the_names_in_a_secret():
    assert CODE_LIMIT + 100_000 < 1 << 20
