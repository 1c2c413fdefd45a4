"""One lookup with c-ares: the hosts file, the search list, and A and AAAA side by side."""

from __future__ import annotations

import asyncio
import functools
import socket
from typing import TYPE_CHECKING, Final, cast

from aiohttp_hardened.dns._errors import most_telling, typed
from aiohttp_hardened.dns._preference import in_order_of_preference
from aiohttp_hardened.dns._search import names_to_ask_for
from aiohttp_hardened.exceptions import DNSLookupError
from aiohttp_hardened.timing._lookup_words import HOST_NOT_FOUND, NO_DATA, REFUSED, SERVER_FAILURE, TIMED_OUT

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp_hardened.dns._channel import Channel
    from aiohttp_hardened.dns._stale import Address

RESOLUTION_DELAY: Final = 0.05
"""RFC 8305, section 3: how long the other family is waited for after the first answer."""

_NOT_THIS_NAME: Final = frozenset({HOST_NOT_FOUND, NO_DATA})
_NOT_THIS_LABEL: Final = _NOT_THIS_NAME | {SERVER_FAILURE, REFUSED}
"""Servers often refuse a name of one label instead of saying that there is none."""


async def look_up(channel: Channel, host: str, family: int, *, patient: bool) -> list[Address]:
    """Ask for the addresses of a name, as ``getaddrinfo`` would.

    Args:
        channel: Whom to ask.
        host: The name; a trailing dot stops the search list.
        family: ``socket.AF_UNSPEC``, ``AF_INET`` or ``AF_INET6``.
        patient: Silent servers are asked until the caller's deadline; else until c-ares gives up.

    Raises:
        DNSLookupError: The answer is no address.
        aiohttp.ClientConnectionError: The channel is closed.
    """
    try:
        found = channel.in_hosts_file(host, family)
    except UnicodeError as exc:
        raise typed(exc) from exc
    if found:
        return found
    failures: list[Exception] = []
    for name in names_to_ask_for(host):
        ask = functools.partial(_ask, channel, name, patient=patient)
        try:
            return await (_ask_for_both(ask) if family == socket.AF_UNSPEC else ask(family))
        except DNSLookupError as exc:
            failures.append(exc)
            if exc.reason not in (_NOT_THIS_NAME if "." in name.rstrip(".") else _NOT_THIS_LABEL):
                raise
    # Of a name that exists somewhere it is not said that there is none.
    raise next((each for each in failures if getattr(each, "reason", None) == NO_DATA), failures[-1])


async def _ask(channel: Channel, name: str, family: int, *, patient: bool) -> list[Address]:
    while True:
        try:
            found = await channel.resolver().resolve(name, 0, cast("socket.AddressFamily", family))
        except Exception as exc:
            failure = typed(exc)
            if patient and isinstance(failure, DNSLookupError) and failure.reason == TIMED_OUT:
                continue
            if failure is exc:
                raise
            raise failure from exc
        return [(each["host"], int(each["family"])) for each in found]


async def _ask_for_both(ask: Callable[[int], Awaitable[list[Address]]]) -> list[Address]:
    six = asyncio.ensure_future(ask(socket.AF_INET6))
    four = asyncio.ensure_future(ask(socket.AF_INET))
    both = (six, four)
    for task in both:
        task.add_done_callback(_retrieve)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        delay = RESOLUTION_DELAY if any(_settles_it(task) for task in both) else None
        _, late = await asyncio.wait(both, timeout=delay)
    finally:
        for task in both:
            task.cancel()
    if late:
        await asyncio.wait(late)
    addresses = in_order_of_preference(_answer(six), _answer(four))
    if addresses:
        return addresses
    raise most_telling(exc for task in both if (exc := _failure(task)) is not None)


def _settles_it(task: asyncio.Future[list[Address]]) -> bool:
    """Say whether the other family matters little: there is an answer, or no such name at all (RFC 8020)."""
    if not task.done() or task.cancelled():
        return False
    exc = task.exception()
    return exc is None or getattr(exc, "reason", None) == HOST_NOT_FOUND


def _answer(task: asyncio.Future[list[Address]]) -> list[Address]:
    return task.result() if _failure(task) is None and not task.cancelled() else []


def _failure(task: asyncio.Future[list[Address]]) -> Exception | None:
    return None if task.cancelled() else cast("Exception | None", task.exception())


def _retrieve(task: asyncio.Future[list[Address]]) -> None:
    """Have asyncio not complain of a failure that came when nobody waited any more."""
    if not task.cancelled():
        task.exception()
