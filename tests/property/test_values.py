"""Values: text in, text out, nothing lost; nonsense of any shape is a SpecError only."""

import contextlib
import copy
import datetime as dt
import json
import pickle

import attrs
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpufabric._convert import from_dict, plain, to_dict
from gpufabric._frozen import FrozenDict, freeze, thaw
from gpufabric._units import AtLeast, parse_amount, parse_gib
from gpufabric.backends.base import Pool, Site
from gpufabric.errors import SpecError
from gpufabric.job import JobRef, JobStatus, NodeStatus
from gpufabric.net.interconnect import FabricKind, Interconnect, Place
from gpufabric.net.nics import Nic, NicLayout
from gpufabric.net.tier import NetworkTier
from gpufabric.plan import (
    EnvVar,
    LaunchPlan,
    LaunchPolicy,
    NetworkItem,
    Offer,
    RankBy,
    Rejection,
    Resolution,
    Source,
    Step,
)
from gpufabric.resources import Accelerator, Resources
from gpufabric.task import Secret, Task, safe_name

settings.register_profile(
    "values",
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],  # shrinking plans takes minutes
    max_examples=8,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("values")

# Texts that YAML, JSON and shells stumble over, beside any other.
TEXT = st.one_of(
    st.sampled_from(
        ["yes", "null", "1e3", "0x10", "1:30", "~", "- a", "a: b", " lead", "trail ", "a\n", "\n",
         "a\n\n  b\n", "\ttab", "é\u2028x", "\x85", "\ufeffbom", "#c", "'", '"', "\\", "\x07", "=",
         "2026-11-30", "!!python/object", "&a", "*a", "%", "@", "`", "|", ">", "12_3", ".5", ""]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
)  # fmt: skip
WORD = TEXT.filter(lambda text: text.strip() != "")
STRIPPED = WORD.map(str.strip)
NAME = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: not name.startswith("GPUFABRIC_")
)
POSITIVE = st.floats(1e-3, 1e9, allow_nan=False)
SIZE = st.builds(AtLeast, amount=POSITIVE, at_least=st.booleans())
MODEL = st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,8}", fullmatch=True)
ACCELERATOR = st.one_of(
    st.builds(Accelerator, model=MODEL, count=st.integers(1, 1024)),
    st.builds(
        Accelerator,
        memory_gb=st.floats(1, 1e4).map(lambda x: round(x, 1)),
        memory_at_least=st.booleans(),
        count=st.integers(1, 1024),
        vendor=st.none() | st.sampled_from(["nvidia", "amd"]),
    ),
)
SEGMENT = st.from_regex(r"[a-z][a-z0-9-]{0,8}", fullmatch=True)
PLACE = st.builds(Place, backend=SEGMENT, region=st.none() | SEGMENT, zone=st.none() | SEGMENT)
PLAIN_RESOURCES = {
    "accelerators": st.lists(ACCELERATOR, max_size=3).map(tuple),
    "cpus": st.none() | SIZE,
    "memory_gib": st.none() | SIZE,
    "disk_gib": st.none() | SIZE,
    "instance_type": st.none() | STRIPPED,
    "network_tier": st.sampled_from(NetworkTier),
    "min_gbps_per_gpu": st.none() | POSITIVE,
    "use_spot": st.booleans(),
    "max_usd_hour": st.none() | POSITIVE,
    "places": st.lists(PLACE, max_size=2).map(tuple),
    "image": st.none() | STRIPPED,
    "capacity": st.none() | STRIPPED,
}
OVERLAY = st.fixed_dictionaries(
    {},
    optional={
        "network_tier": st.sampled_from([tier.value for tier in NetworkTier]),
        "use_spot": st.booleans(),
        "image": STRIPPED,
        "cpus": st.sampled_from([4, "4+", 2.5]),
        "accelerators": st.sampled_from(["H100:8", ["A100:4", "L4"], {"H200": 8}]),
        "places": st.sampled_from(["aws", ["aws/us-east-1", "gcp"]]),
    },
)
RESOURCES = st.builds(Resources, **PLAIN_RESOURCES, any_of=st.lists(OVERLAY, max_size=3).map(tuple))
PATH = st.from_regex(r"[a-z]{1,5}(/[a-z.]{1,5}x){0,2}", fullmatch=True)
TASK_FIELDS = {
    "run": st.one_of(WORD, st.lists(TEXT, min_size=1, max_size=4)),
    "name": WORD,
    "setup": st.none() | TEXT,
    "workdir": st.none() | PATH,
    "files": st.dictionaries(PATH, TEXT, max_size=2),
    "num_nodes": st.integers(1, 100_000),
    "resources": RESOURCES,
    "envs": st.dictionaries(NAME, TEXT, max_size=3),
    "ports": st.lists(st.integers(1, 65535), max_size=3),
    "volumes": st.dictionaries(PATH.map("/{}".format), SEGMENT, max_size=2),
    "timeout_s": st.none() | POSITIVE.filter(lambda x: x < 1e9),
    "max_restarts": st.integers(0, 100),
}
TASK = st.builds(Task, **TASK_FIELDS, secrets=st.sampled_from([{}, ["_TOKEN"], {"_KEY": None}]))
INTERCONNECT = st.builds(
    Interconnect,
    kind=st.sampled_from(FabricKind),
    place=PLACE,
    name=st.none() | TEXT,
    max_nodes=st.none() | st.integers(1, 9),
)
NICS = st.builds(
    NicLayout,
    nics=st.lists(
        st.builds(
            Nic,
            index=st.integers(0, 9),
            model=TEXT,
            gbps=st.none() | POSITIVE,
            gpudirect=st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
)
SOURCE = st.builds(Source, url=TEXT, checked=st.none() | st.dates())
OFFER = st.builds(
    Offer,
    backend=SEGMENT,
    place=PLACE,
    instance_type=TEXT,
    resources=RESOURCES,
    num_nodes=st.integers(1, 9),
    gpus_per_node=st.integers(0, 8),
    interconnect=INTERCONNECT,
    nics=NICS,
    tier=st.sampled_from(NetworkTier),
    accelerator=st.none() | ACCELERATOR,
    usd_hour=st.none() | POSITIVE,
    limits=st.lists(TEXT, max_size=2).map(tuple),
    sources=st.lists(SOURCE, max_size=1).map(tuple),
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
BODY = st.dictionaries(TEXT, JSON, max_size=3)
PLAN = st.builds(
    LaunchPlan,
    backend=SEGMENT,
    task=TASK,
    offer=OFFER,
    steps=st.lists(
        st.builds(Step, verb=SEGMENT, kind=SEGMENT, name=TEXT, body=BODY, owned=st.booleans()),
        max_size=2,
    ).map(tuple),
    env=st.lists(
        st.builds(EnvVar, name=NAME, value=TEXT, why=TEXT, source=st.none() | SOURCE), max_size=2
    ).map(tuple),
    network=st.lists(
        st.builds(NetworkItem, kind=SEGMENT, name=TEXT, value=TEXT, why=TEXT), max_size=1
    ).map(tuple),
    warnings=st.lists(TEXT, max_size=1).map(tuple),
    lower_tier=st.booleans(),
    gang_timeout_s=st.none() | st.floats(1, 1e6),
    run=TEXT,
)
ZONES = [None, dt.UTC, dt.timezone(dt.timedelta(hours=-3, minutes=-30))]
SITE = st.builds(
    Site,
    backend=SEGMENT,
    pools=st.lists(
        st.builds(
            Pool,
            name=TEXT,
            place=PLACE,
            platform=SEGMENT,
            accelerator=st.none() | ACCELERATOR,
            gpus_free=st.lists(st.integers(0, 8), max_size=2).map(tuple),
            interconnect=st.none() | INTERCONNECT,
            labels=st.dictionaries(TEXT, TEXT, max_size=2),
        ),
        max_size=2,
    ).map(tuple),
    unseen=st.lists(TEXT, max_size=2).map(tuple),
    facts=BODY.map(freeze),
    as_of=st.none() | st.datetimes(timezones=st.sampled_from(ZONES)),
    assumed=st.booleans(),
)
REF = st.builds(
    JobRef,
    backend=SEGMENT,
    place=st.from_regex(r"[a-z/:_.-]{0,12}", fullmatch=True),
    name=st.from_regex(r"[a-z0-9-]{1,12}", fullmatch=True),
)
STATUS = st.builds(
    JobStatus,
    ref=REF,
    state=st.from_type(JobStatus.__annotations__["state"]),
    nodes=st.lists(
        st.builds(
            NodeStatus,
            node_rank=st.integers(0, 9),
            state=st.from_type(NodeStatus.__annotations__["state"]),
            exit_code=st.none() | st.integers(0, 255),
        ),
        max_size=2,
    ).map(tuple),
    tail=st.lists(TEXT, max_size=2).map(tuple),
)
VALUES = {
    "Resources": RESOURCES,
    "Task": TASK,
    "Offer": OFFER,
    "Resolution": st.builds(
        Resolution,
        offers=st.lists(OFFER, max_size=2).map(tuple),
        rejections=st.lists(
            st.builds(Rejection, backend=SEGMENT, reason=TEXT, place=st.none() | PLACE), max_size=2
        ).map(tuple),
    ),
    "LaunchPlan": PLAN,
    "LaunchPolicy": st.builds(LaunchPolicy, rank_by=st.sampled_from(RankBy)),
    "Site": SITE,
    "JobStatus": STATUS,
    "Interconnect": INTERCONNECT,
}


def again(value):
    return pickle.loads(pickle.dumps(value))  # noqa: S301  # our own bytes


@pytest.mark.parametrize("kind", VALUES)
@given(data=st.data())
def test_a_value_survives_plain_data_json_pickle_and_copy(kind, data):
    value = data.draw(VALUES[kind])
    body = to_dict(value)
    assert body["schema"] == f"gpufabric/{kind}/1"
    assert from_dict(type(value), body) == value
    assert from_dict(type(value), json.loads(json.dumps(body, allow_nan=False))) == value
    assert again(value) == value
    assert copy.deepcopy(value) == value
    assert hash(again(value)) == hash(value)
    assert to_dict(from_dict(type(value), body)) == body


@pytest.mark.parametrize("kind", ["Task", "LaunchPlan", "Site"])
@given(data=st.data())
def test_a_value_survives_yaml(kind, data):
    value = data.draw(VALUES[kind])
    assert type(value).from_yaml(value.to_yaml()) == value


@given(PLAN)
def test_the_key_of_a_plan_survives_every_road(plan):
    assert LaunchPlan.from_yaml(plan.to_yaml()).key == plan.key
    assert again(plan).key == plan.key


@given(PLAN)
def test_a_plan_prints_on_its_own_lines_only(plan):
    assert str(plan)
    assert "\x07" not in str(plan)


@given(REF)
def test_a_ref_survives_its_text(ref):
    assert JobRef.parse(str(ref)) == ref


@given(ACCELERATOR)
def test_an_accelerator_survives_its_text(accelerator):
    assert Accelerator.parse(str(accelerator)) == accelerator


@given(SIZE)
def test_an_amount_survives_its_text(amount):
    assert parse_amount(amount.__plain__()) == amount
    assert parse_gib(amount.__plain__()) == amount


@given(JSON)
def test_freeze_and_thaw_undo_each_other(value):
    frozen = freeze(value)
    assert thaw(frozen) == value
    hash(frozen)


# Nonsense

ANYTHING = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), TEXT, st.binary(max_size=4),
        st.just(object()), st.just(10**400), st.just("9" * 5000), st.just("H100:" + "9" * 5000),
        st.just("\ud800"),
        st.sampled_from(["H100:0", "H100:-1", "80GB+:8:8", "a:b:c", "inf", "nan"]),
        st.just({1, 2}), st.just(Secret(value="x")), st.just(int), st.just("1" * 400 + "GB"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(TEXT, st.integers(), st.none()), inner, max_size=3),
    ),
    max_leaves=6,
)  # fmt: skip
CLASSES = [
    Task, Resources, LaunchPlan, Offer, Resolution, Site, Pool, LaunchPolicy, JobStatus, Place,
    Step, Interconnect, NicLayout,
]  # fmt: skip


