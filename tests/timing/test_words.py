"""The words of failures, the notes that explain them, and whose host is whose."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from typing import Any

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from aiohttp_hardened import DNSLookupError, Phase, PhaseTimeoutError, PlaintextBoundaryError, failed_phase
from aiohttp_hardened._settings import TimeoutSettings
from aiohttp_hardened.timing._budgets import budgets_for
from aiohttp_hardened.timing._errors import error_word, public_name
from aiohttp_hardened.timing._host import normalise_host

KEY = ConnectionKey("x.test", 443, True, True, None, None, None)


def tls(reason: str, kind: type[ssl.SSLError] = ssl.SSLError) -> ssl.SSLError:
    exc = kind(1, f"[SSL: {reason}]")
    exc.reason = reason
    return exc


def unverified(code: int) -> ssl.SSLCertVerificationError:
    exc = ssl.SSLCertVerificationError(1, "certificate verify failed")
    exc.verify_code = code
    return exc


@pytest.mark.parametrize(
    ("phase", "exc", "word"),
    [
        (Phase.DNS, DNSLookupError("no", reason="host_not_found"), "host_not_found"),
        (Phase.DNS, PhaseTimeoutError("late", phase=Phase.DNS, budget=1.0), "timed_out"),
        (Phase.DNS, OSError(None, "?"), "server_failure"),
        (Phase.DNS, socket.gaierror(socket.EAI_NONAME, "no"), "host_not_found"),
        (Phase.DNS, socket.gaierror(socket.EAI_AGAIN, "later"), "server_failure"),
        (Phase.DNS, UnicodeError("label too long"), "malformed_name"),
        (Phase.DNS, ValueError(), "_OTHER"),
        (Phase.TCP, ConnectionRefusedError(errno.ECONNREFUSED, "no"), "connection_refused"),
        (Phase.TCP, OSError(errno.EHOSTUNREACH, "no"), "host_unreachable"),
        (Phase.TCP, OSError(errno.ENETUNREACH, "no"), "network_unreachable"),
        (Phase.TCP, OSError(errno.EADDRNOTAVAIL, "no"), "address_not_available"),
        (Phase.TCP, OSError(errno.EACCES, "no"), "access_denied"),
        (Phase.TCP, OSError(errno.EMFILE, "no"), "too_many_open_files"),
        (Phase.TCP, OSError(errno.ETIMEDOUT, "no"), "timed_out"),
        (Phase.TCP, ConnectionResetError(errno.ECONNRESET, "no"), "connection_reset"),
        (Phase.TUNNEL, PlaintextBoundaryError("no"), "plaintext_after_connect"),
        (Phase.TLS, unverified(10), "certificate_expired"),
        (Phase.TLS, unverified(9), "certificate_not_yet_valid"),
        (Phase.TLS, unverified(62), "certificate_hostname_mismatch"),
        (Phase.TLS, unverified(64), "certificate_hostname_mismatch"),
        (Phase.TLS, unverified(20), "certificate_authority_invalid"),
        (Phase.TLS, unverified(23), "certificate_revoked"),
        (Phase.TLS, unverified(1), "certificate_verification_failed"),
        (Phase.TLS, tls("UNSUPPORTED_PROTOCOL"), "protocol_version_unsupported"),
        (Phase.TLS, tls("TLSV1_ALERT_PROTOCOL_VERSION"), "protocol_version_unsupported"),
        (Phase.TLS, tls("SSLV3_ALERT_HANDSHAKE_FAILURE"), "no_shared_cipher"),
        (Phase.TLS, tls("WRONG_VERSION_NUMBER"), "plaintext_peer"),
        (Phase.TLS, tls("TLSV13_ALERT_CERTIFICATE_REQUIRED"), "client_certificate_rejected"),
        (Phase.TLS, ConnectionResetError(), "peer_connection_closed"),
        (Phase.TLS, ConnectionAbortedError("SSL handshake is taking longer than 60.0 seconds"), "timed_out"),
        (Phase.TLS, ValueError(), "_OTHER"),
        (Phase.QUEUE, TimeoutError(), "timed_out"),
    ],
)
def test_each_failure_has_its_word(phase: Phase, exc: BaseException, word: str) -> None:
    """The closed list, from what operating systems and OpenSSL really raise; also behind aiohttp's wrapping."""
    assert word == error_word(phase, exc)
    outer = RuntimeError("outer")
    outer.__cause__ = exc
    if phase is not Phase.QUEUE and word not in ("_OTHER", "timed_out", "plaintext_after_connect"):
        assert word == error_word(phase, outer)


