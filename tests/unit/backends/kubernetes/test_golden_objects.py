"""The objects of a gang on each profile are what was reviewed."""

import importlib.util
from pathlib import Path

import pytest
import yaml

PLANS = Path(__file__).parents[3] / "data" / "plans"


def _script():
    spec = importlib.util.spec_from_file_location("write_kubernetes", PLANS / "write_kubernetes.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


write = _script()


def golden(profile):
    return PLANS / f"kubernetes-{profile}.yaml"


@pytest.mark.parametrize("profile", [*sorted(write.PROFILES), *write.VARIANTS])
def test_the_objects_of_a_profile_are_what_was_reviewed(profile):
    assert write.planned(profile) == golden(profile).read_text(encoding="utf-8"), (
        f"changed: python tests/data/plans/write_kubernetes.py {profile}, and review the diff"
    )


@pytest.mark.parametrize("profile", sorted(write.PROFILES))
def test_pods_ask_for_no_more_than_their_node_has_and_for_no_other_pools_nics(profile):
    body = yaml.safe_load(golden(profile).read_text(encoding="utf-8"))
    owner = body["steps"][0]["body"]["spec"]["replicatedJobs"][0]["template"]["spec"]
    (container,) = owner["template"]["spec"]["containers"]
    capacity = write.PROFILES[profile].get("capacity", {})
    for name, amount in container["resources"]["limits"].items():
        assert int(amount) <= int(str(capacity[name]).replace("k", "000")), name
    found = write.site(profile)
    if found.facts["pools"][found.pools[0].name]["way"] is None:  # its pods can have no fabric
        assert [n for n in container["resources"]["limits"] if not n.endswith("/gpu")] == []
        assert "capabilities" not in container["securityContext"]


def test_there_is_no_golden_file_without_its_profile():
    files = {path.stem.removeprefix("kubernetes-") for path in PLANS.glob("kubernetes-*.yaml")}
    assert files == {*write.PROFILES, *write.VARIANTS}