def _fields(cls):
    names = [a.name for a in attrs.fields(cls)]
    return st.dictionaries(
        st.one_of(st.sampled_from(names), TEXT, st.integers(), st.none()), ANYTHING, max_size=4
    )


@pytest.mark.parametrize("cls", CLASSES)
@given(data=st.data())
@settings(max_examples=20)
def test_nonsense_is_a_spec_error_and_nothing_else(cls, data):
    body = data.draw(st.one_of(ANYTHING, _fields(cls)))
    fault = None
    try:
        made = from_dict(cls, body)
    except SpecError as exc:
        fault = exc
    if fault is not None:
        assert fault.problems
        assert str(fault)
        assert repr(again(fault).problems) == repr(fault.problems)
    else:
        assert isinstance(made, cls)
        assert from_dict(cls, to_dict(made)) == made
        hash(made)


@pytest.mark.parametrize("field", [a.name for a in attrs.fields(Task)])
@given(data=st.data())
@settings(max_examples=12)
def test_nonsense_in_one_field_of_a_task_is_a_spec_error(field, data):
    body = {"run": "echo", field: data.draw(ANYTHING)}
    try:
        made = Task.from_dict(body)
    except SpecError as exc:
        heads = {p.path.split(".")[0].split("[")[0] for p in exc.problems}
    else:
        heads = set()
        json.dumps(made.to_dict())
    assert heads <= {field, ""}


