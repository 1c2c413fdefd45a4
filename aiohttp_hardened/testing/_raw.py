"""Servers that speak bytes, and leave nothing behind."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import AsyncGenerator, Awaitable, Callable

__all__ = ["raw_server"]


@asynccontextmanager
async def raw_server(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[object]],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    sock: socket.socket | None = None,
    ssl_context: ssl.SSLContext | None = None,
) -> AsyncGenerator[tuple[str, int]]:
    """Run a handler for each connection; close them all, and end the handlers, at the end.

    A handler may return, be cut off or lose its peer; its connection is closed then.
    Any other error of a handler is raised at the end of the block.

    Args:
        handle: Takes the streams of one connection.
        host: A loopback address.
        port: Port; 0: any free one.
        sock: A socket that listens already; closed by the caller.
        ssl_context: Speak TLS.
    """
    running: set[asyncio.Task[None]] = set()
    errors: list[Exception] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        running.add(task)
        try:
            await handle(reader, writer)
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        except Exception as exc:  # noqa: BLE001  # raised below, where the test sees it
            errors.append(exc)
        finally:
            running.discard(task)
            # abort: closing TLS would wait for a peer that may never answer.
            writer.transport.abort()

    where: dict[str, Any] = {"sock": sock, "backlog": 1024} if sock is not None else {"host": host, "port": port}
    server = await asyncio.start_server(serve, ssl=ssl_context, **where)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
    if errors:
        raise errors[0]
