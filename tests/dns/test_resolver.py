from __future__ import annotations

import asyncio
import socket
import time

import aiohttp
import pytest

from aiohttp_hardened import DNSSettings, Settings, create_session
from aiohttp_hardened.dns._resolver import HardenedResolver, WrappedResolver
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.testing import FakeNameServer, FixedResolver
from aiohttp_hardened.timing import Phase


def open_resolver(names: FakeNameServer, deadline: float | None = 5.0) -> HardenedResolver:
    return HardenedResolver.open(DNSSettings(nameservers=(names.address,)), deadline)


@pytest.mark.parametrize("family", [socket.AF_UNSPEC, socket.AF_INET])
async def test_a_silent_server_is_given_up_at_the_deadline(family: socket.AddressFamily) -> None:
    """A lookup ends at its deadline, not earlier and not much later, and names phase and budget."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        resolver = open_resolver(names, 1.0)
        begun = time.monotonic()
        with pytest.raises(PhaseTimeoutError) as caught:
            await resolver.resolve("x.test", 0, family)
        assert 0.99 <= time.monotonic() - begun < 1.1
        await resolver.close()
    assert (caught.value.phase, caught.value.budget) == (Phase.DNS, 1.0)
    assert str(caught.value) == "dns lookup of x.test timed out after 1.00 s"
    assert caught.value.errno is None, "aiohttp would wrap it"


@pytest.mark.loops("asyncio")
async def test_without_a_deadline_c_ares_decides() -> None:
    """``timeouts.dns=None`` leaves it to c-ares when a silent server is given up."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        resolver = open_resolver(names, None)
        with pytest.raises(DNSLookupError) as caught:
            await resolver.resolve("x.test")
        assert caught.value.reason == "timed_out"
        await resolver.close()


async def test_a_stuck_lookup_pins_no_other() -> None:
    """While one name gets no answer another one does, and so does the same name a moment later."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        names.set("y.test", "127.0.0.1")
        resolver = open_resolver(names, 0.3)
        stuck = asyncio.create_task(resolver.resolve("x.test"))
        await asyncio.sleep(0.05)
        assert await resolver.resolve("y.test")
        assert not stuck.done()
        names.set("x.test", "127.0.0.1")
        assert await resolver.resolve("x.test")
        with pytest.raises(PhaseTimeoutError):
            await stuck
        await resolver.close()


async def test_a_closed_resolver_says_so() -> None:
    """After ``close()`` a lookup is a connection error, never an ``AttributeError``."""
    with FakeNameServer() as names:
        resolver = open_resolver(names)
        await resolver.close()
        await resolver.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await resolver.resolve("x.test")
        assert not resolver.evict("x.test")


async def test_lookups_end_at_once_when_it_is_closed() -> None:
    """``close()`` ends lookups that are under way with a connection error within 50 ms, and only its own."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        names.set("y.test", "127.0.0.1", delay=0.3)
        resolver, other = open_resolver(names), open_resolver(names)
        stuck = [asyncio.create_task(resolver.resolve("x.test", 0, family)) for family in (0, socket.AF_INET)]
        others = asyncio.create_task(other.resolve("y.test"))
        await asyncio.sleep(0.1)
        begun = time.monotonic()
        await resolver.close()
        results = await asyncio.gather(*stuck, return_exceptions=True)
        assert time.monotonic() - begun < 0.05
        assert [isinstance(each, aiohttp.ClientConnectionError) for each in results] == [True, True]
        assert [each["host"] for each in await others] == ["127.0.0.1"]
        await other.close()


async def test_a_closed_resolver_asks_nobody() -> None:
    """Once the last one that waited is gone a silent server is not asked again."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        resolver = open_resolver(names)
        stuck = asyncio.create_task(resolver.resolve("x.test", 0, socket.AF_INET))
        await asyncio.sleep(0.05)
        await resolver.close()
        await asyncio.wait([stuck])
        assert isinstance(stuck.exception(), aiohttp.ClientConnectionError)
        await asyncio.sleep(0.7)  # c-ares asks again after 0.5 s
        assert names.queries == {("x.test", "A"): 1}


async def test_a_cancelled_lookup_is_cancelled() -> None:
    """What the caller cancels stays cancelled, also when the resolver is closed at the same moment."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        resolver = open_resolver(names)
        first = asyncio.create_task(resolver.resolve("x.test"))
        second = asyncio.create_task(resolver.resolve("x.test"))
        await asyncio.sleep(0.05)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second.cancel()
        await resolver.close()
        with pytest.raises(asyncio.CancelledError):
            await second


