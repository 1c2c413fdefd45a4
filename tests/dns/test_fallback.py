from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import DNSSettings
from aiohttp_hardened.dns import _fallback
from aiohttp_hardened.dns._fallback import MOST_THREADS, ask_system
from aiohttp_hardened.dns._resolver import HardenedResolver
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.testing import FakeNameServer, full_default_executor
from aiohttp_hardened.timing._dns import current_lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

KNOWN = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.5", 0))]


@pytest.fixture(autouse=True)
def _impatient_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle threads end soon, so that no test has to wait for them at its end."""
    monkeypatch.setattr(_fallback, "SECONDS_IDLE", 0.1)


def threads() -> int:
    return sum("getaddrinfo" in thread.name for thread in threading.enumerate())


class System:
    """What the system's resolver is made to say; ``stuck`` names wait for ``go_on``."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.known: dict[str, Any] = {}
        self.stuck: set[str] = set()
        self.go_on = threading.Event()

    def getaddrinfo(self, host: str, *_: object, **__: object) -> Any:
        self.asked.append(host)
        if host in self.stuck:
            self.go_on.wait(10)
        answer = self.known.get(host, socket.gaierror(socket.EAI_NONAME, "Name or service not known"))
        if isinstance(answer, Exception):
            raise type(answer)(*answer.args)  # a new one, whose traceback dies with it
        return answer


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    made = System()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.go_on.set()


async def resolve(resolver: HardenedResolver, name: str) -> tuple[list[str], str]:
    lookup = SimpleNamespace(source="lookup")
    token = current_lookup.set(lookup)  # type: ignore[arg-type]
    try:
        answer = await resolver.resolve(name)
    finally:
        current_lookup.reset(token)
    return [each["host"] for each in answer], lookup.source


async def test_the_real_system() -> None:
    """``resolver="system"`` knows what ``getaddrinfo`` knows, and makes no channel."""
    resolver = HardenedResolver.open(DNSSettings(resolver="system"), 5.0)
    addresses, source = await resolve(resolver, "localhost")
    assert set(addresses) <= {"127.0.0.1", "::1"}
    assert source == "system"
    assert resolver._channel is None
    assert not resolver.evict("localhost")
    await resolver.close()


@pytest.mark.parametrize("name", ["printer.local", "Printer.Local.", "a.b.local"])
async def test_suffixes_of_the_system(system: System, name: str) -> None:
    """A name under ``system_suffixes`` is asked of the system, and no name server hears of it."""
    system.known[name] = KNOWN
    with FakeNameServer() as names:
        resolver = HardenedResolver.open(DNSSettings(nameservers=(names.address,)), 5.0)
        assert await resolve(resolver, name) == (["127.0.0.5"], "system")
        assert not names.queries
        await resolver.close()


@pytest.mark.parametrize("mode", ["nxdomain", "nodata"])
async def test_a_name_that_only_nss_knows(system: System, mode: str) -> None:
    """A name of one label that the name servers do not know is asked of the system."""
    system.known["printer"] = KNOWN
    with FakeNameServer() as names:
        names.set("printer", mode=mode)
        resolver = HardenedResolver.open(DNSSettings(nameservers=(names.address,)), 5.0)
        assert await resolve(resolver, "printer") == (["127.0.0.5"], "system")
        await resolver.close()


async def test_what_the_name_servers_said_counts(system: System) -> None:
    """Where the system does not know it either, the reason is the name servers'."""
    system.known["printer"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
    with FakeNameServer() as names:
        resolver = HardenedResolver.open(DNSSettings(nameservers=(names.address,)), 5.0)
        with pytest.raises(DNSLookupError) as caught:
            await resolve(resolver, "printer")
        assert caught.value.reason == "host_not_found"
        await resolver.close()


@pytest.mark.parametrize("name", ["x.test", "printer."])
async def test_no_lookup_is_doubled(system: System, name: str) -> None:
    """A name of more labels, or a complete one, that does not exist is not asked of the system too."""
    with FakeNameServer() as names:
        resolver = HardenedResolver.open(DNSSettings(nameservers=(names.address,)), 5.0)
        with pytest.raises(DNSLookupError):
            await resolve(resolver, name)
        assert system.asked == []
        await resolver.close()


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "host_not_found"),
        (socket.gaierror(getattr(socket, "EAI_NODATA", socket.EAI_NONAME), "No address"), "no_data"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), "server_failure"),
        (socket.gaierror(socket.EAI_FAIL, "Non-recoverable failure"), "server_failure"),
        (UnicodeError("label too long"), "malformed_name"),
        (OSError(24, "Too many open files"), "server_failure"),
    ],
)
async def test_reasons(system: System, raised: Exception, reason: str) -> None:
    """The system's errors become words of the same closed list."""
    system.known["x.test"] = raised
    with pytest.raises(DNSLookupError) as caught:
        await ask_system("x.test", socket.AF_UNSPEC)
    assert caught.value.reason == reason
    assert repr(caught.value.__cause__) == repr(raised)


