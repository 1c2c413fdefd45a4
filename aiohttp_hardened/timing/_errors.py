"""One closed list of words for what went wrong, the same on spans, metrics and notes."""

from __future__ import annotations

import asyncio
import errno as _errno
import ssl
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.exceptions import PlaintextBoundaryError
from aiohttp_hardened.timing._lookup_words import TIMED_OUT, lookup_word
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER: Final = "_OTHER"
CLIENT_CERTIFICATE_REJECTED: Final = "client_certificate_rejected"

_ERRNO_WORDS: Final[dict[int, str]] = {
    _errno.ECONNREFUSED: "connection_refused",
    _errno.ECONNRESET: "connection_reset",
    _errno.EHOSTUNREACH: "host_unreachable",
    _errno.EHOSTDOWN: "host_unreachable",
    _errno.ENETUNREACH: "network_unreachable",
    _errno.ENETDOWN: "network_unreachable",
    _errno.EADDRNOTAVAIL: "address_not_available",
    _errno.EACCES: "access_denied",
    _errno.EPERM: "access_denied",
    _errno.EMFILE: "too_many_open_files",
    _errno.ENFILE: "too_many_open_files",
    _errno.ETIMEDOUT: TIMED_OUT,
}

# X509_V_ERR_* of OpenSSL's x509_vfy.h, as ``SSLCertVerificationError.verify_code``.
_VERIFY_WORDS: Final[dict[int, str]] = {
    9: "certificate_not_yet_valid",
    10: "certificate_expired",
    2: "certificate_authority_invalid",
    18: "certificate_authority_invalid",
    19: "certificate_authority_invalid",
    20: "certificate_authority_invalid",
    21: "certificate_authority_invalid",
    24: "certificate_authority_invalid",
    27: "certificate_authority_invalid",
    23: "certificate_revoked",
    62: "certificate_hostname_mismatch",
    64: "certificate_hostname_mismatch",
}

_VERSION_REASONS: Final = frozenset(
    {
        "UNSUPPORTED_PROTOCOL",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "VERSION_TOO_LOW",
        "WRONG_SSL_VERSION",
        "NO_PROTOCOLS_AVAILABLE",
    }
)
_CIPHER_REASONS: Final = frozenset(
    {
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "NO_SHARED_CIPHER",
        "NO_CIPHERS_AVAILABLE",
        "TLSV1_ALERT_INSUFFICIENT_SECURITY",
    }
)
_PLAINTEXT_REASONS: Final = frozenset(
    {
        "WRONG_VERSION_NUMBER",
        "HTTP_REQUEST",
        "HTTPS_PROXY_REQUEST",
        "RECORD_LAYER_FAILURE",
        "PACKET_LENGTH_TOO_LONG",
        "UNKNOWN_PROTOCOL",
    }
)
_CERTIFICATE_ALERTS: Final = frozenset(
    {
        "TLSV13_ALERT_CERTIFICATE_REQUIRED",
        "SSLV3_ALERT_NO_CERTIFICATE",
        "SSLV3_ALERT_BAD_CERTIFICATE",
        "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
        "SSLV3_ALERT_CERTIFICATE_REVOKED",
        "SSLV3_ALERT_CERTIFICATE_EXPIRED",
        "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
        "TLSV1_ALERT_UNKNOWN_CA",
        "TLSV1_ALERT_ACCESS_DENIED",
    }
)


