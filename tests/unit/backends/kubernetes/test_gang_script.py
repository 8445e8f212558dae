"""A platform's own script is sourced, and what the user said wins after it: by real shells."""

import json
import subprocess
import sys

import pytest

from gpufabric.backends.kubernetes._pod import literal
from gpufabric.backends.kubernetes._script import RANK, start_script

ODD = {
    "PLAIN": "1",
    "DOLLAR": "$HOME ${PLATFORM} $(echo no) `echo no`",
    "QUOTES": 'it\'s "so" \\n \\',
    "LINES": "a\nb\n\n c\t",
    "EMPTY": "",
    "GLOB": "* ? [a]",
}


@pytest.fixture
def environment(tmp_path, shell):
    """The environment that the command of a node has, behind a platform's script."""

    def of(platform, *, given, envs=None, variables=(), secrets=()):
        source = tmp_path / "platform's env.sh"
        source.write_text(platform)
        (tmp_path / "work").mkdir(exist_ok=True)
        text = start_script(
            host="g", subdomain="g", num_nodes=1, variables=variables, source=str(source),
            envs=envs or {}, code=False, secrets=secrets,
        ).replace("/gpufabric/", f"{tmp_path}/")  # fmt: skip
        ask = "import json, os; print(json.dumps(dict(os.environ)))"
        done = subprocess.run(
            [*shell, "-c", text, "gpufabric", "", sys.executable, "-c", ask],
            env={"PATH": "/usr/bin:/bin", "GPUFABRIC_POD_IP": "10.0.0.1", **given},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    return of


def test_what_the_platform_sets_is_set_and_expanded_there(environment):
    seen = environment('export PLATFORM=tcpxo; export BOTH="$PLATFORM-2"', given={})
    assert (seen["PLATFORM"], seen["BOTH"]) == ("tcpxo", "tcpxo-2")


def test_the_users_values_win_over_the_platforms_exactly_as_written(environment):
    platform = "export PLATFORM=x\n" + "\n".join(f"export {name}=platform" for name in ODD)
    seen = environment(platform, given=ODD, envs=ODD)
    assert {name: seen[name] for name in ODD} == ODD
    assert seen["PLATFORM"] == "x"


def test_secrets_win_too_though_their_values_stand_in_no_text(environment):
    platform = "\n".join(f"export {name}=platform" for name in ODD)
    seen = environment(platform, given=ODD, secrets=tuple(ODD))
    assert {name: seen[name] for name in ODD} == ODD
    assert not [name for name in seen if name.startswith("gpufabric_kept")]


def test_ranks_and_addresses_are_set_after_the_platforms_script(environment):
    seen = environment(
        "export NODE_RANK=platform MASTER_ADDR=platform",
        given={"JOB_COMPLETION_INDEX": "3"},
        variables=[("NODE_RANK", RANK), ("MASTER_ADDR", "g-0.g")],
    )
    assert (seen["NODE_RANK"], seen["MASTER_ADDR"]) == ("3", "g-0.g")


def test_a_script_that_is_not_there_ends_the_node_in_words(tmp_path, shell):
    (tmp_path / "work").mkdir()
    text = start_script(
        host="g", subdomain="g", num_nodes=1, variables=[], source="/no/such.sh", envs={},
        code=False,
    ).replace("/gpufabric/", f"{tmp_path}/")  # fmt: skip
    done = subprocess.run(
        [*shell, "-c", text, "gpufabric", "", "true"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 66
    assert "/no/such.sh is not there" in done.stderr


@pytest.mark.parametrize("value", [*ODD.values(), "$(A)", "$$(A)", "$$$", "$"])
def test_a_value_is_written_so_that_kubernetes_gives_it_back(value):
    assert expanded(literal(value)) == value


def expanded(text):
    """What the kubelet makes of a value where no variable it names exists, and `A` is `seen`.

    https://pkg.go.dev/k8s.io/kubernetes@v1.36.3/third_party/forked/golang/expansion
    """
    made, at = "", 0
    while at < len(text):
        if text.startswith("$$", at):
            made, at = made + "$", at + 2
        elif text.startswith("$(A)", at):
            made, at = made + "seen", at + 4
        else:
            made, at = made + text[at], at + 1
    return made
