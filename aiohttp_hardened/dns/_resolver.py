"""The resolvers that connectors get: ours in front of ``aiohttp.AsyncResolver``, and a caller's own, bounded."""

from __future__ import annotations

import asyncio
import socket
import weakref
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from aiohttp_hardened.dns._channel import Channel, channel_for
from aiohttp_hardened.dns._errors import HOST_NOT_FOUND, NAME_SERVERS_FAIL, more_telling, typed
from aiohttp_hardened.dns._fallback import SystemResolver
from aiohttp_hardened.dns._stale import SECONDS_TO_WAIT
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.timing._dns import current_lookup
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiohttp_hardened._settings import DNSSettings
    from aiohttp_hardened.dns._stale import Address

RESOLUTION_DELAY: Final = 0.05
"""RFC 8305, section 3: how long the other family is waited for after the first answer."""


class HardenedResolver(AbstractResolver):
    """aiodns with a deadline, typed failures, and last good answers.

    Made by ``open()`` for one connector of the running loop, which releases it.

    Args:
        settings: How names become addresses.
        deadline: Seconds for one lookup; ``None``: no limit.
        channel: The loop's channel, acquired; ``None``: the system resolves everything.
    """

    def __init__(self, settings: DNSSettings, deadline: float | None, channel: Channel | None) -> None:
        self._settings = settings
        self._deadline = deadline
        self._channel = channel
        self._system = SystemResolver()
        self._refreshing: dict[tuple[str, int], asyncio.Task[list[Address]]] = {}
        self._closed = False
        self._finalizer = weakref.finalize(self, channel.release) if channel is not None else None
        if self._finalizer is not None:
            self._finalizer.atexit = False

    @classmethod
    def open(cls, settings: DNSSettings, deadline: float | None) -> HardenedResolver:
        """Make a resolver on the running loop's channel.

        Args:
            settings: How names become addresses.
            deadline: Seconds for one lookup; ``None``: no limit.

        Raises:
            SettingsError: ``aiodns`` is missing.
        """
        channel = channel_for(settings.nameservers, deadline) if settings.resolver == "aiodns" else None
        return cls(settings, deadline, channel)

    def release(self) -> None:
        """Give the channel back; lookups after this are refused."""
        if self._closed:
            return
        self._closed = True
        for task in self._refreshing.values():
            task.cancel()
        if self._finalizer is not None:
            self._finalizer()

    async def close(self) -> None:
        """Give the channel back."""
        self.release()

    def evict(self, host: str) -> None:
        """Have c-ares forget its answers, when every address of a name failed to connect."""
        if self._channel is not None and not self._closed:
            self._channel.flush(host)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Look a name up.

        Args:
            host: The name; a trailing dot stops the search list.
            port: Goes into the result.
            family: ``AF_UNSPEC`` asks for A and AAAA side by side.

        Raises:
            DNSLookupError: The name servers' answer is no address; see ``.reason``.
            PhaseTimeoutError: There was none within the deadline.
            aiohttp.ClientConnectionError: The resolver is closed.
        """
        if self._closed:
            raise aiohttp.ClientConnectionError("Connector is closed.")
        try:
            addresses = await bounded(self._answer(host, int(family)), self._deadline, host)
        except OSError as exc:
            if self._closed:
                raise aiohttp.ClientConnectionError("Connector is closed.") from exc
            raise
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=port,
                family=found,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for address, found in addresses
        ]

    async def _answer(self, host: str, family: int) -> Sequence[Address]:
        if self._channel is None or self._is_systems(host):
            return await self._from_system(host, family)
        stale_ttl = self._settings.stale_ttl
        key = (normalise_host(host), family)
        answers = self._channel.answers
        last = answers.get(key, stale_ttl) if stale_ttl else None
        if last is None:
            return await self._fresh(host, family, key)
        if answers.is_left_alone(key):
            return _stale(last)
        refresh = self._refreshing.get(key)
        if refresh is None:
            refresh = self._refreshing[key] = asyncio.create_task(self._fresh(host, family, key))
            refresh.add_done_callback(lambda task: self._refreshed(key, task))
        try:
            async with asyncio.timeout(SECONDS_TO_WAIT):
                return await asyncio.shield(refresh)
        except DNSLookupError as exc:
            if exc.reason not in NAME_SERVERS_FAIL:
                raise
        except TimeoutError:
            pass
        answers.refresh_failed(key)
        return _stale(last)

    def _refreshed(self, key: tuple[str, int], task: asyncio.Task[list[Address]]) -> None:
        self._refreshing.pop(key, None)
        if not task.cancelled():
            task.exception()

    async def _fresh(self, host: str, family: int, key: tuple[str, int]) -> list[Address]:
        assert self._channel is not None
        try:
            addresses = await bounded(self._ask(host, family), self._deadline, host)
        except DNSLookupError as exc:
            if exc.reason not in NAME_SERVERS_FAIL:
                self._channel.answers.forget(key)
            if exc.reason == HOST_NOT_FOUND and "." not in host:
                # The machine's own name, say, which only the system's NSS knows.
                return await self._from_system(host, family)
            raise
        self._channel.answers.keep(key, addresses)
        return addresses

    async def _ask(self, host: str, family: int) -> list[Address]:
        if family != socket.AF_UNSPEC:
            return await self._ask_for(host, family)
        six = asyncio.create_task(self._ask_for(host, socket.AF_INET6))
        four = asyncio.create_task(self._ask_for(host, socket.AF_INET))
        try:
            done, _ = await asyncio.wait((six, four), return_when=asyncio.FIRST_COMPLETED)
            first = done.pop()
            other = four if first is six else six
            if first.exception() is None:
                await asyncio.wait((other,), timeout=RESOLUTION_DELAY)
            else:
                await asyncio.wait((other,))
        finally:
            for task in (six, four):
                task.cancel()
        # IPv6 goes first (RFC 8305, section 4); without a route it fails at once and the race goes on.
        addresses: list[Address] = []
        for task in (six, four):
            if task.done() and not task.cancelled() and task.exception() is None:
                addresses += task.result()
        if addresses:
            return addresses
        failures = [task.exception() for task in (six, four)]
        if all(isinstance(each, DNSLookupError) for each in failures):
            raise more_telling(*failures)  # type: ignore[arg-type]
        raise next(each for each in failures if each is not None)

    async def _ask_for(self, host: str, family: int) -> list[Address]:
        resolver = self._channel.resolver if self._channel is not None else None
        if resolver is None:
            raise aiohttp.ClientConnectionError("Connector is closed.")
        try:
            found = await resolver.resolve(host, 0, family)  # type: ignore[arg-type]
        except UnicodeError as exc:
            raise DNSLookupError(str(exc), reason="malformed_name") from exc
        except OSError as exc:
            raise typed(exc) from exc
        return [(each["host"], each["family"]) for each in found if each["family"] == family]

    async def _from_system(self, host: str, family: int) -> list[Address]:
        lookup = current_lookup.get()
        if lookup is not None and lookup.source == "lookup":
            lookup.source = "system"
        try:
            return await self._system.resolve(host, family)
        except OSError as exc:
            raise typed(exc) from exc

    def _is_systems(self, host: str) -> bool:
        return normalise_host(host).endswith(self._settings.system_suffixes)


class WrappedResolver(AbstractResolver):
    """A caller's own resolver within our deadline; the caller closes it.

    Args:
        resolver: The caller's.
        deadline: Seconds for one lookup; ``None``: no limit.
    """

    def __init__(self, resolver: AbstractResolver, deadline: float | None) -> None:
        self._resolver = resolver
        self._deadline = deadline

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Ask the caller's resolver.

        Raises:
            DNSLookupError: It raised an ``OSError``, which is the cause.
            PhaseTimeoutError: It gave no answer within the deadline.
            aiohttp.ClientConnectionError: It was closed under the session.
        """
        try:
            return await bounded(self._resolver.resolve(host, port, family), self._deadline, host)
        except PhaseTimeoutError:
            raise
        except OSError as exc:
            raise typed(exc) from exc
        except AttributeError as exc:
            # ``AsyncResolver`` that is closed asks ``None``.
            if getattr(self._resolver, "_resolver", self) is None:
                raise aiohttp.ClientConnectionError("The session's resolver is closed.") from exc
            raise

    async def close(self) -> None:
        """Leave the resolver to its owner."""


def _stale(addresses: Sequence[Address]) -> Sequence[Address]:
    lookup = current_lookup.get()
    if lookup is not None and lookup.source == "lookup":
        lookup.source = "stale"
    return addresses


async def bounded(answer: Any, deadline: float | None, host: str) -> Any:
    """Wait for a lookup within its deadline.

    Raises:
        PhaseTimeoutError: The deadline is over.
    """
    try:
        async with asyncio.timeout(deadline) as limit:
            return await answer
    except TimeoutError:
        if not limit.expired() or deadline is None:
            raise
        raise PhaseTimeoutError(
            f"dns lookup of {host} timed out after {deadline:.2f} s", phase=Phase.DNS, budget=deadline
        ) from None
