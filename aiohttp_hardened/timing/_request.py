"""A request and its send attempts.

Records are made and handed to the hooks when ``connect()`` is over, when the
response's headers are read, and when the body ends.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp import ClientError, HttpVersion11, ServerFingerprintMismatch

from aiohttp_hardened.exceptions import PhaseTimeoutError, UnverifiedRequestError
from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._body import Body
from aiohttp_hardened.timing._errors import (
    CLIENT_CERTIFICATE_REJECTED,
    OTHER,
    is_certificate_rejection,
    public_name,
)
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._lookup_words import TIMED_OUT
from aiohttp_hardened.timing._notes import add_note_once, describe, ran_out, tag
from aiohttp_hardened.timing._phase import Phase, RequestRecord, make_record
from aiohttp_hardened.timing._setup import PREFIX, Connecting, clock, plain_outcome
from aiohttp_hardened.timing._upload import Upload
from aiohttp_hardened.timing._websocket import Websocket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from aiohttp import ClientResponse
    from aiohttp.helpers import BaseTimerContext
    from aiohttp.http import HttpVersion, RawResponseMessage
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDict
    from yarl import URL

    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._hooks import Hooks
    from aiohttp_hardened.timing._open_phase import OpenPhase
    from aiohttp_hardened.timing._phase import PhaseHook
    from aiohttp_hardened.timing._tcp import Race

_request_ids: Final = itertools.count(1)
_SWITCHING_PROTOCOLS: Final = 101
_CONTINUE: Final = 100
_FIRST_FINAL: Final = 200
_FIRST_ERROR: Final = 400
_EARLY: Final = 0.005
"""Seconds by which a loop's timer may fire before its time: uvloop's clock has whole milliseconds."""


class RequestTiming:
    """One call of ``session.request()``, with all its send attempts.

    aiohttp carries it through the request as the context of our TraceConfig.

    Args:
        hooks: Who listens.
        trace_request_ctx: What the caller passed under that name.
    """

    attempt: Attempt | None = None
    """The latest send attempt."""
    attempts = 0
    traced_elsewhere = False
    """Another OpenTelemetry instrumentation already makes this request's span."""
    _first_url: URL | None = None

    def __init__(self, hooks: Hooks, trace_request_ctx: object = None) -> None:
        self.hooks = hooks
        self.trace_request_ctx = trace_request_ctx
        self.state: dict[object, Any] = {}
        """What hooks keep from one attempt to the next."""

    def begin(self, *, url: URL, method: str, headers: CIMultiDict[str], timer: BaseTimerContext) -> Attempt:
        """Start a send attempt.

        Args:
            url: Final URL.
            method: Request method.
            headers: The headers that will be sent; mutable.
            timer: aiohttp's own ``total`` timer of the request.
        """
        previous = self.attempt
        if previous is not None:
            previous.superseded()
        attempt = Attempt(self, url=url, method=method, headers=headers, timer=timer)
        if self._first_url is None:
            self._first_url = url
        elif self._first_url.origin() != url.origin():
            attempt.cross_origin = True
        self.attempt = attempt
        self.attempts += 1
        self.hooks.request_started(attempt)
        return attempt

    def failed(self, exc: BaseException) -> None:
        """Explain a failure on the exception that the caller is about to get."""
        attempt = self.attempt
        if attempt is None:
            return
        attempt.superseded(exc)
        attempt.explain(exc)

    def ended(self, response: ClientResponse) -> None:
        """Take the head of a response from a connection whose protocol is not ours."""
        attempt = self.attempt
        if attempt is not None and not attempt.finished and response.version is not None:
            attempt.head_read(response.status, response.version, response.headers)


