"""Endings on the way through a proxy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import Phase, PlaintextBoundaryError
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, TLSServer, raw_server, refusing_address, scripted_proxy
from tests.e2e._ending import Ending, get
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from typing import Any

endings = Table()

REFUSED = """
    GET ! tunnel_{word}
      connection setup ! tunnel_{word}
        TCP connect
        CONNECT tunnel{status} ! {word}
    """


# --- a proxy that nobody here wrote


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
        CONNECT tunnel 200
        TLS handshake
      response body: complete
    GET 200: reused
      response body: complete
    """,
    attributes={
        "connection setup": {"aiohttp.client.proxied": True, "url.scheme": "https", "server.address": "127.0.0.1"},
        "TLS handshake": {"tls.established": True},
    },
)
async def https_through_an_http_proxy(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
        session = await ending.session()
        for _ in range(2):
            await get(session, server.url(), proxy=ending.proxies["http"])
        assert server.connections == 1


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
        TLS handshake
        CONNECT tunnel 200
        TLS handshake
      response body: complete
    """,
    attributes={"connection setup": {"aiohttp.client.proxied": True, "aiohttp.client.connection.attempts": 1}},
)
async def https_through_an_https_proxy(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
        await get(await ending.session(), server.url(), proxy=ending.proxies["https"])


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: complete
    """,
    attributes={"connection setup": {"aiohttp.client.proxied": True, "url.scheme": "http"}},
)
async def http_through_an_http_proxy(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url(), proxy=ending.proxies["http"])


# --- proxies that refuse


@endings.row(
    """
    GET ! tcp_connection_refused
      connection setup ! tcp_connection_refused
        TCP connect ! connection_refused
    """,
    attributes={"GET": {"server.address": "x.test"}, "connection setup": {"aiohttp.client.proxied": True}},
    raises=aiohttp.ClientProxyConnectionError,
    failed=Phase.TCP,
    note=["tcp connect to {where} failed: connection_refused"],
)
async def proxy_that_is_not_there(ending: Ending) -> None:
    with refusing_address() as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), "https://x.test/", proxy=f"http://{host}:{port}")


def refusal(
    name: str, word: str, code: int | None, answer: bytes, raises: type[BaseException], **expected: Any
) -> None:
    async def scenario(ending: Ending) -> None:
        async with scripted_proxy(answer) as proxy:
            ending.where = proxy.removeprefix("http://")
            await get(await ending.session(), "https://x.test/", proxy=proxy)

    expected.setdefault("note", [f"CONNECT tunnel through {{where}} failed: {word} (queue 0.0 ms, tcp "])
    tree = REFUSED.format(word=word, status=f" {code}")
    endings.add(name, scenario, tree, raises=raises, failed=Phase.TUNNEL, **expected)


refusal(
    "proxy answers 407",
    "proxy_authentication_required",
    407,
    b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n",
    aiohttp.ClientHttpProxyError,
    attributes={"GET": {"http.response.status_code": None, "server.address": "x.test"}},
)
refusal(
    "proxy answers 502",
    "proxy_rejected",
    502,
    b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n",
    aiohttp.ClientHttpProxyError,
)
refusal(
    "proxy glues plaintext to its 200",
    "plaintext_after_connect",
    200,
    b"HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nowned",
    PlaintextBoundaryError,
    note=["sent plaintext behind its 200 to CONNECT", "CONNECT tunnel through {where} failed: plaintext_after_connect"],
)


@endings.row(
    REFUSED.format(word="timed_out", status=""),
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TUNNEL,
    note=["CONNECT tunnel through {where} timed out: the connect budget of 0.40 s ran out (queue 0.0 ms, tcp "],
    cause=(Phase.TUNNEL, 0.4),
)
async def proxy_that_stalls(ending: Ending) -> None:
    async with scripted_proxy(None) as proxy:
        ending.where = proxy.removeprefix("http://")
        await get(await ending.session(ending.short), "https://x.test/", proxy=proxy)


@endings.row(
    """
    GET ! tunnel_proxy_rejected
      connection setup ! tunnel_proxy_rejected
        TCP connect
        CONNECT tunnel ! proxy_rejected
    GET: resend 1 ! tunnel_proxy_rejected
      connection setup ! tunnel_proxy_rejected
        TCP connect
        CONNECT tunnel ! proxy_rejected
    """,
    raises=aiohttp.ServerDisconnectedError,
    failed=Phase.TUNNEL,
    note=["CONNECT tunnel through {where} failed: proxy_rejected"],
)
async def proxy_that_hangs_up(ending: Ending) -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw_server(hang_up) as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), "https://x.test/", proxy=f"http://{host}:{port}")


@endings.row(
    """
    GET ! tls_certificate_authority_invalid
      connection setup ! tls_certificate_authority_invalid
        TCP connect
        CONNECT tunnel 200
        TLS handshake ! certificate_authority_invalid
    """,
    attributes={"TLS handshake": {"server.address": "127.0.0.1", "tls.established": False}},
    raises=aiohttp.ClientConnectorCertificateError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: certificate_authority_invalid (queue 0.0 ms, tcp ", ", tunnel "],
)
async def unknown_authority_behind_a_proxy(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue_untrusted("127.0.0.1")) as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(), server.url(), proxy=ending.proxies["http"])


@endings.row(
    """
    GET ! tls_certificate_authority_invalid
      connection setup ! tls_certificate_authority_invalid
        TCP connect
        TLS handshake ! certificate_authority_invalid
    """,
    raises=aiohttp.ClientConnectorCertificateError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: certificate_authority_invalid"],
)
async def https_proxy_of_an_unknown_authority(ending: Ending) -> None:
    # Its server speaks TLS, and that is as far as anybody comes.
    async with TLSServer(ending.ca.issue_untrusted("127.0.0.1")) as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(), "https://x.test/", proxy=server.url())


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA, proxies: dict[str, str]) -> None:
    """A request through a proxy ends in the spans, records, metrics and words of its row."""
    ending = Ending(ca)
    ending.proxies = proxies
    await ending.check(row)
