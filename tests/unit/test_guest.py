"""gpufabric is a guest in the process that imports it."""

import os
import subprocess
import sys
import textwrap

import pytest

HEAVY = [
    "asyncio", "asyncssh", "boto3", "cattrs", "cloudpickle", "google", "httpx", "kubernetes",
    "matplotlib", "numpy", "oci", "pandas", "polars", "requests", "tenacity", "yaml",
]  # fmt: skip


def run(code: str, *flags: str, env: dict[str, str] | None = None, cwd: object = None) -> str:
    done = subprocess.run(
        [sys.executable, *flags, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **(env or {})},
        cwd=str(cwd) if cwd else None,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


EVERY_NAME = "import gpufabric; [getattr(gpufabric, name) for name in gpufabric.__all__]"


def test_import_loads_no_sdk_and_nothing_heavy():
    code = f"""
    import sys
    before = set(sys.modules)
    import gpufabric
    heavy = [name for name in {HEAVY!r} if name in sys.modules and name not in before]
    assert not heavy, heavy
    """
    assert run(code) == ""


def test_every_public_name_loads_no_sdk():
    heavy = [name for name in HEAVY if name not in {"asyncio", "cattrs", "tenacity", "yaml"}]
    code = f"""
    import sys
    {EVERY_NAME}
    loaded = [name for name in {heavy!r} if name in sys.modules]
    assert not loaded, loaded
    """
    assert run(code) == ""


def test_import_leaves_process_state_alone():
    code = f"""
    import logging, os, signal, sys, threading, warnings, locale
    def state():
        return (
            dict(os.environ), os.getcwd(), os.umask(os.umask(0)), list(warnings.filters),
            {{s: signal.getsignal(s) for s in signal.valid_signals()}}, threading.active_count(),
            logging.root.level, list(logging.root.handlers), sys.excepthook, sys.stdout,
            locale.setlocale(locale.LC_ALL),
        )
    before = state()
    {EVERY_NAME}
    assert state() == before
    """
    assert run(code) == ""


def test_import_writes_nothing(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    run(EVERY_NAME, env={"HOME": str(home), "XDG_STATE_HOME": ""}, cwd=home)
    assert list(home.iterdir()) == []


def test_library_logger_has_a_null_handler_and_no_level():
    code = """
    import logging, gpufabric.fabric
    logger = logging.getLogger("gpufabric")
    assert [type(h) for h in logger.handlers] == [logging.NullHandler], logger.handlers
    assert logger.level == logging.NOTSET
    """
    run(code)


@pytest.mark.parametrize("home", ["/nonexistent/home", "/proc/1", ""])
def test_import_and_settings_work_with_an_unusable_home(home):
    code = "import gpufabric as gf; print(gf.Settings.load().poll_s); gf.Fabric(gf.Local())"
    assert run(code, env={"HOME": home, "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": ""}) == "1.0\n"


def test_import_works_without_assertions_and_with_warnings_as_errors():
    assert run(EVERY_NAME, "-OO", "-W", "error") == ""


def test_import_works_in_a_thread():
    code = f"""
    import threading
    failed = []
    def load():
        try:
            exec({EVERY_NAME!r}, {{}})
        except BaseException as exc:
            failed.append(exc)
    threads = [threading.Thread(target=load) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not failed, failed
    """
    assert run(code) == ""


def test_a_forked_child_can_use_it():
    code = """
    import os, gpufabric as gf
    task = gf.Task(run="true")
    with gf.Fabric(gf.Local()) as fabric:
        first = fabric.plan(task).key
        child = os.fork()
        if child == 0:
            os._exit(0 if fabric.plan(task).key == first else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    """
    run(code)


def test_untrusted_environment_is_not_read():
    code = """
    import gpufabric as gf
    assert gf.Settings.load().poll_s == 7.0
    assert gf.Settings.load(trust_env=False).poll_s == 1.0
    assert gf.Settings.load(trust_env=False).origins["poll_s"] == "default"
    assert gf.Settings.load().origins["poll_s"] == "GPUFABRIC_POLL_S"
    """
    run(code, env={"GPUFABRIC_POLL_S": "7"})


def test_two_fabrics_keep_their_own_settings(tmp_path):
    code = f"""
    import gpufabric as gf
    a = gf.Fabric(gf.Local(), settings=gf.Settings.load(local_root={str(tmp_path / "a")!r}))
    b = gf.Fabric(gf.Local(), settings=gf.Settings.load(poll_s=9.0))
    assert a.settings != b.settings and a.settings.poll_s == 1.0
    """
    run(code)


def test_public_names_are_what_the_module_shows():
    import gpufabric

    shown = {
        name
        for name in dir(gpufabric)
        if not name.startswith("_") and name not in {"TYPE_CHECKING", "annotations"}
    }
    submodules = {
        name
        for name in shown
        if f"gpufabric.{name}" in sys.modules and name not in gpufabric.__all__
    }
    assert shown - submodules == set(gpufabric.__all__)
    for name in gpufabric.__all__:
        assert getattr(gpufabric, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    import gpufabric

    with pytest.raises(AttributeError, match="no attribute 'Fabirc'"):
        gpufabric.Fabirc  # noqa: B018
