"""Endings by a limit that ran out, and by a caller who gave up, in each phase."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import DNSSettings, Phase, PhaseTimeoutError, Settings, TimeoutSettings, create_trace_config
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    ThrowawayCA,
    dead_address,
    scripted_proxy,
    stalled_tls,
)
from tests.e2e._ending import BUDGET, Ending, get
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from typing import Any

endings = Table()


# --- the queue


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    GET 200: reused
      wait for connection
      response body: complete
    """,
    attributes={"wait for connection": {"server.address": "127.0.0.1"}},
)
async def queue_wait(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(limit=1)
        await asyncio.gather(get(session, server.url("/slow?seconds=0.1")), get(session, server.url()))


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    GET ! queue_timed_out
      wait for connection ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.QUEUE,
    note=["waiting for a free connection to {where} timed out after 0.20 s: the pool was full (limit 1)"],
    cause=(Phase.QUEUE, BUDGET),
)
async def queue_timeout(ending: Ending) -> None:
    async with HTTPServer() as server:
        ending.where = f"127.0.0.1:{server.port}"
        session = await ending.session(ending.short, limit=1)
        async with session.get(server.url("/stream?chunks=3&seconds=0.15")) as busy:
            try:
                await get(session, server.url())
            finally:
                await busy.read()


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: abandoned
    GET ! aiohttp.ClientConnectionError
      wait for connection ! _OTHER
    """,
    raises=aiohttp.ClientConnectionError,
    failed=Phase.QUEUE,
    note=["waiting for a free connection to {where} failed: ClientConnectionError: Connector is closed"],
)
async def session_closed_under_a_wait(ending: Ending) -> None:
    async with HTTPServer() as server:
        ending.where = f"127.0.0.1:{server.port}"
        session = await ending.session(limit=1)
        async with session.get(server.url("/stream?chunks=3&seconds=5")):
            waiting = asyncio.create_task(get(session, server.url()))
            await asyncio.sleep(0.05)
            await session.close()
            await waiting


# --- `connect` and `sock_connect`


@endings.row(
    """
    GET ! tls_timed_out
      connection setup ! tls_timed_out
        DNS lookup: lookup
        TCP connect
        TLS handshake ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TLS,
    note=["tls handshake with {where} timed out: the connect budget of 0.30 s ran out (queue 0.0 ms, dns "],
    cause=(Phase.TLS, 0.3),
)
async def connect_budget_runs_out_in_the_handshake(ending: Ending) -> None:
    with stalled_tls() as (_, port):
        ending.where = f"x.test:{port}"
        settings = replace(ending.settings, timeouts=TimeoutSettings(connect=0.3))
        await get(await ending.session(settings, resolver=FixedResolver(delay=0.05)), f"https://x.test:{port}/")


@endings.row(
    """
    GET ! tcp_timed_out
      connection setup ! tcp_timed_out
        TCP connect ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TCP,
    note=["tcp connect to {where} timed out: the connect budget of 0.10 s ran out"],
    cause=(Phase.TCP, 0.1),
)
async def connect_of_the_request(ending: Ending) -> None:
    with dead_address() as (host, port):
        ending.where = f"{host}:{port}"
        timeout = aiohttp.ClientTimeout(connect=0.1)
        await get(await ending.session(), f"http://{host}:{port}/", timeout=timeout)


@endings.row(
    """
    GET ! tls_timed_out
      connection setup ! tls_timed_out
        TCP connect
        TLS handshake ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TLS,
    note=["tls handshake with {where} timed out: the sock_connect budget of 0.10 s ran out"],
    cause=(Phase.TLS, 0.1),
)
async def sock_connect_of_the_request(ending: Ending) -> None:
    with stalled_tls() as (host, port):
        ending.where = f"{host}:{port}"
        timeout = aiohttp.ClientTimeout(sock_connect=0.1)
        await get(await ending.session(), f"https://{host}:{port}/", timeout=timeout)