async def test_a_session_closed_under_a_lookup() -> None:
    """Through a session: no ``CancelledError`` that nobody sent when it is closed under a lookup."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        session = create_session(Settings(dns=DNSSettings(nameservers=(names.address,))), hooks=())
        request = asyncio.create_task(session.get("http://x.test:1/"))
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        await session.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await request
        assert time.monotonic() - begun < 0.05


async def test_a_callers_resolver_is_bounded() -> None:
    """A caller's own resolver holds our deadline, and is cancelled then."""
    theirs = FixedResolver(delay=5.0)
    begun = time.monotonic()
    with pytest.raises(PhaseTimeoutError) as caught:
        await WrappedResolver(theirs, 0.1).resolve("x.test")
    assert 0.09 <= time.monotonic() - begun < 1.0
    assert caught.value.budget == 0.1


async def test_a_callers_resolver_stays_the_callers() -> None:
    """Closing the wrapper does not close what it wraps, and an answer passes as it is."""
    theirs = FixedResolver({"x.test": ["127.0.0.3"]})
    wrapped = WrappedResolver(theirs, None)
    assert await wrapped.resolve("x.test", 1, socket.AF_INET) == await theirs.resolve("x.test", 1, socket.AF_INET)
    await wrapped.close()
    assert not theirs.closed


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (OSError(None, "nope"), "server_failure"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "host_not_found"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "server_failure"),
        (TimeoutError("their own"), "timed_out"),
        (UnicodeError("label too long"), "malformed_name"),
    ],
)
async def test_a_callers_failures_are_typed(raised: Exception, reason: str) -> None:
    """What a caller's resolver raises becomes a typed failure, with the original as its cause."""
    with pytest.raises(DNSLookupError) as caught:
        await WrappedResolver(FixedResolver(exception=raised), None).resolve("x.test")
    assert caught.value.reason == reason
    assert caught.value.__cause__ is raised


@pytest.mark.parametrize(
    "raised",
    [
        DNSLookupError("theirs", reason="refused"),
        aiohttp.ClientConnectionError("theirs"),
        LookupError("theirs"),
        AttributeError("theirs", obj="something"),
        asyncio.CancelledError(),
    ],
)
async def test_what_says_enough_passes(raised: BaseException) -> None:
    """An exception that is typed already, or no failure of a lookup, is not changed."""
    with pytest.raises(type(raised)) as caught:
        await WrappedResolver(FixedResolver(exception=raised), None).resolve("x.test")
    assert caught.value is raised or isinstance(raised, asyncio.CancelledError)


async def test_a_callers_async_resolver_that_is_closed() -> None:
    """A closed ``AsyncResolver`` is a connection error: before a lookup, and under one."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        theirs = aiohttp.AsyncResolver(nameservers=[names.address])
        wrapped = WrappedResolver(theirs, 5.0)
        under_way = asyncio.create_task(wrapped.resolve("x.test"))
        await asyncio.sleep(0.05)
        begun = time.monotonic()
        await theirs.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await under_way
        with pytest.raises(aiohttp.ClientConnectionError):
            await wrapped.resolve("x.test")
        assert time.monotonic() - begun < 0.05


async def test_a_callers_async_resolver_keeps_its_status() -> None:
    """The status of a caller's ``AsyncResolver`` becomes the reason."""
    with FakeNameServer() as names:
        names.set("x.test", mode="refused")
        theirs = aiohttp.AsyncResolver(nameservers=[names.address])
        with pytest.raises(DNSLookupError) as caught:
            await WrappedResolver(theirs, 5.0).resolve("x.test")
        assert caught.value.reason == "refused"
        await theirs.close()
