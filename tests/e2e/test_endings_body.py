"""Endings on a connection that stands: waiting for the response, and in its body."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from aiohttp_hardened import Phase
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, dead_address, raw_server
from tests.e2e._ending import BUDGET, Ending, get
from tests.e2e._table import Row, Table

endings = Table()


# --- the response's head


@endings.row(
    """
    GET ! aiohttp.SocketTimeoutError
      connection setup
        TCP connect
    """,
    raises=aiohttp.SocketTimeoutError,
    failed=Phase.REQUEST,
    note=["waiting for the response of GET {where} timed out: the read budget of 0.20 s ran out (queue 0.0 ms, tcp "],
    cause=(Phase.REQUEST, BUDGET),
)
async def headers_that_never_come(ending: Ending) -> None:
    async with HTTPServer() as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(ending.short), server.url("/slow?seconds=5"))


@endings.row(
    """
    GET ! aiohttp.ServerDisconnectedError
      connection setup
        TCP connect
    GET: resend 1 ! aiohttp.ServerDisconnectedError
      connection setup
        TCP connect
    """,
    raises=aiohttp.ServerDisconnectedError,
    failed=Phase.REQUEST,
    note=["waiting for the response of GET {where} failed after ", " ms: aiohttp.ServerDisconnectedError (queue 0.0"],
)
async def server_that_hangs_up(ending: Ending) -> None:
    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    async with raw_server(hang_up) as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), f"http://{host}:{port}/")


@endings.row(
    """
    GET ! aiohttp.ClientResponseError
      connection setup
        TCP connect
    """,
    raises=aiohttp.ClientResponseError,
    failed=Phase.REQUEST,
    note=["waiting for the response of GET {where} failed after "],
)
async def response_that_is_no_http(ending: Ending) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.test ready\r\n\r\n")
        await reader.read()

    async with raw_server(answer) as (host, port):
        ending.where = f"{host}:{port}"
        await get(await ending.session(), f"http://{host}:{port}/")


# --- its body


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: cut ! aiohttp.SocketTimeoutError
    """,
    raises=aiohttp.SocketTimeoutError,
    failed=Phase.BODY,
    note=["reading the body from {where} timed out: the read budget of 0.20 s ran out (queue 0.0 ms, tcp "],
    cause=(Phase.BODY, BUDGET),
)
async def body_that_stalls(ending: Ending) -> None:
    async with HTTPServer() as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(ending.short), server.url("/stream?chunks=3&seconds=5"))


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: cut ! aiohttp.ClientPayloadError
    """,
    raises=aiohttp.ClientPayloadError,
    failed=Phase.BODY,
    note=["reading the body from {where} failed after ", " ms: aiohttp.ClientPayloadError (queue 0.0 ms, tcp "],
)
async def body_cut_short(ending: Ending) -> None:
    async with HTTPServer() as server:
        ending.where = f"127.0.0.1:{server.port}"
        await get(await ending.session(), server.url("/cut"))


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: abandoned
    """
)
async def body_never_read(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        async with session.get(server.url("/stream?chunks=3&seconds=5")) as response:
            assert response.status == 200


@endings.row(
    """
    GET ! tcp_timed_out
      connection setup ! tcp_timed_out
        TCP connect ! timed_out
    GET 200
      connection setup
        TCP connect
      response body: abandoned
    """
)
async def body_never_read_while_another_failure_is_handled(ending: Ending) -> None:
    session = await ending.session(ending.short)
    async with HTTPServer() as server:
        with dead_address() as (host, port):
            try:
                await get(session, f"http://{host}:{port}/")
            except TimeoutError:
                async with session.get(server.url("/stream?chunks=3&seconds=5")) as response:
                    assert response.status == 200


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: abandoned
    """
)
async def body_dropped_by_the_caller_s_own_error(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        with pytest.raises(ZeroDivisionError):
            async with session.get(server.url("/stream?chunks=3&seconds=5")):
                raise ZeroDivisionError


@endings.row(
    """
    GET 200
      connection setup
        TCP connect
      response body: abandoned
    """
)
async def session_closed_under_a_body(ending: Ending) -> None:
    async with HTTPServer() as server:
        session = await ending.session()
        response = await session.get(server.url("/stream?chunks=3&seconds=5"))
        await session.close()
        response.close()


@pytest.mark.parametrize("row", endings.rows, ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA) -> None:
    """A response that is late, broken or dropped ends in the spans, records, metrics and words of its row."""
    await Ending(ca).check(row)
