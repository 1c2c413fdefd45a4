from __future__ import annotations

import asyncio
import socket
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened import DNSSettings
from aiohttp_hardened.dns._resolver import HardenedResolver
from aiohttp_hardened.exceptions import DNSLookupError, PhaseTimeoutError
from aiohttp_hardened.testing import FakeNameServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aiohttp.abc import ResolveResult

HOSTS_FILE = Path("/etc/hosts").read_text(encoding="utf-8") if Path("/etc/hosts").exists() else ""


@contextmanager
def asking(names: FakeNameServer, deadline: float | None = 5.0) -> Iterator[HardenedResolver]:
    resolver = HardenedResolver.open(DNSSettings(nameservers=(names.address,)), deadline)
    try:
        yield resolver
    finally:
        resolver.release()


def hosts(answer: list[ResolveResult]) -> list[str]:
    return sorted(each["host"] for each in answer)


async def test_both_families_are_asked_once() -> None:
    """A and AAAA are two questions, each asked once, and both answers come."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", "127.0.0.2", "::1")
        answer = await resolver.resolve("x.test", 8443)
    assert hosts(answer) == ["127.0.0.1", "127.0.0.2", "::1"]
    assert {each["port"] for each in answer} == {8443}
    assert {each["hostname"] for each in answer} == {"x.test"}
    assert names.queries == {("x.test", "A"): 1, ("x.test", "AAAA"): 1}


@pytest.mark.parametrize(
    ("family", "expected"), [(socket.AF_INET, ["127.0.0.1"]), (socket.AF_INET6, ["::1"])], ids=["IPv4", "IPv6"]
)
async def test_one_family(family: socket.AddressFamily, expected: list[str]) -> None:
    """Who asks for one family has one question asked."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", "::1")
        assert hosts(await resolver.resolve("x.test", 0, family)) == expected
    assert sum(names.queries.values()) == 1


@pytest.mark.parametrize(("dropped", "expected"), [("AAAA", ["127.0.0.1"]), ("A", ["::1"])])
async def test_a_dropped_family_holds_up_nothing(dropped: str, expected: list[str]) -> None:
    """An answer is not held hostage by the other family's silence."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", "::1")
        names.set("x.test", mode="silent", kind=dropped)
        begun = time.monotonic()
        assert hosts(await resolver.resolve("x.test")) == expected
        # c-ares would wait for its first timeout, 0.5 s.
        assert 0.04 <= time.monotonic() - begun < 0.4


async def test_the_other_family_is_waited_for() -> None:
    """An answer that comes within the resolution delay of RFC 8305 is part of the result."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", delay=0.2, kind="A")
        names.set("x.test", "::1", delay=0.21, kind="AAAA")
        assert hosts(await resolver.resolve("x.test")) == ["127.0.0.1", "::1"]


async def test_a_family_without_addresses_is_no_failure() -> None:
    """``no data`` for AAAA does not spoil the answer for A, however late that one is."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", mode="nodata", kind="AAAA")
        names.set("x.test", "127.0.0.1", delay=0.2, kind="A")
        assert hosts(await resolver.resolve("x.test")) == ["127.0.0.1"]


@pytest.mark.parametrize("mode", ["servfail", "refused", "nxdomain"])
async def test_a_server_that_does_not_know_aaaa(mode: str) -> None:
    """A server that fails for AAAA (RFC 4074) is believed for A."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", mode=mode, kind="AAAA")
        names.set("x.test", "127.0.0.1", delay=0.02, kind="A")
        assert hosts(await resolver.resolve("x.test")) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("nxdomain", "host_not_found"),
        ("nodata", "no_data"),
        ("servfail", "server_failure"),
        ("refused", "refused"),
        ("garbage", "server_failure"),
    ],
)
@pytest.mark.parametrize("family", [socket.AF_UNSPEC, socket.AF_INET])
async def test_reasons(mode: str, reason: str, family: socket.AddressFamily) -> None:
    """Each failure keeps what the name server said, in a word of the closed list."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", mode=mode)
        with pytest.raises(DNSLookupError) as caught:
            await resolver.resolve("x.test", 0, family)
    assert caught.value.reason == reason
    assert caught.value.errno is None
    assert caught.value.strerror


async def test_an_unreachable_server() -> None:
    """A name server that is not there is a server's failure, and known at once."""
    with FakeNameServer() as names:
        pass
    with asking(names) as resolver:
        begun = time.monotonic()
        with pytest.raises(DNSLookupError) as caught:
            await resolver.resolve("x.test")
    assert caught.value.reason == "server_failure"
    assert time.monotonic() - begun < 1.0


