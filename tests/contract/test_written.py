"""The backend that docs/how-to/write-a-backend.md shows, as a plug-in that is installed."""

import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

import gpufabric as gf
from gpufabric.backends.base import Backend
from gpufabric.testing import BackendContract

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-backend.md"


def install(folder: Path, *, name: str = "rack", module: str = "rack") -> None:
    """Lays out what pip makes of a package with the page's module and its entry point."""
    code = re.findall(r"```\{testcode\}\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    (folder / f"{module}.py").write_text(code)
    meta = folder / f"{module}-1.0.dist-info"
    meta.mkdir(parents=True)
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    points = f"[gpufabric.backends]\n{name} = {module}:Rack\n"
    (meta / "entry_points.txt").write_text(points)


def python(folder: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_plug_in_is_found_launched_on_and_attached_to(tmp_path):
    install(tmp_path)
    code = """
import sys
import gpufabric as gf
from gpufabric.backends import backend_class, backend_names
assert "rack" in backend_names()
assert "rack" not in sys.modules  # loaded when it is used
Rack = backend_class("rack")
with gf.Fabric(Rack(sys.path[0] or ".")) as fabric:
    plan = fabric.plan(gf.Task(name="a", run="echo hi", num_nodes=2))
    job = fabric.launch(gf.LaunchPlan.from_yaml(plan.to_yaml()))
with gf.Fabric() as other:
    found = other.attach(str(job.ref))
    print(sorted(str(line) for line in found.logs(follow=True)), found.ref.backend)
    found.teardown()
    assert other.attach(job.ref).status().state is gf.JobState.GONE
with gf.Fabric.discover() as every:
    print([backend.name for backend in every.backends])
"""
    assert python(tmp_path, code).splitlines() == [
        "['[0] hi', '[1] hi'] rack",
        "['local', 'rack']",
    ]


@pytest.mark.parametrize(
    ("name", "module"), [("local", "rack"), ("rack", "other")], ids=["with ours", "with another"]
)
def test_two_backends_of_one_name_are_an_error_that_names_one(tmp_path, name, module):
    install(tmp_path)
    install(tmp_path, name=name, module=f"{module}2")
    code = """
import gpufabric as gf
try:
    gf.Fabric.discover()
except gf.ConfigError as exc:
    print(exc)
with gf.Fabric(gf.Local("jobs"), settings=gf.Settings()) as fabric:  # given by hand: goes on
    print(len(fabric.offers(gf.Task(run="true"))))
"""
    told, offers = python(tmp_path, code).splitlines()
    assert told.startswith(f"two backends are named {name!r}: ")
    assert "uninstall one" in told
    assert offers == "1"


def test_a_plug_in_that_cannot_be_imported_spoils_nothing(tmp_path):
    install(tmp_path)
    (tmp_path / "rack.py").write_text("import a_module_that_is_not_there")
    code = """
import gpufabric as gf
with gf.Fabric.discover() as fabric:
    found = fabric.offers(gf.Task(run="true"))
    print([offer.backend for offer in found], *[r for r in found.rejections if r.backend == "rack"])
"""
    told = python(tmp_path, code)
    assert told.startswith("['local'] rack: ")
    assert "No module named 'a_module_that_is_not_there'" in told


def test_a_plug_in_that_hangs_is_told_within_the_limit(tmp_path):
    install(tmp_path)
    (tmp_path / "rack.py").write_text("""
import threading
class Rack:
    @classmethod
    def found(cls, settings):
        threading.Event().wait()
""")
    code = """
import gpufabric as gf
with gf.Fabric.discover(settings=gf.Settings(discover_timeout_s=0.2)) as fabric:
    print([backend.name for backend in fabric.backends], *fabric.unusable)
"""
    assert python(tmp_path, code).splitlines() == [
        "['local'] rack: no answer within 0.2 s (setting discover_timeout_s)"
    ]


@pytest.mark.slow
class TestWritten(BackendContract):
    kill_moments = 3

    @pytest.fixture(autouse=True)
    def _elsewhere(self, tmp_path_factory, monkeypatch):
        here = tmp_path_factory.mktemp("plug-in")
        install(here)
        monkeypatch.setenv("PYTHONPATH", str(here))
        monkeypatch.syspath_prepend(str(here))

    def make_factory(self, folder: Path) -> Callable[[], Backend]:
        from rack import Rack

        return partial(Rack, str(folder / "jobs"), gf.Settings(stop_grace_s=0.5))

    def leftovers(self, backend: Backend, ref: gf.JobRef) -> Iterable[str]:
        return [str(job) for job in backend.jobs() if job == ref]
