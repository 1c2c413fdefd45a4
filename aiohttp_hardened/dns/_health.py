"""Addresses that failed lately go behind their siblings."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

AddrInfo = tuple[int, int, int, str, tuple[Any, ...]]

_MOST_ADDRESSES: Final = 1000


class AddressHealth:
    """Which addresses of a connector failed to connect, or were overtaken, lately.

    aiohttp rotates a name's cached addresses, so without this a dead one costs the
    Happy Eyeballs delay on every second connection.

    Args:
        quarantine: Seconds that an address stays behind; 0: none does.
    """

    def __init__(self, quarantine: float) -> None:
        self._quarantine = quarantine
        self._until: dict[str, float] = {}

    def order(self, addr_infos: Sequence[AddrInfo]) -> list[AddrInfo]:
        """Return the addresses, those that failed lately last, and else in their order."""
        if not self._until:
            return list(addr_infos)
        now = time.monotonic()
        return sorted(addr_infos, key=lambda each: self._until.get(str(each[4][0]), 0.0) > now)

    def failed(self, addresses: Iterable[str]) -> None:
        """Put addresses behind their siblings."""
        if not self._quarantine:
            return
        until = time.monotonic() + self._quarantine
        for address in addresses:
            self._until[address] = until
        if len(self._until) > _MOST_ADDRESSES:
            now = time.monotonic()
            self._until = {address: until for address, until in self._until.items() if until > now}
            while len(self._until) > _MOST_ADDRESSES:
                del self._until[next(iter(self._until))]

    def succeeded(self, winner: tuple[str, int] | None) -> None:
        """Forgive an address that connected."""
        if winner is not None and self._until:
            self._until.pop(winner[0], None)
