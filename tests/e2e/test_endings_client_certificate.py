"""Endings by what a peer says of the client's certificate; most peers are ones that nobody here wrote."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import Phase
from aiohttp_hardened.testing import ThrowawayCA, TLSServer
from tests.e2e._ending import Ending, get
from tests.e2e._peers import nginx, openssl_server
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from typing import Any

endings = Table()

REJECTED_IN_THE_HANDSHAKE = """
    GET ! tls_{word}
      connection setup ! tls_{word}
        TCP connect
        TLS handshake ! {word}
    """
REJECTED_AFTER_THE_HANDSHAKE = """
    GET ! tls_client_certificate_rejected
      connection setup
        TCP connect
        TLS handshake
    GET: resend 1 ! tls_client_certificate_rejected
      connection setup
        TCP connect
        TLS handshake
    """
TAKEN = """
    GET {status}
      connection setup
        TCP connect
        TLS handshake
      response body: complete
    """


def client_certificate(name: str, peer: Any, version: str, tree: str, *, shown: bool = False, **expected: Any) -> None:
    async def scenario(ending: Ending) -> None:
        settings = ending.settings
        if shown:
            client = ending.ca.issue_client("somebody")
            files = {"client_cert": str(client.cert_file), "client_key": str(client.key_file)}
            settings = replace(settings, tls=replace(settings.tls, **files))
        with peer(ending.ca.issue("127.0.0.1"), ending.ca.ca_file, version) as url:
            ending.where = url.removeprefix("https://").removesuffix("/")
            await get(await ending.session(settings), url)

    endings.add(name, scenario, tree, **expected)


REJECTED = {"failed": Phase.TLS, "note": ["tls handshake with {where} failed: client_certificate_rejected (queue 0.0"]}
client_certificate(
    "tls 1.2 client certificate required",
    openssl_server,
    "1.2",
    REJECTED_IN_THE_HANDSHAKE.format(word="client_certificate_rejected"),
    raises=aiohttp.ClientConnectorSSLError,
    **REJECTED,
)
client_certificate(
    "tls 1.3 client certificate required",
    openssl_server,
    "1.3",
    REJECTED_AFTER_THE_HANDSHAKE,
    raises=aiohttp.ClientOSError,
    **REJECTED,
)
for _version in ("1.2", "1.3"):
    _attributes = {"TLS handshake": {"tls.protocol.version": _version, "tls.established": True}}
    client_certificate(
        f"tls {_version} client certificate required by nginx",
        nginx,
        _version,
        TAKEN.format(status="400 ! 400"),
        attributes=_attributes,
    )
    client_certificate(
        f"tls {_version} client certificate shown to nginx",
        nginx,
        _version,
        TAKEN.format(status=200),
        shown=True,
        attributes=_attributes,
    )


@endings.row(
    REJECTED_IN_THE_HANDSHAKE.format(word="peer_connection_closed"),
    raises=aiohttp.ClientConnectorError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: peer_connection_closed"],
)
async def client_certificate_required_by_a_peer_that_sends_no_alert(ending: Ending) -> None:
    # asyncio's servers close without one.
    certificate = ending.ca.issue("127.0.0.1")
    version = ssl.TLSVersion.TLSv1_2
    async with TLSServer(certificate, client_ca=ending.ca.ca_file, maximum_version=version) as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(), server.url())


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A client with or without a certificate ends in the spans, records, metrics and words of its row."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    # The server's side of a refused handshake; nothing else may reach the handler.
    loop.set_exception_handler(
        lambda loop, context: (
            None if isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)) else handler(loop, context)  # type: ignore[misc]
        )
    )
    await Ending(ca).check(row)
