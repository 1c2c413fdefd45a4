"""The building blocks as pytest fixtures.

Switch them on in the top-level ``conftest.py``::

    pytest_plugins = ["aiohttp_hardened.testing.plugin"]

What needs a running loop is not a fixture, so that no asyncio plugin is forced on
a suite: enter `TLSServer`, `scripted_proxy` and the others with ``async with``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened import testing

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(scope="session")
def throwaway_ca() -> Generator[testing.ThrowawayCA]:
    """Give a certificate authority for the whole session."""
    with testing.throwaway_ca() as ca:
        yield ca


@pytest.fixture(scope="session")
def loopback_certificate(throwaway_ca: testing.ThrowawayCA) -> testing.CertificateFiles:
    """Give a certificate of `throwaway_ca` for ``x.test``, ``localhost``, ``127.0.0.1`` and ``::1``."""
    return throwaway_ca.issue("x.test", "localhost", "127.0.0.1", "::1")


@pytest.fixture
def phase_recorder() -> Generator[testing.PhaseRecorder]:
    """Give a recorder whose invariants are checked when the test is over."""
    recorder = testing.PhaseRecorder()
    yield recorder
    recorder.check_invariants()


@pytest.fixture
def fake_name_server() -> Generator[testing.FakeNameServer]:
    """Give a name server that answers as it is told."""
    with testing.FakeNameServer() as names:
        yield names


@pytest.fixture
def dead_address() -> Generator[testing.Address]:
    """Give an address that drops every SYN."""
    with testing.dead_address() as address:
        yield address


@pytest.fixture
def refusing_address() -> Generator[testing.Address]:
    """Give an address that refuses connections."""
    with testing.refusing_address() as address:
        yield address


@pytest.fixture
def stalled_tls() -> Generator[testing.Address]:
    """Give an address that takes connections and never says a byte."""
    with testing.stalled_tls() as address:
        yield address


@pytest.fixture(scope="session")
def http_proxy() -> Generator[str]:
    """Give the URL of a real http proxy (needs proxy.py) that runs for the whole session."""
    with testing.http_proxy() as url:
        yield url


@pytest.fixture(scope="session")
def https_proxy(loopback_certificate: testing.CertificateFiles) -> Generator[str]:
    """Give the URL of a real https proxy (needs proxy.py) that `throwaway_ca` vouches for."""
    with testing.http_proxy(loopback_certificate) as url:
        yield url