@endings.row(
    """
    GET ! tls_timed_out
      connection setup ! tls_timed_out
        TCP connect
        TLS handshake ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TLS,
    note=[
        "tls handshake with {where} timed out: the connect budget of 0.20 s ran out (queue 0.0 ms, tcp ",
        ", 1 address tried)",
    ],
)
async def connect_of_a_session_that_somebody_else_built(ending: Ending) -> None:
    # aiohttp's own limit arrives inside as cancellation.
    with stalled_tls() as (host, port):
        ending.where = f"{host}:{port}"
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ending.ca.client_context()),
            trace_configs=[create_trace_config(hooks=ending.hooks)],
            timeout=aiohttp.ClientTimeout(connect=0.2),
        )
        await ending.stack.enter_async_context(session)
        await get(session, f"https://{host}:{port}/")


# --- `total` and cancellation, in each phase

HANGS_IN = {
    Phase.QUEUE: """
        GET 200
          connection setup
            TCP connect
          response body: complete
        GET{request}
          wait for connection{phase}
        """,
    Phase.DNS: """
        GET{request}
          connection setup{request}
            DNS lookup{phase}
        DNS lookup: lookup, background ! timed_out
        """,
    Phase.TCP: """
        GET{request}
          connection setup{request}
            TCP connect{phase}
        """,
    Phase.TUNNEL: """
        GET{request}
          connection setup{request}
            TCP connect
            CONNECT tunnel{phase}
        """,
    Phase.TLS: """
        GET{request}
          connection setup{request}
            TCP connect
            TLS handshake{phase}
        """,
    Phase.REQUEST: """
        GET{request}
          connection setup
            TCP connect
        """,
    Phase.BODY: """
        GET 200
          connection setup
            TCP connect
          response body: {body}
        """,
}
PATIENT = TimeoutSettings(dns=0.5)
"""Nothing but a lookup runs out: that goes on behind a request which is over."""


async def hang(ending: Ending, phase: Phase, **options: Any) -> None:
    """Make a request that hangs in a phase."""
    stack = ending.stack
    settings = Settings(timeouts=PATIENT, tls=ending.settings.tls)
    if phase is Phase.QUEUE:
        server = await stack.enter_async_context(HTTPServer())
        session = await ending.session(settings, limit=1)
        async with session.get(server.url("/stream?chunks=3&seconds=0.15")) as busy:
            try:
                await get(session, server.url(), **options)
            finally:
                # Only what is cancelled once may wait here.
                await busy.read()
    elif phase is Phase.DNS:
        names = stack.enter_context(FakeNameServer())
        names.set("x.test", mode="silent")
        session = await ending.session(replace(settings, dns=DNSSettings(nameservers=(names.address,))))
        try:
            await get(session, "http://x.test/", **options)
        finally:
            await ending.until(Phase.DNS, background=True)
            await session.close()
    elif phase is Phase.TCP:
        host, port = stack.enter_context(dead_address())
        await get(await ending.session(settings), f"http://{host}:{port}/", **options)
    elif phase is Phase.TUNNEL:
        proxy = await stack.enter_async_context(scripted_proxy(None))
        await get(await ending.session(settings), "https://x.test/", proxy=proxy, **options)
    elif phase is Phase.TLS:
        host, port = stack.enter_context(stalled_tls())
        await get(await ending.session(settings), f"https://{host}:{port}/", **options)
    else:
        server = await stack.enter_async_context(HTTPServer())
        path = "/slow?seconds=5" if phase is Phase.REQUEST else "/stream?chunks=3&seconds=5"
        await get(await ending.session(settings), server.url(path), **options)


def total_runs_out_in(phase: Phase) -> None:
    async def scenario(ending: Ending) -> None:
        await hang(ending, phase, timeout=aiohttp.ClientTimeout(total=0.2))

    request = " ! TimeoutError" if phase is Phase.REQUEST else f" ! {phase.name.lower()}_timed_out"
    tree = HANGS_IN[phase].format(request=request, phase=" ! timed_out", body="cut ! TimeoutError")
    endings.add(
        f"total runs out in {phase.name.lower()}",
        scenario,
        tree,
        raises=TimeoutError,
        failed=phase,
        note=["timed out: the total budget of 0.20 s ran out"],
    )


def cancelled_in(phase: Phase) -> None:
    async def scenario(ending: Ending) -> None:
        task = asyncio.create_task(hang(ending, phase))
        await asyncio.sleep(0.2)
        task.cancel("by the caller")
        with pytest.raises(asyncio.CancelledError, match="by the caller") as caught:
            await task
        assert not getattr(caught.value, "__notes__", ())

    tree = HANGS_IN[phase].format(request=": cancelled", phase=": cancelled", body="cancelled")
    endings.add(f"cancelled in {phase.name.lower()}", scenario, tree)


for _phase in HANGS_IN:
    total_runs_out_in(_phase)
    cancelled_in(_phase)


@endings.row(
    """
    GET: cancelled
      connection setup: cancelled
        TCP connect: cancelled
    """
)
async def caller_s_own_timeout(ending: Ending) -> None:
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.1):
            await hang(ending, Phase.TCP)
    assert not isinstance(caught.value.__cause__, PhaseTimeoutError)


@endings.row(
    """
    GET: cancelled
      connection setup: cancelled
        TCP connect
        TLS handshake: cancelled
    """
)
async def cancelled_twice(ending: Ending) -> None:
    task = asyncio.create_task(hang(ending, Phase.TLS))
    await asyncio.sleep(0.05)
    task.cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A limit or a cancellation ends in the spans, records, metrics and words of its row."""
    await Ending(ca).check(row)
