"""The vocabulary: which phases there are, and the one record in which each ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp_hardened.timing._request import Attempt

__all__ = ["AttributeValue", "Phase", "PhaseEvent", "PhaseHook", "PhaseRecord", "RequestRecord"]

AttributeValue = str | bool | int | float | tuple[str, ...]


class Phase(StrEnum):
    """A stretch of a request that is timed by itself."""

    REQUEST = "request"
    """One send attempt, until the response's headers are read."""
    QUEUE = "queue"
    """Waiting for a free pooled connection."""
    SETUP = "connection setup"
    """Making a new connection: DNS, TCP, tunnel and TLS."""
    DNS = "dns"
    """One lookup, or waiting for somebody else's."""
    TCP = "tcp"
    """One race over the addresses."""
    TUNNEL = "tunnel"
    """A proxy's answer to CONNECT."""
    TLS = "tls"
    """One handshake."""
    BODY = "body"
    """From the response's headers to the end of its body."""


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """A moment inside a phase.

    Args:
        name: ``address failed``, ``address overtaken`` or ``trust store loaded``.
        time_ns: Wall clock, nanoseconds since the epoch.
        attributes: Under the names of the semantic conventions.
    """

    name: str
    time_ns: int
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, kw_only=True)
class PhaseRecord:
    """A phase that has ended; every phase that started ends in exactly one.

    Records of one attempt come in order: ``QUEUE``, then ``DNS``, ``TCP``,
    ``TUNNEL``, ``TLS`` (each as often as it happened), then the ``SETUP`` that
    contains those, then ``REQUEST``, then ``BODY``.

    Args:
        phase: Which phase.
        start_ns: Wall clock, nanoseconds since the epoch.
        duration: Seconds.
        server_address: The host that the phase spoke to (a proxy's for the
            tunnel and for a connection to the proxy), normalised.
        server_port: Its port.
        attributes: What was seen, under the names in ``timing/_keys.py``.
        error_type: A word of the phase's closed list; ``None``: no error.
        cancelled: The caller gave up. Not an error.
        request_id: Unique per send attempt, in this process.
        events: Moments inside the phase.
        background: A lookup that outlived the request which began it.
        attempt: The live attempt that this belongs to, where hooks keep what
            they need from one record to the next.
    """

    phase: Phase
    start_ns: int
    duration: float
    server_address: str
    server_port: int | None
    attributes: Mapping[str, AttributeValue]
    error_type: str | None = None
    cancelled: bool = False
    request_id: int
    events: tuple[PhaseEvent, ...] = ()
    background: bool = False
    attempt: Attempt = field(repr=False, compare=False)

    @property
    def end_ns(self) -> int:
        """Wall clock at the end, nanoseconds since the epoch."""
        return self.start_ns + round(self.duration * 1e9)


@dataclass(frozen=True, kw_only=True)
class RequestRecord(PhaseRecord):
    """One send attempt that has ended: its response's headers were read, or it failed.

    Args:
        method: The request method as it was sent.
        status_code: The response's status; ``None``: there was no response.
        protocol_version: ``1.1``, ``1.0``; ``None``: there was no response.
        resend_count: Send attempts of the same request before this one.
        reused: The connection had served before.
        exception: What the attempt raised, as far as it is known.
        response_headers: The response's headers, when there was one.
    """

    method: str
    status_code: int | None = None
    protocol_version: str | None = None
    resend_count: int = 0
    reused: bool = False
    exception: BaseException | None = field(default=None, repr=False, compare=False)
    response_headers: Mapping[str, str] | None = field(default=None, repr=False, compare=False)


_Record = TypeVar("_Record", bound=PhaseRecord)


def make_record(kind: type[_Record], **fields: Any) -> _Record:
    """Make a record from its fields, six times as fast as a frozen dataclass makes itself.

    A frozen dataclass sets each field through ``object.__setattr__``; here the
    fields become its ``__dict__`` as they are, and what is left out is the
    default on the class. Two records are made for every request.
    """
    record = object.__new__(kind)
    object.__setattr__(record, "__dict__", fields)
    return record


class PhaseHook(Protocol):
    """A listener: any callable that takes one record.

    It may also have ``on_request_start(attempt)``, called once per send attempt
    before anything is measured, with the final ``url``, ``method`` and mutable
    ``headers``. Hooks are called on the event loop and are never awaited; what
    they raise is counted and logged, and changes nothing for the caller.
    """

    def __call__(self, record: PhaseRecord, /) -> None:
        """Take one record."""
