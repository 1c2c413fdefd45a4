"""A hook that keeps what it gets, with assertions that say what is wrong."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.timing import Phase, RequestRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp_hardened.timing import Attempt, PhaseRecord

__all__ = ["ERROR_TYPES", "PhaseRecorder"]

ERROR_TYPES: Final[Mapping[Phase, frozenset[str]]] = {
    Phase.QUEUE: frozenset({"timed_out", "_OTHER"}),
    Phase.DNS: frozenset({
        "host_not_found", "no_data", "server_failure", "refused", "malformed_name", "timed_out", "_OTHER",
    }),
    Phase.TCP: frozenset({
        "connection_refused", "connection_reset", "host_unreachable", "network_unreachable",
        "address_not_available", "access_denied", "too_many_open_files", "timed_out", "_OTHER",
    }),
    Phase.TUNNEL: frozenset({
        "proxy_authentication_required", "proxy_rejected", "plaintext_after_connect", "timed_out", "_OTHER",
    }),
    Phase.TLS: frozenset({
        "certificate_expired", "certificate_not_yet_valid", "certificate_hostname_mismatch",
        "certificate_authority_invalid", "certificate_revoked", "certificate_verification_failed",
        "protocol_version_unsupported", "no_shared_cipher", "plaintext_peer", "client_certificate_rejected",
        "peer_connection_closed", "timed_out", "_OTHER",
    }),
}  # fmt: skip
"""The words that each phase's ``error_type`` may be; written down apart from the code that picks them."""

_CONNECTING: Final = (Phase.DNS, Phase.TCP, Phase.TUNNEL, Phase.TLS)
_WORD_PREFIXES: Final = {
    Phase.QUEUE: "queue", Phase.DNS: "dns", Phase.TCP: "tcp", Phase.TUNNEL: "tunnel", Phase.TLS: "tls",
}  # fmt: skip
_PHASE_WORDS: Final = frozenset(
    f"{_WORD_PREFIXES[phase]}_{word}" for phase, words in ERROR_TYPES.items() for word in words
)
_UNKNOWN_WORDS: Final = tuple(f"{prefix}_" for prefix in _WORD_PREFIXES.values())
_STATUS: Final = re.compile(r"[45]\d\d")
_CLOSE_CODE: Final = re.compile(r"10[01]\d")
"""Of a websocket (RFC 6455, section 7.4)."""
_CLASS_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")
_BODY_OUTCOMES: Final = frozenset({"complete", "cut", "abandoned", "cancelled"})
_ROUNDING_NS: Final = 2_000
"""Starts are whole nanoseconds, durations are floats of seconds."""


class PhaseRecorder:
    """A `PhaseHook` that keeps every record.

    Use it as ``create_session(settings, hooks=[recorder])``.
    """

    def __init__(self) -> None:
        self.records: list[PhaseRecord] = []
        self.started: list[int] = []
        """The ``request_id`` of every send attempt, in the order in which they started."""

    def on_request_start(self, attempt: Attempt) -> None:
        """Count a send attempt."""
        self.started.append(attempt.request_id)

    def __call__(self, record: PhaseRecord, /) -> None:
        """Keep one record."""
        self.records.append(record)

    def clear(self) -> None:
        """Forget everything."""
        self.records.clear()
        self.started.clear()

    def phases(self, request_id: int | None = None) -> list[Phase]:
        """Return the phases in the order in which their records came.

        Args:
            request_id: Of this send attempt alone.
        """
        return [each.phase for each in self.records if request_id in (None, each.request_id)]

    def of(self, phase: Phase) -> list[PhaseRecord]:
        """Return the records of one phase."""
        return [each for each in self.records if each.phase is phase]

    def only(self, phase: Phase) -> PhaseRecord:
        """Return the one record of a phase; any other number fails."""
        found = self.of(phase)
        assert len(found) == 1, f"expected one {phase} record, got {len(found)}\n{self.describe()}"  # noqa: S101
        return found[0]

    def requests(self) -> list[RequestRecord]:
        """Return the records of the send attempts."""
        return [each for each in self.records if isinstance(each, RequestRecord)]

    def errors(self) -> list[tuple[Phase, str]]:
        """Return ``(phase, error_type)`` of every record that has one."""
        return [(each.phase, each.error_type) for each in self.records if each.error_type is not None]

    def describe(self) -> str:
        """Return the records as lines: attempt, phase, start and end in milliseconds, outcome."""
        origin = min((each.start_ns for each in self.records), default=0)
        return "\n".join(_line(each, origin) for each in self.records) or "no records"

    def check_invariants(self) -> None:
        """Assert what must be true in every ending, once all requests and bodies are over.

        Every attempt that started has one ``REQUEST`` record; its phases come in
        order, do not overlap and lie inside their parents; every ``error_type``
        is in its closed list, and a cancellation is not an error.
        """
        wrong = list(self._wrong_counts())
        for request_id in self.started:
            wrong += _wrong_order([each for each in self.records if each.request_id == request_id])
        for each in self.records:
            wrong += (f"{_name(each)} {problem}" for problem in _wrong_values(each))
        assert not wrong, "\n".join([*wrong, "records:", self.describe()])  # noqa: S101

    def _wrong_counts(self) -> list[str]:
        requests = Counter(each.request_id for each in self.of(Phase.REQUEST))
        wrong = [
            f"attempt {request_id} started once and ended {requests[request_id]} times"
            for request_id in self.started
            if requests[request_id] != 1
        ]
        unknown = {each.request_id for each in self.records} - set(self.started)
        wrong += [f"attempt {request_id} has records but never started" for request_id in sorted(unknown)]
        if len(set(self.started)) != len(self.started):
            wrong.append(f"an attempt started twice: {self.started}")
        return wrong


