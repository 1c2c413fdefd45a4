"""Endings of a websocket: the upgrade is the request, its life is a record of its own."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import struct
import warnings
from contextlib import asynccontextmanager
from dataclasses import replace
from socket import SO_LINGER, SOL_SOCKET
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import Phase, TimeoutSettings
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, raw_server, server_context
from tests.e2e._ending import BUDGET, Ending
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]

endings = Table()

GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
TEXT, CLOSE = 0x1, 0x8


def frame(opcode: int, payload: bytes = b"") -> bytes:
    """Return an unfragmented frame as servers send it."""
    if len(payload) < 126:
        return bytes([0x80 | opcode, len(payload)]) + payload
    return bytes([0x80 | opcode, 127]) + struct.pack(">Q", len(payload)) + payload


def close_frame(code: int) -> bytes:
    return frame(CLOSE, struct.pack(">H", code))


@asynccontextmanager
async def websocket_peer(behave: Peer, *, ending: Ending | None = None) -> AsyncGenerator[str]:
    """Accept upgrades, and then do as it is told; give the URL."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        key = {name.lower(): value for name, value in fields.items()}[b"sec-websocket-key"]
        accept = base64.b64encode(hashlib.sha1(key + GUID, usedforsecurity=False).digest())
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        await behave(reader, writer)

    context = None if ending is None else server_context(ending.ca.issue("127.0.0.1"))
    async with raw_server(serve, ssl_context=context) as (host, port):
        yield f"{'http' if context is None else 'https'}://{host}:{port}/"


