"""`nox` runs what CI runs; each session is a target of the Makefile."""

import nox

nox.options.sessions = ["tests", "lint", "types", "docs", "notebooks"]


def _make(session: nox.Session, *targets: str) -> None:
    session.run("make", *targets, external=True)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    _make(session, "test")


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    _make(session, "lint")


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    _make(session, "types")


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    _make(session, "docs")


@nox.session(venv_backend="none")
def notebooks(session: nox.Session) -> None:
    _make(session, "notebooks", "wheel")
