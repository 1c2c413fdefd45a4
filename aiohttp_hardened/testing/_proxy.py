"""Proxies: one that nobody here wrote, and one that does what a script says."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.testing._raw import raw_server

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncGenerator, Generator

    from aiohttp_hardened.testing._ca import CertificateFiles

__all__ = ["http_proxy", "scripted_proxy"]

_SECONDS_TO_START: Final = 20.0
_ESTABLISHED: Final = b"HTTP/1.1 200 Connection established\r\n\r\n"


@contextmanager
def http_proxy(certificate: CertificateFiles | None = None, *, basic_auth: str | None = None) -> Generator[str]:
    """Run a real proxy (``proxy.py``) in a process of its own; give its URL.

    It takes a moment to start, on the caller's thread.

    Args:
        certificate: Speak TLS to clients: an https proxy.
        basic_auth: ``user:password`` that clients must send; others get 407.
    """
    if importlib.util.find_spec("proxy") is None:
        raise ModuleNotFoundError("http_proxy() needs proxy.py: pip install proxy.py")
    with tempfile.TemporaryDirectory(prefix="http-proxy-") as directory:
        port_file = Path(directory, "port")
        command = [sys.executable, "-m", "proxy", "--hostname", "127.0.0.1", "--port", "0", "--log-level", "ERROR"]
        command += ["--port-file", str(port_file), "--num-acceptors", "1", "--num-workers", "1"]
        command += ["--data-dir", directory, "--timeout", "60"]
        if certificate is not None:
            command += ["--cert-file", str(certificate.cert_file), "--key-file", str(certificate.key_file)]
        if basic_auth is not None:
            command += ["--basic-auth", basic_auth]
        process = subprocess.Popen(  # noqa: S603  # our own arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            port = _wait_for_port(process, port_file)
            yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{port}"
        finally:
            # Its acceptors and workers are processes of the same group.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for_port(process: subprocess.Popen[bytes], port_file: Path) -> int:
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"proxy.py ended at once with status {process.returncode}")
        try:
            port = int(port_file.read_text("ascii"))
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except (OSError, ValueError):
            time.sleep(0.02)
        else:
            return port
    raise TimeoutError(f"proxy.py did not listen within {_SECONDS_TO_START:.0f} s")


@asynccontextmanager
async def scripted_proxy(
    answer: bytes | None = _ESTABLISHED,
    *,
    injected: bytes = b"",
    pause: float = 0.0,
    target: tuple[str, int] | None = None,
    ssl_context: ssl.SSLContext | None = None,
    heads: list[bytes] | None = None,
) -> AsyncGenerator[str]:
    r"""Run a CONNECT proxy that answers what the script says, and may tunnel then; give its URL.

    ::

        scripted_proxy(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
        scripted_proxy(injected=b"220 evil.test ready\r\n")

    Args:
        answer: What it answers to CONNECT; ``None``: nothing, ever.
        injected: Plaintext put between the answer and the tunnel.
        pause: Seconds between the answer and ``injected``; 0: one segment.
        target: Host and port where the tunnel leads, whatever CONNECT asks for;
            ``None``: nowhere, it is silent after its answer.
        ssl_context: Speak TLS to clients: an https proxy.
        heads: Each request's head is appended here, as it was received.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if heads is not None:
            heads.append(head)
        if answer is None:
            await reader.read()
            return
        if not pause:
            writer.write(answer + injected)
        else:
            writer.write(answer)
            await writer.drain()
            await asyncio.sleep(pause)
            writer.write(injected)
        await writer.drain()
        if target is None:
            await reader.read()
        else:
            await _tunnel(reader, writer, target)

    async with raw_server(serve, ssl_context=ssl_context) as (host, port):
        yield f"{'http' if ssl_context is None else 'https'}://{host}:{port}"


async def _tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: tuple[str, int]) -> None:
    upstream_reader, upstream_writer = await asyncio.open_connection(*target)
    pumps = [
        asyncio.create_task(_pump(reader, upstream_writer)),
        asyncio.create_task(_pump(upstream_reader, writer)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        upstream_writer.transport.abort()
        for pump in pumps:
            pump.cancel()
        await asyncio.wait(pumps)


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
