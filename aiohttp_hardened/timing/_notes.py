"""What a failure says about itself: the phase, its budget, and what was measured before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import aiohttp

from aiohttp_hardened.exceptions import (
    DNSLookupError,
    PhaseTimeoutError,
    PlaintextBoundaryError,
    UnverifiedRequestError,
)
from aiohttp_hardened.timing._errors import chain
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from aiohttp_hardened.timing._request import Attempt

_TAG: Final = "_aiohttp_hardened_phase"

_DOING: Final = {
    Phase.REQUEST: "waiting for the response of",
    Phase.QUEUE: "waiting for a free connection to",
    Phase.SETUP: "connection setup to",
    Phase.DNS: "dns lookup of",
    Phase.TCP: "tcp connect to",
    Phase.TUNNEL: "CONNECT tunnel through",
    Phase.TLS: "tls handshake with",
    Phase.BODY: "reading the body from",
}

_BY_TYPE: Final[tuple[tuple[type[BaseException], Phase], ...]] = (
    (UnverifiedRequestError, Phase.SETUP),
    (PlaintextBoundaryError, Phase.TUNNEL),
    (DNSLookupError, Phase.DNS),
    (aiohttp.ClientConnectorDNSError, Phase.DNS),
    (aiohttp.ClientSSLError, Phase.TLS),
    (aiohttp.ServerFingerprintMismatch, Phase.TLS),
    (aiohttp.ClientHttpProxyError, Phase.TUNNEL),
    (aiohttp.ClientConnectorError, Phase.TCP),
    (aiohttp.ClientPayloadError, Phase.BODY),
    (aiohttp.InvalidURL, Phase.REQUEST),
    (aiohttp.ClientError, Phase.REQUEST),
)


def failed_phase(exc: BaseException) -> Phase | None:
    """Return the phase in which a request failed.

    Args:
        exc: Any exception that a request raised, or one that was raised from it.

    Returns:
        The phase; ``REQUEST`` for everything after the connection was set up;
        ``None`` when the exception does not come from a request.
    """
    for each in chain(exc):
        tagged = each.__dict__.get(_TAG)
        if tagged is not None:
            return Phase(tagged)
        if isinstance(each, PhaseTimeoutError):
            return each.phase
    for each in chain(exc):
        for kind, phase in _BY_TYPE:
            if isinstance(each, kind):
                return phase
    return None


def tag(exc: BaseException, phase: Phase) -> None:
    """Write down the phase on an exception, for ``failed_phase``."""
    exc.__dict__[_TAG] = phase.value


def add_note_once(exc: BaseException, note: str) -> None:
    """Add a note to an exception that does not have it yet."""
    if note not in getattr(exc, "__notes__", ()):
        exc.add_note(note)


def target(phase: Phase, attempt: Attempt, address: str, port: int | None) -> str:
    """Return what a phase was about, in words."""
    if phase is Phase.DNS:
        return address
    if phase is Phase.TCP and attempt.peer is None and attempt.race is not None and len(attempt.race.addresses) == 1:
        address = attempt.race.addresses[0]
    host = f"[{address}]" if ":" in address else address
    where = host if port is None else f"{host}:{port}"
    return f"{attempt.method} {where}" if phase is Phase.REQUEST else where


def describe(
    phase: Phase, attempt: Attempt, outcome: str, *, address: str | None = None, port: int | None = None
) -> str:
    """Say in one line what failed and what was measured before it.

    Args:
        phase: The phase that failed.
        attempt: Its attempt.
        outcome: What happened, for example ``timed out after 5.00 s``.
        address: The host the phase spoke to; the request's when ``None``.
        port: Its port.
    """
    if address is None:
        address, port = attempt.server_address, attempt.server_port
    measured = ", ".join(_measured(attempt, phase))
    upload = attempt.upload if phase is Phase.REQUEST else None
    doing = (upload.doing if upload is not None else None) or _DOING[phase]
    line = f"{doing} {target(phase, attempt, address, port)} {outcome}"
    return f"{line} ({measured})" if measured else line


def ran_out(phase: Phase, budget: float, name: str) -> str:
    """Say which budget ran out, in words that follow the phase's name."""
    if name == phase.name.lower():
        return f"timed out after {budget:.2f} s"
    return f"timed out: the {name} budget of {budget:.2f} s ran out"


def _measured(attempt: Attempt, failed: Phase) -> list[str]:
    parts: list[str] = []
    if failed is not Phase.QUEUE and not any(each.phase is Phase.QUEUE for each in attempt.phases):
        parts.append("queue 0.0 ms")
    last = attempt.phases[-1] if attempt.phases else None
    for each in attempt.phases:
        if each is last and each.phase is failed:
            break
        parts.append(f"{each.phase.value} {each.milliseconds:.1f} ms")
    if attempt.reused:
        parts.append("reused connection")
    sent = attempt.upload.milliseconds if attempt.upload is not None else None
    if sent is not None:
        parts.append(f"upload {sent:.1f} ms")
    if failed in (Phase.TCP, Phase.TLS) and attempt.addresses_tried:
        count = attempt.addresses_tried
        parts.append(f"{count} address{'' if count == 1 else 'es'} tried")
    retransmits = attempt.syn_retransmits
    if retransmits:
        parts.append(
            f"{retransmits} SYN retransmission{'' if retransmits == 1 else 's'}: the peer's accept queue "
            "overflowed (its backlog is smaller than your burst), or packets were lost"
        )
    return parts
