from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import pycares
import pytest

from aiohttp_hardened import DNSSettings, create_session
from aiohttp_hardened.dns import _channel
from aiohttp_hardened.dns._resolver import HardenedResolver
from aiohttp_hardened.exceptions import DNSLookupError
from aiohttp_hardened.testing import FakeNameServer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore:Unclosed:ResourceWarning")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux")


def inotify_instances() -> int:
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            count += "inotify" in str(entry.readlink())
        except OSError:
            continue
    return count


def settled(expected: int, seconds: float = 2.0) -> int:
    """Return how many inotify instances there are, once there are so many or the time is over."""
    deadline = time.monotonic() + seconds
    while inotify_instances() != expected and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()
    return inotify_instances()


def open_resolver(names: FakeNameServer) -> HardenedResolver:
    return HardenedResolver.open(DNSSettings(nameservers=(names.address,)), 5.0)


@LINUX
async def test_sessions_of_a_loop_share_a_channel() -> None:
    """300 sessions opened and closed use one channel, which is gone a moment after the last."""
    before = inotify_instances()
    most = 0
    for _ in range(300):
        async with create_session(hooks=()):
            most = max(most, inotify_instances())
    assert most == before + 1
    assert inotify_instances() == before + 1, "it lingers"
    await asyncio.sleep(_channel.SECONDS_TO_LINGER)
    assert settled(before) == before


@LINUX
async def test_forgotten_sessions_give_their_channel_back() -> None:
    """300 sessions that nobody closed cost one channel, and in the end none."""
    before = inotify_instances()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # "Unclosed client session"
    for _ in range(300):
        create_session(hooks=())
    gc.collect()
    assert inotify_instances() == before + 1
    await asyncio.sleep(_channel.SECONDS_TO_LINGER + 0.1)
    gc.collect()
    assert settled(before) == before


async def test_different_servers_are_different_channels() -> None:
    """Who asks the same servers shares a channel; who asks others does not."""
    with FakeNameServer() as names, FakeNameServer() as others:
        one, two, three = open_resolver(names), open_resolver(names), open_resolver(others)
        assert one._channel is two._channel
        assert one._channel is not three._channel
        for each in (one, two, three):
            await each.close()


async def test_a_channel_that_lingers_is_used_again() -> None:
    """A session within the moment after the last one gets its channel, which then is not closed."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1")
        first = open_resolver(names)
        channel = first._channel
        await first.close()
        await asyncio.sleep(0.05)
        second = open_resolver(names)
        assert second._channel is channel
        await asyncio.sleep(_channel.SECONDS_TO_LINGER + 0.1)
        assert await second.resolve("x.test")
        await second.close()


@LINUX
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "forgotten"])
@pytest.mark.parametrize("mode", ["answer", "silent"])
def test_a_channel_dies_with_its_loop(loop_factory: Callable[[], Any], mode: str, *, closed: bool) -> None:
    """A loop that ends takes its channel along: lingering, forgotten, or with a query under way."""
    before = inotify_instances()
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", mode=mode)

        async def main() -> weakref.ref[asyncio.AbstractEventLoop]:
            resolver = open_resolver(names)
            lookup = asyncio.create_task(resolver.resolve("x.test"))
            await asyncio.sleep(0.05)
            lookup.cancel()
            if closed:
                await resolver.close()
            return weakref.ref(asyncio.get_running_loop())

        for _ in range(2):
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                loop = runner.run(main())
            del runner
            assert settled(before, 1.0) == before
            gc.collect()
            assert loop() is None


@LINUX
def test_a_kept_exception_keeps_no_channel(loop_factory: Callable[[], Any]) -> None:
    """A traceback holds what its frames held, a channel too; the next loop's first session has it destroyed."""
    before = inotify_instances()
    kept: list[BaseException] = []
    with FakeNameServer() as names:

        async def main() -> None:
            resolver = open_resolver(names)
            try:
                await resolver.resolve("x.test")
            except DNSLookupError as exc:
                kept.append(exc)
            await resolver.close()

        for _ in range(3):
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(main())
        assert settled(before + 1, 1.0) == before + 1
        kept.clear()


