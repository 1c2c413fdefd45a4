"""Resumption on plain asyncio and uvloop, against Python's and OpenSSL's own servers (CASES 1, 8)."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened._settings import TLSSettings
from aiohttp_hardened.testing import throwaway_ca as another_ca
from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.tls import _tickets
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._registry import context_for, reload_tls
from aiohttp_hardened.tls._resumption import ResumingSSLObject
from aiohttp_hardened.tls._tickets import tickets
from tests.tls._raw import (
    VERSIONS,
    ask,
    attempt_on,
    in_memory,
    needs_openssl,
    s_server,
    server_context,
    shared,
    tls_server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from aiohttp_hardened.testing import ThrowawayCA


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    """Begin with no tickets; and with no memory of peers without any."""
    tickets.forget_all()
    yield
    tickets.forget_all()


@pytest.mark.parametrize("version", VERSIONS)
async def test_it_takes_one_read_per_ticket(version: ssl.TLSVersion, throwaway_ca: ThrowawayCA) -> None:
    """Under 1.3 one read per connection; under 1.2 one in all (CASES 8)."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"), version)) as port:
        resumed = [(await ask(context, port)).resumed for _ in range(5)]
    assert resumed == [False, True, True, True, True]
    assert tickets.reads == (1 if version is ssl.TLSVersion.TLSv1_2 else 5)
    assert len(tickets) == 1


@pytest.mark.parametrize("version", VERSIONS)
async def test_after_a_wave_all_are_resumed(version: ssl.TLSVersion, throwaway_ca: ThrowawayCA) -> None:
    """As many in parallel as there were before: each finds a ticket, whatever the parallelism."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"), version)) as port:
        for wave in range(3):
            answers = await asyncio.gather(*(ask(context, port) for _ in range(16)))
            assert [bool(wave)] * 16 == [each.resumed for each in answers]
    assert tickets.reads == (1 if version is ssl.TLSVersion.TLSv1_2 else 48)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("name", "route"),
    [
        ("evil.test", ("the port", None, None)),
        ("x.test", ("another port", None, None)),
        ("x.test", ("the port", "http://proxy.test", None)),
        ("x.test", ("the port", None, b"a pin")),
        ("x.test", None),
    ],
)
async def test_a_ticket_never_crosses(
    name: str, route: tuple[Any, ...] | None, version: ssl.TLSVersion, throwaway_ca: ThrowawayCA
) -> None:
    """Another name, port, proxy route or pin, or no route at all: a full handshake, on one and the same server.

    OpenSSL would resume, and skip the check of the name (CASES 1).
    """
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"), version)) as port:
        await ask(context, port)
        assert len(tickets) == 1
        if name == "x.test":
            assert (await ask(context, port, route=route)).resumed is False
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                await ask(context, port, name=name, route=route)
        assert (await ask(context, port)).resumed is True


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_the_key_openssl_would_accept_another_name(
    version: ssl.TLSVersion, throwaway_ca: ThrowawayCA
) -> None:
    """Why the key is what it is: a plain context resumes a session of ``x.test`` under ``evil.test`` (CASES 1)."""
    client, server = throwaway_ca.client_context(), server_context(throwaway_ca.issue("x.test"), version)
    ours, _ = in_memory(client, server, "evil.test", _session(client, server))
    assert ours.session_reused
    with pytest.raises(ssl.SSLCertVerificationError):
        in_memory(client, server, "evil.test")


def _session(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLSession:
    ours, theirs = in_memory(client, server, "x.test")
    theirs.write(b"hello")
    assert ours.read() == b"hello"
    assert ours.session is not None
    return ours.session


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_ticket_stays_with_its_trust_decision(
    version: ssl.TLSVersion, throwaway_ca: ThrowawayCA, tmp_path: Path
) -> None:
    """Another decision, and the next generation of the same one, begin with a full handshake (CASES 8, 12)."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(throwaway_ca.ca_file.read_bytes())
    tls = TLSSettings(trust="none", ca_files=(str(bundle),))
    context = context_for(tls)
    async with tls_server(server_context(throwaway_ca.issue("x.test"), version)) as port:
        await ask(context, port)
        assert (await ask(context, port)).resumed is True
        assert (await ask(shared(throwaway_ca), port)).resumed is False
        with another_ca() as other:
            bundle.write_bytes(throwaway_ca.ca_file.read_bytes() + other.ca_file.read_bytes())
        assert reload_tls(tls).outcome == "applied"
        assert (await ask(context, port)).resumed is False
        assert (await ask(context, port)).resumed is True


