from __future__ import annotations

import asyncio
import contextlib
import smtplib
import ssl
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import testing
from aiohttp_hardened.exceptions import HardenedError, PhaseTimeoutError, PlaintextBoundaryError, SettingsError
from aiohttp_hardened.starttls import start_tls_client, start_tls_server
from aiohttp_hardened.timing import Phase

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
GO_AHEAD = b"220 go ahead\r\n"
INJECTIONS = [
    b"MAIL FROM:<evil@x.test>\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"CONNECT x.test:25 HTTP/1.1\r\n\r\n",
    b"220 evil\r\n",
]


class Mail:
    """A server with a few words of SMTP; what became of its upgrade is in ``upgrade``."""

    def __init__(self, context: ssl.SSLContext, **options: Any) -> None:
        self.context = context
        self.options = options
        self.upgrade: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.trusted: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.x.test ready\r\n")
        while line := await reader.readline():
            if line == b"STARTTLS\r\n":
                try:
                    await start_tls_server(reader, writer, self.context, go_ahead=GO_AHEAD, **self.options)
                except BaseException as exc:  # noqa: BLE001  # the test looks at it
                    self.upgrade.set_exception(exc)
                    await closed(reader, writer)
                    return
                self.upgrade.set_result(None)
            elif line.startswith((b"EHLO", b"ehlo")):
                writer.write(b"250-mail.x.test\r\n250 STARTTLS\r\n")
            elif line == b"QUIT\r\n":
                writer.write(b"221 bye\r\n")
            elif line == b"BIG\r\n":
                writer.write(b"x" * 1_000_000)
                await writer.drain()
            elif self.upgrade.done():
                self.trusted.append(line)
                writer.write(b"250 " + line)
            else:
                writer.write(b"530 must issue STARTTLS first\r\n")


@asynccontextmanager
async def connected(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]],
) -> AsyncGenerator[Streams]:
    async with testing.raw_server(serve) as address:
        reader, writer = await asyncio.open_connection(*address)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Fail unless a connection is closed, and nothing can be read from it or waits for ever."""
    assert writer.transport.is_closing()
    async with asyncio.timeout(5):
        await writer.wait_closed()
        with pytest.raises((HardenedError, OSError)):
            await reader.read()
        with pytest.raises((HardenedError, OSError, RuntimeError)):  # noqa: PT012  # uvloop refuses at once
            writer.write(b"plaintext")
            await writer.drain()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: bytes) -> bytes:
    writer.write(line)
    return await reader.readline()


# --- honest peers


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_mail_goes_on_in_tls(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, version: ssl.TLSVersion
) -> None:
    """Two honest peers go on in TLS on the streams that they have, with the certificate verified."""
    context = testing.server_context(loopback_certificate)
    context.minimum_version = context.maximum_version = version
    mail = Mail(context)
    async with connected(mail.serve) as (reader, writer):
        assert await reader.readline() == b"220 mail.x.test ready\r\n"
        assert await ask(reader, writer, b"MAIL\r\n") == b"530 must issue STARTTLS first\r\n"
        assert await ask(reader, writer, b"STARTTLS\r\n") == GO_AHEAD
        assert await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="X.test.") is None
        connection = writer.get_extra_info("ssl_object")
        assert connection.version() == version.name.replace("_", ".")
        assert connection.server_hostname == "x.test"
        assert await ask(reader, writer, b"MAIL\r\n") == b"250 MAIL\r\n"
        writer.write(b"BIG\r\n")
        assert await reader.readexactly(1_000_000) == b"x" * 1_000_000
        assert mail.trusted == [b"MAIL\r\n"]
        writer.close()
        await writer.wait_closed()


async def test_smtplib_goes_on_in_tls(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """The server's side is what a client expects that nobody here wrote."""

    def send(host: str, port: int) -> tuple[int, bytes]:
        with smtplib.SMTP(host, port, local_hostname="client.test", timeout=5) as client:
            client.starttls(context=throwaway_ca.client_context())
            return client.docmd("MAIL")

    mail = Mail(testing.server_context(loopback_certificate))
    async with testing.raw_server(mail.serve, host="localhost") as address:
        assert await asyncio.to_thread(send, "localhost", address[1]) == (250, b"MAIL")