async def test_the_default_executor_is_not_used() -> None:
    """Names that take the system's resolver do not wait for a thread of the default executor."""
    async with full_default_executor():
        begun = time.monotonic()
        assert await ask_system("localhost", socket.AF_INET)
        assert time.monotonic() - begun < 0.5


async def test_few_threads() -> None:
    """50 lookups at once take a few threads, which are gone a moment later."""
    await asyncio.gather(*(ask_system("localhost", socket.AF_INET) for _ in range(50)))
    assert 1 <= threads() <= MOST_THREADS
    deadline = time.monotonic() + _fallback.SECONDS_IDLE + 1.0
    while threads() and time.monotonic() < deadline:  # noqa: ASYNC110  (a thread sets no event when it ends)
        await asyncio.sleep(0.05)
    assert threads() == 0


async def test_stuck_names_stop_nobody(system: System) -> None:
    """Names whose lookup hangs in the system hold their deadline, and do not take the others' threads for ever."""
    system.stuck.update(f"stuck{number}" for number in range(2 * MOST_THREADS))
    system.known["x.test"] = KNOWN
    resolver = HardenedResolver.open(DNSSettings(resolver="system"), 0.2)
    for _ in range(2):
        results = await asyncio.gather(
            *(resolver.resolve(f"stuck{number}") for number in range(MOST_THREADS)), return_exceptions=True
        )
        assert [type(each) for each in results] == [PhaseTimeoutError] * MOST_THREADS
        assert await resolve(resolver, "x.test") == (["127.0.0.5"], "system")
    assert threads() > MOST_THREADS
    system.go_on.set()
    await resolver.close()


async def test_a_lookup_that_waits_for_a_thread_can_be_given_up(system: System) -> None:
    """A name whose caller leaves before its turn is never asked for."""
    system.stuck.update(f"stuck{number}" for number in range(MOST_THREADS))
    stuck = [asyncio.create_task(ask_system(f"stuck{number}", 0)) for number in range(MOST_THREADS)]
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(ask_system("later.test", 0))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    system.go_on.set()
    await asyncio.gather(*stuck, return_exceptions=True)
    assert "later.test" not in system.asked


async def test_an_answer_of_the_system_can_be_stale(system: System) -> None:
    """The last good answer is served while the system's resolver fails, too."""
    system.known["x.local"] = KNOWN
    resolver = HardenedResolver.open(DNSSettings(resolver="system"), 5.0)
    assert (await resolve(resolver, "x.local"))[1] == "system"
    system.known["x.local"] = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert await resolve(resolver, "x.local") == (["127.0.0.5"], "stale")
    await resolver.close()


def test_an_answer_for_a_loop_that_is_gone(system: System, loop_factory: Callable[[], Any]) -> None:
    """An answer that comes after its loop was closed is dropped."""
    system.stuck.add("stuck.test")
    with asyncio.Runner(loop_factory=loop_factory) as runner:

        async def main() -> None:
            lookup = asyncio.create_task(ask_system("stuck.test", 0))
            await asyncio.sleep(0.05)
            lookup.cancel()

        runner.run(main())
    system.go_on.set()
    deadline = time.monotonic() + 3.0
    while threads() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert threads() == 0


STUCK_AT_EXIT = """
import asyncio, socket, time
from aiohttp_hardened.dns._fallback import ask_system
socket.getaddrinfo = lambda *a, **k: time.sleep(30)

async def main():
    try:
        await asyncio.wait_for(ask_system("x.test", 0), 0.1)
    except TimeoutError:
        print("done")

asyncio.run(main())
"""


def test_a_stuck_lookup_does_not_hold_the_interpreter() -> None:
    """A process ends while ``getaddrinfo`` is stuck."""
    done = subprocess.run([sys.executable, "-c", STUCK_AT_EXIT], capture_output=True, text=True, timeout=15, check=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


FORKED = """
import asyncio, os, time
from aiohttp_hardened.dns._fallback import ask_system
asyncio.run(ask_system("localhost", 2))
time.sleep(0.2)  # until its thread waits for the next one
if os.fork() == 0:
    asyncio.run(asyncio.wait_for(ask_system("localhost", 2), 5))
    os._exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_child_starts_anew() -> None:
    """A child does not wait for threads that only its parent has."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKED], capture_output=True, text=True, timeout=15, check=True
    )
    assert done.stdout == "7\n"
