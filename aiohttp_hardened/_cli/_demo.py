"""Good and bad requests on loopback, drawn as they happen."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rich.console import Console

from aiohttp_hardened import DNSSettings, Settings, TimeoutSettings, TLSSettings, create_session
from aiohttp_hardened._cli._histograms import table_of
from aiohttp_hardened._cli._waterfall import Attempts, draw
from aiohttp_hardened.telemetry import MetricHook
from aiohttp_hardened.testing import (
    FakeNameServer,
    TLSServer,
    dead_address,
    refusing_address,
    throwaway_ca,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Awaitable, Callable

    from opentelemetry.sdk.metrics.export import MetricReader

_SECONDS_BETWEEN_ROUNDS = 1.0


@dataclass
class _Stage:
    """What the requests are made with.

    Args:
        session: The one session of the demo.
        good: The server that everybody trusts.
        bad: A server whose certificate nobody trusts.
        refused: A port where nothing listens.
    """

    session: aiohttp.ClientSession
    good: TLSServer
    bad: TLSServer
    refused: int

    async def get(self, url: str) -> None:
        """Make a request to its end, whatever that is."""
        with suppress(aiohttp.ClientError, TimeoutError):
            async with self.session.get(url) as response:
                await response.read()

    async def cold(self) -> None:
        """Cold: a name is looked up, TCP and TLS are set up, then the request is sent."""
        await self.get(self.good.url(host="shop.test"))

    async def reused(self) -> None:
        """Reused: the same connection again; no phase but the request itself."""
        await self.get(self.good.url(host="shop.test"))

    async def coalesced(self) -> None:
        """Coalesced: two requests at once to a new name; one lookup, the other one waits for it."""
        url = self.good.url(host="pair.test")
        await asyncio.gather(self.get(url), self.get(url))

    async def dead_first_address(self) -> None:
        """Dead first address: it drops every SYN; after 0.25 s the next one is tried, and wins."""
        await self.get(self.good.url(host="twins.test"))

    async def refused_port(self) -> None:
        """Refused: nothing listens on that port."""
        await self.get(f"https://shop.test:{self.refused}/")

    async def certificate_refused(self) -> None:
        """Certificate refused: TCP stands, but nobody we trust signed the certificate."""
        await self.get(self.bad.url(host="forged.test"))

    async def cancelled(self) -> None:
        """Cancelled: the caller gives up after 0.1 s. Not an error."""
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await self.get(self.good.url("/slow?seconds=5", host="shop.test"))

    def acts(self) -> list[Callable[[], Awaitable[None]]]:
        """Return the acts in order."""
        return [
            self.cold,
            self.reused,
            self.coalesced,
            self.dead_first_address,
            self.refused_port,
            self.certificate_refused,
            self.cancelled,
        ]


def run(arguments: argparse.Namespace) -> int:
    """Run the demo.

    Args:
        arguments: ``metrics_port`` and ``duration``.
    """
    console = Console()
    reader = InMemoryMetricReader()
    readers: list[MetricReader] = [reader]
    stop: Callable[[], None] | None = None
    port: int | None = None
    if arguments.metrics_port is not None:
        try:
            prometheus, stop, port = _serve_metrics(arguments.metrics_port)
        except ModuleNotFoundError:
            console.print("--metrics-port needs the extra: pip install 'aiohttp-hardened[demo,prometheus]'")
            return 2
        except OSError as exc:
            console.print(f"--metrics-port {arguments.metrics_port}: {exc.strerror}")
            return 2
        readers.append(prometheus)
    meters = MeterProvider(readers)
    try:
        asyncio.run(_play(console, meters, reader, port, arguments.duration))
    finally:
        if stop is not None:
            stop()
        meters.shutdown()
    return 0


def _serve_metrics(port: int) -> tuple[MetricReader, Callable[[], None], int]:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415  (an extra)
    from prometheus_client import start_http_server  # noqa: PLC0415

    server, thread = start_http_server(port, "127.0.0.1")

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return PrometheusMetricReader(), stop, server.server_port


async def _play(
    console: Console, meters: MeterProvider, reader: InMemoryMetricReader, port: int | None, duration: float
) -> None:
    # A refused handshake is the server's business too; here it is part of the show.
    asyncio.get_running_loop().set_exception_handler(_ignore)
    attempts = Attempts()
    async with AsyncExitStack() as stack:
        stage = await _set_the_stage(stack, [attempts, MetricHook(meter_provider=meters)])
        for act in stage.acts():
            await act()
            console.print(f"\n{act.__doc__}", highlight=False)
            for title, records in attempts.take():
                draw(console, title, records)
        console.print()
        console.print(table_of(reader))
        if port is not None:
            console.print(
                f"\nServing http://127.0.0.1:{port}/metrics for {duration:g} s; Ctrl-C ends it.", highlight=False
            )
            await _go_on(stage, attempts, duration)


def _ignore(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Take what a loop complains of."""


async def _set_the_stage(stack: AsyncExitStack, hooks: list[Any]) -> _Stage:
    ca = stack.enter_context(throwaway_ca())
    names = stack.enter_context(FakeNameServer())
    good = await stack.enter_async_context(TLSServer(ca.issue("shop.test", "pair.test", "twins.test")))
    bad = await stack.enter_async_context(TLSServer(ca.issue_untrusted("forged.test")))
    dead = stack.enter_context(dead_address("127.0.0.2", good.port))
    refused = stack.enter_context(refusing_address())
    names.set("shop.test", good.host)
    names.set("pair.test", good.host, delay=0.02)
    names.set("twins.test", dead.host, good.host)
    names.set("forged.test", bad.host)
    settings = Settings(
        dns=DNSSettings(nameservers=(names.address,)),
        timeouts=TimeoutSettings(connect=3.0),
        tls=TLSSettings(trust="none", ca_files=(str(ca.ca_file),), name="demo"),
    )
    session = await stack.enter_async_context(create_session(settings, hooks=hooks))
    return _Stage(session, good, bad, refused.port)


async def _go_on(stage: _Stage, attempts: Attempts, duration: float) -> None:
    until = time.monotonic() + duration
    while time.monotonic() < until:
        for act in stage.acts():
            await act()
        attempts.take()
        await asyncio.sleep(min(_SECONDS_BETWEEN_ROUNDS, max(0.0, until - time.monotonic())))
