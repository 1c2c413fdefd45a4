"""Resumption: a ticket goes to exactly the name, port, route, pin, decision and generation that it came from."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Self

import aiohttp
import pytest

from aiohttp_hardened import (
    Phase,
    Settings,
    TLSSettings,
    create_connector,
    create_session,
    create_ssl_context,
    reload_tls,
)
from aiohttp_hardened.testing import FixedResolver, PhaseRecorder, ThrowawayCA, TLSServer
from aiohttp_hardened.tls._tickets import tickets

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]


@pytest.fixture(autouse=True)
def empty_store() -> Iterator[None]:
    """Begin with no tickets; and with no memory of peers without any."""
    tickets.forget_all()
    yield
    tickets.forget_all()


class Client:
    """A session without connection reuse, whose handshakes are watched."""

    def __init__(self, ca: ThrowawayCA, **tls: Any) -> None:
        self.recorder = PhaseRecorder()
        self.settings = Settings(tls=TLSSettings(trust="none", ca_files=(str(ca.ca_file),), **tls))

    async def __aenter__(self) -> Self:
        connector = create_connector(self.settings, resolver=FixedResolver(), force_close=True)
        self.session = create_session(self.settings, hooks=[self.recorder], connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def resumed(self, url: str, **options: Any) -> bool:
        """Make a request; tell whether its handshake was resumed, by both sides' word."""
        self.recorder.clear()
        async with self.session.get(url, **options) as response:
            theirs = (await response.json())["session_reused"]
        ours = self.recorder.of(Phase.TLS)[-1].attributes["tls.resumed"]
        assert theirs == ours
        return bool(ours)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_second_connection_is_resumed(version: ssl.TLSVersion, throwaway_ca: ThrowawayCA) -> None:
    """Requests 2 and 3 are resumed, under both versions (CASES 8)."""
    async with (
        TLSServer(throwaway_ca.issue("x.test"), minimum_version=version, maximum_version=version) as server,
        Client(throwaway_ca) as client,
    ):
        url = server.url("/echo", host="x.test")
        assert [False, True, True] == [await client.resumed(url) for _ in range(3)]


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_ticket_never_goes_to_another_name(version: ssl.TLSVersion, throwaway_ca: ThrowawayCA) -> None:
    """OpenSSL would accept it without checking the certificate; the key prevents it (CASES 1)."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    async with (
        TLSServer(throwaway_ca.issue("x.test"), minimum_version=version, maximum_version=version) as server,
        Client(throwaway_ca) as client,
    ):
        url = server.url("/echo", host="x.test")
        await client.resumed(url)
        assert len(tickets) == 1
        for options in ({"server_hostname": "evil.test"}, {}):
            target = url if options else server.url("/echo", host="evil.test")
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await client.session.get(target, **options)
        assert await client.resumed(url)


async def test_a_ticket_never_goes_to_another_port_route_pin_or_decision(
    throwaway_ca: ThrowawayCA, http_proxy: str
) -> None:
    """Each of these is a key of its own, though one server with one certificate stands behind them all."""
    certificate = throwaway_ca.issue("127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    der = ssl.PEM_cert_to_DER_cert(certificate.cert_file.read_text())
    pin = aiohttp.Fingerprint(hashlib.sha256(der).digest())
    async with (
        TLSServer(context=context) as server,
        TLSServer(context=context) as other,
        Client(throwaway_ca) as client,
        Client(throwaway_ca, name="another decision") as stranger,
    ):
        url = server.url("/echo")
        assert not await client.resumed(url)
        assert not await client.resumed(other.url("/echo"))
        assert not await client.resumed(url, proxy=http_proxy)
        assert not await client.resumed(url, ssl=pin)
        assert not await stranger.resumed(url)
        # Each has a ticket of its own by now.
        assert await client.resumed(url)
        assert await client.resumed(url, proxy=http_proxy)
        assert await client.resumed(url, ssl=pin)


async def test_a_ticket_does_not_outlive_its_context(throwaway_ca: ThrowawayCA, tmp_path: Any) -> None:
    """After a reload the first handshake is a full one, without an error (CASES 8, 12)."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(throwaway_ca.ca_file.read_bytes())
    settings = Settings(tls=TLSSettings(trust="none", ca_files=(str(bundle),)))
    recorder = PhaseRecorder()
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server:
        connector = create_connector(settings, force_close=True)
        async with create_session(settings, hooks=[recorder], connector=connector) as session:
            for _ in range(2):
                await (await session.get(server.url())).read()
            bundle.write_bytes(throwaway_ca.ca_file.read_bytes() * 2)
            assert reload_tls(settings.tls).outcome == "applied"
            assert len(tickets) == 0
            for _ in range(2):
                await (await session.get(server.url())).read()
    assert [False, True, False, True] == [each.attributes["tls.resumed"] for each in recorder.of(Phase.TLS)]


async def test_resumption_off_offers_nothing(throwaway_ca: ThrowawayCA) -> None:
    """``resumption=False`` keeps and offers no ticket."""
    async with TLSServer(throwaway_ca.issue("x.test")) as server, Client(throwaway_ca, resumption=False) as client:
        url = server.url("/echo", host="x.test")
        assert [False, False] == [await client.resumed(url) for _ in range(2)]
        assert len(tickets) == 0


async def test_somebody_elses_use_of_the_context_is_not_resumed(throwaway_ca: ThrowawayCA) -> None:
    """Without our connector nobody knows the route, so no ticket is kept."""
    context = create_ssl_context(TLSSettings(trust="none", ca_files=(str(throwaway_ca.ca_file),)))
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert b"200" in await reader.read()
        writer.close()
        await writer.wait_closed()
    assert len(tickets) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_no_tickets() -> None:
    """Two processes would use one ticket."""
    code = (
        "import os\n"
        "from aiohttp_hardened.tls._tickets import tickets\n"
        "class Generation: retired = False\n"
        "tickets.put((Generation(), 'x.test', ()), object(), 60, reusable=False)\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(len(tickets))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), len(tickets))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["0", "1"]
