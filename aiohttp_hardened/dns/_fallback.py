"""The system's resolver on threads of its own, never the default executor's."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from aiohttp_hardened.dns._stale import Address

MOST_LOOKUPS: Final = 8
_FLAGS: Final = socket.AI_ADDRCONFIG


class SystemResolver:
    """``getaddrinfo`` on a few short-lived daemon threads.

    A thread of an executor is joined when the interpreter ends, and a stuck
    ``getaddrinfo`` would hold it for as long as the system likes; these are not.
    """

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(MOST_LOOKUPS)

    async def resolve(self, host: str, family: int) -> list[Address]:
        """Look a name up.

        Args:
            host: The name.
            family: ``socket.AF_UNSPEC``, ``AF_INET`` or ``AF_INET6``.

        Raises:
            OSError: ``socket.gaierror``, as the system says it.
        """
        async with self._free:
            infos = await _in_thread(host, family)
        # A zone index makes an IPv6 address one of a link: it stays part of it.
        return [(str(address[0]), int(found)) for found, _, _, _, address in infos if found in _FAMILIES]


_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


async def _in_thread(host: str, family: int) -> list[Any]:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[list[Any]] = loop.create_future()

    def deliver(infos: list[Any] | None, exc: Exception | None) -> None:
        if answer.done():
            return
        if exc is not None:
            answer.set_exception(exc)
        else:
            answer.set_result(infos or [])

    def work() -> None:
        infos: list[Any] | None = None
        failure: Exception | None = None
        try:
            infos = socket.getaddrinfo(host, None, family=family, type=socket.SOCK_STREAM, flags=_FLAGS)
        except (OSError, UnicodeError) as exc:
            failure = exc if isinstance(exc, OSError) else socket.gaierror(socket.EAI_NONAME, str(exc))
        try:
            loop.call_soon_threadsafe(deliver, infos, failure)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            return

    threading.Thread(target=work, name="aiohttp_hardened getaddrinfo", daemon=True).start()
    return await answer
