"""What a row of the table of endings is, and how a request that has ended is compared with it.

A row says the whole story as a tree of spans; what comes after each name is read off the span::

    GET 200: reused
      wait for connection ! timed_out
      connection setup
        DNS lookup: coalesced
        TLS handshake: cancelled
      response body: cut ! aiohttp.ClientPayloadError
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

    from aiohttp_hardened import Phase
    from tests.e2e._ending import Ending

    Scenario = Callable[[Ending], Awaitable[object]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One ending.

    Args:
        name: The test's id.
        scenario: Makes the requests; what it raises is the ending's exception.
        tree: The spans.
        attributes: By span name: what the last span of that name carries, among others.
        events: By span name: the names of its events, in order.
        raises: The exact type of the exception.
        failed: What ``failed_phase`` says of it.
        note: What the exception and its notes say; ``{where}`` is the scenario's.
        cause: Phase and budget of the ``PhaseTimeoutError`` that is its cause.
        reason: Of the ``DNSLookupError`` that is its ``os_error``.
    """

    name: str
    scenario: Scenario
    tree: str
    attributes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    events: Mapping[str, Sequence[str]] = field(default_factory=dict)
    raises: type[BaseException] | None = None
    failed: Phase | None = None
    note: Sequence[str] = ()
    cause: tuple[Phase, float] | None = None
    reason: str | None = None


class Table:
    """Rows, as a decorator for their scenarios."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def row(self, tree: str, **expected: Any) -> Callable[[Scenario], Scenario]:
        """Add the row of a scenario, under the scenario's name."""

        def add(scenario: Scenario) -> Scenario:
            self.add(scenario.__name__.replace("_", " "), scenario, tree, **expected)  # type: ignore[attr-defined]
            return scenario

        return add

    def add(self, name: str, scenario: Scenario, tree: str, **expected: Any) -> None:
        """Add a row."""
        self.rows.append(Row(name=name, scenario=scenario, tree=textwrap.dedent(tree).strip("\n").rstrip(), **expected))


def draw(spans: Iterable[ReadableSpan], caller: SpanContext) -> str:
    """Draw spans, each under its parent, in the order in which they started.

    Args:
        spans: All of them.
        caller: The caller's own, under which requests stand.
    """
    inner = sorted(
        (each for each in spans if each.context != caller), key=lambda each: (each.start_time, -each.end_time)
    )
    lines: list[str] = []

    def add(span: ReadableSpan, depth: int) -> None:
        lines.append("  " * depth + _line(span))
        for each in inner:
            if each.parent is not None and each.parent.span_id == span.context.span_id:
                add(each, depth + 1)

    for each in inner:
        if each.parent is None or each.parent.span_id == caller.span_id:
            add(each, 0)
    return "\n".join(lines)


def _line(span: ReadableSpan) -> str:
    attributes = span.attributes
    facts = list(_facts(span, attributes))
    words = [span.name]
    if "http.response.status_code" in attributes:
        words.append(str(attributes["http.response.status_code"]))
    text = " ".join(words) + (": " + ", ".join(facts) if facts else "")
    return f"{text} ! {attributes['error.type']}" if "error.type" in attributes else text


def _facts(span: ReadableSpan, attributes: Mapping[str, Any]) -> Iterator[str]:
    if "http.request.resend_count" in attributes:
        yield f"resend {attributes['http.request.resend_count']}"
    if span.kind is SpanKind.CLIENT and span.links:
        yield "reused"
    if "aiohttp.client.dns.source" in attributes:
        yield str(attributes["aiohttp.client.dns.source"])
    if span.parent is None:
        yield "background"
    if attributes.get("tls.resumed"):
        yield "resumed"
    if "aiohttp.client.upload.outcome" in attributes:
        yield f"upload {attributes['aiohttp.client.upload.outcome']}"
    if "aiohttp.client.websocket.close_code" in attributes:
        yield str(attributes["aiohttp.client.websocket.close_code"])
    outcome = attributes.get("aiohttp.client.body.outcome")
    if outcome is not None:
        yield str(outcome)
    elif is_cancelled(span):
        yield "cancelled"


def is_cancelled(span: ReadableSpan) -> bool:
    """Say whether the caller gave up."""
    return bool(span.attributes.get("aiohttp.client.cancelled", False))
