"""Addresses, peers and executors that fail in one precise way, made of real parts on loopback."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from aiohttp_hardened.testing._raw import raw_server

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Generator

__all__ = [
    "Address",
    "accept_queue_overflow",
    "dead_address",
    "full_default_executor",
    "plaintext_peer",
    "refusing_address",
    "stalled_tls",
]

_ANSWER: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nlate\n"


class Address(NamedTuple):
    """Where something listens, or does not."""

    host: str
    port: int


@contextmanager
def dead_address(host: str = "127.0.0.2", port: int = 0) -> Generator[Address]:
    """Give an address that drops every SYN, as an unplugged machine does.

    It is a listener whose accept queue is full; Linux then drops the SYNs of
    further connects (``tcp_conn_request`` in ``net/ipv4/tcp_input.c``).

    Args:
        host: A loopback address.
        port: The port of a live server on another loopback address, for a name
            with a dead and a live address; 0: any free one.
    """
    with ExitStack() as stack:
        listener = _listener(host, port)
        stack.callback(listener.close)
        _fill_accept_queue(listener, stack)
        yield Address(*listener.getsockname()[:2])


@contextmanager
def refusing_address(host: str = "127.0.0.1", port: int = 0) -> Generator[Address]:
    """Give an address that refuses connections, and that nothing else can take meanwhile.

    Args:
        host: A loopback address.
        port: Port; 0: any free one.
    """
    with socket.socket(_family(host)) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
        yield Address(*bound.getsockname()[:2])


@contextmanager
def stalled_tls(host: str = "127.0.0.1", port: int = 0) -> Generator[Address]:
    """Give an address that takes connections and never says a byte.

    The kernel completes the connects; nobody accepts them.

    Args:
        host: A loopback address.
        port: Port; 0: any free one.
    """
    with _listener(host, port, backlog=512) as listener:
        yield Address(*listener.getsockname()[:2])


@asynccontextmanager
async def plaintext_peer(
    greeting: bytes = b"220 plaintext.test ready\r\n", *, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[Address]:
    """Give an address that speaks plaintext where TLS is expected.

    Args:
        greeting: Sent to each connection at once.
        host: A loopback address.
        port: Port; 0: any free one.
    """

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        await writer.drain()
        await reader.read()

    async with raw_server(greet, host=host, port=port) as address:
        yield Address(*address)


@asynccontextmanager
async def accept_queue_overflow(
    *, drop_for: float = 0.4, ssl_context: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[Address]:
    """Give an HTTP server that drops SYNs at first, and then accepts.

    A connect that starts inside ``drop_for`` succeeds with the retransmission of
    its SYN, about a second later (RFC 6298: the first retransmission timeout).

    Args:
        drop_for: Seconds for which SYNs are dropped, from the start of the block.
        ssl_context: Speak TLS.
        host: A loopback address.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_ANSWER)
            await writer.drain()

    async def drain() -> None:
        await asyncio.sleep(drop_for)
        async with raw_server(answer, sock=listener, ssl_context=ssl_context):
            await over.wait()

    over = asyncio.Event()
    listener = _listener(host, 0)
    with ExitStack() as stack:
        stack.callback(listener.close)
        _fill_accept_queue(listener, stack)
        address = Address(*listener.getsockname()[:2])
        draining = asyncio.create_task(drain())
        try:
            yield address
        finally:
            over.set()
            draining.cancel()
            await asyncio.wait([draining])


@asynccontextmanager
async def full_default_executor(*, at_most: float = 10.0) -> AsyncGenerator[None]:
    """Keep every thread of the running loop's default executor busy.

    The executor has ``min(32, cpus + 4)`` threads (``ThreadPoolExecutor``); names
    that are looked up with ``loop.getaddrinfo`` wait behind them.

    Args:
        at_most: Seconds after which the threads are free again in any case.
    """
    loop = asyncio.get_running_loop()
    over = threading.Event()
    workers = min(32, (os.cpu_count() or 1) + 4)
    busy = [loop.run_in_executor(None, over.wait, at_most) for _ in range(workers)]
    try:
        yield
    finally:
        over.set()
        await asyncio.wait(busy)


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _listener(host: str, port: int, *, backlog: int = 0) -> socket.socket:
    listener = socket.socket(_family(host))
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def _fill_accept_queue(listener: socket.socket, stack: ExitStack) -> None:
    """Connect until a SYN is dropped."""
    for _ in range(8):
        client = socket.socket(listener.family)
        stack.callback(client.close)
        client.settimeout(0)
        client.connect_ex(listener.getsockname())
        _, connected, _ = select.select([], [client], [], 0.05)
        if not connected:
            return
    raise RuntimeError("this system does not drop SYNs when an accept queue is full (Linux does)")
