"""Exceptions: the tree, what aiohttp's handlers catch, and what survives a process boundary."""

from __future__ import annotations

import copy
import datetime as dt
import pickle
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import exceptions
from aiohttp_hardened.exceptions import (
    CertificateReloadError,
    DNSLookupError,
    HardenedError,
    PhaseTimeoutError,
    PlaintextBoundaryError,
    ReloadResult,
    SettingsError,
    UnverifiedRequestError,
)
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

TREE: dict[type[Exception], type[Exception]] = {
    SettingsError: ValueError,
    PhaseTimeoutError: TimeoutError,
    DNSLookupError: OSError,
    UnverifiedRequestError: aiohttp.ClientConnectionError,
    PlaintextBoundaryError: aiohttp.ClientConnectionError,
    CertificateReloadError: Exception,
}


@pytest.mark.parametrize(("error", "builtin"), TREE.items())
def test_tree(error: type[Exception], builtin: type[Exception]) -> None:
    """Each error is one of ours and one that existing handlers catch."""
    assert issubclass(error, HardenedError)
    assert issubclass(error, builtin)


def test_the_docstring_draws_every_error() -> None:
    """The tree in the docstring and the classes in the module are the same."""
    drawn = {name for name in exceptions.__all__ if name.endswith("Error") and name in (exceptions.__doc__ or "")}
    assert {error.__name__ for error in (*TREE, HardenedError)} == drawn
    assert drawn == {name for name in exceptions.__all__ if name.endswith("Error")}


def test_a_phase_timeout_says_which_and_how_long() -> None:
    """``.phase`` and ``.budget`` are what ran out; ``errno`` is unset, or aiohttp would wrap the error."""
    error = PhaseTimeoutError("dns ran out", phase=Phase.DNS, budget=5.0)
    assert ("dns ran out", Phase.DNS, 5.0, None) == (str(error), error.phase, error.budget, error.errno)


def test_a_dns_failure_keeps_its_reason() -> None:
    """``.reason`` is the word, ``strerror`` the resolver's own text, and there is no errno."""
    error = DNSLookupError("Domain name not found", reason="host_not_found")
    assert (None, "Domain name not found", "host_not_found") == (error.errno, error.strerror, error.reason)
    assert "Domain name not found" in str(error)


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_errors_survive_copies(again: Callable[[Exception], Exception]) -> None:
    """Type, text and attributes cross a process boundary."""
    timeout = again(PhaseTimeoutError("ran out", phase=Phase.TLS, budget=2.5))
    assert isinstance(timeout, PhaseTimeoutError)
    assert ("ran out", Phase.TLS, 2.5) == (str(timeout), timeout.phase, timeout.budget)
    lookup = again(DNSLookupError("not found", reason="no_data"))
    assert isinstance(lookup, DNSLookupError)
    assert ("not found", "no_data") == (lookup.strerror, lookup.reason)
    for kind in (SettingsError, UnverifiedRequestError, PlaintextBoundaryError, CertificateReloadError):
        plain = again(kind("some words"))
        assert (kind, "some words") == (type(plain), str(plain))


@pytest.mark.parametrize(
    "error",
    [
        PhaseTimeoutError("ran out", phase=Phase.TLS, budget=2.5),
        DNSLookupError("not found", reason="no_data"),
    ],
)
def test_notes_survive_pickle(error: Exception) -> None:
    """A note that was added to one of our errors arrives with it."""
    error.add_note("tls handshake with x.test timed out after 2.50 s")
    again = pickle.loads(pickle.dumps(error))
    assert ["tls handshake with x.test timed out after 2.50 s"] == again.__notes__


def test_a_reload_result_is_a_value() -> None:
    """Equal results are equal, hash equally, and survive pickle."""
    end = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)
    result = ReloadResult("applied", not_after=end)
    assert ReloadResult("applied", None, end) == result
    assert pickle.loads(pickle.dumps(result)) == result
    assert ReloadResult("rejected", "KEY_VALUES_MISMATCH").not_after is None
