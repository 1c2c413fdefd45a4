"""Endings in the TLS handshake, and of what a peer says about the client's certificate."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from uuid import uuid4

import aiohttp
import pytest

from aiohttp_hardened import Phase, Settings, TimeoutSettings, TLSSettings, UnverifiedRequestError
from aiohttp_hardened.testing import (
    FixedResolver,
    HTTPServer,
    ThrowawayCA,
    TLSServer,
    plaintext_peer,
    raw_server,
    server_context,
    stalled_tls,
)
from tests.e2e._ending import BUDGET, Ending, get
from tests.e2e._peers import openssl_server, slow_handshake
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any

    from aiohttp_hardened.testing import CertificateFiles

endings = Table()

FAILED = """
    GET ! tls_{word}
      connection setup ! tls_{word}
        TCP connect
        TLS handshake ! {word}
    """


# --- the certificate


def certificate(name: str, word: str, issue: Callable[[ThrowawayCA], CertificateFiles]) -> None:
    async def scenario(ending: Ending) -> None:
        async with TLSServer(issue(ending.ca)) as server:
            ending.where = f"127.0.0.1:{server.port}"
            await get(await ending.session(), server.url())

    endings.add(
        name,
        scenario,
        FAILED.format(word=word),
        attributes={
            "connection setup": {"network.peer.address": "127.0.0.1"},
            "TLS handshake": {"server.address": "127.0.0.1", "tls.established": False, "tls.resumed": None},
        },
        raises=aiohttp.ClientConnectorCertificateError,
        failed=Phase.TLS,
        note=[f"tls handshake with {{where}} failed: {word} (queue 0.0 ms, tcp ", ", 1 address tried)"],
    )


certificate("tls expired", "certificate_expired", lambda ca: ca.issue_expired("127.0.0.1"))
certificate("tls not yet valid", "certificate_not_yet_valid", lambda ca: ca.issue_not_yet_valid("127.0.0.1"))
certificate("tls wrong host", "certificate_hostname_mismatch", lambda ca: ca.issue("x.test"))
certificate("tls unknown authority", "certificate_authority_invalid", lambda ca: ca.issue_untrusted("127.0.0.1"))


@endings.row(
    """
    GET 200
      connection setup
        DNS lookup: lookup
        TCP connect
        TLS handshake ! certificate_expired
        TCP connect
        TLS handshake
      response body: complete
    """,
    attributes={
        "connection setup": {"aiohttp.client.connection.attempts": 2, "network.peer.address": "127.0.0.1"},
        "TLS handshake": {"tls.established": True},
    },
)
async def tls_expired_on_the_first_of_two_addresses(ending: Ending) -> None:
    good = await ending.stack.enter_async_context(TLSServer(ending.ca.issue("x.test")))
    async with TLSServer(ending.ca.issue_expired("x.test"), host="127.0.0.2", port=good.port):
        session = await ending.session(resolver=FixedResolver(("127.0.0.2", "127.0.0.1")))
        await get(session, good.url(host="x.test"))


@endings.row(
    FAILED.format(word="certificate_verification_failed"),
    attributes={"TLS handshake": {"tls.established": True}},
    note=["tls handshake with {where} failed: certificate_verification_failed"],
    raises=aiohttp.ServerFingerprintMismatch,
    failed=Phase.TLS,
)
async def pin_that_does_not_match(ending: Ending) -> None:
    async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(), server.url(), ssl=aiohttp.Fingerprint(b"x" * 32))


@endings.row(
    """
    GET ! aiohttp_hardened.UnverifiedRequestError
      connection setup ! _OTHER
    """,
    raises=UnverifiedRequestError,
    failed=Phase.SETUP,
    note=["127.0.0.1 would not be verified (ssl=False)"],
)
async def request_that_would_verify_nobody(ending: Ending) -> None:
    await get(await ending.session(), "https://127.0.0.1:1/", ssl=False)


# --- the protocol


@endings.row(
    FAILED.format(word="plaintext_peer"),
    raises=aiohttp.ClientConnectorSSLError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: plaintext_peer"],
)
async def tls_plaintext_peer(ending: Ending) -> None:
    async with plaintext_peer() as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), f"https://{host}:{port}/")


@endings.row(
    FAILED.format(word="plaintext_peer"),
    raises=aiohttp.ClientConnectorSSLError,
    failed=Phase.TLS,
)
async def tls_to_an_http_server(ending: Ending) -> None:
    async with HTTPServer() as server:
        await get(await ending.session(), server.url().replace("http", "https"))


@endings.row(
    FAILED.format(word="timed_out"),
    attributes={"TLS handshake": {"tls.established": False}},
    raises=aiohttp.ConnectionTimeoutError,
    failed=Phase.TLS,
    note=["tls handshake with {where} timed out after 0.20 s (queue 0.0 ms, tcp ", ", 1 address tried)"],
    cause=(Phase.TLS, BUDGET),
)
async def tls_stalled(ending: Ending) -> None:
    with stalled_tls() as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(ending.short), f"https://{host}:{port}/")


@endings.row(
    FAILED.format(word="peer_connection_closed"),
    raises=aiohttp.ClientConnectorError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: peer_connection_closed"],
)
async def tls_peer_hangs_up(ending: Ending) -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(100)

    async with raw_server(hang_up) as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), f"https://{host}:{port}/")


@endings.row(
    FAILED.format(word="protocol_version_unsupported"),
    raises=aiohttp.ClientConnectorSSLError,
    failed=Phase.TLS,
    note=["tls handshake with {where} failed: protocol_version_unsupported"],
)
async def tls_version_that_the_server_does_not_speak(ending: Ending) -> None:
    newest = replace(ending.settings.tls, minimum_version=ssl.TLSVersion.TLSv1_3)
    with openssl_server(ending.ca.issue("127.0.0.1"), ending.ca.ca_file, "1.2") as url:
        ending.where = url.removeprefix("https://").removesuffix("/")
        await get(await ending.session(replace(ending.settings, tls=newest)), url)


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
        TLS handshake
      response body: complete
    """,
    attributes={"TLS handshake": {"tls.established": True}},
)
async def handshake_that_takes_longer_than_the_race_may(ending: Ending) -> None:
    certificate = ending.ca.issue("127.0.0.1")
    settings = replace(ending.settings, timeouts=TimeoutSettings(tcp=0.1))
    with slow_handshake(server_context(certificate), 0.2) as url:
        session = await ending.session(settings)
        await get(session, url)
        await session.close()


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
        TLS handshake
      response body: complete
    """,
    attributes={
        "TCP connect": {"network.peer.address": "127.0.0.1", "aiohttp.client.tcp.addresses_tried": 1},
        "TLS handshake": {"tls.established": True},
    },
)
async def sockets_of_the_caller_s_own(ending: Ending) -> None:
    session = await ending.session(socket_factory=lambda addr_info: socket.socket(*addr_info[:3]))
    async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
        await get(session, server.url())


# --- the trust store


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
        TLS handshake
      response body: complete
    """,
    events={"connection setup": ["trust store loaded"]},
)
async def first_use_of_a_trust_decision(ending: Ending) -> None:
    decision = replace(ending.settings.tls, name=f"of {uuid4()}")
    async with TLSServer(ending.ca.issue("127.0.0.1")) as server:
        await get(await ending.session(replace(ending.settings, tls=decision)), server.url())


