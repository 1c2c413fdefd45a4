"""Endings in the lookup and in the race over the addresses."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import DNSSettings, Phase
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    ThrowawayCA,
    dead_address,
    refusing_address,
)
from tests.e2e._ending import BUDGET, Ending, get
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from typing import Any

endings = Table()


# --- the lookup


LOOKUP = """
    GET ! dns_{word}
      connection setup ! dns_{word}
        DNS lookup: lookup ! {word}
    """


def lookup(name: str, mode: Any, word: str, **expected: Any) -> None:
    async def scenario(ending: Ending) -> None:
        with FakeNameServer() as names:
            names.set("x.test", "127.0.0.1", mode=mode)
            settings = ending.short if mode == "silent" else ending.settings
            session = await ending.session(replace(settings, dns=DNSSettings(nameservers=(names.address,))))
            try:
                await get(session, "http://x.test:1/")
            finally:
                await session.close()

    expected = {
        "reason": None if word == "timed_out" else word,
        "raises": aiohttp.ClientConnectorDNSError,
        "note": [f"dns lookup of x.test failed: {word}"],
    } | expected
    endings.add(name, scenario, LOOKUP.format(word=word), failed=Phase.DNS, **expected)


lookup("dns no such name", "nxdomain", "host_not_found")
lookup("dns server failure", "servfail", "server_failure")
lookup("dns garbage", "garbage", "server_failure")
lookup("dns refused", "refused", "refused")
lookup("dns no data", "nodata", "no_data")
lookup(
    "dns silent server",
    "silent",
    "timed_out",
    raises=aiohttp.ConnectionTimeoutError,
    note=["dns lookup of x.test timed out after 0.20 s (queue 0.0 ms)"],
    cause=(Phase.DNS, BUDGET),
)


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    """,
    attributes={"DNS lookup": {"dns.question.name": "x.test", "dns.answers": ("127.0.0.1",)}},
)
async def dns_through_a_name_server(ending: Ending) -> None:
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1")
        settings = replace(ending.settings, dns=DNSSettings(nameservers=(names.address,)))
        async with HTTPServer() as server:
            session = await ending.session(settings)
            await get(session, server.url(host="x.test"))
            await session.close()


@endings.row(
    """
    GET ! dns_server_failure
      connection setup ! dns_server_failure
        DNS lookup: lookup ! server_failure
    GET ! dns_server_failure
      connection setup ! dns_server_failure
        DNS lookup: coalesced ! server_failure
    GET ! dns_server_failure
      connection setup ! dns_server_failure
        DNS lookup: coalesced ! server_failure
    """
)
async def coalesced_lookup_that_fails(ending: Ending) -> None:
    session = await ending.session(resolver=FixedResolver(delay=0.05, exception=OSError(None, "no")))
    tries = (get(session, "http://x.test:1/") for _ in range(3))
    found = await asyncio.gather(*tries, return_exceptions=True)
    assert [aiohttp.ClientConnectorDNSError] * 3 == [type(each) for each in found]
    assert len({id(each) for each in found}) == 3
    for each in found:
        assert len(each.__notes__) == 1


@endings.row(
    """
    GET: cancelled
      connection setup: cancelled
        DNS lookup: cancelled
    DNS lookup: lookup, background
    GET 200
      connection setup
        DNS lookup: coalesced
        TCP connect
      response body: complete
    """,
)
async def owner_of_a_shared_lookup_is_cancelled(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(resolver=FixedResolver(delay=0.1))
        owner = asyncio.create_task(get(session, server.url(host="x.test")))
        await asyncio.sleep(0.02)
        waiter = asyncio.create_task(get(session, server.url(host="x.test")))
        await asyncio.sleep(0.02)
        owner.cancel()
        await waiter
        assert owner.cancelled()


@endings.row(
    """
    GET ! aiohttp.ClientConnectionError
      connection setup ! _OTHER
        DNS lookup ! _OTHER
    DNS lookup: lookup, background, cancelled
    """,
    raises=aiohttp.ClientConnectionError,
    failed=Phase.DNS,
    note=["dns lookup of x.test failed: ClientConnectionError: Connector is closed"],
)
async def session_closed_under_a_lookup(ending: Ending) -> None:
    session = await ending.session(resolver=FixedResolver(delay=5))
    request = asyncio.create_task(get(session, "http://x.test:1/"))
    await asyncio.sleep(0.05)
    await session.close()
    await request


@endings.row(
    """
    GET ! dns_host_not_found
      connection setup ! dns_host_not_found
        DNS lookup: lookup ! host_not_found
    """,
    raises=aiohttp.ClientConnectorDNSError,
    failed=Phase.DNS,
    note=["dns lookup of proxy.test failed: host_not_found"],
    attributes={
        "GET": {"server.address": "x.test"},
        "DNS lookup": {"dns.question.name": "proxy.test"},
    },
)
async def proxy_s_name_does_not_exist(ending: Ending) -> None:
    with FakeNameServer() as names:
        settings = replace(ending.settings, dns=DNSSettings(nameservers=(names.address,)))
        session = await ending.session(settings)
        try:
            await get(session, "http://x.test/", proxy="http://proxy.test:1")
        finally:
            await session.close()


# --- the race


@endings.row(
    """
    GET ! tcp_connection_refused
      connection setup ! tcp_connection_refused
        TCP connect ! connection_refused
    """,
    attributes={
        "connection setup": {"network.peer.address": None},
        "TCP connect": {"network.peer.address": "127.0.0.1", "network.type": "ipv4"},
    },
    events={"TCP connect": ["address failed"]},
    raises=aiohttp.ClientConnectorError,
    failed=Phase.TCP,
    note=["tcp connect to {where} failed: connection_refused (queue 0.0 ms, 1 address tried)"],
)
async def tcp_refused(ending: Ending) -> None:
    with refusing_address() as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), f"http://{host}:{port}/")