@pytest.mark.parametrize("name", ["a..test", "x." + 64 * "a" + ".test", "ü" * 64 + ".test"])
async def test_malformed_names(name: str) -> None:
    """What cannot be a name is called that, and no server is asked."""
    with FakeNameServer() as names, asking(names) as resolver:
        with pytest.raises(DNSLookupError) as caught:
            await resolver.resolve(name)
        assert caught.value.reason == "malformed_name"
        assert not names.queries


@pytest.mark.parametrize(
    ("of_a", "of_aaaa", "reason"),
    [
        ("nodata", "servfail", "server_failure"),
        ("nodata", "refused", "refused"),
        ("servfail", "nxdomain", "host_not_found"),
        ("nxdomain", "silent", "host_not_found"),
        ("refused", "servfail", "server_failure"),
    ],
)
async def test_two_failures_become_one(of_a: str, of_aaaa: str, reason: str) -> None:
    """Of two failures the one counts that says more of the name."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", mode=of_a, kind="A")
        names.set("x.test", mode=of_aaaa, kind="AAAA")
        with pytest.raises(DNSLookupError) as caught:
            await resolver.resolve("x.test")
    assert caught.value.reason == reason


async def test_a_truncated_answer_comes_over_tcp() -> None:
    """An answer that does not fit a datagram is fetched over TCP."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1", mode="truncated")
        assert hosts(await resolver.resolve("x.test")) == ["127.0.0.1"]
    assert names.queries["x.test", "A"] == 2


async def test_a_forged_answer_is_not_believed() -> None:
    """An answer to a question that nobody asked is none: the true one is waited for."""
    with FakeNameServer() as names, asking(names, 0.3) as resolver:
        names.set("x.test", "127.0.0.1", mode="forged")
        with pytest.raises(PhaseTimeoutError):
            await resolver.resolve("x.test")


@pytest.mark.parametrize("name", ["localhost", "localhost.", "LOCALHOST", "api.localhost"])
async def test_localhost_needs_no_server(name: str) -> None:
    """``localhost`` is loopback (RFC 6761, section 6.3), and no name server hears of it."""
    with FakeNameServer() as names, asking(names) as resolver:
        assert set(hosts(await resolver.resolve(name))) <= {"127.0.0.1", "::1"}
        assert not names.queries


async def test_the_hosts_file_is_the_whole_answer() -> None:
    """A name that ``/etc/hosts`` gives an IPv4 address gets no IPv6 address from a name server."""
    own = socket.gethostname()
    if own not in HOSTS_FILE.split():
        pytest.skip("this machine's /etc/hosts does not hold its own name")
    with FakeNameServer() as names, asking(names) as resolver:
        names.set(own, "127.0.0.99", "::99")
        assert not {"127.0.0.99", "::99"} & set(hosts(await resolver.resolve(own)))
        assert not names.queries


async def test_literals_pass() -> None:
    """An address stands for itself."""
    with FakeNameServer() as names, asking(names) as resolver:
        assert hosts(await resolver.resolve("127.0.0.7")) == ["127.0.0.7"]
        assert hosts(await resolver.resolve("::1")) == ["::1"]
        assert not names.queries


async def test_a_trailing_dot_stays_for_dns() -> None:
    """A complete name is asked for without the search list."""
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.test", "127.0.0.1")
        assert hosts(await resolver.resolve("x.test.")) == ["127.0.0.1"]
        with pytest.raises(DNSLookupError):
            await resolver.resolve("other.")
    assert {name for name, _ in names.queries} == {"x.test", "other"}


async def test_the_search_list_is_walked_for_both_families_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with only an IPv4 address does not get the IPv6 address of a wildcard in a search domain."""
    monkeypatch.setenv("LOCALDOMAIN", "corp.test wild.test")
    with FakeNameServer() as names, asking(names) as resolver:
        names.set("x.corp.test", "127.0.0.1")
        names.set("x.wild.test", "127.0.0.66", "::66")
        assert hosts(await resolver.resolve("x")) == ["127.0.0.1"]
    assert {name for name, _ in names.queries} == {"x.corp.test"}


async def test_a_server_is_given_time_to_come_back() -> None:
    """A lost packet costs a retry, not the lookup; c-ares does not give up before the deadline."""
    with FakeNameServer() as names, asking(names, 10.0) as resolver:
        for number in range(4):  # c-ares now expects answers within a quarter of a second
            names.set(f"{number}.test", "127.0.0.1")
            await resolver.resolve(f"{number}.test")
        names.set("x.test", mode="silent")
        lookup = asyncio.create_task(resolver.resolve("x.test"))
        await asyncio.sleep(1.5)
        assert not lookup.done(), "with three tries c-ares gives up after 1.0 s"
        names.set("x.test", "127.0.0.1")
        assert hosts(await lookup) == ["127.0.0.1"]
