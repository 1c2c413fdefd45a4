"""Which attempt the running code is connecting for.

A ``ContextVar`` set in ``connect()`` is visible in ``socket_factory`` (inside the
Happy Eyeballs race), in the resolver's own task and in ``SSLObject.do_handshake``,
on asyncio and uvloop: each is a callback or a task made in that context.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from aiohttp_hardened.timing._request import Attempt

current_attempt: Final[ContextVar[Attempt | None]] = ContextVar("aiohttp_hardened_attempt", default=None)
