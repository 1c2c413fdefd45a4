"""A server's CPU per TLS handshake: a plain ``TCPSite`` beside a hardened one, with and without client resumption.

Both sites run in one process of their own, on two ports, and are asked in interleaved
rounds over new connections; CPU is the server process's own.
"""

from __future__ import annotations

import asyncio
import ssl
import statistics
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
from aiohttp import web

from aiohttp_hardened import Settings, TLSSettings, create_connector, create_session
from aiohttp_hardened.server import HardenedTCPSite, create_server_ssl_context
from aiohttp_hardened.testing import throwaway_ca
from benchmarks.handshakes import _socket

KEYS = ("ecdsa", "rsa")
ROUNDS = 10
"""Older CPythons leak at each read of a session; what is resumed here stays below the reads that a process is given."""
CONNECTIONS = 64
PARALLEL = 8
GOAL = 1.03


async def _answer(request: web.Request) -> web.Response:
    if request.path == "/cpu":
        return web.Response(text=str(time.process_time()))
    connection = request.get_extra_info("ssl_object")
    return web.Response(text="1" if connection.session_reused else "0")


async def _serve(certificate: str, key: str) -> None:
    app = web.Application()
    app.router.add_get("/{tail:.*}", _answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    plain.load_cert_chain(certificate, key)
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=plain, backlog=1024).start()
    hardened = create_server_ssl_context(certificate, key)
    await HardenedTCPSite(runner, "127.0.0.1", 0, ssl_context=hardened, hooks=()).start()
    print(*(address[1] for address in runner.addresses), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await runner.cleanup()


async def _wave(session: aiohttp.ClientSession, url: str) -> list[bool]:
    async def one() -> bool:
        async with session.get(url) as response:
            return await response.text() == "1"

    return await asyncio.gather(*(one() for _ in range(PARALLEL)))


async def _cpu(session: aiohttp.ClientSession, url: str) -> float:
    async with session.get(f"{url}cpu") as response:
        return float(await response.text())


def _cell(key: Any) -> dict[str, Any]:
    with throwaway_ca() as ca:
        leaf = ca.issue("127.0.0.1", key_type=key, intermediate=True)
        command = [sys.executable, "-m", "benchmarks.server", str(leaf.cert_file), str(leaf.key_file)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ports = dict(zip(("plain", "hardened"), map(int, process.stdout.readline().split()), strict=True))
            try:
                return asyncio.run(_measure(str(ca.ca_file), ports))
            finally:
                assert process.stdin is not None
                process.stdin.close()


async def _measure(ca_file: str, ports: dict[str, int]) -> dict[str, Any]:
    async with AsyncExitStack() as stack:
        sessions: dict[bool, aiohttp.ClientSession] = {}
        for resumption in (False, True):
            settings = Settings(tls=TLSSettings(trust="none", ca_files=(ca_file,), resumption=resumption))
            connector = create_connector(settings, force_close=True, limit=0, socket_factory=_socket)
            sessions[resumption] = await stack.enter_async_context(
                create_session(settings, hooks=(), connector=connector)
            )
        cells = [(site, resumption) for site in ports for resumption in sessions]
        cpu: dict[tuple[str, bool], list[float]] = {cell: [] for cell in cells}
        for number in range(ROUNDS + 1):
            for site, resumption in cells[number % 4 :] + cells[: number % 4]:
                session, url = sessions[resumption], f"https://127.0.0.1:{ports[site]}/"
                before = await _cpu(session, url)
                seen = [each for _ in range(CONNECTIONS // PARALLEL) for each in await _wave(session, url)]
                if number == 0:
                    continue  # the first round fills the ticket store
                assert all(seen) if resumption else not any(seen), (site, resumption, sum(seen))
                cpu[site, resumption].append((await _cpu(session, url) - before) / (len(seen) + 1))
        median = {cell: statistics.median(values) for cell, values in cpu.items()}
    return {
        "per_cpu_second": {f"{site}, {'resumed' if on else 'full'}": 1 / median[site, on] for site, on in cells},
        "hardened_over_plain": {
            name: median["hardened", on] / median["plain", on] for name, on in (("full", False), ("resumed", True))
        },
        "resumed_over_full": median["hardened", True] / median["hardened", False],
    }


def run() -> dict[str, Any]:
    """Measure with both kinds of keys, print, and return it."""
    figures: dict[str, Any] = {}
    for key in KEYS:
        figures[key] = cell = _cell(key)
        for name, value in cell["per_cpu_second"].items():
            print(f"{key:6} {name:20} {value:8.0f} handshakes (each with a request) per CPU second of the server")
        ratios = ", ".join(f"{name} {value:.3f}" for name, value in cell["hardened_over_plain"].items())
        print(
            f"{key:6} hardened site / TCPSite: {ratios} (goal {GOAL}); resumed / full {cell['resumed_over_full']:.2f}"
        )
    return figures


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