async def say_nothing(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


def says(what: bytes) -> Peer:
    """Make a peer that sends bytes, and hangs up when the client does."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(what)
        await say_nothing(reader, writer)

    return behave


def hangs_up_after(what: bytes = b"") -> Peer:
    """Make a peer that sends bytes and closes the connection at once."""

    async def behave(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(what)
        await writer.drain()
        writer.close()

    return behave


LIFE = """
    GET 101
      connection setup
        TCP connect
      websocket: {}
    """


# --- closed by a handshake


@endings.row(LIFE.format("1001, complete"))
async def websocket_closed_by_the_server(ending: Ending) -> None:
    async with websocket_peer(says(close_frame(1001))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.CLOSE


@endings.row(LIFE.format("1011, complete ! 1011"))
async def websocket_closed_by_a_server_that_fails(ending: Ending) -> None:
    async with websocket_peer(says(close_frame(1011))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            assert (await socket.receive()).data == 1011


@endings.row(LIFE.format("1005, complete"))
async def websocket_closed_without_a_code(ending: Ending) -> None:
    async with websocket_peer(says(frame(CLOSE))) as url:
        session = await ending.session()
        # aiohttp waits for a second one when the first has no code.
        async with session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=0.05)) as socket:
            await socket.receive()


@endings.row(LIFE.format("4001, complete"))
async def websocket_closed_with_a_code_of_the_application(ending: Ending) -> None:
    async with websocket_peer(says(close_frame(4001))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await socket.receive()


@endings.row(LIFE.format("1000, complete"))
async def websocket_whose_goodbye_is_read_late(ending: Ending) -> None:
    async with websocket_peer(hangs_up_after(frame(TEXT, b"last") + close_frame(1000))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await ending.until(Phase.BODY)
            assert (await socket.receive()).data == "last"


@endings.row(LIFE.format("1000, complete"))
async def websocket_closed_while_another_task_receives(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        socket = await session.ws_connect(server.url("/ws"))
        receiving = asyncio.create_task(socket.receive())
        await asyncio.sleep(0)
        await socket.close()
        assert (await receiving).type is aiohttp.WSMsgType.CLOSING


@endings.row(LIFE.format("1000, complete"))
async def websocket_closed_by_an_error_of_the_caller(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        with pytest.raises(ZeroDivisionError):
            async with session.ws_connect(server.url("/ws")):
                raise ZeroDivisionError


@endings.row(LIFE.format("1000, complete"))
async def websocket_whose_reader_fell_behind(ending: Ending) -> None:
    async with websocket_peer(says(frame(TEXT) * 2000 + close_frame(1000))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await asyncio.sleep(0.05)
            assert len([message async for message in socket]) == 2000
            assert socket.close_code == 1000


# --- cut


@endings.row(LIFE.format("cut ! aiohttp.ServerDisconnectedError"))
async def websocket_cut_by_the_server(ending: Ending) -> None:
    async with websocket_peer(hangs_up_after(frame(TEXT, b"and"))) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            assert (await socket.receive()).data == "and"
            await socket.receive()


@endings.row(
    """
    GET 101
      connection setup
        TCP connect
        TLS handshake
      websocket: cut ! aiohttp.ServerDisconnectedError
    """
)
async def websocket_over_tls_cut_by_the_server(ending: Ending) -> None:
    async with websocket_peer(hangs_up_after(), ending=ending) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await socket.receive()


@endings.row(LIFE.format("cut ! aiohttp.ClientOSError"))
async def websocket_reset_by_the_server(ending: Ending) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with websocket_peer(reset) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await socket.send_str("x" * 100)
            await socket.receive()


@endings.row(LIFE.format("cut ! aiohttp.ServerTimeoutError"))
async def websocket_whose_heartbeat_is_not_answered(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()
        async with session.ws_connect(url, heartbeat=0.1) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.ERROR


@endings.row(LIFE.format("cut ! aiohttp.WebSocketError"))
async def websocket_that_speaks_nonsense(ending: Ending) -> None:
    async with websocket_peer(says(b"\xff\xff\xff\xff")) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.ERROR


@endings.row(LIFE.format("cut ! aiohttp.WebSocketError"))
async def websocket_with_a_message_that_is_too_big(ending: Ending) -> None:
    async with websocket_peer(says(frame(TEXT, b"x" * 1000))) as url:
        session = await ending.session()
        async with session.ws_connect(url, max_msg_size=100) as socket:
            assert (await socket.receive()).type is aiohttp.WSMsgType.ERROR


@endings.row(LIFE.format("cut ! TimeoutError"), raises=TimeoutError)
async def websocket_with_nothing_to_receive(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()
        async with session.ws_connect(url) as socket:
            await socket.receive(timeout=0.05)


@endings.row(LIFE.format("cut ! TimeoutError"))
async def websocket_whose_goodbye_is_not_answered(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()
        async with session.ws_connect(url, timeout=aiohttp.ClientWSTimeout(ws_close=0.05)):
            pass


# --- given up


@endings.row(LIFE.format("cancelled"), raises=asyncio.CancelledError)
async def websocket_cancelled_while_receiving(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()

        async def receive() -> None:
            async with session.ws_connect(url) as socket:
                await socket.receive()

        task = asyncio.create_task(receive())
        await ending.until(Phase.REQUEST)
        await asyncio.sleep(0.02)
        task.cancel()
        await task


@endings.row(LIFE.format("cancelled"))
async def websocket_under_the_callers_own_timeout(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()

        async def receive() -> None:
            async with asyncio.timeout(None) as limit, session.ws_connect(url) as socket:
                limit.reschedule(asyncio.get_running_loop().time() + 0.05)
                await socket.receive()

        with pytest.raises(TimeoutError):
            await receive()


@endings.row(LIFE.format("abandoned"))
async def websocket_whose_session_is_closed(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()
        socket = await session.ws_connect(url)
        await session.close()
        await ending.until(Phase.BODY)
        await socket.close()


@endings.row(LIFE.format("abandoned"))
async def websocket_that_is_forgotten(ending: Ending) -> None:
    async with websocket_peer(say_nothing) as url:
        session = await ending.session()
        socket = await session.ws_connect(url)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # aiohttp's own, of what is forgotten here
            del socket
            gc.collect()
        await ending.until(Phase.BODY)


# --- what limits it not


@endings.row(LIFE.format("1000, complete"))
async def websocket_that_outlives_every_budget_of_a_request(ending: Ending) -> None:
    short = TimeoutSettings(total=4 * BUDGET, read=BUDGET)
    async with HTTPServer() as server:
        session = await ending.session(replace(ending.settings, timeouts=short))
        async with session.ws_connect(server.url("/ws")) as socket:
            await asyncio.sleep(5 * BUDGET)
            await socket.send_str("still here")
            assert (await socket.receive()).data == "still here"


# --- what is none


@endings.row(
    """
    GET 101
      connection setup
        TCP connect
    """,
    raises=aiohttp.WSServerHandshakeError,
    failed=Phase.REQUEST,
)
async def upgrade_that_is_none(ending: Ending) -> None:
    async def wrong_key(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: wrong\r\n\r\n"
        )
        await reader.read()

    async with raw_server(wrong_key) as (host, port):
        session = await ending.session()
        await session.ws_connect(f"http://{host}:{port}/")


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A websocket's life ends once, in the words of its row, whoever ends it."""
    await Ending(ca).check(row)
