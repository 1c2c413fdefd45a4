"""Endings of a request that has a body: a slow sender is not a slow server."""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import replace
from typing import TYPE_CHECKING

import aiohttp
import pytest

from aiohttp_hardened import Phase, TimeoutSettings
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, raw_server
from aiohttp_hardened.timing import RequestRecord
from tests.e2e._ending import BUDGET, Ending, post
from tests.e2e._table import Row, Table

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    Peer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]]

endings = Table()

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


async def slowly(seconds: float, *, pieces: int = 4) -> AsyncGenerator[bytes]:
    """Give a body that takes its time."""
    for _ in range(pieces):
        await asyncio.sleep(seconds / pieces)
        yield b"x" * 1000


async def endlessly() -> AsyncGenerator[bytes]:
    """Give a body that goes on until nobody takes it; a piece at a time, so that its end is seen."""
    while True:
        yield b"x" * 1000
        await asyncio.sleep(0.01)


def answers(*what: bytes, then: bytes = b"", body: bytes | None = None) -> Peer:
    """Make a peer that answers a request's head, reads its body where there is one to read, and answers again."""

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for each in what:
            writer.write(each)
        if body is not None:
            await reader.readuntil(body)
            writer.write(then)
        await reader.read(1 << 20)
        while await reader.read(1 << 16):
            pass

    return behave


# --- sent to its end


@endings.row(
    """
    POST 200: upload complete
      connection setup
        TCP connect
      response body: complete
    """
)
async def upload_of_bytes(ending: Ending) -> None:
    async with HTTPServer() as server:
        await post(await ending.session(), server.url("/echo"), b"hello")


@endings.row(
    """
    POST 200: upload complete
      connection setup
        TCP connect
      response body: complete
    POST 200: reused, upload complete
      response body: complete
    """
)
async def upload_that_is_slow(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        await post(session, server.url("/echo"), slowly(0.2))
        await post(session, server.url("/echo"), b"hello")
    slow, quick = (each for each in ending.recorder.records if isinstance(each, RequestRecord))
    seconds = slow.attributes["aiohttp.client.upload.duration"]
    assert 0.15 < seconds <= slow.duration
    assert quick.attributes["aiohttp.client.upload.duration"] < quick.duration


@endings.row(
    """
    POST 307: upload complete
      connection setup
        TCP connect
      response body: complete
    POST 200: resend 1, reused, upload complete
      response body: complete
    """
)
async def upload_that_is_sent_again(ending: Ending) -> None:
    async with HTTPServer() as server:
        await post(await ending.session(), server.url("/redirect?status=307&to=/echo"), b"hello")


@endings.row(
    """
    POST: upload complete ! aiohttp.SocketTimeoutError
      connection setup
        TCP connect
    """,
    raises=aiohttp.SocketTimeoutError,
    failed=Phase.REQUEST,
    note=["waiting for the response of POST ", ": the read budget of 0.20 s ran out (queue 0.0 ms, tcp ", ", upload "],
    cause=(Phase.REQUEST, BUDGET),
)
async def server_that_is_slow(ending: Ending) -> None:
    async with raw_server(answers()) as (host, port):
        await post(await ending.session(ending.short), f"http://{host}:{port}/", slowly(0.05))


@endings.row(
    """
    POST 200: upload complete
      connection setup
        TCP connect
      response body: complete
    """
)
async def upload_that_outlasts_the_read_budget(ending: Ending) -> None:
    """Nothing is read while the caller's body is being made, and that is not the server's fault."""
    async with HTTPServer() as server:
        await post(await ending.session(ending.short), server.url("/echo"), slowly(2 * BUDGET))


# --- not sent to its end


@endings.row(
    """
    POST: upload abandoned ! aiohttp.ClientConnectionError
      connection setup
        TCP connect
    """,
    raises=aiohttp.ClientConnectionError,
    failed=Phase.REQUEST,
    note=["sending the body of POST {where} failed after ", " ms: aiohttp.ClientConnectionError (queue 0.0 ms, tcp "],
)
async def upload_whose_source_fails(ending: Ending) -> None:
    async def fails() -> AsyncGenerator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    async with raw_server(answers()) as (host, port):
        ending.where = f"{host}:{port}"
        await post(await ending.session(), f"http://{host}:{port}/", fails())


@endings.row(
    """
    POST 413: upload overtaken ! 413
      connection setup
        TCP connect
      response body: complete
    """
)
async def upload_that_the_server_refuses_early(ending: Ending) -> None:
    async with raw_server(answers(TOO_LARGE)) as (host, port):
        await post(await ending.session(), f"http://{host}:{port}/", endlessly())


@endings.row(
    """
    POST 200: upload overtaken
      connection setup
        TCP connect
      response body: complete
    """
)
async def upload_that_goes_on_behind_the_response_s_head(ending: Ending) -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
    async with raw_server(answers(head, body=b"0\r\n\r\n", then=b"ok")) as (host, port):
        await post(await ending.session(), f"http://{host}:{port}/", slowly(0.1))


@endings.row(
    """
    POST: upload cut ! aiohttp.ClientOSError
      connection setup
        TCP connect
    """,
    raises=aiohttp.ClientOSError,
    failed=Phase.REQUEST,
    note=["sending the body of POST {where} failed after "],
)
async def upload_that_the_server_cuts(ending: Ending) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        # Whether a close is a reset or an orderly end would be a matter of what was read.
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with raw_server(hang_up) as (host, port):
        ending.where = f"{host}:{port}"
        await post(await ending.session(), f"http://{host}:{port}/", endlessly())


@endings.row(
    """
    POST: upload cut ! TimeoutError
      connection setup
        TCP connect
    """,
    raises=TimeoutError,
    failed=Phase.REQUEST,
    note=["sending the body of POST ", " timed out: the total budget of 0.20 s ran out"],
)
async def total_runs_out_while_sending(ending: Ending) -> None:
    async with raw_server(answers()) as (host, port):
        session = await ending.session(replace(ending.settings, timeouts=TimeoutSettings(total=BUDGET)))
        await post(session, f"http://{host}:{port}/", endlessly())


@endings.row(
    """
    POST: upload cancelled, cancelled
      connection setup
        TCP connect
    """,
    raises=asyncio.CancelledError,
)
async def cancelled_while_sending(ending: Ending) -> None:
    async with raw_server(answers()) as (host, port):
        task = asyncio.create_task(post(await ending.session(), f"http://{host}:{port}/", endlessly()))
        await ending.until(Phase.SETUP)
        await asyncio.sleep(0.05)
        task.cancel()
        await task


# --- only when the server says so


@endings.row(
    """
    POST 200: upload complete
      connection setup
        TCP connect
      response body: complete
    """
)
async def expect_that_is_met(ending: Ending) -> None:
    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.2)
        writer.write(CONTINUE)
        await reader.readuntil(b"hello")
        writer.write(OK)
        await reader.read()

    async with raw_server(behave) as (host, port):
        await post(await ending.session(), f"http://{host}:{port}/", b"hello", expect100=True)
    (request,) = ending.recorder.of(Phase.REQUEST)
    seconds = request.attributes["aiohttp.client.upload.duration"]
    assert isinstance(seconds, float)
    assert seconds < request.duration - 0.15  # waiting for leave to send is waiting for the server


