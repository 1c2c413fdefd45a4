"""Records drawn as a waterfall: phase, bar, milliseconds, outcome."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rich.text import Text

from aiohttp_hardened import Phase, RequestRecord
from aiohttp_hardened._cli._console import say_title

if TYPE_CHECKING:
    from rich.console import Console
    from yarl import URL

    from aiohttp_hardened import PhaseRecord
    from aiohttp_hardened.timing import Attempt

_DEPTH: Final = {Phase.REQUEST: 0, Phase.BODY: 0, Phase.QUEUE: 1, Phase.SETUP: 1}
_DEEPEST: Final = 2
_NAME: Final = 1 + 2 + len(Phase.SETUP.value)
_MILLISECONDS: Final = len("12345.6 ms")
_BESIDE_THE_BAR: Final = _NAME + 1 + 1 + _MILLISECONDS + 2
_OUTCOME: Final = 31
"""The longest word of the closed lists is ``certificate_verification_failed``."""
_SHORTEST_BAR, _LONGEST_BAR = 10, 48
_MOST_WITH_TENTHS: Final = 99_999.95

_COLOURS: Final = {
    Phase.REQUEST: "blue",
    Phase.QUEUE: "magenta",
    Phase.SETUP: "cyan",
    Phase.DNS: "yellow",
    Phase.TCP: "green",
    Phase.TUNNEL: "bright_magenta",
    Phase.TLS: "bright_cyan",
    Phase.BODY: "default",
}
_FAILED, _CANCELLED = "red", "bright_black"
_LINE: Final = {(True, True): "━", (True, False): "╸", (False, True): "╺", (False, False): " "}
_PLAIN_LINE: Final = {(True, True): "=", (True, False): "=", (False, True): "=", (False, False): " "}


def shown_url(url: URL) -> str:
    """Return a URL without what is nobody's business: credentials, values of the query, fragment."""
    return str(url.with_user(None).with_query(dict.fromkeys(url.query, "REDACTED")).with_fragment(None))


@dataclass
class Waterfall:
    """One send attempt: a request's first, a redirect's hop, or a retry.

    Args:
        method: The request method.
        url: The final URL, redacted.
        resend_count: Attempts of the same request before this one.
        records: In the order in which they came.
    """

    method: str
    url: str
    resend_count: int
    records: list[PhaseRecord]

    @property
    def request(self) -> RequestRecord | None:
        """The record of the attempt as a whole."""
        return next((each for each in self.records if isinstance(each, RequestRecord)), None)

    @property
    def ending(self) -> str:
        """How the attempt ended: a status, an error's word, or ``cancelled``."""
        request = self.request
        if request is None:
            return "nothing"
        return "cancelled" if request.cancelled else request.error_type or str(request.status_code)

    def story(self) -> tuple[object, ...]:
        """Return what happened, without how long it took."""
        steps = tuple((each.phase, each.error_type, each.cancelled) for each in self.records)
        request = self.request
        return (self.method, self.url, steps, request and (request.status_code, request.reused))


class WaterfallHook:
    """A hook that keeps the records of each attempt together."""

    def __init__(self) -> None:
        self._kept: dict[int, Waterfall] = {}

    def on_request_start(self, attempt: Attempt) -> None:
        """Begin a waterfall."""
        self._kept[attempt.request_id] = Waterfall(attempt.method, shown_url(attempt.url), attempt.resend_count, [])

    def __call__(self, record: PhaseRecord, /) -> None:
        """Keep a record; a lookup that outlived its request belongs to no waterfall."""
        waterfall = self._kept.get(record.request_id)
        if waterfall is not None and not record.background:
            waterfall.records.append(record)

    def take(self) -> list[Waterfall]:
        """Return the waterfalls in the order in which they began, and forget them."""
        taken, self._kept = list(self._kept.values()), {}
        return taken


def draw(console: Console, waterfall: Waterfall) -> None:
    """Draw one attempt.

    Args:
        console: Where; 80 columns are enough, wider ones make the bars longer.
        waterfall: The attempt.
    """
    again = f"  (attempt {waterfall.resend_count + 1})" if waterfall.resend_count else ""
    say_title(console, f"{waterfall.method} {waterfall.url}", again)
    records = sorted(waterfall.records, key=lambda each: (each.start_ns, _depth(each)))
    if not records:
        console.print("   nothing was timed")
        return
    start = records[0].start_ns
    length = max(1, max(each.end_ns for each in records) - start)
    bar = min(max(console.width - _BESIDE_THE_BAR - _OUTCOME, _SHORTEST_BAR), _LONGEST_BAR)
    column = _BESIDE_THE_BAR + bar
    for record in records:
        style = _style(record)
        first, *more = _lines(outcome(record, waterfall), max(console.width - column, _OUTCOME))
        name = " " * (1 + 2 * _depth(record)) + record.phase.value
        row = Text.assemble(
            f"{name:{_NAME}} ",
            (_bar(record, start, length, bar, ascii_only=console.options.ascii_only), style),
            f" {milliseconds(record.duration):>{_MILLISECONDS}}  ",
            (first, style if style in (_FAILED, _CANCELLED) else ""),
        )
        row.rstrip()
        console.print(row, soft_wrap=True)
        for line in more:
            console.print(Text(" " * column + line, style=style), soft_wrap=True)