def test_alert_40_after_the_servers_hello_is_the_certificates() -> None:
    """Under TLS 1.2 a handshake failure after the ServerHello is the client certificate's refusal."""
    exc = tls("SSLV3_ALERT_HANDSHAKE_FAILURE")
    assert error_word(Phase.TLS, exc, server_answered=True) == "client_certificate_rejected"


@pytest.mark.parametrize(
    ("exc", "phase"),
    [
        (aiohttp.ClientConnectorDNSError(KEY, OSError(None, "no")), Phase.DNS),
        (aiohttp.ClientConnectorCertificateError(KEY, unverified(10)), Phase.TLS),
        (aiohttp.ClientConnectorError(KEY, OSError(errno.ECONNREFUSED, "no")), Phase.TCP),
        (aiohttp.ClientPayloadError(), Phase.BODY),
        (aiohttp.ServerDisconnectedError(), Phase.REQUEST),
        (PhaseTimeoutError("late", phase=Phase.TUNNEL, budget=1.0), Phase.TUNNEL),
        (ValueError(), None),
        (asyncio.CancelledError(), None),
    ],
)
def test_the_phase_of_an_exception_that_nobody_marked(exc: BaseException, phase: Phase | None) -> None:
    """A foreign session's exceptions tell by their type; also when something was raised from them."""
    assert phase is failed_phase(exc)
    outer = RuntimeError("outer")
    outer.__cause__ = exc
    assert phase is failed_phase(outer)


@pytest.mark.parametrize(
    ("exc", "name"),
    [
        (TimeoutError(), "TimeoutError"),
        (aiohttp.ServerDisconnectedError(), "aiohttp.ServerDisconnectedError"),
        (PlaintextBoundaryError(), "aiohttp_hardened.PlaintextBoundaryError"),
        (ssl.SSLError(), "ssl.SSLError"),
    ],
)
def test_a_class_goes_by_its_public_name(exc: BaseException, name: str) -> None:
    """The name under which a user would import it."""
    assert name == public_name(exc)


@pytest.mark.parametrize(
    ("host", "normal"),
    [("X.Test.", "x.test"), ("bücher.example", "xn--bcher-kva.example"), ("127.0.0.1", "127.0.0.1"), ("::1", "::1")],
)
def test_one_spelling_of_a_host(host: str, normal: str) -> None:
    """Dot, case and IDNA make no second host."""
    assert normal == normalise_host(host)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, {"queue": 10.0, "connect": 10.0, "tcp": 5.0, "tls": 5.0, "sock_connect": None}),
        ({"connect": 2.0}, {"queue": 2.0, "connect": 2.0, "queue_and_connect": True, "tcp": 5.0}),
        ({"sock_connect": 2.0}, {"tcp": None, "tls": None, "sock_connect": 2.0, "connect": 10.0}),
        ({"sock_read": 2.0, "total": 3.0}, {"total": 3.0, "tcp": 5.0}),
    ],
)
def test_a_requests_own_timeout_is_merged_field_by_field(own: dict[str, Any], expected: dict[str, Any]) -> None:
    """What it leaves ``None`` says nothing."""
    budgets, inner = budgets_for(TimeoutSettings(), aiohttp.ClientTimeout(**own))
    assert expected == {name: getattr(budgets, name) for name in expected}
    assert (None, None) == (inner.connect, inner.sock_connect)


def test_aiohttps_default_timeout_says_nothing() -> None:
    """Its ``sock_connect`` of 30 s is nobody's decision."""
    budgets, _ = budgets_for(TimeoutSettings(), aiohttp.client.DEFAULT_TIMEOUT)
    assert (5.0, 5.0, None) == (budgets.tcp, budgets.tls, budgets.sock_connect)