async def test_server_may_speak_first(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """What a server says through TLS at once is not taken for plaintext."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GO_AHEAD)
        await start_tls_server(reader, writer, testing.server_context(loopback_certificate))
        writer.write(b"hello through TLS\r\n")
        await reader.read()

    async with connected(serve) as (reader, writer):
        assert await reader.readline() == GO_AHEAD
        await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        assert await reader.readline() == b"hello through TLS\r\n"


async def test_go_ahead_waits_for_a_slow_reader(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A go-ahead behind a full write buffer leaves no moment in which an honest handshake comes too early."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 5_000_000)
        await start_tls_server(reader, writer, testing.server_context(loopback_certificate), go_ahead=GO_AHEAD)
        writer.write(await reader.readline())
        await reader.read()

    async with connected(serve) as (reader, writer):
        await reader.readexactly(5_000_000)
        assert await reader.readline() == GO_AHEAD
        await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        assert await ask(reader, writer, b"MAIL\r\n") == b"MAIL\r\n"


# --- injection


async def send(writer: asyncio.StreamWriter, data: bytes, *, byte_by_byte: bool) -> None:
    if not byte_by_byte:
        writer.write(data)
        return
    for index in range(len(data)):
        if writer.is_closing():
            return
        writer.write(data[index : index + 1])
        await asyncio.sleep(0.002)


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("injected", INJECTIONS)
async def test_server_refuses_plaintext_behind_the_request(
    loopback_certificate: testing.CertificateFiles, injected: bytes, byte_by_byte: bool
) -> None:
    """Commands put behind STARTTLS are refused by the server and never executed, in one segment or byte by byte."""
    mail = Mail(testing.server_context(loopback_certificate))
    async with connected(mail.serve) as (reader, writer):
        await reader.readline()
        with contextlib.suppress(ConnectionError):
            await send(writer, b"STARTTLS\r\n" + injected, byte_by_byte=byte_by_byte)
        with pytest.raises(PlaintextBoundaryError, match="plaintext") as caught:
            await mail.upgrade
        with contextlib.suppress(ConnectionError):
            assert (await reader.read() == b"") is not byte_by_byte  # no go-ahead where it is known to be too late
    assert mail.trusted == []
    assert isinstance(caught.value, HardenedError)
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("byte_by_byte", [False, True])
@pytest.mark.parametrize("injected", INJECTIONS)
async def test_client_refuses_plaintext_behind_the_answer(
    throwaway_ca: testing.ThrowawayCA, injected: bytes, byte_by_byte: bool
) -> None:
    """Answers put behind the go-ahead are refused by the client, in one segment or byte by byte."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        await send(writer, GO_AHEAD + injected, byte_by_byte=byte_by_byte)
        await reader.read()

    async with connected(serve) as (reader, writer):
        assert await ask(reader, writer, b"STARTTLS\r\n") == GO_AHEAD
        with pytest.raises(PlaintextBoundaryError, match="plaintext") as caught:
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        assert "evil" not in str(caught.value)
        await closed(reader, writer)


@pytest.mark.parametrize("count", [1, 4, 70_000, 200_000])
async def test_any_number_of_bytes_is_refused(throwaway_ca: testing.ThrowawayCA, count: int) -> None:
    """One byte too many is as bad as more than the reader's limit."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GO_AHEAD + b"x" * count)
        await reader.read()

    async with connected(serve) as (reader, writer):
        assert await reader.readline() == GO_AHEAD
        await asyncio.sleep(0.05)
        with pytest.raises(PlaintextBoundaryError, match="wait in front"):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        await closed(reader, writer)


async def test_early_handshake_is_refused(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A client that does not wait for the go-ahead is refused: its bytes came before the switch."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = throwaway_ca.client_context().wrap_bio(incoming, outgoing, server_hostname="x.test")
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    mail = Mail(testing.server_context(loopback_certificate))
    async with connected(mail.serve) as (reader, writer):
        await reader.readline()
        writer.write(b"STARTTLS\r\n" + outgoing.read())
        with pytest.raises(PlaintextBoundaryError):
            await mail.upgrade


async def test_server_refuses_plaintext_that_comes_while_it_cannot_write(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """Commands that come between the check and the switch, while the go-ahead cannot be sent, are refused too."""
    outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"x" * 5_000_000)
        try:
            await start_tls_server(reader, writer, testing.server_context(loopback_certificate), go_ahead=GO_AHEAD)
            outcome.set_result(await reader.readline())
        except PlaintextBoundaryError as exc:
            outcome.set_exception(exc)

    async with connected(serve) as (reader, writer):
        writer.write(b"STARTTLS\r\n")
        await asyncio.sleep(0.05)
        writer.write(INJECTIONS[0])
        await asyncio.sleep(0.05)
        await reader.readexactly(5_000_000)
        assert await reader.readline() == GO_AHEAD
        with contextlib.suppress(OSError):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        with pytest.raises(PlaintextBoundaryError):
            await outcome


# --- no way back to plaintext


async def test_plaintext_answer_instead_of_a_handshake_is_refused(throwaway_ca: testing.ThrowawayCA) -> None:
    """A server that says yes and goes on in plaintext is refused."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GO_AHEAD)
        await reader.read(1)
        writer.write(b"454 TLS not available\r\n")
        await reader.read()

    async with connected(serve) as (reader, writer):
        assert await reader.readline() == GO_AHEAD
        with pytest.raises(PlaintextBoundaryError, match="where its TLS handshake should be") as caught:
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        assert isinstance(caught.value.__cause__, ssl.SSLError)
        await closed(reader, writer)


async def test_wrong_certificate_closes_the_connection(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A certificate for another name is OpenSSL's own error, and the end of the connection."""
    mail = Mail(testing.server_context(loopback_certificate))
    async with connected(mail.serve) as (reader, writer):
        await reader.readline()
        await ask(reader, writer, b"STARTTLS\r\n")
        with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.test"):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="other.test")
        await closed(reader, writer)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await mail.upgrade


@pytest.mark.parametrize("side", ["client", "server"])
async def test_stalled_handshake_ends_at_its_deadline(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles, side: str
) -> None:
    """A peer that never begins its handshake costs the deadline, and no more."""

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GO_AHEAD)
        await reader.read(-1)

    mail = Mail(testing.server_context(loopback_certificate), handshake_timeout=0.1)
    async with connected(stall if side == "client" else mail.serve) as (reader, writer):
        await reader.readline()
        writer.write(b"STARTTLS\r\n")
        upgrade: Awaitable[None] = mail.upgrade
        if side == "client":
            context = throwaway_ca.client_context()
            upgrade = start_tls_client(reader, writer, context, server_hostname="x.test", handshake_timeout=0.1)
        with pytest.raises(PhaseTimeoutError, match=r"0\.10 s") as caught:
            await upgrade
        assert (caught.value.phase, caught.value.budget) == (Phase.TLS, 0.1)
        if side == "client":
            await closed(reader, writer)


async def test_cancelled_upgrade_is_cancelled_and_closed(throwaway_ca: testing.ThrowawayCA) -> None:
    """A caller's cancellation stays one, and leaves no half-open connection."""

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with connected(stall) as (reader, writer):
        context = throwaway_ca.client_context()
        upgrade = asyncio.create_task(start_tls_client(reader, writer, context, server_hostname="x.test"))
        await asyncio.sleep(0.05)
        upgrade.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upgrade
        await closed(reader, writer)


@pytest.mark.parametrize("when", ["before", "during"])
async def test_lost_connection_is_a_connection_error(throwaway_ca: testing.ThrowawayCA, when: str) -> None:
    """A peer that goes away before or during the handshake is a ConnectionError, not a plaintext connection."""

    async def leave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(GO_AHEAD)
        if when == "during":
            await reader.read(1)

    async with connected(leave) as (reader, writer):
        assert await reader.readline() == GO_AHEAD
        if when == "before":
            await asyncio.sleep(0.05)
        with pytest.raises(ConnectionError):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        await closed(reader, writer)


@pytest.mark.parametrize("how", ["abort", "close"])
async def test_connection_closed_by_somebody_else_is_a_connection_error(
    throwaway_ca: testing.ThrowawayCA, how: str
) -> None:
    """A connection that another task closes under the handshake is a ConnectionError."""

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with connected(stall) as (reader, writer):
        asyncio.get_running_loop().call_later(0.05, getattr(writer.transport, how))
        with pytest.raises(ConnectionError):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), server_hostname="x.test")
        await closed(reader, writer)


