"""The waterfall for endpoints of the user's own."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from typing import TYPE_CHECKING, Any, Final

import aiohttp
from rich.console import Console
from rich.progress import Progress
from yarl import URL

from aiohttp_hardened import (
    DNSSettings,
    Phase,
    RequestRecord,
    Settings,
    SettingsError,
    TimeoutSettings,
    TLSSettings,
    create_session,
    failed_phase,
)
from aiohttp_hardened._cli._advice import advice
from aiohttp_hardened._cli._waterfall import Attempts, draw

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from aiohttp_hardened import PhaseRecord

_FIRST_ERROR: Final = 400
_USAGE: Final = 2


class _Try:
    """One request of the probe, with what came of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.attempts: list[tuple[str, list[PhaseRecord]]] = []
        self.status: int | None = None
        self.failure: str | None = None
        self.phase: Phase | None = None

    @property
    def ok(self) -> bool:
        """Whether the last response came and was no error."""
        return self.failure is None and self.status is not None and self.status < _FIRST_ERROR

    @property
    def word(self) -> str | None:
        """The word of the phase that failed."""
        records = [record for _, records in self.attempts for record in records]
        return next((each.error_type for each in reversed(records) if each.phase is self.phase), None)


def run(arguments: argparse.Namespace) -> int:
    """Probe the URLs; return 0 only when all went well.

    Args:
        arguments: What ``probe --help`` lists.
    """
    errors = Console(stderr=True, highlight=False)
    try:
        settings = _settings(arguments)
        urls = [_url(text) for text in arguments.urls]
    except (SettingsError, ValueError) as exc:
        errors.print(f"aiohttp-hardened probe: {exc}")
        return _USAGE
    tries = asyncio.run(_probe(settings, urls, arguments))
    if arguments.json:
        print(json.dumps({"probes": [_as_json(each) for each in tries]}, indent=2))
    else:
        _show(Console(highlight=False), tries)
    return 0 if all(each.ok for each in tries) else 1


def _settings(arguments: argparse.Namespace) -> Settings:
    system = "system" in arguments.resolver
    servers = tuple(each for each in arguments.resolver if each != "system")
    return Settings(
        dns=DNSSettings(resolver="system" if system else "aiodns", nameservers=servers),
        timeouts=TimeoutSettings() if arguments.timeout is None else TimeoutSettings(total=arguments.timeout),
        tls=TLSSettings(
            trust="none" if arguments.ca_file else "certifi",
            ca_files=tuple(arguments.ca_file),
            client_cert=arguments.client_cert,
            client_key=arguments.client_key,
        ),
    )


def _url(text: str) -> URL:
    url = URL(text)
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(f"{text!r} is no URL that begins with http:// or https:// and names a host")
    return url


async def _probe(settings: Settings, urls: Sequence[URL], arguments: argparse.Namespace) -> list[_Try]:
    attempts = Attempts()
    tries: list[_Try] = []
    quiet = arguments.json or not sys.stderr.isatty() or len(urls) * arguments.n == 1
    with Progress(console=Console(stderr=True), transient=True, disable=quiet) as progress:
        task = progress.add_task("probing", total=len(urls) * arguments.n)
        async with create_session(settings, hooks=[attempts]) as session:
            for _ in range(arguments.n):
                for url in urls:
                    tries.append(await _one(session, url, arguments.proxy, attempts))
                    progress.advance(task)
    return tries


async def _one(session: aiohttp.ClientSession, url: URL, proxy: str | None, attempts: Attempts) -> _Try:
    found = _Try(str(url.with_user(None).with_query(None).with_fragment(None)))
    try:
        async with session.get(url, proxy=proxy) as response:
            found.status = response.status
            await response.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as exc:
        found.phase = failed_phase(exc)
        found.failure = next(iter(getattr(exc, "__notes__", ())), str(exc) or type(exc).__name__)
    found.attempts = attempts.take()
    return found


def _show(console: Console, tries: Sequence[_Try]) -> None:
    for each in tries:
        for title, records in each.attempts:
            draw(console, title, records)
        if each.failure is not None:
            console.print(f"  [red]failed[/red] in {each.phase or 'request'}: {each.failure}", soft_wrap=True)
            if each.phase is not None:
                console.print(f"  look at: {advice(each.phase, each.word)}", soft_wrap=True)
        elif not each.ok:
            console.print(f"  [red]failed[/red]: the server answered {each.status}")
    if len(tries) > 1:
        _summarise(console, tries)


def _summarise(console: Console, tries: Sequence[_Try]) -> None:
    durations: dict[Phase, list[float]] = {}
    reused = 0
    for each in tries:
        for _, records in each.attempts:
            for record in records:
                durations.setdefault(record.phase, []).append(record.duration * 1e3)
                reused += isinstance(record, RequestRecord) and record.reused
    good = sum(each.ok for each in tries)
    console.print(f"\n{len(tries)} requests, {good} went well, {reused} on a reused connection")
    console.print(f"  {'phase':18} {'n':>4} {'min':>9} {'median':>9} {'max':>9}  ms")
    for phase in Phase:
        values = durations.get(phase)
        if values:
            figures = (min(values), statistics.median(values), max(values))
            console.print(f"  {phase.value:18} {len(values):>4} " + " ".join(f"{each:>9.1f}" for each in figures))


def _as_json(found: _Try) -> dict[str, Any]:
    return {
        "url": found.url,
        "ok": found.ok,
        "status": found.status,
        "failed_phase": found.phase and found.phase.value,
        "error_type": found.word,
        "message": found.failure,
        "attempts": [[_record_as_json(each) for each in records] for _, records in found.attempts],
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
    }
