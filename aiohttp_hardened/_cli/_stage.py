"""The servers of the demo, and what it does with them."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import aiohttp

from aiohttp_hardened import DNSSettings, Settings, TimeoutSettings, TLSSettings
from aiohttp_hardened.testing import (
    FakeNameServer,
    TLSServer,
    dead_address,
    refusing_address,
    stalled_tls,
    throwaway_ca,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack

_SECONDS_OF_PATIENCE: Final = 0.1


@dataclass(frozen=True)
class Act:
    """One thing to see.

    Args:
        name: What it is called.
        what_to_see: One line on it.
        ending: How the last attempt ends: a status, an error's word, or ``cancelled``.
        play: Make the requests; returns what the caller would have caught.
    """

    name: str
    what_to_see: str
    ending: str
    play: Callable[[aiohttp.ClientSession, str], Awaitable[BaseException | None]]


@dataclass(frozen=True)
class Stage:
    """What the requests are made with.

    Args:
        settings: Those of every session.
        urls: Where each act goes, by its name; an act that this system cannot show is left out.
    """

    settings: Settings
    urls: dict[str, str]


async def _get(session: aiohttp.ClientSession, url: str) -> BaseException | None:
    try:
        async with session.get(url) as response:
            await response.read()
    except (aiohttp.ClientError, TimeoutError) as exc:
        return exc
    return None


async def _get_twice_at_once(session: aiohttp.ClientSession, url: str) -> BaseException | None:
    first, second = await asyncio.gather(_get(session, url), _get(session, url))
    return first or second


async def _give_up(session: aiohttp.ClientSession, url: str) -> BaseException | None:
    request = asyncio.create_task(_get(session, url))
    await asyncio.sleep(_SECONDS_OF_PATIENCE)
    request.cancel()
    with suppress(asyncio.CancelledError):
        return await request
    return None


COLD, REUSED, COALESCED = "Cold", "Reused", "Coalesced"
DEAD, REFUSED = "Dead first address", "Refused"
UNTRUSTED, CANCELLED = "Certificate refused", "Cancelled"

ACTS: Final = (
    Act(COLD, "a new host; its name is looked up, then TCP, then TLS, then the request.", "200", _get),
    Act(REUSED, "the same host again; its connection was kept, nothing is set up.", "200", _get),
    Act(COALESCED, "two requests at once to a new name: one lookup serves both.", "200", _get_twice_at_once),
    Act(
        DEAD,
        "after 0.25 s the next is tried, and wins (Happy Eyeballs).",
        "200",
        _get,
    ),
    Act(REFUSED, "the name is found, but nothing listens on the port.", "tcp_connection_refused", _get),
    Act(
        UNTRUSTED,
        "TCP connects, but nobody trusted signed the certificate.",
        "tls_certificate_authority_invalid",
        _get,
    ),
    Act(CANCELLED, "a handshake stalls, the caller gives up after 0.1 s; no error.", "cancelled", _give_up),
)


async def open_stage(stack: AsyncExitStack) -> Stage:
    """Start the servers.

    Args:
        stack: It stops them.
    """
    asyncio.get_running_loop().set_exception_handler(_ignore_refused_handshakes)
    ca = stack.enter_context(throwaway_ca())
    names = stack.enter_context(FakeNameServer())
    good = await stack.enter_async_context(TLSServer(ca.issue("shop.test", "pair.test", "twins.test")))
    forged = await stack.enter_async_context(TLSServer(ca.issue_untrusted("forged.test")))
    refusing = stack.enter_context(refusing_address())
    stalled = stack.enter_context(stalled_tls())
    names.set("shop.test", good.host)
    names.set("pair.test", good.host, delay=0.02)
    names.set("forged.test", forged.host)
    names.set("closed.test", refusing.host)
    names.set("stalled.test", stalled.host)
    urls = {
        COLD: good.url(host="shop.test"),
        REUSED: good.url(host="shop.test"),
        COALESCED: good.url(host="pair.test"),
        REFUSED: f"https://closed.test:{refusing.port}/",
        UNTRUSTED: forged.url(host="forged.test"),
        CANCELLED: f"https://stalled.test:{stalled.port}/",
    }
    dead = _open_dead_address(stack, good.port)
    if dead is not None:
        names.set("twins.test", dead, good.host)
        urls[DEAD] = good.url(host="twins.test")
    settings = Settings(
        dns=DNSSettings(nameservers=(names.address,)),
        timeouts=TimeoutSettings(connect=3.0),
        tls=TLSSettings(name="demo", trust="none", ca_files=(str(ca.ca_file),)),
    )
    return Stage(settings, urls)


def _open_dead_address(stack: AsyncExitStack, port: int) -> str | None:
    """Return an address that drops packets to a port; ``None``: this system has none to give."""
    # Only Linux has all of 127.0.0.0/8 without being told.
    for host in ("127.0.0.2", "::1"):
        with suppress(OSError, RuntimeError):
            return stack.enter_context(dead_address(host, port)).host
    return None


def _ignore_refused_handshakes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Say nothing of a handshake that a client breaks off: to the servers of the demo that is an error."""
    if not isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)):
        loop.default_exception_handler(context)