# --- what cannot be meant


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("server_hostname", {"server_hostname": ""}),
        ("handshake_timeout", {"server_hostname": "x.test", "handshake_timeout": 0}),
        ("handshake_timeout", {"server_hostname": "x.test", "handshake_timeout": float("nan")}),
        ("handshake_timeout", {"server_hostname": "x.test", "handshake_timeout": float("inf")}),
    ],
)
async def test_senseless_argument_is_named(
    throwaway_ca: testing.ThrowawayCA, field: str, options: dict[str, Any]
) -> None:
    """An argument that cannot be meant is refused by name."""

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with connected(stall) as (reader, writer):
        with pytest.raises(SettingsError, match=field):
            await start_tls_client(reader, writer, throwaway_ca.client_context(), **options)


async def test_wrong_role_is_an_error_at_once(
    throwaway_ca: testing.ThrowawayCA, loopback_certificate: testing.CertificateFiles
) -> None:
    """A server's context at the client is refused at once, and not at the deadline."""

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with connected(stall) as (reader, writer):
        async with asyncio.timeout(1):
            with pytest.raises((ssl.SSLError, SettingsError)):
                await start_tls_client(
                    reader, writer, testing.server_context(loopback_certificate), server_hostname="x.test"
                )
        await closed(reader, writer)