@contextmanager
def stalled_trust_store(ending: Ending) -> Generator[Settings]:
    """Give settings whose file of authorities cannot be read before the end, as on a dead network file system."""
    with TemporaryDirectory() as directory:
        file = Path(directory, "ca.pem")
        file.touch()
        settings = replace(ending.settings, tls=TLSSettings(trust="none", ca_files=(str(file),)))
        file.unlink()
        os.mkfifo(file)
        try:
            yield settings
        finally:
            file.write_bytes(ending.ca.ca_file.read_bytes())


WAITING = """
    GET{request}
      connection setup{setup}
    """


def trust_store(budget: str, raises: type[BaseException], name: str, **expected: Any) -> None:
    async def scenario(ending: Ending) -> None:
        with stalled_trust_store(ending) as settings:
            timeout = aiohttp.ClientTimeout(**{budget: 0.1})  # type: ignore[arg-type]
            await get(await ending.session(settings), "https://127.0.0.1:1/", timeout=timeout)

    endings.add(
        f"{budget} runs out while the trust store is read",
        scenario,
        WAITING.format(request=f" ! {name}", setup=" ! _OTHER"),
        raises=raises,
        failed=Phase.SETUP,
        note=[f"connection setup to 127.0.0.1:1 timed out: the {budget} budget of 0.10 s ran out (queue 0.0 ms)"],
        **expected,
    )


trust_store("total", TimeoutError, "TimeoutError")
trust_store("connect", aiohttp.ConnectionTimeoutError, "aiohttp.ConnectionTimeoutError", cause=(Phase.SETUP, 0.1))


@endings.row(WAITING.format(request=": cancelled", setup=": cancelled"))
async def cancelled_while_the_trust_store_is_read(ending: Ending) -> None:
    with stalled_trust_store(ending) as settings:
        task = asyncio.create_task(get(await ending.session(settings), "https://127.0.0.1:1/"))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A handshake ends in the spans, records, metrics and words of its row."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    # The server's side of a refused handshake; nothing else may reach the handler.
    loop.set_exception_handler(
        lambda loop, context: (
            None if isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)) else handler(loop, context)  # type: ignore[misc]
        )
    )
    await Ending(ca).check(row)