@endings.row(
    """
    GET ! tcp_connection_refused
      connection setup ! tcp_connection_refused
        DNS lookup: lookup
        TCP connect ! connection_refused
    """,
    attributes={
        "connection setup": {"aiohttp.client.connection.attempts": 1},
        "TCP connect": {"aiohttp.client.tcp.addresses_tried": 3, "network.peer.address": None},
    },
    events={"TCP connect": ["address failed"] * 3},
    raises=aiohttp.ClientConnectorError,
    failed=Phase.TCP,
    note=["tcp connect to {where} failed: connection_refused (queue 0.0 ms, dns ", "3 addresses tried)"],
)
async def tcp_all_refused(ending: Ending) -> None:
    with refusing_address() as (_, port):
        ending.where = f"x.test:{port}"
        resolver = FixedResolver(("127.0.0.1", "127.0.0.2", "127.0.0.3"))
        await get(await ending.session(resolver=resolver), f"http://x.test:{port}/")


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    """,
    attributes={
        "connection setup": {"network.peer.address": "127.0.0.1", "aiohttp.client.connection.attempts": 1},
        "TCP connect": {"aiohttp.client.tcp.addresses_tried": 2, "network.peer.address": "127.0.0.1"},
    },
    events={"TCP connect": ["address failed"]},
)
async def tcp_first_address_refused(ending: Ending) -> None:
    async with HTTPServer() as server:
        with refusing_address("127.0.0.2", server.port):
            session = await ending.session(resolver=FixedResolver(("127.0.0.2", "127.0.0.1")))
            await get(session, server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    """,
    attributes={
        "TCP connect": {
            "aiohttp.client.tcp.addresses_tried": 2,
            "network.peer.address": "127.0.0.1",
            "network.type": "ipv4",
        }
    },
    events={"TCP connect": ["address overtaken"]},
)
async def tcp_first_address_dead(ending: Ending) -> None:
    async with HTTPServer() as server:
        with dead_address("127.0.0.2", server.port):
            resolver = FixedResolver(("127.0.0.2", "127.0.0.1"))
            session = await ending.session(resolver=resolver, happy_eyeballs_delay=0.1)
            await get(session, server.url(host="x.test"))


@endings.row(
    """
    GET ! tcp_timed_out
      connection setup ! tcp_timed_out
        DNS lookup: lookup
        TCP connect ! timed_out
    """,
    attributes={"TCP connect": {"aiohttp.client.tcp.addresses_tried": 2, "network.type": "ipv4"}},
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TCP,
    note=["tcp connect to {where} timed out after 0.20 s (queue 0.0 ms, dns ", "2 addresses tried)"],
    cause=(Phase.TCP, BUDGET),
)
async def tcp_all_dead(ending: Ending) -> None:
    with dead_address("127.0.0.2") as (_, port), dead_address("127.0.0.3", port):
        ending.where = f"x.test:{port}"
        resolver = FixedResolver(("127.0.0.2", "127.0.0.3"))
        session = await ending.session(ending.short, resolver=resolver, happy_eyeballs_delay=0.05)
        await get(session, f"http://x.test:{port}/")


@endings.row(
    """
    GET ! tcp_timed_out
      connection setup ! tcp_timed_out
        DNS lookup: lookup
        TCP connect ! timed_out
    """,
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TCP,
    note=["tcp connect to {where} timed out after 0.20 s", "2 addresses tried)"],
    cause=(Phase.TCP, BUDGET),
    events={"TCP connect": ["address failed"]},
)
async def tcp_one_refused_and_one_dead(ending: Ending) -> None:
    with dead_address("127.0.0.2") as (_, port), refusing_address("127.0.0.3", port):
        ending.where = f"x.test:{port}"
        resolver = FixedResolver(("127.0.0.2", "127.0.0.3"))
        session = await ending.session(ending.short, resolver=resolver, happy_eyeballs_delay=0.05)
        await get(session, f"http://x.test:{port}/")


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A lookup or a race ends in the spans, records, metrics and words of its row."""
    await Ending(ca).check(row)
