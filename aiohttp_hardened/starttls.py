r"""The boundary between plaintext and TLS on asyncio streams, for protocols that upgrade.

SMTP, IMAP, POP3, LDAP, XMPP and many private protocols begin in plaintext and agree
to go on in TLS. Whoever can write to the wire can put bytes in front of the handshake
and have them taken for what came through TLS (CVE-2011-0411 and its family). Both
functions here refuse that, close the connection whenever the upgrade does not succeed,
and leave nothing readable behind, so that nobody goes on in plaintext by accident::

    async def serve(reader, writer):
        while line := await reader.readline():
            if line == b"STARTTLS\r\n":
                await start_tls_server(reader, writer, context, go_ahead=b"220 go ahead\r\n")
                greeted = False  # what was said in plaintext is forgotten (RFC 3207, section 4.2)

    reader, writer = await asyncio.open_connection(host, 25)
    writer.write(b"STARTTLS\r\n")
    if not (await reader.readline()).startswith(b"220"):
        raise ConnectionRefusedError("no TLS, no mail")
    await start_tls_client(reader, writer, context, server_hostname=host)

Bytes that arrive before the switch are in the ``StreamReader``; bytes that arrive
after it reach OpenSSL, which does not take them for a handshake. There is no third
place: the check and the switch have no turn of the event loop between them in which
the transport reads.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from typing import Final, cast

from aiohttp_hardened._settings import SITE
from aiohttp_hardened.exceptions import PhaseTimeoutError, PlaintextBoundaryError, SettingsError
from aiohttp_hardened.timing import Phase
from aiohttp_hardened.timing._errors import error_word
from aiohttp_hardened.timing._host import normalise_host

__all__ = ["start_tls_client", "start_tls_server"]

_CLIENT_HANDSHAKE: Final = 5.0
"""Seconds; as ``TimeoutSettings.tls``."""
_SERVER_HANDSHAKE: Final = SITE.ssl_handshake_timeout
_CLOSED_HERE: Final = "the connection was closed on this side during the TLS handshake"
_LOOKED_AT: Final = 65536
"""Bytes of a ``StreamReader`` that are looked at; one would do, more make a better message."""


async def start_tls_client(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    *,
    server_hostname: str,
    handshake_timeout: float = _CLIENT_HANDSHAKE,
) -> None:
    """Go on in TLS as the client, on the same two stream objects.

    Call it when the server has agreed, with its whole answer read.

    Args:
        reader: Of the connection.
        writer: Of the connection, as ``asyncio.open_connection`` gives it.
        context: What to trust; ``create_ssl_context()`` is a good one.
        server_hostname: The name that the server's certificate must have.
        handshake_timeout: Seconds for the handshake.

    Raises:
        PlaintextBoundaryError: There were bytes behind the server's answer, or
            plaintext where its handshake should be.
        PhaseTimeoutError: The handshake was not over in time.
        ssl.SSLError: The handshake failed, for example over the certificate.
        ConnectionError: The connection was lost.
    """
    if not server_hostname:
        raise SettingsError(f"server_hostname must be the name in the server's certificate, got {server_hostname!r}")
    await _upgrade(reader, writer, context, normalise_host(server_hostname), b"", handshake_timeout)


async def start_tls_server(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    *,
    go_ahead: bytes = b"",
    handshake_timeout: float = _SERVER_HANDSHAKE,
) -> None:
    r"""Go on in TLS as the server, on the same two stream objects.

    Call it when the client has asked, with its whole request read.

    Args:
        reader: Of the connection.
        writer: Of the connection, as the callback of ``asyncio.start_server`` gets it.
        context: What to show; ``create_server_ssl_context()`` is a good one.
        go_ahead: What tells the client to begin, for example ``b"220 go ahead\r\n"``.
            Sent after the check and with reading paused. If you send it yourself,
            do not await anything between it and this call: a fast client's
            handshake would be taken for plaintext that came too early.
        handshake_timeout: Seconds for the handshake.

    Raises:
        PlaintextBoundaryError: There were bytes behind the client's request, or
            plaintext where its handshake should be.
        PhaseTimeoutError: The handshake was not over in time.
        ssl.SSLError: The handshake failed.
        ConnectionError: The connection was lost.
    """
    await _upgrade(reader, writer, context, None, go_ahead, handshake_timeout)


async def _upgrade(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    server_hostname: str | None,
    go_ahead: bytes,
    seconds: float,
) -> None:
    if not 0 < seconds < math.inf:
        raise SettingsError(f"handshake_timeout must be a positive, finite number of seconds, got {seconds!r}")
    transport = cast("asyncio.Transport", writer.transport)  # a connection's: it reads too
    protocol = transport.get_protocol()
    deadline = asyncio.timeout(seconds)
    try:
        _refuse_buffered(reader, writer)
        # From here on the bytes of the peer stay in the kernel until the TLS layer reads them.
        transport.pause_reading()
        writer.write(go_ahead)
        async with deadline:
            await writer.drain()
            await _handshake(reader, writer, context, server_hostname, seconds)
    except BaseException as exc:
        timed_out = isinstance(exc, TimeoutError) and deadline.expired()
        error = _out_of_time(seconds) if timed_out else _explained(exc)
        transport.abort()
        # A handshake that fails never tells the streams that the connection is lost
        # (asyncio and uvloop): wait_closed() and read() would wait for ever.
        reader.set_exception(error if isinstance(error, Exception) else ConnectionAbortedError("TLS upgrade given up"))
        protocol.connection_lost(None)
        if error is exc:
            raise
        raise error from exc


async def _handshake(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    context: ssl.SSLContext,
    server_hostname: str | None,
    seconds: float,
) -> None:
    """Switch the transport of the streams to TLS.

    A connection that somebody closes meanwhile on this side (a server that shuts down)
    is success for ``loop.start_tls``: asyncio's writer is then left without a transport
    and fails over that, uvloop's has one that is dead and never had a handshake.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = writer.transport, writer.transport.get_protocol()
    try:
        # Its own limit (60 s by default) must not come before ours.
        await writer.start_tls(context, server_hostname=server_hostname, ssl_handshake_timeout=seconds + 1)
    except AttributeError as exc:
        if not transport.is_closing():
            raise
        type(writer).__init__(writer, transport, protocol, reader, loop)
        raise ConnectionAbortedError(_CLOSED_HERE) from exc
    if writer.get_extra_info("ssl_object") is None:
        raise ConnectionAbortedError(_CLOSED_HERE)