def test_two_loops_in_two_threads(loop_factory: Callable[[], Any]) -> None:
    """Loops that run at the same time have a channel each."""
    failures: list[BaseException] = []
    channels: list[object] = []
    both = threading.Barrier(2)

    async def main(names: FakeNameServer) -> None:
        resolver = open_resolver(names)
        channels.append(resolver._channel)
        both.wait(5)
        assert await resolver.resolve("x.test")
        await resolver.close()

    def run(names: FakeNameServer) -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                runner.run(main(names))
        except BaseException as exc:  # noqa: BLE001
            failures.append(exc)

    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1")
        threads = [threading.Thread(target=run, args=(names,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert channels[0] is not channels[1]


async def test_a_resolver_forgotten_in_another_thread() -> None:
    """A garbage collection on another thread gives the channel back on the loop's."""
    with FakeNameServer() as names:
        resolvers = [open_resolver(names)]
        channel = resolvers[0]._channel
        thread = threading.Thread(target=resolvers.clear)
        thread.start()
        thread.join()
        await asyncio.sleep(0.05)
        assert channel is not None
        assert channel._users == 0


async def test_evict_reaches_c_ares() -> None:
    """``evict()`` has the name servers asked again within the record's TTL, once per second and name."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", ttl=300)
        resolver = open_resolver(names)
        for _ in range(3):
            await resolver.resolve("x.test")
        assert names.queries["x.test", "A"] == 1
        assert resolver.evict("x.test")
        assert not resolver.evict("X.test."), "the same name"
        assert resolver.evict("y.test")
        names.set("x.test", "127.0.0.2", ttl=300)
        assert [each["host"] for each in await resolver.resolve("x.test")] == ["127.0.0.2"]
        assert names.queries["x.test", "A"] == 2
        await resolver.close()


async def test_no_data_is_not_kept() -> None:
    """A name that has no address for a moment is asked for again; c-ares would keep "no data" for an hour."""
    with FakeNameServer() as names:
        names.set("x.test", mode="nodata", ttl=0)
        resolver = open_resolver(names)
        with pytest.raises(DNSLookupError):
            await resolver.resolve("x.test")
        names.set("x.test", "127.0.0.1")
        assert [each["host"] for each in await resolver.resolve("x.test")] == ["127.0.0.1"]
        await resolver.close()


async def test_evict_disturbs_nobody() -> None:
    """A lookup that is under way survives an ``evict()``, and its server is not asked twice."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", delay=0.2)
        resolver = open_resolver(names)
        lookup = asyncio.create_task(resolver.resolve("x.test"))
        await asyncio.sleep(0.05)
        assert resolver.evict("x.test")
        assert await lookup
        assert names.queries["x.test", "A"] == 1
        await resolver.close()


async def test_evict_does_not_pin_the_systems_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an ``evict()`` a change of the system's configuration is still followed."""
    resolver = HardenedResolver.open(DNSSettings(), 5.0)
    channel = resolver._channel
    assert channel is not None
    before = channel.resolver()
    assert resolver.evict("x.test")
    assert channel.resolver() is before
    monkeypatch.setattr(_channel, "configuration_stamp", lambda: (1, 2))
    assert channel.resolver() is not before
    await resolver.close()


async def test_no_inotify_instance_to_be_had(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Where inotify is exhausted names still resolve, with a warning."""

    class Exhausted(pycares.Channel):
        def __init__(self, **options: Any) -> None:
            if "sock_state_cb" not in options:
                self._channel = None
                raise pycares.AresError("Failed to initialize c-ares channel")
            super().__init__(**options)

    monkeypatch.setattr(pycares, "Channel", Exhausted)
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1")
        names.set("silent.test", mode="silent")
        resolver = open_resolver(names)
        assert await resolver.resolve("x.test")
        silent = asyncio.create_task(resolver.resolve("silent.test"))
        await asyncio.sleep(0.05)
        await resolver.close()
        with pytest.raises(aiohttp.ClientConnectionError):
            await silent
        await asyncio.sleep(_channel.SECONDS_TO_LINGER + 0.1)
    assert "inotify" in caplog.text


WITHOUT_AIODNS = """
import asyncio, sys
sys.modules["aiodns"] = None
from aiohttp_hardened import DNSSettings, Settings, create_session

async def main():
    try:
        create_session()
    except Exception as exc:
        print(type(exc).__name__, exc)
    async with create_session(Settings(dns=DNSSettings(resolver="system")), hooks=()):
        print("system")

asyncio.run(main())
"""


def test_aiodns_is_missing() -> None:
    """Without aiodns building a session names it, and does not fall back by itself."""
    done = subprocess.run([sys.executable, "-c", WITHOUT_AIODNS], capture_output=True, text=True, check=True)
    error, system = done.stdout.splitlines()
    assert error.startswith('SettingsError dns.resolver="aiodns" needs the package aiodns')
    assert system == "system"