def milliseconds(seconds: float) -> str:
    """Return a duration with its unit, in ten characters at most."""
    value = seconds * 1e3
    return f"{value:.1f} ms" if value < _MOST_WITH_TENTHS else f"{value:.0f} ms"


def outcome(record: PhaseRecord, waterfall: Waterfall) -> list[str]:
    """Return how a phase ended, and what it says of itself.

    Args:
        record: The phase.
        waterfall: What it belongs to.
    """
    return [_ending(record, waterfall), *_details(record)]


def _lines(parts: list[str], width: int) -> list[str]:
    """Join parts with commas; a line ends between two parts where it can."""
    lines = [""]
    for part in parts:
        joined = f"{lines[-1]}, {part}" if lines[-1] else part
        if len(joined) <= width:
            lines[-1] = joined
        else:
            lines[-1] += "," if lines[-1] else ""
            lines += textwrap.wrap(part, width)
    return [line for line in lines if line] or [""]


def _ending(record: PhaseRecord, waterfall: Waterfall) -> str:
    if isinstance(record, RequestRecord) and record.status_code is not None:
        return str(record.status_code)
    if record.phase is Phase.BODY:
        return str(record.attributes.get("aiohttp.client.body.outcome", "ok"))
    if record.cancelled:
        return "cancelled"
    if record.error_type is None:
        return "ok"
    if record.phase in (Phase.REQUEST, Phase.SETUP):
        # Its word is the failed phase's, which stands further down, with the phase in front.
        for each in waterfall.records:
            if each is not record and each.error_type and record.error_type == f"{each.phase}_{each.error_type}":
                return f"failed in {each.phase}"
    return record.error_type


def _details(record: PhaseRecord) -> list[str]:
    attributes = record.attributes
    found: list[str] = []
    if isinstance(record, RequestRecord):
        found += ["reused"] if record.reused else []
    elif record.phase is Phase.SETUP:
        found += [event.name for event in record.events]
        found += ["by proxy"] if attributes.get("aiohttp.client.proxied") else []
    elif record.phase is Phase.DNS:
        found += _lookup_details(record)
    elif record.phase is Phase.TCP:
        found += _race_details(record)
    elif record.phase is Phase.TUNNEL:
        status = attributes.get("http.response.status_code")
        found += [f"status {status}"] if status is not None else []
    elif record.phase is Phase.TLS:
        version = attributes.get("tls.protocol.version")
        found += [f"TLS {version}"] if version is not None else []
        found += ["resumed"] if attributes.get("tls.resumed") else []
    elif record.error_type is not None:
        found.append(record.error_type)
    return found


def _lookup_details(record: PhaseRecord) -> list[str]:
    source = record.attributes.get("aiohttp.client.dns.source")
    answers = record.attributes.get("dns.answers")
    found = [str(source)] if source is not None else []
    if isinstance(answers, tuple):
        found.append(answers[0] if len(answers) == 1 else f"{len(answers)} addresses")
    return found


def _race_details(record: PhaseRecord) -> list[str]:
    attributes = record.attributes
    tried = attributes.get("aiohttp.client.tcp.addresses_tried", 1)
    found: list[str] = []
    if record.error_type is None or tried == 1:
        found.append(str(attributes.get("network.peer.address", "")))
    for event in record.events:
        what = event.attributes.get("error.type") or event.name.removeprefix("address ")
        if record.error_type is None or tried != 1:
            found.append(f"{event.attributes.get('network.peer.address')} {what}")
    again = attributes.get("aiohttp.client.tcp.syn_retransmits")
    found += [f"{again} SYN retransmission{'' if again == 1 else 's'}"] if again else []
    return [each for each in found if each]


def _depth(record: PhaseRecord) -> int:
    return _DEPTH.get(record.phase, _DEEPEST)


def _style(record: PhaseRecord) -> str:
    if record.cancelled:
        return _CANCELLED
    return _FAILED if record.error_type is not None else _COLOURS[record.phase]


def _bar(record: PhaseRecord, start: int, length: int, width: int, *, ascii_only: bool) -> str:
    """Return a bar to half a column; what is shorter than that is half a column long."""
    halves = 2 * width
    begin = min((record.start_ns - start) * halves // length, halves - 1)
    end = max(-(-(record.end_ns - start) * halves // length), begin + 1)
    line = _PLAIN_LINE if ascii_only else _LINE
    return "".join(line[begin <= half < end, begin <= half + 1 < end] for half in range(0, halves, 2))
