"""Good and bad requests on loopback, drawn as they happen."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rich.text import Text

from aiohttp_hardened import create_session
from aiohttp_hardened._cli._console import make_console, say
from aiohttp_hardened._cli._histograms import show_histograms
from aiohttp_hardened._cli._stage import ACTS, open_stage
from aiohttp_hardened._cli._waterfall import WaterfallHook, draw
from aiohttp_hardened.telemetry import MetricHook

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from opentelemetry.sdk.metrics.export import MetricReader
    from rich.console import Console

    from aiohttp_hardened._cli._stage import Act, Stage
    from aiohttp_hardened._cli._waterfall import Waterfall

_SECONDS_BETWEEN_ROUNDS: Final = 1.0
_FAILED, _USAGE = 1, 2


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; return 0 when each request ended as announced.

    Args:
        arguments: ``metrics_port`` and ``duration``.
    """
    console = make_console()
    reader = InMemoryMetricReader()
    readers: list[MetricReader] = [reader]
    stop: Callable[[], None] | None = None
    port: int | None = None
    if arguments.metrics_port is not None:
        try:
            prometheus, stop, port = _serve_metrics(arguments.metrics_port)
        except (ModuleNotFoundError, OSError) as exc:
            extra = "it needs pip install 'aiohttp-hardened[demo,prometheus]'"
            why = exc.strerror if isinstance(exc, OSError) else extra
            make_console(stderr=True).print(
                f"aiohttp-hardened demo: --metrics-port {arguments.metrics_port}: {why}", soft_wrap=True
            )
            return _USAGE
        readers.append(prometheus)
    show = Show(console, MeterProvider(readers), reader)
    try:
        asyncio.run(show.play(port, arguments.duration))
    except KeyboardInterrupt:
        # While it serves metrics, Ctrl-C is how to end it.
        if not show.over:
            raise
    finally:
        if stop is not None:
            stop()
        show.meters.shutdown()
    return _FAILED if show.surprises else 0


def _serve_metrics(port: int) -> tuple[MetricReader, Callable[[], None], int]:
    from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415  (an extra)
    from prometheus_client import start_http_server  # noqa: PLC0415  (an extra)

    server, thread = start_http_server(port, "127.0.0.1")

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return PrometheusMetricReader(), stop, server.server_port


class Show:
    """The acts, one after the other.

    Args:
        console: Where they are drawn.
        meters: What their metrics go to.
        reader: Where the metrics are read for the table.
    """

    def __init__(self, console: Console, meters: MeterProvider, reader: InMemoryMetricReader) -> None:
        self.meters = meters
        self.surprises = 0
        """Acts that did not end as announced."""
        self.over = False
        """Every act was drawn once."""
        self._console = console
        self._reader = reader
        self._waterfalls = WaterfallHook()
        self._hooks: list[Any] = [self._waterfalls, MetricHook(meter_provider=meters)]

    async def play(self, port: int | None, duration: float) -> None:
        """Draw every act once; then go on without drawing, where metrics are served.

        Args:
            port: Where; ``None``: nowhere.
            duration: Seconds to go on for.
        """
        async with AsyncExitStack() as stack:
            stage = await open_stage(stack)
            self._console.print("Each request is drawn: phase, bar, milliseconds, outcome.", style="bright_black")
            await self._round(stage, drawn=True)
            for act in ACTS:
                if act.name not in stage.urls:
                    say(self._console, f"{act.name}: this system cannot show it.", indent=0)
            show_histograms(self._console, self._reader)
            self.over = True
            if port is not None:
                self._console.print(
                    f"\nServing http://127.0.0.1:{port}/metrics for {duration:g} s; Ctrl-C ends it.", soft_wrap=True
                )
                await self._go_on(stage, duration)

    async def _round(self, stage: Stage, *, drawn: bool) -> None:
        """Play every act in a session of the round's own, so that the first one is cold."""
        async with create_session(stage.settings, hooks=self._hooks) as session:
            for act in ACTS:
                if act.name in stage.urls:
                    raised = await act.play(session, stage.urls[act.name])
                    waterfalls = self._waterfalls.take()
                    if drawn:
                        self._draw(act, waterfalls, raised)

    def _draw(self, act: Act, waterfalls: list[Waterfall], raised: BaseException | None) -> None:
        console = self._console
        console.print()
        console.print(Text.assemble((f"{act.name}: ", "bold cyan"), act.what_to_see), soft_wrap=True)
        for waterfall in waterfalls:
            draw(console, waterfall)
        if raised is not None:
            for line in (f"{type(raised).__name__}: {raised}", *getattr(raised, "__notes__", ())):
                say(console, line, style="bright_black")
        ended = waterfalls[-1].ending if waterfalls else "nothing"
        if ended != act.ending:
            self.surprises += 1
            say(console, f"This should have ended with {act.ending}, not with {ended}.", style="bold red")

    async def _go_on(self, stage: Stage, duration: float) -> None:
        until = time.monotonic() + duration
        while time.monotonic() < until:
            await self._round(stage, drawn=False)
            await asyncio.sleep(min(_SECONDS_BETWEEN_ROUNDS, max(0.0, until - time.monotonic())))