@endings.row(
    """
    POST 417 ! 417
      connection setup
        TCP connect
      response body: complete
    """
)
async def expect_that_is_refused(ending: Ending) -> None:
    refusal = b"HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n"
    async with raw_server(answers(refusal)) as (host, port):
        await post(await ending.session(), f"http://{host}:{port}/", b"hello", expect100=True)


@endings.row(
    """
    POST 200
      connection setup
        TCP connect
      response body: complete
    """
)
async def expect_that_is_answered_at_once(ending: Ending) -> None:
    async with raw_server(answers(OK)) as (host, port):
        await post(await ending.session(), f"http://{host}:{port}/", b"hello", expect100=True)


@endings.row(
    """
    POST ! aiohttp.SocketTimeoutError
      connection setup
        TCP connect
    """,
    raises=aiohttp.SocketTimeoutError,
    failed=Phase.REQUEST,
    note=["waiting for the 100 Continue of POST {where} timed out: the read budget of 0.20 s ran out"],
    cause=(Phase.REQUEST, BUDGET),
)
async def expect_that_is_never_answered(ending: Ending) -> None:
    async with raw_server(answers()) as (host, port):
        ending.where = f"{host}:{port}"
        await post(await ending.session(ending.short), f"http://{host}:{port}/", b"hello", expect100=True)


@endings.row(
    """
    POST 200: upload complete
      connection setup
        TCP connect
      response body: complete
    """
)
async def expect_that_is_met_before_a_slow_upload(ending: Ending) -> None:
    """The answer to the expectation was read in time; what comes then is the caller's time."""
    async with raw_server(answers(CONTINUE, body=b"0\r\n\r\n", then=OK)) as (host, port):
        session = await ending.session(ending.short)
        await post(session, f"http://{host}:{port}/", slowly(2 * BUDGET), expect100=True)


@endings.row(
    """
    POST: cancelled
      connection setup
        TCP connect
    """,
    raises=asyncio.CancelledError,
)
async def cancelled_while_waiting_for_the_expectation(ending: Ending) -> None:
    async with raw_server(answers()) as (host, port):
        session = await ending.session()
        task = asyncio.create_task(post(session, f"http://{host}:{port}/", b"hello", expect100=True))
        await ending.until(Phase.SETUP)
        await asyncio.sleep(0.05)
        task.cancel()
        await task


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A request with a body ends in the words of its row, and says how long the sender took."""
    await Ending(ca).check(row)
