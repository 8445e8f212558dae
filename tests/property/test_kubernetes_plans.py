"""Whatever a site says and a task asks: a plan is text that comes back, and all of it is owned."""

import functools
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufabric._frozen import evolve, freeze, thaw
from gpufabric.backends.kubernetes.offers import make_offers
from gpufabric.backends.kubernetes.plan import make_plan
from gpufabric.catalog.index import Catalog
from gpufabric.plan import LaunchPlan
from gpufabric.task import Task

_PATH = Path(__file__).parents[1] / "data" / "plans" / "write_kubernetes.py"
_SPEC = importlib.util.spec_from_file_location("write_kubernetes", _PATH)
write = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(write)

FACTS = st.fixed_dictionaries(
    {
        "controllers": st.sampled_from([{}, {"jobset": "v1alpha2"}]),
        "gang_apis": st.fixed_dictionaries(
            {},
            optional={
                "scheduling.k8s.io": st.sampled_from(["v1alpha1", "v1alpha2"]),
                "scheduling.volcano.sh": st.just("v1beta1"),
                "resource.nvidia.com": st.just("v1beta1"),
            },
        ),
        "queues": st.sampled_from([[], ["q"]]),
        "queue_topology": st.sampled_from([{}, {"q": ["rack", "kubernetes.io/hostname"]}]),
        "pod_security": st.sampled_from([None, "baseline", "restricted"]),
    },
    optional={"priority_classes": st.sampled_from([["p"], []])},
)
FIELDS = st.fixed_dictionaries(
    {"run": st.sampled_from(["x", ["a", "$(B)"]]), "num_nodes": st.integers(1, 3)},
    optional={
        "secrets": st.just({"T": "s3cr3t"}),
        "workdir": st.just("/src"),
        "envs": st.sampled_from([{"A": "$(B) $$"}, {"NCCL_IB_HCA": "mlx5"}]),
        "max_restarts": st.just(1),
    },
)
SETTINGS = st.fixed_dictionaries(
    {
        "scheduler": st.sampled_from([None, "volcano", "other"]),
        "priority": st.sampled_from([None, "p"]),
    }
)


@functools.cache
def site_of(profile):
    return write.site(profile, 3)


def every_plan_is_text_owned_and_of_few_writes(profile, facts, fields, own, data):
    site = site_of(profile)
    site = evolve(site, facts=freeze({**thaw(site.facts), **facts}))
    accelerator = site.pools[0].accelerator
    wish = {"image": "i:1"}
    if accelerator is not None:
        tier = data.draw(st.sampled_from(["standard", "gpudirect", "best"]))
        wish |= {"accelerators": str(accelerator), "network_tier": tier}
    task = Task.from_dict({**fields, "resources": wish})
    rest = {"image": None, "patch": {}, **own}
    for offer in make_offers(task, site, Catalog.shipped(), **rest).offers:
        plan = make_plan(task, offer, site, Catalog.shipped(), run="", grace_s=1, **rest)
        again = LaunchPlan.from_yaml(plan.to_yaml())
        assert evolve(again, task=task) == plan
        text = json.dumps([thaw(step.body) for step in plan.steps])
        assert "s3cr3t" not in text + str(plan)
        made = [step for step in plan.steps if step.verb == "create"]
        assert all(step.body["metadata"]["ownerReferences"] for step in made[1:])
        assert len([step for step in plan.steps if step.verb not in {"pack", "serve"}]) <= 6


# Few examples in `make test`, since each costs CPU, and all of them in `make test-hostile`.
plans = given(st.sampled_from(sorted(write.PROFILES)), FACTS, FIELDS, SETTINGS, st.data())
test_every_plan_is_text_owned_and_of_few_writes = settings(max_examples=15, deadline=None)(
    plans(every_plan_is_text_owned_and_of_few_writes)
)
test_many_plans_are_text_owned_and_of_few_writes = pytest.mark.slow(
    settings(max_examples=60, deadline=None)(plans(every_plan_is_text_owned_and_of_few_writes))
)
