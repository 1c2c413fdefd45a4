"""What the tests of raw TLS share: an attempt that only knows its route, a client, and peers from OpenSSL."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from aiohttp.helpers import TimerNoop
from multidict import CIMultiDict
from yarl import URL

from aiohttp_hardened._settings import TLSSettings
from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.timing._hooks import SILENT
from aiohttp_hardened.timing._request import Attempt, RequestTiming
from aiohttp_hardened.tls._registry import context_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from aiohttp_hardened.testing import CertificateFiles, ThrowawayCA
    from aiohttp_hardened.tls._context import SharedSSLContext

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl command")


def attempt_on(route: tuple[Any, ...] | None) -> Attempt:
    """Return an attempt that knows only where its handshake goes."""
    timing = RequestTiming(SILENT)
    attempt = Attempt(timing, url=URL("https://x.test"), method="GET", headers=CIMultiDict(), timer=TimerNoop())
    attempt.tls_route = route
    return attempt


class Answer(NamedTuple):
    resumed: bool
    alpn: str | None
    text: bytes


def shared(ca: ThrowawayCA, **options: Any) -> SharedSSLContext:
    return context_for(TLSSettings(trust="none", ca_files=(str(ca.ca_file),), **options))


async def ask(
    context: ssl.SSLContext,
    port: int,
    *,
    name: str | None = "x.test",
    route: tuple[Any, ...] | None = ("the port", None, None),
    outside: bool = False,
) -> Answer:
    """Connect inside an attempt (or ``outside`` of any), speak, and read to the end."""
    token = current_attempt.set(None if outside else attempt_on(route))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    finally:
        current_attempt.reset(token)
    seen = writer.get_extra_info("ssl_object")
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    answer = Answer(bool(seen.session_reused), seen.selected_alpn_protocol(), await reader.read())
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


@asynccontextmanager
async def tls_server(context: ssl.SSLContext, answer: bytes = b"HTTP/1.0 200 OK\r\n\r\nhello") -> AsyncIterator[int]:
    """Serve one answer per connection; give the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            await reader.readline()
            writer.write(answer)
            writer.close()
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield server.sockets[0].getsockname()[1]
    await asyncio.sleep(0.05)


def server_context(certificate: CertificateFiles, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)
    if version is not None:
        context.minimum_version = context.maximum_version = version
    return context


@asynccontextmanager
async def s_server(certificate: CertificateFiles, *options: str) -> AsyncIterator[int]:
    """Run ``openssl s_server -www``, which answers every GET with what it saw; give the port."""
    process = await asyncio.create_subprocess_exec(
        "openssl", "s_server", "-www", "-accept", "127.0.0.1:0", "-naccept", "200",
        "-cert", str(certificate.cert_file), "-key", str(certificate.key_file),
        "-cert_chain", str(certificate.cert_file), *options,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, stdin=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        while not (line := await asyncio.wait_for(process.stdout.readline(), 10)).startswith(b"ACCEPT"):
            assert line, "openssl s_server ended"
        draining = asyncio.create_task(process.stdout.read())
        yield int(line.rsplit(b":", 1)[1])
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    await draining


def in_memory(
    client: ssl.SSLContext, server: ssl.SSLContext, name: str, session: ssl.SSLSession | None = None
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Do a handshake in memory; return both sides."""
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(back, forth, server_hostname=name, session=session)
    theirs = server.wrap_bio(forth, back, server_side=True)
    waiting = [ours, theirs]
    for _ in range(10):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
    assert not waiting
    return ours, theirs
