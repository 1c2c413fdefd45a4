"""A resolver that knows what a test tells it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from aiohttp.abc import AbstractResolver, ResolveResult

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["FixedResolver"]


class FixedResolver(AbstractResolver):
    """Answer with given addresses, after a given delay, or raise a given exception.

    Args:
        addresses: Either for every name, or a mapping of names to addresses
            (any other name is then ``OSError``, as aiohttp's resolvers do it).
        delay: Seconds before each answer.
        exception: Raised instead of an answer.
    """

    def __init__(
        self,
        addresses: Sequence[str] | Mapping[str, Sequence[str]] = ("127.0.0.1",),
        *,
        delay: float = 0.0,
        exception: BaseException | None = None,
    ) -> None:
        self.addresses = addresses
        self.delay = delay
        self.exception = exception
        self.calls: list[str] = []
        """The names that were asked for, in order."""
        self.closed = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Resolve a host name; each call is counted before it waits."""
        self.calls.append(host)
        if self.delay:
            await asyncio.sleep(self.delay)
        if self.exception is not None:
            raise self.exception
        found = self.addresses.get(host, ()) if isinstance(self.addresses, Mapping) else self.addresses
        wanted = [each for each in found if family in (socket.AF_UNSPEC, _family(each))]
        if not wanted:
            raise OSError(None, f"FixedResolver has no address for {host!r}")
        return [
            ResolveResult(
                hostname=host, host=each, port=port, family=_family(each), proto=0, flags=socket.AI_NUMERICHOST
            )
            for each in wanted
        ]

    async def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