def chain(exc: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what caused it, each once."""
    seen: set[int] = set()
    while exc is not None and id(exc) not in seen:
        seen.add(id(exc))
        yield exc
        os_error = getattr(exc, "os_error", None) if isinstance(exc, aiohttp.ClientConnectorError) else None
        exc = exc.__cause__ or os_error or (None if exc.__suppress_context__ else exc.__context__)


def public_name(exc: BaseException) -> str:
    """Return the name under which a user would import an exception's class."""
    kind = type(exc)
    if kind.__module__ == "builtins":
        return kind.__qualname__
    package = kind.__module__.partition(".")[0]
    if package == "aiohttp" and getattr(aiohttp, kind.__qualname__, None) is kind:
        return f"aiohttp.{kind.__qualname__}"
    if package == "aiohttp_hardened":
        return f"aiohttp_hardened.{kind.__qualname__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def errno_word(errno: int | None) -> str:
    """Return the word for an operating system's error number."""
    return _ERRNO_WORDS.get(errno, OTHER) if errno is not None else OTHER


def error_word(phase: Phase, exc: BaseException, *, server_answered: bool = False) -> str:
    """Return the word for what ended a phase.

    Args:
        phase: The phase that failed.
        exc: What it raised.
        server_answered: TLS only: the failure came after the ServerHello.
    """
    if phase is Phase.DNS:
        return _dns_word(exc)
    if phase is Phase.TCP:
        return _tcp_word(exc)
    if phase is Phase.TUNNEL:
        return _tunnel_word(exc)
    if phase is Phase.TLS:
        return _tls_word(exc, server_answered=server_answered)
    return TIMED_OUT if _is_timeout(exc) else OTHER


def is_certificate_rejection(exc: BaseException) -> bool:
    """Say whether a peer's alert about our certificate stands behind an exception.

    Under TLS 1.3 the alert comes after a handshake that has succeeded for us
    (RFC 8446, section 4.4.2.4), at the first read.
    """
    return any(isinstance(each, ssl.SSLError) and each.reason in _CERTIFICATE_ALERTS for each in chain(exc))


def _is_timeout(exc: BaseException) -> bool:
    return isinstance(exc, (TimeoutError, asyncio.TimeoutError)) or getattr(exc, "errno", None) == _errno.ETIMEDOUT


def _dns_word(exc: BaseException) -> str:
    if _is_timeout(exc):
        return TIMED_OUT
    for each in chain(exc):
        word = None if isinstance(each, aiohttp.ClientError) else lookup_word(each)
        if word is not None:
            return word
    return OTHER


def _tcp_word(exc: BaseException) -> str:
    if _is_timeout(exc):
        return TIMED_OUT
    for each in chain(exc):
        if isinstance(each, OSError) and each.errno in _ERRNO_WORDS:
            return _ERRNO_WORDS[each.errno]
    return OTHER


def _tunnel_word(exc: BaseException) -> str:
    if isinstance(exc, aiohttp.ClientHttpProxyError):
        return (
            "proxy_authentication_required"
            if exc.status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED
            else "proxy_rejected"
        )
    if isinstance(exc, PlaintextBoundaryError):
        return "plaintext_after_connect"
    if _is_timeout(exc):
        return TIMED_OUT
    if isinstance(exc, (aiohttp.ClientResponseError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        return "proxy_rejected"
    return OTHER


def _tls_word(exc: BaseException, *, server_answered: bool) -> str:
    errors = list(chain(exc))
    for each in errors:
        if isinstance(each, ssl.SSLCertVerificationError):
            return _VERIFY_WORDS.get(each.verify_code, "certificate_verification_failed")
        if isinstance(each, aiohttp.ServerFingerprintMismatch):
            return "certificate_verification_failed"
    for each in errors:
        if isinstance(each, ssl.SSLError) and (word := _reason_word(each.reason, server_answered=server_answered)):
            return word
    if any(_is_timeout(each) or "handshake is taking longer" in str(each) for each in errors):
        return TIMED_OUT
    closed = (ssl.SSLEOFError, ConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
    if any(isinstance(each, closed) for each in errors):
        return "peer_connection_closed"
    return OTHER


def _reason_word(reason: str | None, *, server_answered: bool) -> str | None:
    if reason in _CERTIFICATE_ALERTS:
        return CLIENT_CERTIFICATE_REJECTED
    if reason in _VERSION_REASONS:
        return "protocol_version_unsupported"
    if reason in _CIPHER_REASONS:
        return CLIENT_CERTIFICATE_REJECTED if server_answered else "no_shared_cipher"
    if reason in _PLAINTEXT_REASONS:
        return "plaintext_peer"
    if reason in ("UNEXPECTED_EOF_WHILE_READING", "EOF occurred in violation of protocol"):
        return "peer_connection_closed"
    return None