def _wrong_order(records: list[PhaseRecord]) -> list[str]:
    """Check the records of one attempt against each other; lookups that outlived it stand alone."""
    own = [each for each in records if not each.background]
    wrong = [
        f"attempt {own[0].request_id} has more than one {phase} record"
        for phase in (Phase.QUEUE, Phase.SETUP, Phase.BODY)
        if sum(each.phase is phase for each in own) > 1
    ]
    request = next((each for each in own if each.phase is Phase.REQUEST), None)
    setup = next((each for each in own if each.phase is Phase.SETUP), None)
    body = next((each for each in own if each.phase is Phase.BODY), None)
    steps = [each for each in own if each.phase in _CONNECTING]
    if steps and setup is None:
        wrong.append(f"{_name(steps[0])} has no connection setup around it")
    sequence = [each for each in own if each.phase is Phase.QUEUE] + steps
    wrong += [
        f"{_name(later)} starts before {_name(earlier)} ends"
        for earlier, later in pairwise(sequence)
        if later.start_ns < earlier.end_ns - _ROUNDING_NS
    ]
    if setup is not None:
        wrong += [f"{_name(each)} is not inside {_name(setup)}" for each in steps if not _inside(each, setup)]
    if request is not None:
        inner = [each for each in own if each not in (request, body)]
        wrong += [f"{_name(each)} is not inside {_name(request)}" for each in inner if not _inside(each, request)]
    if body is not None and (request is None or body.start_ns < request.end_ns - _ROUNDING_NS):
        wrong.append(f"{_name(body)} starts before its request's headers were read")
    return wrong


def _wrong_values(record: PhaseRecord) -> list[str]:
    wrong: list[str] = []
    if record.duration < 0:
        wrong.append(f"has a negative duration: {record.duration}")
    if record.cancelled and record.error_type is not None:
        wrong.append(f"is cancelled and has error_type {record.error_type!r}")
    if record.error_type is not None and not _allowed(record.phase, record.error_type):
        wrong.append(f"has error_type {record.error_type!r}, which is not in its closed list")
    outcome = record.attributes.get("aiohttp.client.body.outcome")
    if record.phase is Phase.BODY and outcome not in _BODY_OUTCOMES:
        wrong.append(f"has outcome {outcome!r}, not one of {sorted(_BODY_OUTCOMES)}")
    return wrong


def _allowed(phase: Phase, error_type: str) -> bool:
    if phase in ERROR_TYPES:
        return error_type in ERROR_TYPES[phase]
    if phase is Phase.SETUP:
        return error_type in _PHASE_WORDS or error_type == "_OTHER"
    if phase is Phase.BODY and _CLOSE_CODE.fullmatch(error_type):
        return True
    if error_type in _PHASE_WORDS or _STATUS.fullmatch(error_type):
        return True
    return _CLASS_NAME.fullmatch(error_type) is not None and not error_type.startswith(_UNKNOWN_WORDS)


def _inside(inner: PhaseRecord, outer: PhaseRecord) -> bool:
    return inner.start_ns >= outer.start_ns - _ROUNDING_NS and inner.end_ns <= outer.end_ns + _ROUNDING_NS


def _name(record: PhaseRecord) -> str:
    return f"{record.phase} of attempt {record.request_id}"


def _line(record: PhaseRecord, origin: int) -> str:
    start, end = ((each - origin) / 1e6 for each in (record.start_ns, record.end_ns))
    outcome = "cancelled" if record.cancelled else record.error_type or "ok"
    background = " (background)" if record.background else ""
    return f"#{record.request_id} {record.phase:16} {start:10.3f} - {end:10.3f} ms  {outcome}{background}"