@pytest.mark.parametrize("field", [a.name for a in attrs.fields(Resources)])
@given(data=st.data())
@settings(max_examples=12)
def test_nonsense_in_one_field_of_resources_is_a_spec_error(field, data):
    try:
        made = Resources(**{field: data.draw(ANYTHING)})
    except SpecError:
        return
    json.dumps(made.to_dict())
    made.alternatives()


@given(st.text())
def test_any_text_as_yaml_is_a_task_or_a_spec_error(text):
    with contextlib.suppress(SpecError):
        Task.from_yaml(text)


@given(st.text(), st.text())
def test_any_text_is_a_ref_or_a_spec_error(first, second):
    for parse in (JobRef.parse, Place.parse, Accelerator.parse, parse_amount, parse_gib):
        for text in (first, f"{first}://{second}"):
            with contextlib.suppress(SpecError):
                parse(text)


@given(st.text())
def test_a_safe_name_is_what_every_cloud_takes(text):
    import re

    name = safe_name(text)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", name)
    assert len(name) <= 40
    assert safe_name(name) == name


# any_of


@given(st.lists(OVERLAY, min_size=1, max_size=4), st.data())
def test_alternatives_do_not_leak_into_each_other(overlays, data):
    base = data.draw(st.builds(Resources, **PLAIN_RESOURCES))
    together = attrs.evolve(base, any_of=tuple(overlays)).alternatives()
    apart = tuple(
        alternative
        for overlay in overlays
        for alternative in attrs.evolve(base, any_of=(overlay,)).alternatives()
    )
    assert together == apart
    for alternative in together:
        assert len(alternative.accelerators) <= 1
        assert alternative.any_of == ()


