"""Task and Resources: friendly input, one form inside, every fault told."""

import pytest

import gpufabric as gf
from gpufabric._convert import from_dict, to_dict
from gpufabric.errors import SpecError
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.resources import Accelerator
from gpufabric.task import PythonCall, safe_name


def problems(**fields: object) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        gf.Task.from_dict({"run": "x", **fields})
    return {p.path: p.message for p in caught.value.problems}


def test_every_fault_is_told_at_once_with_its_path_and_near_miss():
    told = problems(
        nmae="x",
        num_nodes=0,
        envs={"1A": "x", "GPUFABRIC_JOB": "y", "OK": "z", "B": True},
        resources={"netwrk_tier": "best", "accelerators": ["H100:8", "H100:x"]},
        ports=[80, 0],
        files={"../up": "x", "a": "x", "a/b": "y"},
    )
    assert told["nmae"] == "unknown field, did you mean name?"
    assert told["resources.netwrk_tier"] == "unknown field, did you mean network_tier?"
    assert {
        "num_nodes", "envs.1A", "envs.GPUFABRIC_JOB", "envs.B", "resources.accelerators[1]",
        "ports[1]", "files.../up", "files.a/b",
    } < set(told)  # fmt: skip
    assert "envs.OK" not in told


def test_what_is_missing_is_told():
    with pytest.raises(SpecError, match="run: needed, but missing"):
        gf.Task.from_dict({})


@pytest.mark.parametrize("run", ["", "  ", [], [1], "a\0b", ["a\0"], None, 7, {"name": "f"}])
def test_what_cannot_run_is_refused(run):
    assert problems(run=run)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("setup", "a\0b"), ("setup", 3), ("workdir", ""), ("workdir", "a\0"), ("name", " "),
        ("timeout_s", 0), ("timeout_s", float("nan")), ("max_restarts", -1), ("max_restarts", True),
        ("num_nodes", 100_001), ("num_nodes", True), ("num_nodes", "2"), ("volumes", {"rel": "v"}),
        ("envs", {"A\n": "x"}), ("envs", {"A": "x\0"}), ("envs", {"A": None}), ("envs", ["A"]),
        ("secrets", [1]), ("secrets", [["A"]]), ("secrets", {"A": 5}), ("files", {".": "x"}),
        ("files", {"a/": "x"}), ("files", {"/a": "x"}), ("files", {"a": 1}), ("ports", "80"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_told_by_its_name(field, value):
    assert all(path.split(".")[0].split("[")[0] == field for path in problems(**{field: value}))


def test_a_variable_and_a_secret_of_one_name_are_refused():
    assert "secrets.A" in problems(envs={"A": "x"}, secrets=["A"])


def test_another_schema_is_refused():
    assert "schema" in problems(schema="gpufabric/Task/2")


def test_a_function_is_shipped_with_its_arguments():
    import cloudpickle

    call = PythonCall.of(max, 3, 4)
    task = gf.Task(run=call)
    assert gf.Task.from_dict(task.to_dict()) == task
    function, args, kwargs = cloudpickle.loads(task.run.payload)
    assert function(*args, **kwargs) == 4
    assert "payload" not in repr(task)
    assert gf.Task(run=max).run.name == "max"


def test_a_function_that_cannot_be_shipped_is_told():
    import threading

    with pytest.raises(SpecError, match="cannot be shipped"):
        PythonCall.of(print, threading.Lock())


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("My Job", "my-job"), ("1st", "job-1st"), ("", "job"), ("名前", "job"), ("é_è", "e-e"),
        ("a" * 39 + "-bc", "a" * 39), ("--x--", "x"), ("a\nb", "a-b"),
    ],
)  # fmt: skip
def test_names_are_made_safe_for_every_cloud(text, name):
    assert safe_name(text) == name


def test_accelerators_are_welcome_in_every_form():
    eight = Accelerator(model="H100", count=8)
    for form in ("H100:8", {"H100": 8}, {"H100:8": None}, ["H100:8"], eight, " H100 : 8 "):
        assert gf.Resources(accelerators=form).accelerators == (eight,)
    assert gf.Resources(accelerators="80GB+").accelerator == Accelerator(
        memory_gb=80.0, memory_at_least=True
    )
    assert str(Accelerator.parse("nvidia:40gib:4")) == "nvidia:40GB:4"
    assert str(Accelerator.parse("12345678GB:1")) == "12345678GB:1"


@pytest.mark.parametrize(
    "text",
    ["", ":8", "H100:0", "H100:-1", "H100:0.5", "H100:8:8", "H100,A100", "H100:1025", "H100:²",
     "H100:" + "9" * 5000, "8", "H100:8x"],
)  # fmt: skip
def test_what_is_no_accelerator_is_refused(text):
    with pytest.raises(SpecError):
        gf.Resources(accelerators=text)


def test_alternatives_are_laid_over_the_base_and_never_over_each_other():
    asked = gf.Resources(
        accelerators="H100:8",
        use_spot=True,
        any_of=[{"image": "one", "use_spot": False}, {"accelerators": ["A100:4", "L4"]}],
    )
    first, second, third = asked.alternatives()
    assert (first.accelerator, first.image, first.use_spot) == (
        Accelerator(model="H100", count=8), "one", False,
    )  # fmt: skip
    assert [str(x.accelerator) for x in (second, third)] == ["A100:4", "L4:1"]
    assert (second.image, second.use_spot) == (None, True)
    assert gf.Resources.from_dict(asked.to_dict()) == asked


def test_faults_of_alternatives_are_told_at_once_when_they_are_made():
    with pytest.raises(SpecError) as caught:
        gf.Resources(any_of=[{"imge": "x"}, {"cpus": "many"}])
    assert [p.path for p in caught.value.problems] == ["any_of[0].imge", "any_of[1].cpus"]
    with pytest.raises(SpecError, match="do not nest"):
        gf.Resources(any_of=[{"any_of": []}])


def test_places_are_welcome_as_text():
    asked = gf.Resources(places=["aws/us-east-1", "kubernetes/arn:aws:eks:x/y", "*/eu"])
    assert asked.places == (
        Place(backend="aws", region="us-east-1"),
        Place(backend="kubernetes", region="arn:aws:eks:x/y"),
        Place(backend="*", region="eu"),
    )
    assert gf.Resources(places="gcp").places == (Place(backend="gcp"),)
    with pytest.raises(SpecError):
        gf.Resources(places="aws/a/b/c")


def test_tiers_are_ordered_and_read_in_any_case():
    assert gf.Resources(network_tier="BEST").network_tier is gf.NetworkTier.BEST
    assert gf.NetworkTier.STANDARD < gf.NetworkTier.GPUDIRECT < gf.NetworkTier.BEST
    assert max(gf.NetworkTier) is gf.NetworkTier.BEST
    with pytest.raises(SpecError, match="did you mean gpudirect"):
        gf.Resources(network_tier="gpudirct")


def test_an_enum_comes_back_as_one():
    net = Interconnect(kind=FabricKind.EFA, place=Place(backend="aws"))
    again = from_dict(Interconnect, to_dict(net))
    assert type(again.kind) is FabricKind
