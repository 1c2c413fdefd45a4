from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import DNSSettings, Settings, TimeoutSettings, create_session
from aiohttp_hardened.dns import _resolver, _stale
from aiohttp_hardened.dns._resolver import HardenedResolver
from aiohttp_hardened.dns._stale import LastGoodAnswers
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.testing import FakeNameServer, HTTPServer, PhaseRecorder, raw_server
from aiohttp_hardened.timing import Phase
from aiohttp_hardened.timing._dns import current_lookup

if TYPE_CHECKING:
    from collections.abc import Callable

KEY = ("x.test", 0)
ADDRESS = ("127.0.0.1", int(socket.AF_INET))


def open_resolver(names: FakeNameServer, deadline: float | None = 5.0, stale_ttl: float = 3600.0) -> HardenedResolver:
    return HardenedResolver.open(DNSSettings(nameservers=(names.address,), stale_ttl=stale_ttl), deadline)


async def resolve(resolver: HardenedResolver, name: str = "x.test") -> tuple[list[str], str]:
    """Return the addresses and where they came from."""
    lookup = SimpleNamespace(source="lookup")
    token = current_lookup.set(lookup)  # type: ignore[arg-type]
    try:
        answer = await resolver.resolve(name)
    finally:
        current_lookup.reset(token)
    return [each["host"] for each in answer], lookup.source


def forget(resolver: HardenedResolver) -> None:
    """Empty c-ares' cache, whatever was emptied lately."""
    assert resolver._channel is not None
    resolver._channel._flushed.clear()
    assert resolver.evict("x.test")


@pytest.mark.parametrize("failure", ["servfail", "refused", "garbage", "dead"])
async def test_the_last_good_answer_is_served_while_servers_fail(failure: str) -> None:
    """A name that was known resolves while its name servers fail, and is said to be stale."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        assert await resolve(resolver) == (["127.0.0.1"], "lookup")
        if failure == "dead":
            names.stop()
        else:
            names.set("x.test", mode=failure)
        assert await resolve(resolver) == (["127.0.0.1"], "stale")
        await resolver.close()


@pytest.mark.parametrize(("mode", "reason"), [("nxdomain", "host_not_found"), ("nodata", "no_data")])
async def test_never_on_no_such_name(mode: str, reason: str) -> None:
    """The answer "no such name" ends the last good answer: it is not served then, nor when the servers fail later."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        await resolve(resolver)
        for now in (mode, "servfail"):
            names.set("x.test", mode=now, ttl=0)
            with pytest.raises(DNSLookupError) as caught:
                await resolve(resolver)
            assert caught.value.reason == (reason if now == mode else "server_failure")
        await resolver.close()


async def test_name_servers_are_left_alone_after_a_failure() -> None:
    """For a while after a failed refresh the stale answer is served without a query."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        await resolve(resolver)
        names.set("x.test", mode="servfail")
        await resolve(resolver)
        asked = names.queries.copy()
        names.set("x.test", "127.0.0.2", ttl=0)
        assert [await resolve(resolver) for _ in range(5)] == [(["127.0.0.1"], "stale")] * 5
        assert names.queries == asked
        await resolver.close()


async def test_name_servers_are_asked_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the recheck time the name servers are asked, and their answer is not stale."""
    monkeypatch.setattr(_stale, "SECONDS_BETWEEN_RECHECKS", 0.2)
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        await resolve(resolver)
        names.set("x.test", mode="servfail")
        assert (await resolve(resolver))[1] == "stale"
        names.set("x.test", "127.0.0.2", ttl=0)
        await asyncio.sleep(0.25)
        assert await resolve(resolver) == (["127.0.0.2"], "lookup")
        await resolver.close()


