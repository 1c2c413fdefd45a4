"""Endings of requests whose connection is none of the problem."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import Phase, create_session
from aiohttp_hardened.testing import FixedResolver, HTTPServer, ThrowawayCA, TLSServer
from tests.e2e._ending import Ending, get
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from pathlib import Path

endings = Table()


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    """,
    attributes={
        "GET": {"http.request.method": "GET", "server.address": "x.test", "network.peer.address": "127.0.0.1"},
        "connection setup": {
            "server.address": "x.test",
            "url.scheme": "http",
            "network.peer.address": "127.0.0.1",
            "aiohttp.client.connection.attempts": 1,
            "aiohttp.client.proxied": None,
        },
        "DNS lookup": {"dns.question.name": "x.test", "dns.answers": ("127.0.0.1",)},
        "TCP connect": {
            "network.peer.address": "127.0.0.1",
            "network.type": "ipv4",
            "aiohttp.client.tcp.addresses_tried": 1,
            "aiohttp.client.tcp.syn_retransmits": 0,
        },
    },
)
async def http_cold(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
        TLS handshake
      response body: complete
    """,
    attributes={
        "connection setup": {"url.scheme": "https", "aiohttp.client.connection.attempts": 1},
        "TLS handshake": {
            "server.address": "x.test",
            "tls.protocol.name": "tls",
            "tls.protocol.version": "1.3",
            "tls.established": True,
            "tls.resumed": False,
        },
    },
)
async def https_cold(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("x.test")) as server:
        await get(await ending.session(), server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
        TLS handshake
      response body: complete
    GET 200
      connection setup
        TCP connect
        TLS handshake: resumed
      response body: complete
    """,
    attributes={"TLS handshake": {"tls.established": True, "tls.resumed": True}},
)
async def https_resumed(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("x.test")) as server:
        session = await ending.session(force_close=True)
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    GET 200: reused
      response body: complete
    """,
    attributes={"GET": {"network.peer.address": "127.0.0.1"}},
)
async def keep_alive_reuse(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    """
)
async def ip_literal(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url())


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    """,
    attributes={"TCP connect": {"network.type": "ipv6", "network.peer.address": "::1"}},
)
async def ipv6_literal(ending: Ending) -> None:
    async with HTTPServer(host="::1") as server:
        await get(await ending.session(), server.url())


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    GET 200
      connection setup
        TCP connect
      response body: complete
    """
)
async def dns_cache_hit(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(force_close=True)
        await get(session, server.url(host="x.test"))
        await get(session, server.url(host="x.test"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
      response body: complete
    GET 200
      connection setup
        DNS lookup: coalesced
        TCP connect
      response body: complete
    """
)
async def coalesced_lookup(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session(resolver=FixedResolver(delay=0.05))
        await asyncio.gather(*(get(session, server.url(host="x.test")) for _ in range(2)))


@endings.row(
    """
    GET 302
      connection setup
        TCP connect
      response body: complete
    GET 200: resend 1, reused
      response body: complete
    """
)
async def redirect_on_one_origin(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url("/redirect?to=/echo"))


@endings.row(
    """
    GET 302
      connection setup
        TCP connect
      response body: complete
    GET 200: resend 1
      connection setup
        TCP connect
      response body: complete
    """
)
async def redirect_across_origins(ending: Ending) -> None:
    async with HTTPServer() as server, HTTPServer() as other:
        await get(await ending.session(), server.url(f"/redirect?to={other.url()}"))
        assert ["traceparent" in each.requests[0].headers for each in (server, other)] == [True, False]


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    GET: reused ! aiohttp.ServerDisconnectedError
    GET 200: resend 1
      connection setup
        TCP connect
      response body: complete
    """
)
async def silent_retry_on_a_dead_keep_alive(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await get(session, server.url("/close-keepalive"))
        await get(session, server.url("/close-keepalive"))
        sent = [each.headers["traceparent"] for each in server.requests]
        assert len(set(sent)) == 3


STATUS = """
    GET {code}{error}
      connection setup
        TCP connect
      response body: complete
    """


def status(code: int) -> None:
    async def scenario(ending: Ending) -> None:
        async with HTTPServer() as server:
            await get(await ending.session(), server.url(f"/status/{code}"))

    endings.add(f"status {code}", scenario, STATUS.format(code=code, error="" if code < 400 else f" ! {code}"))


status(404)
status(503)


@endings.row(
    STATUS.format(code=503, error=" ! 503"),
    raises=aiohttp.ClientResponseError,
    failed=Phase.REQUEST,
    note=["503, message='Service Unavailable'"],
)
async def raise_for_status(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        async with session.get(server.url("/status/503"), raise_for_status=True):
            pass


@endings.row(
    """
    GET 204
      connection setup
        TCP connect
    """
)
async def no_body(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url("/status/204"))


@endings.row(
    """
    GET 101
      connection setup
        TCP connect
      websocket: 1000, complete
    """,
    attributes={"websocket": {"network.protocol.name": "websocket", "aiohttp.client.websocket.close_code": 1000}},
)
async def websocket_accepted(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        async with session.ws_connect(server.url("/ws")) as socket:
            await socket.send_str("hello")
            assert (await socket.receive()).data == "hello"


@endings.row(
    """
    GET 403 ! 403
      connection setup
        TCP connect
      response body: complete
    """,
    raises=aiohttp.WSServerHandshakeError,
    failed=Phase.REQUEST,
)
async def websocket_refused(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await session.ws_connect(server.url("/ws?refuse=1"))


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A request ends in the spans, records, metrics and words of its row."""
    await Ending(ca).check(row)


async def test_ending_on_a_unix_socket(ca: ThrowawayCA, tmp_path: Path) -> None:
    """A caller's own connector keeps its class and tells of an undivided set-up."""

    async def scenario(ending: Ending) -> None:
        async with HTTPServer(unix_path=tmp_path / "s"):
            connector = aiohttp.UnixConnector(str(tmp_path / "s"))
            session = create_session(ending.settings, hooks=ending.hooks, connector=connector)
            await ending.stack.enter_async_context(session)
            assert isinstance(session.connector, aiohttp.UnixConnector)
            assert type(session.connector).__qualname__ == "UnixConnector"
            await get(session, "http://localhost/")
            await get(session, "http://localhost/")

    table = Table()
    tree = """
    GET 200
      connection setup
      response body: complete
    GET 200: reused
      response body: complete
    """
    table.add("unix socket", scenario, tree)
    await Ending(ca).check(table.rows[0])
