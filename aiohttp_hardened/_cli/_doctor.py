"""Findings in words, from a metrics endpoint or a finished probe run."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import aiohttp
from rich.text import Text

from aiohttp_hardened import HardenedError, Settings, TimeoutSettings, TLSSettings, create_session
from aiohttp_hardened._cli._console import make_console, say
from aiohttp_hardened._cli._examine_metrics import examine_metrics
from aiohttp_hardened._cli._examine_probe import examine_probe
from aiohttp_hardened._cli._exposition import parse
from aiohttp_hardened._cli._failure import without_secrets
from aiohttp_hardened.telemetry import _names

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from rich.console import Console

    from aiohttp_hardened._cli._exposition import Scrape
    from aiohttp_hardened._cli._findings import Finding

_FINDINGS, _UNREADABLE = 1, 2
_FIRST_ERROR: Final = 400
_TIMEOUTS: Final = TimeoutSettings(dns=2.0, tcp=2.0, tls=2.0, connect=3.0, read=5.0, total=10.0)
_ACCEPT: Final = {"Accept": "text/plain;version=0.0.4"}
_EXTRA: Final = "metrics are read with an extra: pip install 'aiohttp-hardened[demo,prometheus]'"
_SINCE: Final = {"totals": "since the process started", "interval": "between two looks", "probe": "in this probe"}


class Diagnosis(NamedTuple):
    """What was read, and what is wrong.

    Args:
        judged: ``totals``, ``interval`` or ``probe``.
        looked_at: How many requests, connection set-ups and lookups there were.
        findings: What is wrong.
    """

    judged: str
    looked_at: dict[str, int]
    findings: list[Finding]


def run(arguments: argparse.Namespace) -> int:
    """Print what is wrong; return 0 when nothing is, 1 with findings, 2 when the source cannot be read.

    Args:
        arguments: What ``doctor --help`` lists.
    """
    source: str = arguments.source
    shown = "standard input" if source == "-" else without_secrets(source)
    try:
        if _is_url(source):
            texts = asyncio.run(_fetch(source, arguments.interval, arguments.ca_file))
        elif arguments.interval is not None:
            raise ValueError("--interval looks twice at a metrics endpoint, and that is no URL")  # noqa: TRY301
        else:
            texts = [_read(source)]
        diagnosis = _diagnose(texts, time.time())
    except ModuleNotFoundError:
        return _unreadable(shown, _EXTRA)
    except (aiohttp.ClientError, HardenedError, OSError, ValueError) as exc:
        return _unreadable(shown, _words(exc))
    if arguments.json:
        print(json.dumps(_as_json(shown, diagnosis), indent=2), flush=True)
    else:
        _show(make_console(), shown, diagnosis)
    return _FINDINGS if diagnosis.findings else 0


def _is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def _unreadable(source: str, why: str) -> int:
    make_console(stderr=True).print(Text(f"aiohttp-hardened doctor: {source}: {why}"), soft_wrap=True)
    return _UNREADABLE


def _words(exc: BaseException) -> str:
    if isinstance(exc, OSError) and exc.strerror and not isinstance(exc, aiohttp.ClientError):
        return exc.strerror
    notes: Sequence[str] = getattr(exc, "__notes__", ())
    return without_secrets(next(iter(notes), "") or str(exc) or type(exc).__qualname__)


def _read(source: str) -> str:
    return sys.stdin.read() if source == "-" else Path(source).read_text("utf-8")


async def _fetch(url: str, interval: float | None, ca_file: str | None) -> list[str]:
    """Return what an endpoint says, once, or twice ``interval`` seconds apart."""
    tls = TLSSettings() if ca_file is None else TLSSettings(trust="none", ca_files=(ca_file,))
    settings = Settings(timeouts=_TIMEOUTS, tls=tls)
    async with create_session(settings, hooks=(), headers=_ACCEPT) as session:
        texts = [await _fetch_once(session, url)]
        if interval is not None:
            await asyncio.sleep(interval)
            texts.append(await _fetch_once(session, url))
        return texts


async def _fetch_once(session: aiohttp.ClientSession, url: str) -> str:
    async with session.get(url) as response:
        if response.status >= _FIRST_ERROR:
            raise ValueError(f"the endpoint answers with status {response.status}")
        return await response.text("utf-8")


def _diagnose(texts: Sequence[str], now: float) -> Diagnosis:
    document = _document(texts[0])
    if document is not None:
        return _diagnose_probe(document, now)
    try:
        *earlier, latest = [parse(text) for text in texts]
    except ValueError as exc:
        raise ValueError(f"neither metrics of aiohttp-hardened nor the JSON of a probe: {exc}") from None
    before = earlier[0] if earlier else None
    recent = latest if before is None else latest.since(before)
    looked_at = {
        "requests": _count(recent, _names.METRIC_REQUEST_DURATION),
        "setups": _count(recent, _names.METRIC_SETUP_DURATION),
        "lookups": _count(recent, _names.METRIC_DNS_DURATION),
    }
    found = examine_metrics(latest, before=before, now=now)
    return Diagnosis("totals" if before is None else "interval", looked_at, found.all())


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _diagnose_probe(document: Any, now: float) -> Diagnosis:
    try:
        phases = [each["phase"] for probe in document["probes"] for one in probe["attempts"] for each in one["phases"]]
        found = examine_probe(document, now=now)
    except (KeyError, TypeError, ValueError, AttributeError) as exc:
        raise ValueError(f"this JSON was not written by `aiohttp-hardened probe --json`: {exc!r}") from None
    counts = {"requests": "request", "setups": "connection setup", "lookups": "dns"}
    return Diagnosis("probe", {key: phases.count(phase) for key, phase in counts.items()}, found.all())


def _count(scrape: Scrape, metric: str) -> int:
    return int(sum(each.value for each in scrape.series(metric)))


def _as_json(source: str, diagnosis: Diagnosis) -> dict[str, Any]:
    return {
        "healthy": not diagnosis.findings,
        "source": source,
        "judged": diagnosis.judged,
        "looked_at": diagnosis.looked_at,
        "findings": [each.as_json() for each in diagnosis.findings],
    }


def _show(console: Console, source: str, diagnosis: Diagnosis) -> None:
    findings, looked_at = diagnosis.findings, diagnosis.looked_at
    amount = (
        f"{looked_at['requests']} requests, {looked_at['setups']} connection set-ups, {looked_at['lookups']} lookups"
    )
    since = _SINCE[diagnosis.judged]
    if not findings:
        say(console, f"{source}: healthy", style="bold green")
        nothing = not any(looked_at.values())
        say(console, f"{'Nothing to judge yet' if nothing else 'Nothing is wrong'}: {amount} {since}.")
        return
    say(console, f"{source}: {len(findings)} finding{'' if len(findings) == 1 else 's'}", style="bold red")
    say(console, f"{amount} {since}", style="bright_black")
    for finding in findings:
        console.print()
        say(console, f"{finding.title} [{finding.name}]", style="bold")
        for line in finding.lines():
            say(console, line, indent=3)
        say(console, f"What to do: {finding.fix}.", indent=3, style="cyan")
