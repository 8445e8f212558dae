"""The nccl_tests workload: real processes and relays; a stand-in for mpirun and the program."""

import sys
import textwrap

import pytest

from gpufabric import bench

IPS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")

# What Open MPI does, seen from outside: a daemon on every host but its own by its "ssh".
MPIRUN = f"""\
#!{sys.executable} -IS
import os, signal, subprocess, sys
if "--version" in sys.argv:
    sys.exit(print("mpirun (Open MPI) 5.0.11"))
hosts = [part.split(":")[0] for part in sys.argv[sys.argv.index("-H") + 1].split(",")]
start = next(i for i, word in enumerate(sys.argv) if word.endswith("_perf"))
program = sys.argv[start:]
agent = os.environ["PRTE_MCA_plm_ssh_agent"]
assert agent == os.environ["OMPI_MCA_plm_rsh_agent"]
nodes = [subprocess.Popen([agent, host, "exec", *program]) for host in hosts[1:]]
nodes.append(subprocess.Popen(program))
def stop(*_):
    for node in nodes:
        node.kill()
    os._exit(143)
signal.signal(signal.SIGTERM, stop)
sys.exit(max(node.wait() for node in nodes))
"""

PROGRAM = """\
#!/bin/sh
echo "node $GPUFABRIC_NODE_RANK got $*"
[ -z "$HANG" ] || exec sleep 60
[ "$GPUFABRIC_NODE_RANK" != "$FAILING" ] || exit 7
"""


@pytest.fixture
def site(tmp_path, gangs):
    """Lays out what a node has, and starts nodes that run a task."""
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in {"mpirun": MPIRUN, "all_reduce_perf": PROGRAM}.items():
        (binaries / name).write_text(text, "utf-8")
        (binaries / name).chmod(0o755)

    def start(num_nodes, envs=None, start_timeout="60", without=(), **options):
        task = bench.all_reduce(
            num_nodes=num_nodes, workload="nccl_tests", nproc_per_node=2, **options
        )
        for name, text in task.files.items():
            (tmp_path / name).write_text(text, "utf-8")
        port = gangs.port()
        common = {
            "PATH": f"{binaries}:/usr/bin:/bin",
            "GPUFABRIC_NODE_IPS": "\n".join(IPS[:num_nodes]),
            **(envs or {}),
        }
        program = ("-S", str(tmp_path / task.run[1]))
        args = ["--start-timeout", start_timeout, *task.run[2:]]
        return [
            gangs.node(i, num_nodes, *args, port=port, program=program, envs=common)
            for i in range(num_nodes)
            if i not in without
        ]

    start.binaries = binaries
    return start


def test_the_program_runs_on_every_node_with_its_own_variables(gangs, site):
    ended = gangs.finish(site(3, flags=["-z", "1"], min_bytes=8, max_bytes=16))
    assert [(node.code, node.err) for node in ended] == [(0, "")] * 3
    flags = "-g 1 -b 8 -e 16 -f 4 -n 20 -w 5 -c 1 -d float -z 1"
    assert sorted(ended[0].out.splitlines()) == [f"node {i} got {flags}" for i in range(3)]
    assert [node.out for node in ended[1:]] == ["", ""]


@pytest.mark.parametrize("failing", ["0", "2"])
def test_the_exit_code_of_a_failing_node_is_the_gangs(gangs, site, failing):
    ended = gangs.finish(site(3, envs={"FAILING": failing}))
    assert [node.code for node in ended] == [7, 7, 7]


def test_a_node_that_is_lost_is_named_and_ends_the_run(gangs, site):
    nodes = site(3, envs={"HANG": "1"})
    for line in nodes[0].stdout:
        if line.startswith("node 2"):
            break
    nodes[2].kill()
    ended = gangs.finish(nodes[:2])
    assert ended[0].code == 3
    assert ended[1].code == 143
    assert "gpufabric-bench: lost node 2 (127.0.0.3)" in ended[0].err


def test_a_node_that_never_comes_is_named(gangs, site):
    ended = gangs.finish(site(3, start_timeout="1", without={2}))
    assert ended[0].code == 3
    assert "rank 2 (127.0.0.3) never came" in ended[0].err
    assert ended[1].code == 3


def test_one_node_needs_no_mpi(gangs, site):
    (site.binaries / "mpirun").unlink()
    (ended,) = gangs.finish(site(1, min_bytes=8, max_bytes=16))
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("node 0 got -g 2 -b 8 -e 16")


def test_a_missing_program_says_where_it_was_looked_for(gangs, site):
    (site.binaries / "all_reduce_perf").unlink()
    nodes = site(2)
    ended = gangs.finish(nodes[:1])
    assert ended[0].code == 2
    assert "no all_reduce_perf on this node" in ended[0].err
    assert "/opt/nccl-tests/build" in ended[0].err


def test_another_mpi_is_refused_by_name(gangs, site):
    other = textwrap.dedent("""\
        #!/bin/sh
        echo HYDRA build details:
    """)
    (site.binaries / "mpirun").write_text(other, "utf-8")
    ended = gangs.finish(site(2)[:1])
    assert ended[0].code == 2
    assert "is not Open MPI's but: HYDRA build details" in ended[0].err


def test_nodes_that_share_an_address_are_refused(gangs, site):
    ended = gangs.finish(site(2, envs={"GPUFABRIC_NODE_IPS": "127.0.0.1\n127.0.0.1"}))
    assert [node.code for node in ended] == [2, 2]
    assert "nodes share an address" in ended[0].err


def test_a_program_may_be_named(gangs, site):
    ended = gangs.finish(site(2, binary=str(site.binaries / "all_reduce_perf")))
    assert [node.code for node in ended] == [0, 0]
    assert len(ended[0].out.splitlines()) == 2
