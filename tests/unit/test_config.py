"""Settings: where each value came from, and what is refused."""

import pickle

import attrs
import platformdirs
import pytest

from gpufabric.config import Settings, _user_folder, environment
from gpufabric.errors import ConfigError


@pytest.fixture(autouse=True)
def _alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("POLL_S", "LOCAL_ROOT", "STOP_GRACE_S", "DISCOVER_TIMEOUT_S"):
        monkeypatch.delenv(f"GPUFABRIC_{name}", raising=False)


def test_argument_beats_variable_beats_project_file_beats_user_file(tmp_path, monkeypatch):
    (tmp_path / "config" / "gpufabric").mkdir(parents=True)
    user = tmp_path / "config" / "gpufabric" / "config.toml"
    user.write_text("poll_s = 1\nstop_grace_s = 1\nworkdir_limit_mb = 1\ndiscover_timeout_s = 1")
    (tmp_path / "gpufabric.toml").write_text("poll_s = 2\nstop_grace_s = 2\nworkdir_limit_mb = 2")
    monkeypatch.setenv("GPUFABRIC_POLL_S", "3")
    monkeypatch.setenv("GPUFABRIC_STOP_GRACE_S", "3")
    made = Settings.load(poll_s=4.0)
    assert (made.poll_s, made.stop_grace_s, made.workdir_limit_mb, made.discover_timeout_s) == (
        4, 3, 2, 1,
    )  # fmt: skip
    assert made.origins["poll_s"] == "argument"
    assert made.origins["stop_grace_s"] == "GPUFABRIC_STOP_GRACE_S"
    assert made.origins["workdir_limit_mb"] == "gpufabric.toml"
    assert made.origins["discover_timeout_s"] == str(user)
    assert made.origins["local_root"] == "default"


def test_without_trust_nothing_of_the_environment_is_read(tmp_path, monkeypatch):
    (tmp_path / "gpufabric.toml").write_text("not toml at all [")
    monkeypatch.setenv("GPUFABRIC_POLL_S", "nonsense")
    assert Settings.load(trust_env=False).poll_s == Settings().poll_s
    assert environment(trust_env=False) == {}


@pytest.mark.parametrize("text", ["x", "", "nan", "inf", "-1", "0"])
def test_a_variable_that_is_no_number_of_seconds_is_told_by_name(text, monkeypatch):
    monkeypatch.setenv("GPUFABRIC_POLL_S", text)
    with pytest.raises(ConfigError, match="GPUFABRIC_POLL_S"):
        Settings.load()


@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), "1", True, None, 10**400])
def test_what_is_no_time_is_refused(value):
    with pytest.raises(ConfigError, match="poll_s"):
        Settings.load(poll_s=value)


def test_an_unknown_setting_is_told_with_the_near_miss(tmp_path):
    with pytest.raises(ConfigError, match="argument: unknown setting pol_s, did you mean poll_s"):
        Settings.load(pol_s=1.0)
    (tmp_path / "gpufabric.toml").write_text("pol_s = 1")
    with pytest.raises(ConfigError, match=r"gpufabric.toml: unknown setting pol_s"):
        Settings.load()


def test_a_file_that_cannot_be_read_is_told(tmp_path):
    (tmp_path / "gpufabric.toml").write_text("poll_s = [")
    with pytest.raises(ConfigError, match=r"gpufabric\.toml"):
        Settings.load()
    (tmp_path / "gpufabric.toml").write_bytes(b"poll_s = \xff")
    with pytest.raises(ConfigError, match=r"gpufabric\.toml"):
        Settings.load()


def test_settings_are_values():
    made = Settings.load(trust_env=False, poll_s=2.0)
    assert made == Settings(trust_env=False, poll_s=2.0)
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301  # our own bytes
    assert hash(made) == hash(Settings(trust_env=False, poll_s=2.0))


@pytest.mark.parametrize(
    ("xdg", "home"),
    [("/x", "/h"), (None, "/h"), ("", "/h"), ("relative", "/h"), (None, "relative"), ("/x", None)],
)
def test_the_users_folder_is_the_one_that_platformdirs_names(xdg, home, monkeypatch):
    for name, value in (("XDG_CONFIG_HOME", xdg), ("HOME", home)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    assert _user_folder() == platformdirs.user_config_path("gpufabric")


def test_settings_without_files_and_variables_are_the_defaults_told_as_such():
    made = Settings.load()
    assert made == Settings()
    assert set(made.origins.values()) == {"default"}
    assert set(made.origins) == {a.name for a in attrs.fields(Settings)} - {"origins"}