@given(st.lists(OVERLAY, min_size=1, max_size=3))
def test_what_an_alternative_does_not_say_is_that_of_the_base(overlays):
    base = Resources(accelerators="B200:8", cpus=7, image="base", use_spot=True)
    for overlay, made in zip(
        overlays, [attrs.evolve(base, any_of=(o,)).alternatives()[0] for o in overlays], strict=True
    ):
        for name in ("cpus", "image", "use_spot"):
            if name not in overlay:
                assert getattr(made, name) == getattr(base, name)


# Several faults at once

FAULTS = {
    "nmae": "x",
    "num_nodes": 0,
    "timeout_s": -1,
    "ports": [70000],
    "envs": {"1x": "y"},
    "max_restarts": "many",
    "resources": {"netwrk_tier": "best"},
}


@given(st.sets(st.sampled_from(sorted(FAULTS)), min_size=1))
def test_every_fault_is_reported_with_its_path(names):
    with pytest.raises(SpecError) as caught:
        Task.from_dict({"run": "x", **{name: FAULTS[name] for name in names}})
    heads = {p.path.split(".")[0].split("[")[0] for p in caught.value.problems}
    assert heads == names


@given(BODY)
def test_a_frozen_dict_is_its_items_in_any_order(body):
    frozen = FrozenDict(freeze(body))
    turned = FrozenDict(dict(reversed(list(frozen.items()))))
    assert frozen == turned
    assert hash(frozen) == hash(turned)
    assert plain(frozen) == plain(body)
