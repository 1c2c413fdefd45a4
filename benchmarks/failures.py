"""What known failures cost: a full executor, a dead address, silent name servers, stalled handshakes, lost SYNs.

Each scenario first proves that its fault is there, and runs hardened sessions beside
plain aiohttp in the same run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import aiohttp

from aiohttp_hardened import DNSSettings, Phase, Settings, TimeoutSettings, create_connector, create_session
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    PhaseRecorder,
    accept_queue_overflow,
    dead_address,
    full_default_executor,
    stalled_tls,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NAMES = 50


async def _seconds(awaitable: Awaitable[Any]) -> float:
    start = time.perf_counter()
    with suppress(aiohttp.ClientError, TimeoutError):
        await awaitable
    return time.perf_counter() - start


async def _get(session: aiohttp.ClientSession, url: str) -> None:
    async with session.get(url) as response:
        await response.read()


def _p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[-1]


async def _burst(make: Callable[[], aiohttp.ClientSession], host: str) -> list[float]:
    """Return the seconds of 50 concurrent first requests, each with a lookup of its own.

    ``localhost`` is what the system's resolver knows without asking anybody; a port
    of its own gives each request a lookup of its own. Nothing listens there.
    """
    async with make() as session:
        return await asyncio.gather(
            *(_seconds(_get(session, f"http://{host.format(number)}:{number + 1}/")) for number in range(NAMES))
        )


async def full_executor() -> dict[str, Any]:
    """Measure first requests while every thread of the default executor is busy."""
    with FakeNameServer() as names:
        for number in range(NAMES):
            names.set(f"n{number}.test", "127.0.0.1")
        settings = Settings(dns=DNSSettings(nameservers=(names.address,), stale_ttl=0))
        system = Settings(dns=DNSSettings(resolver="system"))
        contenders: dict[str, tuple[Callable[[], aiohttp.ClientSession], str]] = {
            "plain, ThreadedResolver": (
                lambda: aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=aiohttp.ThreadedResolver())),
                "localhost",
            ),
            "plain, AsyncResolver": (
                lambda: aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(resolver=aiohttp.AsyncResolver(nameservers=[names.address]))
                ),
                "n{}.test",
            ),
            "hardened, aiodns": (lambda: create_session(settings, hooks=()), "n{}.test"),
            "hardened, system resolver": (lambda: create_session(system, hooks=()), "localhost"),
        }
        found: dict[str, Any] = {}
        for name, (make, host) in contenders.items():
            await _burst(make, host)
            idle = [each for _ in range(4) for each in await _burst(make, host)]
            busy: list[float] = []
            for _ in range(4):
                async with full_default_executor(at_most=1.0):
                    waiting = asyncio.get_running_loop().run_in_executor(None, time.sleep, 0)
                    await asyncio.sleep(0.01)
                    assert not waiting.done(), "the executor is not full"
                    busy += await _burst(make, host)
                await waiting
            found[name] = {"idle_p99": _p99(idle), "busy_p99": _p99(busy), "ratio": _p99(busy) / _p99(idle)}
        return found


async def dead_first_address() -> dict[str, Any]:
    """Measure new connections to a host whose first address is dead."""
    found: dict[str, Any] = {}
    async with HTTPServer() as server:
        with dead_address("127.0.0.2", server.port):
            resolver = FixedResolver(("127.0.0.2", "127.0.0.1"))
            for name, connector in {
                "plain": aiohttp.TCPConnector(resolver=resolver, force_close=True),
                "hardened": create_connector(resolver=resolver, force_close=True),
            }.items():
                async with aiohttp.ClientSession(connector=connector) as session:
                    samples = [await _seconds(_get(session, server.url(host="x.test"))) for _ in range(101)]
                found[name] = {
                    "first": samples[0],
                    "slowest_of_next_100": max(samples[1:]),
                    "next_100_above_20_ms": sum(each > 0.02 for each in samples[1:]),
                }
    assert found["plain"]["next_100_above_20_ms"] > 20, "the first address is not dead"
    return found


async def silent_name_server() -> dict[str, Any]:
    """Measure how long a name server that never answers is waited for."""
    with FakeNameServer() as names:
        names.set("x.test", mode="silent")
        settings = Settings(dns=DNSSettings(nameservers=(names.address,)), timeouts=TimeoutSettings(dns=1.0))
        async with create_session(settings, hooks=()) as session:
            hardened = await _seconds(_get(session, "http://x.test/"))
        plain_connector = aiohttp.TCPConnector(resolver=aiohttp.AsyncResolver(nameservers=[names.address]))
        timeout = aiohttp.ClientTimeout(total=30, sock_connect=1.0)
        async with aiohttp.ClientSession(connector=plain_connector, timeout=timeout) as session:
            plain = await _seconds(_get(session, "http://x.test/"))
        assert names.queries["x.test", "A"] >= 2, "nobody asked"
        return {"hardened": hardened, "plain": plain}


async def dead_name_servers_with_a_warm_host() -> dict[str, Any]:
    """Measure requests to a known host after its name servers died."""
    with FakeNameServer() as names:
        async with HTTPServer() as server:
            names.set("x.test", "127.0.0.1", ttl=0)
            settings = Settings(dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.01))
            recorder = PhaseRecorder()
            connector = create_connector(settings, force_close=True)
            async with create_session(settings, hooks=[recorder], connector=connector) as session:
                await _get(session, server.url(host="x.test"))
                names.stop()
                samples = []
                for _ in range(100):
                    samples.append(await _seconds(_get(session, server.url(host="x.test"))))
                    await asyncio.sleep(0.02)
            assert "stale" in {each.attributes["aiohttp.client.dns.source"] for each in recorder.of(Phase.DNS)}
            good = sum(each.status_code == 200 for each in recorder.requests())
            return {"succeeded": good - 1, "of": 100, "slowest": max(samples)}


async def stalled_handshakes() -> dict[str, Any]:
    """Measure three addresses that accept and never speak TLS."""
    async with AsyncExitStack() as stack:
        host, port = stack.enter_context(stalled_tls())
        del host
        for other in ("127.0.0.2", "127.0.0.3"):
            stack.enter_context(stalled_tls(other, port))
        resolver = FixedResolver(("127.0.0.1", "127.0.0.2", "127.0.0.3"))
        settings = Settings(timeouts=TimeoutSettings(connect=2.0, tls=1.0))
        async with create_session(
            settings, hooks=(), connector=create_connector(settings, resolver=resolver)
        ) as session:
            hardened = await _seconds(_get(session, f"https://x.test:{port}/"))
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=1.0)
        connector = aiohttp.TCPConnector(resolver=resolver)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            plain = await _seconds(_get(session, f"https://x.test:{port}/"))
    return {"hardened": hardened, "plain, sock_connect=1": plain}


async def lost_syns() -> dict[str, Any]:
    """Count the connects that had a SYN retransmission, and those that are reported to."""
    recorder = PhaseRecorder()
    async with accept_queue_overflow(drop_for=0.4) as (host, port):
        connector = create_connector(force_close=True)
        async with create_session(hooks=[recorder], connector=connector) as session:
            early = [asyncio.create_task(_seconds(_get(session, f"http://{host}:{port}/"))) for _ in range(3)]
            await asyncio.sleep(0.6)
            late = [await _seconds(_get(session, f"http://{host}:{port}/")) for _ in range(3)]
            slow = await asyncio.gather(*early)
    assert all(each > 0.9 for each in slow), "no SYN was lost"
    assert all(each < 0.5 for each in late)
    races = recorder.of(Phase.TCP)
    had = [each.duration > 0.9 for each in races]
    reported = [bool(each.attributes["aiohttp.client.tcp.syn_retransmits"]) for each in races]
    return {"connects": len(races), "had": sum(had), "reported": sum(reported), "exact": had == reported}


def run() -> dict[str, Any]:
    """Run every scenario, print what was measured, and return it."""
    figures: dict[str, Any] = {"executor_threads": min(32, (os.cpu_count() or 1) + 4)}
    for scenario in (
        full_executor,
        dead_first_address,
        silent_name_server,
        dead_name_servers_with_a_warm_host,
        stalled_handshakes,
        lost_syns,
    ):
        figures[scenario.__name__] = asyncio.run(scenario())
        print(scenario.__name__.replace("_", " "))
        for name, value in figures[scenario.__name__].items():
            shown = (
                "  ".join(f"{key} {each:.4g}" for key, each in value.items())
                if isinstance(value, dict)
                else f"{value:.4g}"
            )
            print(f"  {name:28} {shown}")
    return figures
