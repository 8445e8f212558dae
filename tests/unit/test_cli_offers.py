"""`python -m gpufabric offers|plan|env`, as a person at a shell uses them."""

import json
import shlex
import subprocess

import pytest

from gpufabric.cli import main

H100 = ["--accelerators", "H100:8", "--nodes", "4", "--tier", "best", "--cloud", "aws"]


def run(capsys, *argv):
    code = main(list(argv))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_offers_are_a_table_with_what_is_not_possible(capsys):
    code, out, _ = run(capsys, "offers", *H100)
    assert code == 0
    first = next(line for line in out.splitlines() if "p5.48xlarge" in line)
    for word in ("aws", "vm", "efa", "best", "3200", "55.04", "220.16", "us-east-1"):
        assert word in first
    assert "aws p5.4xlarge: it has 1 x H100, not 8" in out
    assert "unknown" in out


def test_offers_as_json_are_the_whole_resolution(capsys):
    from gpufabric.plan import Resolution

    code, out, _ = run(capsys, "offers", *H100, "--json")
    assert code == 0
    resolution = Resolution.from_dict(json.loads(out))
    assert resolution.best is not None
    assert resolution.best.instance_type == "p5.48xlarge"


def test_no_offer_is_exit_code_1_with_the_reasons(capsys):
    code, out, _ = run(capsys, "offers", "-a", "H10O:8", "--cloud", "aws")
    assert code == 1
    assert "no offers" in out
    assert "did you mean H100?" in out


def test_a_platform_and_a_place_narrow_the_table(capsys):
    _, out, _ = run(capsys, "offers", *H100, "--platform", "eks", "--place", "aws/us-west-2")
    lines = [line for line in out.splitlines() if "p5.48xlarge" in line]
    assert len(lines) == 1
    assert "eks" in lines[0]
    assert lines[0].rstrip().endswith("us-west-2")


def test_a_plan_is_printed_with_reasons_and_sources(capsys):
    code, out, _ = run(capsys, "plan", *H100, "--platform", "eks")
    assert code == 0
    assert "resource vpc.amazonaws.com/efa: 32" in out
    assert "https://docs.aws.amazon.com/" in out


def test_a_plan_as_json_can_be_read_back(capsys):
    from gpufabric.plan import LaunchPlan

    _, out, _ = run(capsys, "plan", *H100, "--json")
    assert LaunchPlan.from_dict(json.loads(out)).offer.instance_type == "p5.48xlarge"


def test_no_plan_is_exit_code_1_and_every_reason_is_told(capsys):
    code, _, err = run(capsys, "plan", "-a", "H100:8", "-n", "100000", "--cloud", "onprem")
    assert code == 1
    assert "no place keeps what was asked" in err


def test_env_is_shell_text_that_a_shell_runs(capsys):
    code, out, _ = run(capsys, "env", *H100, "--env", "MINE=it's $HOME; rm -rf /x")
    assert code == 0
    exported = [line for line in out.splitlines() if line.startswith("export ")]
    assert any(line.startswith("export FI_PROVIDER=efa  # ") for line in exported)
    script = "\n".join(line for line in out.splitlines() if "MINE" not in line)
    shown = subprocess.run(
        ["sh", "-c", f'{script}\nprintf %s "$FI_PROVIDER"'],
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "efa"


def test_the_users_own_value_is_quoted(capsys):
    _, out, _ = run(capsys, "env", *H100, "--env", "MINE=it's; touch /tmp/x")
    line = next(line for line in out.splitlines() if "MINE" in line)
    assert shlex.split(line, comments=True) == ["export", "MINE=it's; touch /tmp/x"]


def test_env_warns_in_a_comment(capsys):
    _, out, _ = run(capsys, "env", *H100, "--env", "NCCL_NET=Socket")
    assert out.startswith("# warning: NCCL_NET=Socket is known to break the network")


def test_env_as_json_is_names_and_values(capsys):
    _, out, _ = run(capsys, "env", *H100, "--json")
    assert json.loads(out)["FI_PROVIDER"] == "efa"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["offers", "-a", "H100:8", "--tier", "bst"], "did you mean best?"),
        (["offers", "-a", "H100:8", "-n", "0"], "num_nodes"),
        (["offers", "-a", "H100:8", "-n", "1000000"], "num_nodes"),
        (["offers", "-a", "H100:-1"], "whole number"),
        (["offers", "-a", "H100:8", "--cloud", "asw"], "did you mean aws?"),
        (["offers", "-a", "H100:8", "--rank-by", "prise"], "did you mean price?"),
        (["offers"], "say what is wanted"),
        (["offers", "-a", "H100:8", "--platform", "ekss"], "did you mean eks?"),
        (["offers", "-a", "H100:8", "--env", "NOVALUE"], "write NAME=VALUE"),
        (["offers", "-a", "H100:8", "--overlay", "/does/not/exist.toml"], "cannot be read"),
        (["offers", "-a", "H100:8", "--min-gbps-per-gpu", "-3"], "min_gbps_per_gpu"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(capsys, argv, words):
    code, out, err = run(capsys, *argv)
    assert code in (1, 2)
    assert words in err
    assert out == ""


def test_a_platform_that_a_type_is_not_offered_on_is_a_rejection(capsys):
    code, out, _ = run(
        capsys, "offers", "-a", "B200:8", "-n", "2", "--cloud", "lambda", "--platform", "vm"
    )
    assert code == 0
    assert "lambda 1cc-8x-b200-sxm6: it is offered on 1-click-cluster" in out


def test_a_plan_says_how_its_price_is_billed_who_says_so_and_when(capsys, tmp_path):
    ours = tmp_path / "ours.toml"
    ours.write_text(
        '[cloud]\nname = "aws"\ntitle = "AWS"\nas_of = 2026-11-01\n'
        '[[price]]\ninstance_type = "p5.48xlarge"\nusd_hour = 31.0\nmarket = "negotiated"\n'
        'as_of = 2026-11-01\nsources = ["our contract"]\n',
        encoding="utf-8",
    )
    asked = ("plan", *H100, "--cloud", "aws")
    _, listed, _ = run(capsys, *asked)
    _, own, _ = run(capsys, *asked, "--overlay", str(ours))
    assert "USD/h in all (on demand, https://" in listed
    assert "31.00 USD/h a node, 124.00 USD/h in all (negotiated, our contract, 2026-11-01)" in own
