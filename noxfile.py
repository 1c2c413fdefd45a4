"""The project's checks by name; `.ci/run` runs them all on every Python of the machine."""

from __future__ import annotations

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "typing", "tests"]
nox.options.default_venv_backend = "venv"


@nox.session
def lint(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("ruff", "check")
    session.run("ruff", "format", "--check")
    session.run("lint-imports")


@nox.session
def typing(session: nox.Session) -> None:
    session.install("-e", ".[dev]")
    session.run("mypy")
    session.run("pyright")


@nox.session(python=["3.11", "3.12", "3.13"])
def tests(session: nox.Session) -> None:
    session.install("-e", ".[tests]")
    session.run("pytest", *session.posargs)


@nox.session
def coverage(session: nox.Session) -> None:
    session.install("-e", ".[tests]")
    session.run("pytest", "--cov", "--cov-report=term-missing", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    session.install("-e", ".", *nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "bench"))
    session.run("python", "-m", "benchmarks", *session.posargs)
