"""The profiles as data; these tests need no cluster."""

import json
import re

import pytest
from gfcluster import dress, layout
from gfcluster.shell import ClusterError

_NODE = layout.node("node-3")
_PROFILES = dress.profiles()


@pytest.mark.parametrize("name", sorted(_PROFILES))
def test_a_profile_says_what_it_is_and_who_says_so(name):
    profile = _PROFILES[name]
    assert profile["about"]
    assert all(source.startswith("https://") for source in profile["sources"])
    assert profile["sources"] or name == "bare"


@pytest.mark.parametrize("name", sorted(_PROFILES))
def test_every_word_of_a_profile_is_used_and_every_word_used_is_known(name):
    profile = dict(_PROFILES[name])
    words = set(profile.pop("words", {}))
    used = set(re.findall(r"\{(\w+)\}", json.dumps(profile)))
    assert used - {"node", "index"} == words


@pytest.mark.parametrize("name", sorted(_PROFILES))
def test_labels_and_resources_are_as_kubernetes_writes_them(name):
    profile = dress.filled(name, _NODE, {})
    for key, value in profile.get("labels", {}).items():
        assert re.fullmatch(r"([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9._-]{0,62}", key)
        assert re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", value)
    for key, value in profile.get("capacity", {}).items():
        assert "/" in key
        assert re.fullmatch(r"[1-9][0-9]{0,2}k?", value)  # the server writes 1000 as 1k
    for path in [*profile.get("devices", []), *profile.get("folders", [])]:
        assert re.fullmatch(r"/[A-Za-z0-9/_.-]+", path)


def test_a_word_can_be_given_another_value():
    profile = dress.filled("eks-p5", _NODE, {"layer3": "nn-9"})
    assert profile["labels"]["topology.k8s.aws/network-node-layer-3"] == "nn-9"
    assert profile["provider_id"].endswith("3")


def test_a_word_or_profile_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ClusterError, match=r"no word \['rack'\]; it has: .*layer1"):
        dress.filled("eks-p5", _NODE, {"rack": "1"})
    with pytest.raises(ClusterError, match=r"no profile 'eks-p6'; there are: .*eks-p5"):
        dress.filled("eks-p6", _NODE, {})
