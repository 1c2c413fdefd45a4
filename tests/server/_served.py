"""A server of ours for a test, with files that can be renewed, and a client that sees what it shows."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from aiohttp import web

from aiohttp_hardened.server import HandshakeRecord, HardenedTCPSite, create_server_ssl_context

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from aiohttp_hardened.testing import CertificateFiles

Address = tuple[str, int]


class Mounted:
    """A server's certificate and key in two files that a renewal overwrites."""

    def __init__(self, directory: Path, first: CertificateFiles) -> None:
        self.cert, self.key = directory / "tls.crt", directory / "tls.key"
        self.write(first)

    def write(self, certificate: CertificateFiles, key: CertificateFiles | None = None) -> None:
        self.cert.write_bytes(certificate.cert_file.read_bytes())
        self.key.write_bytes((key or certificate).key_file.read_bytes())

    def context(self, **options: Any) -> ssl.SSLContext:
        return create_server_ssl_context(self.cert, self.key, name="mounted", **options)


async def answer(request: web.Request) -> web.Response:
    return web.Response(text=request.path)


def application() -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    return app


@asynccontextmanager
async def serving(context: ssl.SSLContext | None, **options: Any) -> AsyncGenerator[Address]:
    """Serve with a `HardenedTCPSite` on loopback; give its address."""
    runner = web.AppRunner(application(), access_log=None)
    await runner.setup()
    try:
        site = HardenedTCPSite(runner, "127.0.0.1", 0, ssl_context=context, **options)
        await site.start()
        yield runner.addresses[0]
    finally:
        await runner.cleanup()


async def serial_shown(address: Address, trust: ssl.SSLContext, server_name: str | None = "x.test") -> str:
    """Return the serial number of what a server shows to a client with or without SNI."""
    trust.check_hostname = server_name is not None
    _, writer = await asyncio.open_connection(*address, ssl=trust, server_hostname=server_name or "")
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()
        await writer.wait_closed()


async def until(records: list[HandshakeRecord], count: int) -> None:
    """Wait for that many handshakes to be over."""
    async with asyncio.timeout(20):
        while len(records) < count:  # noqa: ASYNC110  # hooks are plain calls
            await asyncio.sleep(0.01)