def _refuse_buffered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Raise when bytes wait in the reader, or when nothing will ever come.

    ``StreamReader`` has no public way to ask. But ``read()`` suspends exactly when its
    buffer is empty, so one step of it, outside of the loop, tells. A read under
    ``asyncio.timeout(0)`` would need a turn of the loop, in which bytes can slip in.
    """
    reading = reader.read(_LOOKED_AT)
    try:
        reading.send(None)
    except StopIteration as stopped:
        early: bytes = stopped.value
        if early:
            raise PlaintextBoundaryError(
                f"{len(early)} bytes of plaintext wait in front of the TLS handshake; the connection was closed"
            ) from None
        raise ConnectionAbortedError("the peer closed the connection before the TLS handshake") from None
    finally:
        reading.close()
    if writer.is_closing():
        raise ConnectionAbortedError("the connection was closed before the TLS handshake")


def _explained(exc: BaseException) -> BaseException:
    """Return the error to raise for one: only plaintext has a name of ours."""
    if isinstance(exc, ssl.SSLError) and (
        error_word(Phase.TLS, exc) == "plaintext_peer" or exc.reason == "HTTPS_PROXY_REQUEST"
    ):
        return PlaintextBoundaryError(
            f"the peer sent plaintext where its TLS handshake should be ({exc.reason}); the connection was closed"
        )
    return exc


def _out_of_time(seconds: float) -> PhaseTimeoutError:
    return PhaseTimeoutError(
        f"TLS handshake was not over after {seconds:.2f} s; the connection was closed", phase=Phase.TLS, budget=seconds
    )