def test_a_connection_of_the_old_generation_keeps_no_ticket(throwaway_ca: ThrowawayCA) -> None:
    """It was made before the swap, and its first data comes after."""
    swapped: list[bool] = []
    for swap in (False, True):
        tickets.forget_all()
        context = SharedSSLContext(_inner(throwaway_ca))
        token = current_attempt.set(attempt_on((443, None, None)))
        try:
            ours, theirs = in_memory(context, server_context(throwaway_ca.issue("x.test")), "x.test")
        finally:
            current_attempt.reset(token)
        if swap:
            context.swap(_inner(throwaway_ca))
        theirs.write(b"hello")
        assert ours.read() == b"hello"
        swapped.append(len(tickets) == tickets.reads == 0)
    assert swapped == [False, True]


def _inner(ca: ThrowawayCA) -> ssl.SSLContext:
    inner = ca.client_context()
    inner.sslobject_class = ResumingSSLObject
    return inner


async def test_a_session_of_another_context_is_dropped_without_an_error(throwaway_ca: ThrowawayCA) -> None:
    """``ValueError: Session refers to a different SSLContext`` reaches nobody (CASES 8)."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        await ask(context, port)
        (key,) = tickets._shelves
        stranger = _session(throwaway_ca.client_context(), server_context(throwaway_ca.issue("x.test")))
        tickets.put(key, stranger, 60, reusable=False)
        assert (await ask(context, port)).resumed is False
        assert (await ask(context, port)).resumed is True


async def test_a_ticket_does_not_outlive_the_certificate(throwaway_ca: ThrowawayCA) -> None:
    """Its lifetime is the least of the server's hint, seven days, and the certificate's end."""
    ends = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=90)
    context = shared(throwaway_ca)
    lifetimes = []
    for certificate in (throwaway_ca.issue("x.test", not_after=ends), throwaway_ca.issue("x.test")):
        tickets.forget_all()
        async with tls_server(server_context(certificate)) as port:
            await ask(context, port)
        (shelf,) = tickets._shelves.values()
        lifetimes.append(shelf.tickets[0].expires - shelf.tickets[0].born)
    assert 0 < lifetimes[0] <= 90
    assert 3600 <= lifetimes[1] <= 7 * 24 * 3600


@needs_openssl
@pytest.mark.parametrize("count", [0, 1, 2, 4])
async def test_openssl_with_so_many_tickets(count: int, throwaway_ca: ThrowawayCA) -> None:
    """``s_server -num_tickets``: none costs one read and breaks nothing; any other number resumes every time."""
    context = shared(throwaway_ca)
    async with s_server(throwaway_ca.issue("x.test"), "-tls1_3", "-num_tickets", str(count)) as port:
        resumed = [(await ask(context, port)).resumed for _ in range(4)]
    assert resumed == [False] + [count > 0] * 3
    assert tickets.reads == (4 if count else 1)
    assert len(tickets) == (1 if count else 0)


@needs_openssl
@pytest.mark.parametrize("options", [(), ("-no_ticket",)])
async def test_openssl_under_tls_1_2(options: tuple[str, ...], throwaway_ca: ThrowawayCA) -> None:
    """With tickets and with a session cache at the server alone, one read is enough."""
    context = shared(throwaway_ca)
    async with s_server(throwaway_ca.issue("x.test"), "-tls1_2", *options) as port:
        assert [(await ask(context, port)).resumed for _ in range(4)] == [False, True, True, True]
    assert tickets.reads == 1


@needs_openssl
async def test_openssl_without_tickets_and_cache_under_tls_1_2(throwaway_ca: ThrowawayCA) -> None:
    """A peer that resumes nothing is left alone after a few offers."""
    context = shared(throwaway_ca)
    async with s_server(throwaway_ca.issue("x.test"), "-tls1_2", "-no_ticket", "-no_cache") as port:
        assert not any([(await ask(context, port)).resumed for _ in range(8)])
    assert tickets.reads <= _tickets.REFUSALS_TO_QUIET
    assert len(tickets) == 0


async def test_a_peer_that_forgets_its_keys_costs_one_full_handshake_each(throwaway_ca: ThrowawayCA) -> None:
    """New ticket keys (a restart) refuse what is in store; nothing fails, and resumption is back at once."""
    certificate = throwaway_ca.issue("x.test")
    context = shared(throwaway_ca)
    async with tls_server(server_context(certificate)) as port:
        await asyncio.gather(*(ask(context, port) for _ in range(4)))
    async with tls_server(server_context(certificate)) as port:
        resumed = [(await ask(context, port)).resumed for _ in range(4)]
    assert resumed == [False, True, True, True]


async def test_a_peer_that_always_refuses_is_left_alone(throwaway_ca: ThrowawayCA) -> None:
    """It sends a ticket each time and takes none: after three it is not asked, and nothing is read."""
    certificate = throwaway_ca.issue("x.test")
    context = shared(throwaway_ca)
    for _ in range(8):
        async with tls_server(server_context(certificate)) as port:
            assert (await ask(context, port)).resumed is False
    assert tickets.reads <= _tickets.REFUSALS_TO_QUIET + 1


async def test_a_pin_that_does_not_match_keeps_no_ticket(throwaway_ca: ThrowawayCA) -> None:
    """Who hangs up after the handshake, as for a wrong pin, has read no data."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        token = current_attempt.set(attempt_on((port, None, b"wrong")))
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="x.test")
        current_attempt.reset(token)
        writer.transport.abort()
        await asyncio.sleep(0.01)
    assert len(tickets) == 0


