"""What failed, in one line, with what to look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from aiohttp_hardened import Phase, failed_phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp_hardened._cli._waterfall import Waterfall

_PROXY_AUTHENTICATION: Final = "407"
_SERVER_ERROR: Final = 500

_ADVICE: Final[dict[tuple[Phase, str], tuple[str, str]]] = {
    (Phase.DNS, "host_not_found"): ("no such name", "its spelling, and the search list in /etc/resolv.conf"),
    (Phase.DNS, "no_data"): ("the name exists and has no address", "its A and AAAA records"),
    (Phase.DNS, "server_failure"): (
        "the name server fails or is out of reach",
        "/etc/resolv.conf, or try another --resolver",
    ),
    (Phase.DNS, "refused"): (
        "the name server does not serve this client",
        "/etc/resolv.conf, or try another --resolver",
    ),
    (Phase.DNS, "malformed_name"): ("DNS cannot hold such a name", "its spelling"),
    (Phase.DNS, "timed_out"): ("no name server answered", "/etc/resolv.conf, a firewall on port 53, or --resolver"),
    (Phase.TCP, "connection_refused"): ("nothing listens there", "the port, and whether the service runs"),
    (Phase.TCP, "connection_reset"): ("somebody hung up", "firewalls and load balancers on the way, the service's log"),
    (Phase.TCP, "host_unreachable"): (
        "there is no way to that address",
        "whether the host runs, and routes, VPN, IPv6",
    ),
    (Phase.TCP, "network_unreachable"): ("there is no way to that network", "this machine's routes, VPN, IPv6"),
    (Phase.TCP, "address_not_available"): (
        "no local address or port is left to connect from",
        "connections in TIME_WAIT, and IPv6",
    ),
    (Phase.TCP, "access_denied"): ("this machine forbids it", "its firewall, and the sandbox of this process"),
    (Phase.TCP, "too_many_open_files"): ("no file descriptor is left", "ulimit -n, and connections that stay open"),
    (Phase.TCP, "timed_out"): ("packets are dropped", "firewalls, whether the host runs, its accept queue (backlog)"),
    (Phase.TUNNEL, "proxy_authentication_required"): (
        "the proxy wants other credentials",
        "--proxy http://USER:PASSWORD@HOST:PORT",
    ),
    (Phase.TUNNEL, "proxy_rejected"): ("the proxy will not go there", "its rules and its log"),
    (Phase.TUNNEL, "plaintext_after_connect"): ("the proxy sends bytes of its own before TLS", "who runs that proxy"),
    (Phase.TUNNEL, "timed_out"): ("the proxy does not answer CONNECT", "its log, and its way to the target"),
    (Phase.TLS, "certificate_expired"): (
        "the certificate has ended",
        "its renewal on the server, and this machine's clock",
    ),
    (Phase.TLS, "certificate_not_yet_valid"): ("the certificate has not begun", "the clocks on both sides"),
    (Phase.TLS, "certificate_hostname_mismatch"): (
        "the certificate is for other names",
        "the URL, and the names in the certificate",
    ),
    (Phase.TLS, "certificate_authority_invalid"): (
        "no trusted authority stands behind the certificate",
        "--ca-file, and intermediates that the server does not send",
    ),
    (Phase.TLS, "certificate_revoked"): ("the certificate was revoked", "its replacement on the server"),
    (Phase.TLS, "certificate_verification_failed"): (
        "the certificate does not pass verification",
        "the chain: openssl s_client -showcerts -connect HOST:PORT",
    ),
    (Phase.TLS, "protocol_version_unsupported"): ("no version in common", "whether the server speaks TLS 1.2 or 1.3"),
    (Phase.TLS, "no_shared_cipher"): ("no cipher in common", "the server's list of ciphers, and its kind of key"),
    (Phase.TLS, "plaintext_peer"): ("that port speaks plaintext", "the port, or say http://"),
    (Phase.TLS, "client_certificate_rejected"): ("the server wants another client certificate", "--client-cert"),
    (Phase.TLS, "peer_connection_closed"): (
        "the server hung up inside the handshake",
        "its log, the name in the URL, and --client-cert",
    ),
    (Phase.TLS, "timed_out"): ("the handshake stalls", "the server's load, and whether that port speaks TLS"),
    (Phase.REQUEST, "aiohttp.ServerDisconnectedError"): (
        "the server hung up without an answer",
        "its log, whether that port speaks TLS, and --client-cert",
    ),
    (Phase.REQUEST, "aiohttp.TooManyRedirects"): ("the redirects do not end", "their Location headers"),
    (Phase.REQUEST, "aiohttp.NonHttpUrlRedirectClientError"): ("the redirect leaves http", "its Location header"),
    (Phase.REQUEST, "aiohttp.InvalidUrlRedirectClientError"): ("the redirect leads nowhere", "its Location header"),
}
_BY_PHASE: Final = {
    Phase.QUEUE: ("the pool is full", "bodies that are not read to their end"),
    Phase.SETUP: ("no connection was begun", "the message"),
    Phase.DNS: ("the lookup failed", "/etc/resolv.conf, or try another --resolver"),
    Phase.TCP: ("the connection failed", "the address and the port"),
    Phase.TUNNEL: ("the proxy made no tunnel", "its log"),
    Phase.TLS: ("the handshake failed", "the server's log, or openssl s_client -connect HOST:PORT"),
    Phase.REQUEST: ("the connection stands, and no answer came", "the server's log and load"),
    Phase.BODY: ("the answer began and did not end", "the server's log, and limits of proxies on the way"),
}
_DECLINED: Final = ("the connection is fine, the server declines", "the URL, credentials, headers")
_BROKEN: Final = ("the connection is fine, the server fails", "its log")


@dataclass(frozen=True)
class Failure:
    """Why a request did not go well.

    Args:
        phase: The phase that failed.
        word: What went wrong in it: a word of its closed list, a status, or an exception's name.
        message: What the exception says; empty for a status.
    """

    phase: Phase
    word: str
    message: str = ""

    @property
    def meaning(self) -> str:
        """The word in plain words."""
        return self._advice[0]

    @property
    def look_at(self) -> str:
        """What to look at."""
        return self._advice[1]

    @property
    def _advice(self) -> tuple[str, str]:
        if self.word == _PROXY_AUTHENTICATION:
            return _ADVICE[Phase.TUNNEL, "proxy_authentication_required"]
        if self.word.isdigit():
            return _BROKEN if int(self.word) >= _SERVER_ERROR else _DECLINED
        return _ADVICE.get((self.phase, self.word), _BY_PHASE[self.phase])

    def __str__(self) -> str:
        """Return one line."""
        return f"failed in {self.phase}: {self.word}: {self.meaning}; look at {self.look_at}"


def failure_of(exc: BaseException, waterfalls: Sequence[Waterfall]) -> Failure:
    """Return what an exception and the records say of a failure.

    Args:
        exc: What the request raised.
        waterfalls: Its attempts.
    """
    phase = failed_phase(exc) or Phase.REQUEST
    name = type(exc).__qualname__
    notes: Sequence[str] = getattr(exc, "__notes__", ())
    message = notes[0] if notes else f"{name}: {exc}" if str(exc) else name
    return Failure(phase, _word(phase, waterfalls) or _public_name(exc), without_secrets(message))


def _word(phase: Phase, waterfalls: Sequence[Waterfall]) -> str | None:
    if not waterfalls:
        return None
    last = waterfalls[-1]
    of_request = last.request.error_type if last.request is not None else None
    if phase is Phase.REQUEST:
        return of_request
    prefix = f"{phase}_"
    if of_request is not None and of_request.startswith(prefix):
        # A client certificate may be refused after a handshake that went well: only the request knows then.
        return of_request.removeprefix(prefix)
    return next((each.error_type for each in reversed(last.records) if each.phase is phase and each.error_type), None)


def _public_name(exc: BaseException) -> str:
    package = type(exc).__module__.partition(".")[0]
    return type(exc).__qualname__ if package == "builtins" else f"{package}.{type(exc).__qualname__}"


def without_secrets(text: str) -> str:
    """Return a text without the credentials and queries of the URLs in it."""
    text = re.sub(r"(?<=://)[^/?#@\s]*@", "", text)
    return re.sub(r"(://[^?\s]*\?)[^\s'\")]*", r"\1REDACTED", text)
