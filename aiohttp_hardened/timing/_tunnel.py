"""When a proxy's CONNECT is timed.

Starts: when the connection to the proxy stands and CONNECT is about to be sent.
Stops: at the proxy's answer: when the target's handshake is about to start, or with the refusal.
Seam: ``TCPConnector._create_direct_connection`` (its end) and ``_start_tls_connection`` (its start).
Blind: nothing known; http through a proxy has no tunnel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from yarl import URL

    from aiohttp_hardened.timing._open_phase import OpenPhase
    from aiohttp_hardened.timing._request import Attempt


def start_tunnel(attempt: Attempt, proxy: URL) -> OpenPhase:
    """Start the phase in which a proxy is asked for a tunnel."""
    return attempt.enter(Phase.TUNNEL, normalise_host(proxy.raw_host or ""), proxy.port)


def tunnel_answered(phase: OpenPhase, status: int | None, exc: BaseException | None = None) -> None:
    """End it with the proxy's answer.

    Args:
        phase: What ``start_tunnel`` gave.
        status: The proxy's status, when there was an answer.
        exc: Why there is no tunnel.
    """
    if status is not None:
        phase.attributes[_keys.HTTP_STATUS_CODE] = status
    phase.attempt.leave(phase, exc)
