"""A TLS server in a process of its own that says of each connection whether it was resumed."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class _Answer(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /cpu "):
            body = str(time.process_time()).encode()
        else:
            body = b"1" if self._transport.get_extra_info("ssl_object").session_reused else b"0"
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))


async def _serve(certificate: str, key: str, version: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[version]
    server = await asyncio.get_running_loop().create_server(_Answer, "127.0.0.1", 0, ssl=context, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


@contextmanager
def tls_server(certificate: Path, key: Path, version: str) -> Iterator[int]:
    """Run the server; yield its port. It ends with this process at the latest.

    Args:
        certificate: PEM, with intermediates.
        key: PEM.
        version: The only version it speaks, as ``ssl.TLSVersion`` names it.
    """
    command = [sys.executable, "-m", "benchmarks._tls_server", str(certificate), str(key), version]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.communicate()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