async def test_a_silent_server_costs_a_known_name_little() -> None:
    """Where a good answer exists a caller waits 1.8 s for a fresh one, and the next one not at all."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        await resolve(resolver)
        names.set("x.test", mode="silent")
        begun = time.monotonic()
        answers = await asyncio.gather(*(resolve(resolver) for _ in range(5)))
        assert 1.79 <= time.monotonic() - begun < 2.1
        assert answers == [(["127.0.0.1"], "stale")] * 5
        begun = time.monotonic()
        assert (await resolve(resolver))[1] == "stale"
        assert time.monotonic() - begun < 0.1
        await resolver.close()


async def test_the_refresh_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that comes after the stale one was served is the next one's."""
    monkeypatch.setattr(_resolver, "SECONDS_TO_WAIT", 0.1)
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names)
        await resolve(resolver)
        names.set("x.test", "127.0.0.2", delay=0.3, ttl=0)
        assert await resolve(resolver) == (["127.0.0.1"], "stale")
        await asyncio.sleep(0.4)
        names.set("x.test", "127.0.0.2", ttl=0)
        asked = names.queries["x.test", "A"]
        assert await resolve(resolver) == (["127.0.0.2"], "lookup")
        assert asked == 2, "one for the first answer, one for the refresh"
        await resolver.close()


@pytest.mark.parametrize("deadline", [0.3, 1.8])
async def test_a_short_deadline_is_kept(deadline: float) -> None:
    """With a deadline of at most 1.8 s the stale answer comes at the deadline, not an error."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names, deadline)
        await resolve(resolver)
        names.set("x.test", mode="silent")
        begun = time.monotonic()
        assert (await resolve(resolver))[1] == "stale"
        assert deadline - 0.01 <= time.monotonic() - begun < deadline + 0.2
        await resolver.close()


async def test_an_answer_that_is_too_old() -> None:
    """An answer older than ``stale_ttl`` is not served."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names, stale_ttl=0.2)
        await resolve(resolver)
        names.set("x.test", mode="servfail")
        assert (await resolve(resolver))[1] == "stale"
        await asyncio.sleep(0.25)
        with pytest.raises(DNSLookupError):
            await resolve(resolver)
        await resolver.close()


async def test_switched_off() -> None:
    """With ``stale_ttl=0`` a failure is a failure."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names, 0.3, stale_ttl=0.0)
        await resolve(resolver)
        names.set("x.test", mode="silent")
        with pytest.raises(PhaseTimeoutError):
            await resolve(resolver)
        await resolver.close()


async def test_sessions_come_and_go() -> None:
    """The last good answer outlives its session, and the channel."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        for expected in ("lookup", "stale"):
            resolver = open_resolver(names)
            assert (await resolve(resolver))[1] == expected
            channel = resolver._channel
            assert channel is not None
            await resolver.close()
            await asyncio.sleep(0)
            channel.close()
            names.set("x.test", mode="refused")


async def test_closed_under_a_refresh() -> None:
    """Closing the resolver ends the refresh that nobody waits for any more."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver, other = open_resolver(names), open_resolver(names)
        await resolve(resolver)
        names.set("x.test", mode="silent")
        assert (await resolve(resolver))[1] == "stale"
        assert len(asyncio.all_tasks()) > 1
        await resolver.close()
        await asyncio.sleep(0.05)
        assert len(asyncio.all_tasks()) == 1
        await other.close()


async def test_a_refresh_that_nobody_waited_for() -> None:
    """A refresh whose caller left, and that failed, leaves the name servers alone as any other."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        resolver = open_resolver(names, 0.3)
        await resolve(resolver)
        names.set("x.test", mode="silent")
        caller = asyncio.create_task(resolve(resolver))
        await asyncio.sleep(0.1)
        caller.cancel()
        await asyncio.sleep(0.3)
        asked = names.queries.copy()
        assert (await resolve(resolver))[1] == "stale"
        assert names.queries == asked
        await resolver.close()


