from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened.telemetry._environment import VARIABLES
from aiohttp_hardened.timing._figures import figures
from tests.telemetry._driving import driven

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.telemetry._driving import Driven


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test see only the variables that it sets."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def hooks_raise() -> None:
    """Say that hooks raise in a test."""


@pytest.fixture(autouse=True)
def nothing_contained(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test in which a hook raised, unless it says so."""
    before = figures.telemetry_errors
    yield
    if "hooks_raise" not in request.fixturenames:
        assert before == figures.telemetry_errors


@pytest.fixture
def hooked(no_variables: None) -> Iterator[Driven]:
    """Both hooks with default settings."""
    with driven() as made:
        yield made
