"""Records drawn as a waterfall: phase, bar, milliseconds, outcome."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.table import Table
from rich.text import Text

from aiohttp_hardened import Phase, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from aiohttp_hardened import PhaseRecord
    from aiohttp_hardened.timing import Attempt

_BAR: Final = 21
_INSIDE_SETUP: Final = (Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS)
_COLOURS: Final = {
    Phase.REQUEST: "blue",
    Phase.QUEUE: "magenta",
    Phase.SETUP: "cyan",
    Phase.DNS: "yellow",
    Phase.TCP: "green",
    Phase.TUNNEL: "bright_magenta",
    Phase.TLS: "bright_cyan",
    Phase.BODY: "white",
}


class Attempts:
    """A hook that keeps the records of each send attempt together."""

    def __init__(self) -> None:
        self.attempts: dict[int, list[PhaseRecord]] = {}
        self.urls: dict[int, str] = {}

    def on_request_start(self, attempt: Attempt) -> None:
        """Keep what an attempt is for."""
        self.attempts[attempt.request_id] = []
        self.urls[attempt.request_id] = f"{attempt.method} {attempt.url.with_query(None).with_fragment(None)}"

    def __call__(self, record: PhaseRecord) -> None:
        """Keep a record."""
        self.attempts.setdefault(record.request_id, []).append(record)

    def take(self) -> list[tuple[str, list[PhaseRecord]]]:
        """Return what was kept, attempt by attempt, and forget it."""
        taken = [(self.urls.get(number, ""), records) for number, records in self.attempts.items()]
        self.attempts, self.urls = {}, {}
        return taken


def draw(console: Console, title: str, records: Sequence[PhaseRecord]) -> None:
    """Draw the records of one attempt.

    Args:
        console: Where.
        title: Method and URL.
        records: In the order in which they came.
    """
    request = next((each for each in records if isinstance(each, RequestRecord)), None)
    console.print(
        Text.assemble(("  ", ""), (title, "bold"), ("  ", ""), outcome(request)), no_wrap=True, overflow="ellipsis"
    )
    if not records:
        return
    start = min(each.start_ns for each in records)
    length = max(max(each.end_ns for each in records) - start, 1)
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(width=17, no_wrap=True)
    table.add_column(width=_BAR, no_wrap=True)
    table.add_column(width=9, justify="right", no_wrap=True)
    table.add_column(width=29, no_wrap=True)
    for record in sorted(records, key=_order):
        indent = 4 + 2 * (record.phase in (Phase.QUEUE, Phase.SETUP)) + 4 * (record.phase in _INSIDE_SETUP)
        name = "handshake" if record.phase is Phase.TLS else record.phase.value
        name = "setup" if record.phase is Phase.SETUP else name
        table.add_row(
            " " * indent + name, _bar(record, start, length), f"{record.duration * 1e3:.1f} ms", detail(record)
        )
    console.print(table)


def _order(record: PhaseRecord) -> tuple[int, int]:
    # A parent goes before what it contains, though its record comes after.
    return (record.phase is Phase.BODY, record.start_ns * 10 + (record.phase in _INSIDE_SETUP))


def _bar(record: PhaseRecord, start: int, length: int) -> Text:
    begin = (record.start_ns - start) * _BAR // length
    end = max(-(-(record.end_ns - start) * _BAR // length), begin + 1)
    begin, end = min(begin, _BAR - 1), min(end, _BAR)
    colour = "red" if record.error_type else "bright_black" if record.cancelled else _COLOURS[record.phase]
    return Text(" " * begin + "━" * (end - begin), style=colour)


def outcome(request: RequestRecord | None) -> tuple[str, str]:
    """Return how an attempt ended, with its style."""
    if request is None:
        return "no outcome", "red"
    if request.cancelled:
        return "cancelled", "bright_black"
    if request.error_type is not None:
        return request.error_type, "red"
    return str(request.status_code), "green"


def detail(record: PhaseRecord) -> Text:
    """Return what a phase says of itself."""
    if record.cancelled:
        return Text("cancelled", style="bright_black")
    if record.error_type is not None:
        # Of the whole the title says it.
        whole = record.phase in (Phase.REQUEST, Phase.SETUP)
        return Text("" if whole else record.error_type, style="red")
    attributes = record.attributes
    parts: list[str] = []
    if isinstance(record, RequestRecord):
        parts += ["reused"] if record.reused else []
        parts += [f"resend {record.resend_count}"] if record.resend_count else []
    elif record.phase is Phase.DNS:
        parts.append(str(attributes.get("aiohttp.client.dns.source", "")))
    elif record.phase is Phase.TCP:
        parts += [event.name for event in record.events]
        retransmits = attributes.get("aiohttp.client.tcp.syn_retransmits")
        parts += [f"{retransmits} SYN again"] if retransmits else []
    elif record.phase is Phase.TLS:
        parts.append(f"TLS {attributes.get('tls.protocol.version', '?')}")
        parts += ["resumed"] if attributes.get("tls.resumed") else []
    elif record.phase is Phase.BODY:
        parts.append(str(attributes["aiohttp.client.body.outcome"]))
    return Text(", ".join(part for part in parts if part), style="bright_black")
