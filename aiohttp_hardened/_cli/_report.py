"""What a probe found, in words and as JSON."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aiohttp_hardened import Phase
from aiohttp_hardened._cli._console import say, say_title
from aiohttp_hardened._cli._waterfall import draw, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from aiohttp_hardened import PhaseRecord
    from aiohttp_hardened._cli._failure import Failure
    from aiohttp_hardened._cli._waterfall import Waterfall


@dataclass
class Probe:
    """One request, with what came of it.

    Args:
        url: The URL that was asked for, redacted.
        status: The last response's; ``None``: there was none.
        failure: Why it did not go well.
        waterfalls: Its attempts.
    """

    url: str
    status: int | None
    failure: Failure | None
    waterfalls: list[Waterfall]

    @property
    def ok(self) -> bool:
        """Whether all went well."""
        return self.failure is None

    @property
    def reused(self) -> bool:
        """Whether the last attempt went over a connection that had served before."""
        last = self.waterfalls[-1].request if self.waterfalls else None
        return last is not None and last.reused


def show(console: Console, probes: Sequence[Probe]) -> None:
    """Draw each way that requests went once, then name failures, then sum up.

    Args:
        console: Where.
        probes: In the order in which they were made.
    """
    alike: dict[tuple[object, ...], list[Probe]] = {}
    for each in probes:
        alike.setdefault((each.url, *(waterfall.story() for waterfall in each.waterfalls)), []).append(each)
    for number, (first, *others) in enumerate(alike.values()):
        if number:
            console.print()
        for waterfall in first.waterfalls:
            draw(console, waterfall)
        if first.failure is not None:
            show_failure(console, first.failure)
        if others:
            console.print(f" and {len(others)} more like it", style="bright_black")
    if len(probes) > 1:
        for url in dict.fromkeys(each.url for each in probes):
            _show_summary(console, _summary(url, probes))


def show_failure(console: Console, failure: Failure) -> None:
    """Name the failed phase in one line, and what the exception says in another.

    A terminal gets lines that fit it; a file or a pipe gets whole ones.
    """
    for text, style in ((str(failure), "red"), (failure.message, "bright_black")):
        if console.is_terminal:
            say(console, text, style=style)
        elif text:
            console.print(f" {text}", soft_wrap=True)


def as_json(probes: Sequence[Probe], *, ok: bool) -> dict[str, Any]:
    """Return the document whose fields ``probe --help`` lists.

    Args:
        probes: In the order in which they were made.
        ok: Whether all went well, and none is missing.
    """
    return {
        "ok": ok,
        "probes": [_probe_as_json(each) for each in probes],
        "summaries": [_summary(url, probes) for url in dict.fromkeys(each.url for each in probes)],
    }


def _summary(url: str, probes: Sequence[Probe]) -> dict[str, Any]:
    chosen = [each for each in probes if each.url == url]
    durations: dict[Phase, list[float]] = {phase: [] for phase in Phase}
    for each in chosen:
        for waterfall in each.waterfalls:
            for record in waterfall.records:
                durations[record.phase].append(record.duration)
    return {
        "url": url,
        "requests": len(chosen),
        "ok": sum(each.ok for each in chosen),
        "reused": sum(each.reused for each in chosen),
        "phases": {
            phase.value: {
                "count": len(values),
                "min_s": min(values),
                "median_s": statistics.median(values),
                "max_s": max(values),
            }
            for phase, values in durations.items()
            if values
        },
    }


def _show_summary(console: Console, summary: dict[str, Any]) -> None:
    console.print()
    say_title(console, summary["url"])
    console.print(
        f" {summary['requests']} requests, {summary['ok']} went well, {summary['reused']} on a reused connection"
    )
    console.print(f"   {'phase':18}{'n':>6}{'min':>13}{'median':>13}{'max':>13}", style="bright_black")
    for phase, values in summary["phases"].items():
        figures = "".join(f"{milliseconds(values[key]):>13}" for key in ("min_s", "median_s", "max_s"))
        console.print(f"   {phase:18}{values['count']:>6}{figures}")


def _probe_as_json(probe: Probe) -> dict[str, Any]:
    failure = probe.failure
    return {
        "url": probe.url,
        "ok": probe.ok,
        "status": probe.status,
        "failure": failure
        and {
            "phase": failure.phase.value,
            "error_type": failure.word,
            "meaning": failure.meaning,
            "look_at": failure.look_at,
            "message": failure.message,
        },
        "attempts": [_attempt_as_json(each) for each in probe.waterfalls],
    }


def _attempt_as_json(waterfall: Waterfall) -> dict[str, Any]:
    request = waterfall.request
    return {
        "method": waterfall.method,
        "url": waterfall.url,
        "status": request and request.status_code,
        "reused": request is not None and request.reused,
        "resend_count": waterfall.resend_count,
        "phases": [_record_as_json(each) for each in waterfall.records],
    }


def _record_as_json(record: PhaseRecord) -> dict[str, Any]:
    return {
        "phase": record.phase.value,
        "start_ns": record.start_ns,
        "duration_s": record.duration,
        "server_address": record.server_address,
        "server_port": record.server_port,
        "error_type": record.error_type,
        "cancelled": record.cancelled,
        "attributes": dict(record.attributes),
        "events": [
            {"name": each.name, "time_ns": each.time_ns, "attributes": dict(each.attributes)} for each in record.events
        ],
    }
