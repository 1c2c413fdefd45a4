"""New TLS connections: resumption on, resumption off, and plain aiohttp with a shared context.

Over loopback sockets, server in its own process, no connection reuse. Each cell of the
matrix runs in a process of its own (older CPythons leak at each read of a session, and
bound resumption for it), and proves before it measures that resumption happens where
it is on and does not where it is off.
"""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp

from aiohttp_hardened import Settings, TLSSettings, create_connector, create_session
from aiohttp_hardened.testing import throwaway_ca
from benchmarks._tls_server import tls_server

PARALLEL = (1, 8, 64, 128)
VERSIONS = ("TLSv1_2", "TLSv1_3")
KEYS = ("ecdsa", "rsa")
ROUNDS = 8
CONNECTIONS = 64
"""Per contender and round, or one wave if that is more."""


def _socket(info: Any) -> socket.socket:
    """Make a socket whose port is free at once: thousands of connections would wait in TIME_WAIT."""
    sock = socket.socket(info[0], info[1], info[2])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return sock


async def _one(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(url) as response:
        return await response.read() == b"1"


async def _wave(session: aiohttp.ClientSession, url: str, parallel: int) -> list[bool]:
    return await asyncio.gather(*(_one(session, url) for _ in range(parallel)))


async def _server_cpu(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}cpu") as response:
        return float(await response.read())


async def _cell(parallel: int, version: str, key: Any) -> dict[str, Any]:
    with throwaway_ca() as ca:
        leaf = ca.issue("x.test", "127.0.0.1", key_type=key, intermediate=True)
        with tls_server(leaf.cert_file, leaf.key_file, version) as port:
            url = f"https://127.0.0.1:{port}/"
            trust = {"trust": "none", "ca_files": (str(ca.ca_file),)}
            shared = ssl.create_default_context(cafile=str(ca.ca_file))
            options: dict[str, Any] = {"force_close": True, "limit": 0, "socket_factory": _socket}

            def hardened(tls: TLSSettings) -> aiohttp.ClientSession:
                settings = Settings(tls=tls)
                return create_session(settings, hooks=(), connector=create_connector(settings, **options))

            async with AsyncExitStack() as stack:
                sessions = {
                    "on": await stack.enter_async_context(hardened(TLSSettings(**trust))),
                    "off": await stack.enter_async_context(hardened(TLSSettings(**trust, resumption=False))),
                    "plain": await stack.enter_async_context(
                        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=shared, **options))
                    ),
                }
                for name, session in sessions.items():
                    await _wave(session, url, parallel)
                    resumed = await _wave(session, url, parallel)
                    assert all(resumed) if name == "on" else not any(resumed), (name, sum(resumed), parallel)
                return await _measure(sessions, url, parallel)


async def _measure(sessions: dict[str, aiohttp.ClientSession], url: str, parallel: int) -> dict[str, Any]:
    waves = max(1, CONNECTIONS // parallel)
    client: dict[str, list[float]] = {name: [] for name in sessions}
    server: dict[str, list[float]] = {name: [] for name in sessions}
    wall: dict[str, list[float]] = {name: [] for name in sessions}
    resumed: list[bool] = []
    for number in range(ROUNDS):
        names = list(sessions)
        for name in names[number % 3 :] + names[: number % 3]:
            session = sessions[name]
            before = await _server_cpu(session, url)
            gc.collect()
            cpu, start = time.process_time(), time.perf_counter()
            found = [each for _ in range(waves) for each in await _wave(session, url, parallel)]
            count = len(found)
            wall[name].append((time.perf_counter() - start) / waves)
            client[name].append((time.process_time() - cpu) / count)
            server[name].append((await _server_cpu(session, url) - before) / count)
            if name == "on":
                resumed += found
    median = statistics.median
    return {
        "resumed": sum(resumed) / len(resumed),
        "client_cpu_us": {name: median(values) * 1e6 for name, values in client.items()},
        "server_cpu_us": {name: median(values) * 1e6 for name, values in server.items()},
        "wave_ms": {name: median(values) * 1e3 for name, values in wall.items()},
        "client_on_over_plain": median(client["on"]) / median(client["plain"]),
        "client_off_over_plain": median(client["off"]) / median(client["plain"]),
        "server_on_over_off": median(server["on"]) / median(server["off"]),
        "wall_on_over_off": median(wall["on"]) / median(wall["off"]),
    }


def run() -> dict[str, Any]:
    """Run the matrix, print it, and return it."""
    figures: dict[str, Any] = {}
    print(f"{'cell':28} {'resumed':>8} {'on/plain':>9} {'off/plain':>10} {'wall on/off':>12} {'server on/off':>14}")
    for version in VERSIONS:
        for key in KEYS:
            for parallel in PARALLEL:
                command = [sys.executable, "-m", "benchmarks.handshakes", str(parallel), version, key]
                done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
                if done.returncode:
                    raise RuntimeError(done.stderr)
                cell = json.loads(done.stdout)
                name = f"{version} {key} {parallel}"
                figures[name] = cell
                print(
                    f"{name:28} {cell['resumed']:8.1%} {cell['client_on_over_plain']:9.2f} "
                    f"{cell['client_off_over_plain']:10.2f} {cell['wall_on_over_off']:12.2f} "
                    f"{cell['server_on_over_off']:14.2f}",
                    flush=True,
                )
        cells = [cell for name, cell in figures.items() if name.startswith(version)]
        middle = statistics.median(cell["client_on_over_plain"] for cell in cells)
        print(f"{version}: client CPU, on over plain: median {middle:.2f}")
    return figures


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_cell(int(sys.argv[1]), sys.argv[2], sys.argv[3]))))
