"""When a server's TLS handshakes are timed.

Starts: when the connection is accepted.
Stops: when TLS stands, or the connection is given up: an error, the deadline, the server's own end.
Seam: ``loop.connect_accepted_socket``, awaited in ``server/_acceptor.py``.
Blind: what the kernel does before a connection is accepted; the client sees that (SYN retransmissions).
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._errors import CLIENT_CERTIFICATE_REJECTED, chain, error_word
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp_hardened.timing._phase import AttributeValue

__all__ = ["HandshakeHook", "HandshakeRecord"]

# The alerts of a client about our certificate (RFC 8446, section 6.2), in OpenSSL's words.
_ALERTS: Final = {
    "TLSV1_ALERT_UNKNOWN_CA": "certificate_authority_invalid",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "certificate_expired",
    "SSLV3_ALERT_CERTIFICATE_REVOKED": "certificate_revoked",
    "SSLV3_ALERT_BAD_CERTIFICATE": "certificate_verification_failed",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN": "certificate_verification_failed",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE": "certificate_verification_failed",
    "TLSV1_ALERT_ACCESS_DENIED": "certificate_verification_failed",
}
_NOTHING_IN_COMMON: Final = frozenset(
    {"NO_SUITABLE_KEY_SHARE", "NO_SUITABLE_GROUPS", "NO_SUITABLE_SIGNATURE_ALGORITHM", "NO_COMMON_SIGNATURE_ALGORITHMS"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandshakeRecord:
    """A server's handshake that is over; every one that started ends in exactly one.

    Args:
        start_ns: Wall clock, nanoseconds since the epoch.
        duration: Seconds.
        attributes: What was seen, under the names in ``timing/_keys.py``.
        error_type: A word of the closed list of TLS; ``None``: no error.
        cancelled: The server ended meanwhile. Not an error.
    """

    start_ns: int
    duration: float
    attributes: Mapping[str, AttributeValue]
    error_type: str | None = None
    cancelled: bool = False

    @property
    def end_ns(self) -> int:
        """Wall clock at the end, nanoseconds since the epoch."""
        return self.start_ns + round(self.duration * 1e9)


HandshakeHook = Callable[[HandshakeRecord], object]
"""A listener. It is called on the event loop and never awaited; what it raises is counted and logged."""


class OpenHandshake:
    """A handshake that goes on.

    Args:
        peer: Address and port of the client; empty for a unix socket.
        local: Address and port that it connected to.
    """

    __slots__ = ("_local", "_start", "_start_ns", "peer")

    def __init__(self, peer: object, local: object) -> None:
        self._start_ns = time.time_ns()
        self._start = time.perf_counter()
        self.peer = peer
        self._local = local

    def stood(self, connection: ssl.SSLObject) -> HandshakeRecord:
        """End it: TLS stands."""
        attributes = self._attributes(established=True)
        attributes[_keys.TLS_PROTOCOL_NAME] = "tls"
        version = connection.version()
        if version is not None:
            attributes[_keys.TLS_PROTOCOL_VERSION] = version.removeprefix("TLSv")
        cipher = connection.cipher()
        if cipher is not None:
            attributes[_keys.TLS_CIPHER] = cipher[0]
        attributes[_keys.TLS_RESUMED] = bool(connection.session_reused)
        return self._record(attributes)

    def failed(self, exc: BaseException) -> HandshakeRecord:
        """End it: it failed."""
        return self._record(self._attributes(established=False), error_type=server_word(exc))

    def given_up(self) -> HandshakeRecord:
        """End it: the server ends."""
        return self._record(self._attributes(established=False), cancelled=True)

    def _record(
        self, attributes: dict[str, AttributeValue], error_type: str | None = None, *, cancelled: bool = False
    ) -> HandshakeRecord:
        return HandshakeRecord(
            start_ns=self._start_ns,
            duration=time.perf_counter() - self._start,
            attributes=attributes,
            error_type=error_type,
            cancelled=cancelled,
        )

    def _attributes(self, *, established: bool) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {_keys.TLS_ESTABLISHED: established}
        for name, keys in (
            (self.peer, (_keys.NETWORK_PEER_ADDRESS, _keys.NETWORK_PEER_PORT)),
            (self._local, (_keys.SERVER_ADDRESS, _keys.SERVER_PORT)),
        ):
            if isinstance(name, tuple):
                address, port, *_ = cast("tuple[str, int]", name)
                attributes[keys[0]], attributes[keys[1]] = address, port
            elif isinstance(name, str) and name:
                attributes[keys[0]] = name
        return attributes


def server_word(exc: BaseException) -> str:
    """Return the word for what ended a server's handshake.

    ``certificate_*`` is about the server's certificate, as on the client: here a
    client told us by an alert. Whatever is wrong with a client's certificate is
    ``client_certificate_rejected``: here it is we who reject it.
    """
    for each in chain(exc):
        if isinstance(each, ssl.SSLCertVerificationError):
            return CLIENT_CERTIFICATE_REJECTED
        if isinstance(each, ssl.SSLError):
            if each.reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
                return CLIENT_CERTIFICATE_REJECTED
            if each.reason in _NOTHING_IN_COMMON:
                return "no_shared_cipher"
            if each.reason in _ALERTS:
                return _ALERTS[each.reason]
    return error_word(Phase.TLS, exc)