class Attempt(Connecting):
    """One send attempt, from ``connect()`` to the end of the response's body.

    Args:
        request: The request that it belongs to.
        url: Final URL.
        method: Request method.
        headers: The headers that will be sent; mutable until they are.
        timer: aiohttp's own ``total`` timer of the request.
    """

    connection: Connection | None = None
    context: object = None
    """The OpenTelemetry context of the attempt, where a hook has put it; opaque here."""
    cross_origin = False
    """A redirect left the origin that the request began with."""
    reused = False
    failure: tuple[Phase, str] | None = None
    """The phase that failed, and the note that explains it."""
    status_code: int | None = None
    read_ran_out: float | None = None
    """The budget in seconds between two reads, once it has run out."""
    finished = False
    upload: Upload | None = None
    """The request's body, where it has one and its way can be seen."""
    _upgraded_at = 0
    """The clock when a 101 was read."""
    _body: Body | Websocket | None = None

    def __init__(
        self, request: RequestTiming, *, url: URL, method: str, headers: CIMultiDict[str], timer: BaseTimerContext
    ) -> None:
        self.request = request
        self.hooks = request.hooks
        self.request_id = next(_request_ids)
        self.resend_count = request.attempts
        self.url = url
        self.method = method
        self.headers = headers
        self.server_address = normalise_host(url.raw_host or "")
        self.server_port = url.port
        self.phases: list[OpenPhase] = []
        self.races: list[Race] = []
        self.state: dict[object, Any] = {}
        """What hooks keep from one record to the next."""
        self._timer = timer
        self._handled = sys.exc_info()[1]
        """What the caller is handling anyway: a request may be made inside an ``except`` block."""
        self.start = clock()
        self._wall_offset = time.time_ns() - self.start

    # -- the end of connect()

    def connected(self, connection: Connection | None, *, reused: bool) -> None:
        """Tell the hooks of a connection that stands."""
        self.connection = connection
        self.reused = reused
        if self._setup is not None:
            self._setup.end = clock()
        if self.phases or self._setup is not None:
            self.emit_phases(None)

    def connect_failed(self, exc: BaseException) -> None:
        """Tell the hooks of a connection that could not be had, and explain why on the exception."""
        if self._open is not None:
            self.leave(self._open, exc)
        now = clock()
        if self._setup is not None and self._setup.end is None:
            self._setup.end = now
            self._setup.exc = exc
        if isinstance(exc, ServerFingerprintMismatch) and (handshake := self._ended(Phase.TLS)) is not None:
            # aiohttp looks at a pinned certificate when the handshake is over.
            handshake.exc = exc
        cut = self._cut_phase()
        phase = cut.phase if cut is not None else (Phase.SETUP if self._setup is not None else Phase.REQUEST)
        limited = isinstance(exc, TimeoutError) or self.timer_fired()
        error_type, cancelled = (
            cut.outcome(timer_fired=limited) if cut is not None else plain_outcome(exc, limited=limited)
        )
        if not cancelled:
            self._write_failure(phase, cut, error_type, exc)
        if self.hooks:
            request_error: str | None = None
            if not cancelled:
                worded = cut is not None and error_type != OTHER
                request_error = f"{PREFIX[phase]}_{error_type}" if worded else _name_for_caller(exc)
            self.emit_phases(exc)
            self._finish(request_error, cancelled=cancelled, exc=exc, end=self._setup.end if self._setup else now)

    def _write_failure(self, phase: Phase, cut: OpenPhase | None, error_type: str | None, exc: BaseException) -> None:
        if isinstance(exc, PhaseTimeoutError):
            note = str(exc)
        else:
            if isinstance(exc, asyncio.CancelledError) and self.timer_fired():
                outcome = ran_out(phase, self.budgets.total or 0.0, "total")
            elif isinstance(exc, TimeoutError) and (theirs := self._their_budget()) is not None:
                outcome = ran_out(phase, *theirs)
            else:
                word = error_type if error_type not in (None, OTHER) else f"{type(exc).__name__}: {exc}"
                outcome = "timed out" if word == TIMED_OUT else f"failed: {word}"
            address, port = (cut.server_address, cut.server_port) if cut is not None else (None, None)
            note = describe(phase, self, outcome, address=address, port=port)
            if isinstance(exc, UnverifiedRequestError):
                note = str(exc)
            elif not isinstance(exc, asyncio.CancelledError) or not self.hooks:
                add_note_once(exc, note)
        tag(exc, phase)
        self.failure = (phase, note)

    def _their_budget(self) -> tuple[float, str] | None:
        """Return which of aiohttp's own limits ran out: its ``connect`` covers the wait in the queue too."""
        limits = self.budgets.theirs
        if limits is None:
            return None
        if limits.connect and (clock() - self.start) / 1e9 >= limits.connect - _EARLY:
            return limits.connect, "connect"
        return (limits.sock_connect, "sock_connect") if limits.sock_connect else None

    def ignore(self, hook: PhaseHook) -> None:
        """Spare a hook the rest of this attempt; to be called by it in ``on_request_start``."""
        self.hooks = self.hooks.without(hook)

    def explain(self, exc: BaseException) -> None:
        """Add what is known to the exception that the caller gets."""
        if self.failure is None or isinstance(exc, asyncio.CancelledError):
            return
        phase, note = self.failure
        tag(exc, phase)
        if note not in str(exc):
            add_note_once(exc, note)

    def head_read(self, code: int, version: HttpVersion, headers: Mapping[str, str]) -> int:
        """End the request phase; return the clock at its end, 0 where nobody listens."""
        self.status_code = code
        if not self.hooks:
            self.finished = True
            return 0
        now = clock()
        self._finish(
            str(code) if code >= _FIRST_ERROR else None,
            protocol_version="1.1" if version == HttpVersion11 else f"{version.major}.{version.minor}",
            end=now,
            headers=headers,
        )
        return now

    def headers_read(self, message: RawResponseMessage, body: StreamReader | None) -> None:
        """End the request phase with the response's head, and start the body's."""
        code = message.code
        if self.finished:
            return
        if code == _CONTINUE and self.upload is not None:
            self.upload.may_start(clock())
        if code < _FIRST_FINAL and code != _SWITCHING_PROTOCOLS:
            return
        now = self.head_read(code, message.version, message.headers)
        if code == _SWITCHING_PROTOCOLS:
            self._upgraded_at = now
        elif body is not None and self.hooks:
            self._body = Body(self, body, now)

    def sends(self, *, when_told: bool) -> None:
        """Start to watch the request's body.

        Args:
            when_told: It is sent only after ``100 Continue``.
        """
        self.upload = Upload(None if when_told else clock())

    def request_sent(self) -> None:
        """Take note that the request is sent to its end."""
        if self.upload is not None:
            self.upload.sent(clock())

    def upgraded(self, heard: Callable[[], None] | None) -> Websocket | None:
        """Start to watch a websocket, where somebody listens.

        Args:
            heard: What aiohttp calls when anything came; ``None``: there is no heartbeat.
        """
        if not self.hooks or not self._upgraded_at:
            return None
        self._body = socket = Websocket(self, self._upgraded_at, heard)
        return socket

    def released(self) -> None:
        """Take note that the connection was given back or closed, by whatever is raised just now."""
        raised, handled, self._handled = sys.exc_info()[1], self._handled, None
        if raised is handled:
            raised = None
        if self._body is None:
            self.superseded(raised)
            return
        self._body.end(raised)
        if self._body.cut and isinstance(raised, (ClientError, TimeoutError)):
            self.failure = (Phase.BODY, self._note(Phase.BODY, raised, public_name(raised), fired=self.timer_fired()))
            self.explain(raised)

    def connection_lost(self, exc: BaseException | None, *, dropped: bool) -> None:
        """Take note that the connection is gone while its response was open.

        Args:
            exc: Why, where the transport knows.
            dropped: This side closed it.
        """
        if isinstance(self._body, Websocket):
            self._body.lost(exc, dropped=dropped)
        elif self._body is not None:
            self._body.end(None)

    def superseded(self, exc: BaseException | None = None) -> None:
        """End the request phase without a response; does nothing when it has ended."""
        if self.finished:
            return
        fired = self.timer_fired()
        if isinstance(exc, (asyncio.CancelledError, GeneratorExit)) and not fired:
            self._finish(None, cancelled=True, exc=exc)
            return
        if isinstance(exc, asyncio.CancelledError) or exc is None:
            error_type = "TimeoutError" if fired else OTHER
        else:
            error_type = public_name(exc)
        if exc is not None and self.url.scheme in ("https", "wss") and is_certificate_rejection(exc):
            error_type = f"tls_{CLIENT_CERTIFICATE_REJECTED}"
            self.failure = (Phase.TLS, describe(Phase.TLS, self, f"failed: {CLIENT_CERTIFICATE_REJECTED}"))
        else:
            self.failure = (Phase.REQUEST, self._note(Phase.REQUEST, exc, error_type, fired=fired))
        self._finish(error_type, exc=exc)

    def _note(self, phase: Phase, exc: BaseException | None, error_type: str, *, fired: bool) -> str:
        """Explain a failure after the set-up."""
        if fired:
            outcome = ran_out(phase, self.budgets.total or 0.0, "total")
        elif isinstance(exc, TimeoutError):
            outcome = "timed out" if self.read_ran_out is None else ran_out(phase, self.read_ran_out, "read")
        else:
            outcome = f"failed after {(clock() - self.start) / 1e6:.1f} ms: {error_type}"
        return describe(phase, self, outcome)

    def _finish(
        self,
        error_type: str | None,
        *,
        cancelled: bool = False,
        exc: BaseException | None = None,
        protocol_version: str | None = None,
        end: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.finished = True
        if not self.hooks:
            return
        if end is None:
            end = clock()
        attributes: dict[str, Any] = {}
        if self.upload is not None:
            answered = self.status_code is not None
            attributes.update(self.upload.attributes(end, answered=answered, cancelled=cancelled, exc=exc))
        if self.connection is not None and self.connection.peer_address is not None:
            attributes[_keys.NETWORK_PEER_ADDRESS] = self.connection.peer_address
            attributes[_keys.NETWORK_PEER_PORT] = self.connection.peer_port
        elif self.peer is not None:
            attributes[_keys.NETWORK_PEER_ADDRESS], attributes[_keys.NETWORK_PEER_PORT] = self.peer
        self.hooks.emit(
            make_record(
                RequestRecord,
                phase=Phase.REQUEST,
                start_ns=self.start_ns,
                duration=(end - self.start) / 1e9,
                server_address=self.server_address,
                server_port=self.server_port,
                attributes=attributes,
                error_type=error_type,
                cancelled=cancelled,
                request_id=self.request_id,
                attempt=self,
                method=self.method,
                status_code=self.status_code,
                protocol_version=protocol_version,
                resend_count=self.resend_count,
                reused=self.reused,
                exception=exc,
                response_headers=headers,
            )
        )


def _name_for_caller(exc: BaseException) -> str:
    """Return the name of what the caller gets for an exception that leaves ``connect()``."""
    if isinstance(exc, asyncio.CancelledError):
        return "TimeoutError"  # the request's ``total``: a caller's own cancellation has no name
    return "aiohttp.ConnectionTimeoutError" if isinstance(exc, TimeoutError) else public_name(exc)