async def test_without_a_route_nothing_is_kept(throwaway_ca: ThrowawayCA) -> None:
    """Who uses the context outside of our connector could be anybody; so could the next one."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        for options in ({"route": None}, {"outside": True}):
            assert [(await ask(context, port, **options)).resumed for _ in range(2)] == [False, False]
    assert len(tickets) == tickets.reads == 0


async def test_a_connection_that_got_no_data_keeps_no_ticket(throwaway_ca: ThrowawayCA) -> None:
    """Nothing shows that the peer took it."""
    context = shared(throwaway_ca)
    async with tls_server(server_context(throwaway_ca.issue("x.test")), answer=b"") as port:
        await ask(context, port)
    assert tickets.reads == 0


async def test_resumption_off_keeps_nothing(throwaway_ca: ThrowawayCA) -> None:
    """``resumption=False``: still timed, never resumed."""
    context = shared(throwaway_ca, resumption=False)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        answers = [await ask(context, port) for _ in range(2)]
    assert [each.resumed for each in answers] == [False] * 2
    assert tickets.reads == 0


async def test_no_ticket_is_used_by_two_threads(throwaway_ca: ThrowawayCA) -> None:
    """Two loops in two threads share the store; the server sees each ticket at most once."""
    context = shared(throwaway_ca)
    offered: list[int] = []

    class Spy(ResumingSSLObject):
        def _offer(self) -> None:
            super()._offer()
            if self._ticket is not None:
                offered.append(id(self._ticket))

    inner = context._current.generation.inner
    inner.sslobject_class = Spy
    try:
        async with tls_server(server_context(throwaway_ca.issue("x.test"), ssl.TLSVersion.TLSv1_3)) as port:
            await asyncio.gather(*(ask(context, port) for _ in range(6)))
            (shelf,) = tickets._shelves.values()
            everything = list(shelf.tickets)  # keeps each alive, so that an id stands for one ticket

            async def burst() -> None:
                await asyncio.gather(*(ask(context, port) for _ in range(3)))

            await asyncio.gather(*(asyncio.to_thread(asyncio.run, burst()) for _ in range(2)))
    finally:
        inner.sslobject_class = ResumingSSLObject
    assert len(everything) == 6
    assert len(offered) == len(set(offered)) == 6


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork here")
def test_a_forked_child_has_no_tickets_even_when_the_store_was_locked() -> None:
    """Two processes would use one ticket; and a lock that a thread of the parent had would never open."""
    code = (
        "import os, threading\n"
        "from aiohttp_hardened.tls._tickets import tickets\n"
        "class Generation: retired = False\n"
        "key = (Generation(), 'x.test', ())\n"
        "tickets.put(key, object(), 60, reusable=False)\n"
        "held, go = threading.Event(), threading.Event()\n"
        "def hold():\n"
        "    with tickets._lock:\n"
        "        held.set(); go.wait(10)\n"
        "threading.Thread(target=hold).start(); held.wait(10)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(len(tickets) if tickets.take(key) is None else 9)\n"
        "go.set()\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(tickets))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.split() == ["0", "1"]