async def test_through_a_session() -> None:
    """Name servers that die leave a warm host reachable, each request said to be stale, and come back unnoticed."""
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    recorder = PhaseRecorder()
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=0)
        settings = Settings(
            dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.05), timeouts=TimeoutSettings(dns=1.0)
        )
        async with raw_server(serve) as (_, port), create_session(settings, hooks=(recorder,)) as session:
            for _ in range(4):
                async with session.get(f"http://x.test:{port}/") as response:
                    assert response.status == 200
                names.set("x.test", mode="refused")
                await asyncio.sleep(0.1)
    lookups = [record for record in recorder.records if record.phase is Phase.DNS]
    assert [record.attributes["aiohttp.client.dns.source"] for record in lookups] == ["lookup", *["stale"] * 3]


async def test_an_answer_that_leads_nowhere_is_rechecked_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stale answer whose every address fails does not keep a moved host away for half a minute."""
    monkeypatch.setattr(_stale, "SECONDS_UNTIL_UNREACHABLE_IS_RECHECKED", 0.1)
    recorder = PhaseRecorder()
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.2", ttl=0)
        settings = Settings(dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.05))
        async with HTTPServer() as server, create_session(settings, hooks=(recorder,)) as session:
            for mode in ("answer", "servfail"):
                names.set("x.test", "127.0.0.2", mode=mode, ttl=0)
                await asyncio.sleep(0.1)
                with pytest.raises(aiohttp.ClientConnectorError):
                    await session.get(server.url(host="x.test"))
            names.set("x.test", "127.0.0.1", ttl=0)
            await asyncio.sleep(0.15)
            async with session.get(server.url(host="x.test")) as response:
                assert response.status == 200
    sources = [record.attributes["aiohttp.client.dns.source"] for record in recorder.of(Phase.DNS)]
    assert sources == ["lookup", "stale", "lookup"]


def clock(times: list[float]) -> Callable[[], float]:
    return lambda: times[0]


def test_answers_age() -> None:
    """An answer is served until it is ``ttl`` old."""
    now = [100.0]
    answers = LastGoodAnswers(clock(now))
    answers.keep(KEY, [ADDRESS])
    now[0] += 9.9
    assert answers.get(KEY, 10.0) == (ADDRESS,)
    now[0] += 0.1
    assert answers.get(KEY, 10.0) is None


def test_left_alone_for_thirty_seconds() -> None:
    """After a failed refresh a name is left alone for 30 s, or until an answer comes."""
    now = [100.0]
    answers = LastGoodAnswers(clock(now))
    answers.refresh_failed(KEY)
    assert not answers.is_left_alone(KEY), "there is no answer to serve"
    answers.keep(KEY, [ADDRESS])
    answers.refresh_failed(KEY)
    now[0] += 29.9
    assert answers.is_left_alone(KEY)
    now[0] += 0.2
    assert not answers.is_left_alone(KEY)
    answers.refresh_failed(KEY)
    answers.keep(KEY, [ADDRESS])
    assert not answers.is_left_alone(KEY)


def test_an_unreachable_answer_is_left_alone_for_a_second() -> None:
    """Whatever family it was asked for; a name that is not left alone does not become so."""
    now = [100.0]
    answers = LastGoodAnswers(clock(now))
    for family in (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
        answers.keep(("x.test", int(family)), [ADDRESS])
        answers.is_unreachable("x.test")
        assert not answers.is_left_alone(("x.test", int(family)))
        answers.refresh_failed(("x.test", int(family)))
    answers.is_unreachable("y.test")
    answers.is_unreachable("x.test")
    now[0] += 0.9
    assert answers.is_left_alone(("x.test", int(socket.AF_INET6)))
    now[0] += 0.2
    for family in (socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6):
        assert not answers.is_left_alone(("x.test", int(family)))


def test_answers_are_bounded() -> None:
    """Of more than a thousand names the least lately used ones are dropped."""
    answers = LastGoodAnswers()
    for number in range(_stale.MOST_NAMES):
        answers.keep((f"{number}.test", 0), [ADDRESS])
    answers.get(("0.test", 0), 60.0)
    answers.keep(KEY, [ADDRESS])
    assert answers.get(("0.test", 0), 60.0)
    assert answers.get(("1.test", 0), 60.0) is None
