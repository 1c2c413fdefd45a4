"""A request and its send attempts: the state machine of the phases, and the only reader of the clock.

Phases of one connection come one after the other, so entering one leaves the one
before; nothing can be left open. Records are made and handed to the hooks when
``connect()`` is over, when the response's headers are read, and when the body ends.
"""

from __future__ import annotations

import asyncio
import itertools
import ssl
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from aiohttp import HttpVersion11

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._body import CANCELLED, COMPLETE, body_outcome
from aiohttp_hardened.timing._budgets import UNLIMITED, Budgets
from aiohttp_hardened.timing._errors import (
    CLIENT_CERTIFICATE_REJECTED,
    OTHER,
    TIMED_OUT,
    is_certificate_rejection,
    public_name,
)
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._notes import add_note_once, describe, ran_out, tag
from aiohttp_hardened.timing._open_phase import OpenPhase
from aiohttp_hardened.timing._phase import Phase, PhaseEvent, PhaseRecord, RequestRecord, make_record
from aiohttp_hardened.exceptions import PhaseTimeoutError, UnverifiedRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from aiohttp import ClientResponse
    from aiohttp.helpers import BaseTimerContext
    from aiohttp.http import HttpVersion, RawResponseMessage
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDict
    from yarl import URL

    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._hooks import Hooks
    from aiohttp_hardened.timing._tcp import Race

_request_ids: Final = itertools.count(1)
_clock: Final = time.perf_counter_ns


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


class Attempt:
    """One send attempt, from ``connect()`` to the end of the response's body.

    Args:
        request: The request that it belongs to.
        url: Final URL.
        method: Request method.
        headers: The headers that will be sent; mutable until they are.
        timer: aiohttp's own ``total`` timer of the request.
    """

    budgets: Budgets = UNLIMITED
    connection: Connection | None = None
    context: object = None
    """The OpenTelemetry context of the attempt, where a hook has put it; opaque here."""
    cross_origin = False
    """A redirect left the origin that the request began with."""
    proxied = False
    reused = False
    peer: tuple[str, int] | None = None
    tunnel: OpenPhase | None = None
    tls_port: int | None = None
    tls_route: tuple[Any, ...] | None = None
    """``(port, proxy, pin)`` of the handshake to come; ``None``: its tickets are not kept."""
    tls_generation = 0
    """The generation of the shared context that the handshake uses."""
    deadline: asyncio.Timeout | None = None
    """The limit of the running race or handshake; it moves when the phase changes."""
    budget: tuple[Phase, float, str] | None = None
    """Which budget that limit stands for."""
    sock_connect_until: float | None = None
    failure: tuple[Phase, str] | None = None
    """The phase that failed, and the note that explains it."""
    status_code: int | None = None
    finished = False

    _open: OpenPhase | None = None
    _setup: OpenPhase | None = None
    _body: StreamReader | None = None
    _body_start = 0

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
        self.start = _clock()
        self._wall_offset = time.time_ns() - self.start

    # -- the clock

    @staticmethod
    def now() -> int:
        """Return nanoseconds of a clock that only goes forward."""
        return _clock()

    def wall(self, clock: int) -> int:
        """Return wall-clock nanoseconds for a reading of ``now()``; one offset per attempt keeps order."""
        return clock + self._wall_offset

    @property
    def start_ns(self) -> int:
        """Wall clock at the start, nanoseconds since the epoch."""
        return self.start + self._wall_offset

    # -- phases

    def enter(self, phase: Phase, server_address: str | None = None, server_port: int | None = None) -> OpenPhase:
        """Start a phase; the one before ends here if it has not ended yet."""
        now = _clock()
        if self._open is not None:
            self._open.end = now
        if server_address is None:
            server_address, server_port = self.server_address, self.server_port
        opened = self._open = OpenPhase(self, phase, now, server_address, server_port)
        self.phases.append(opened)
        return opened

    def leave(self, phase: OpenPhase, exc: BaseException | None = None) -> None:
        """End a phase; only the first call counts."""
        if phase.end is None:
            phase.end = _clock()
            phase.exc = exc
        if self._open is phase:
            self._open = None

    def start_setup(self) -> None:
        """Start making a new connection."""
        self._setup = OpenPhase(self, Phase.SETUP, _clock(), self.server_address, self.server_port)

    def trust_store_loaded(self) -> None:
        """Write down that the set-up waited for the TLS context."""
        if self._setup is not None:
            self._setup.events.append(PhaseEvent(_keys.EVENT_TRUST_STORE_LOADED, self.wall(_clock()), {}))

    @property
    def setup_started(self) -> bool:
        """Whether a new connection was begun."""
        return self._setup is not None

    def aim(self, *, port: int | None, proxy: str | None, pin: bytes | None) -> None:
        """Say where the next handshake goes; a ticket is kept for exactly this route.

        Args:
            port: Its port; ``None``: there will be no handshake.
            proxy: ``itself`` for the handshake with a proxy, its origin for one
                through it, ``None`` for a direct one.
            pin: The fingerprint that the certificate must have.
        """
        self.tls_port = port
        self.tls_route = None if port is None else (port, proxy, pin)

    @property
    def race(self) -> Race | None:
        """The latest TCP race."""
        return self.races[-1] if self.races else None


    def tcp_connected(self) -> None:
        """Move the limit from the race to the handshake that follows."""
        self._move_deadline(self.budgets.tls if self.tls_port is not None else None)

    def start_tls(self, ssl_object: ssl.SSLObject) -> OpenPhase:
        """Start a handshake."""
        name = ssl_object.server_hostname
        address = self.server_address if name is None else normalise_host(name)
        phase = self.enter(Phase.TLS, address, self.tls_port)
        phase.attributes[_keys.TLS_ESTABLISHED] = False
        self._move_deadline(self.budgets.tls)
        return phase

    def end_tls(self, phase: OpenPhase, ssl_object: ssl.SSLObject, *, established: bool) -> None:
        """End a handshake."""
        self.leave(phase, None if established else sys.exc_info()[1])
        cipher = ssl_object.cipher()
        phase.server_answered = cipher is not None
        if not established or not self.hooks:
            return
        attributes = phase.attributes
        attributes[_keys.TLS_ESTABLISHED] = True
        attributes[_keys.TLS_PROTOCOL_NAME] = "tls"
        version = ssl_object.version()
        if version is not None:
            attributes[_keys.TLS_PROTOCOL_VERSION] = version.removeprefix("TLSv")
        if cipher is not None:
            attributes[_keys.TLS_CIPHER] = cipher[0]
        attributes[_keys.TLS_RESUMED] = bool(ssl_object.session_reused)
        not_after = (ssl_object.getpeercert() or {}).get("notAfter")
        if isinstance(not_after, str):
            ends = ssl.cert_time_to_seconds(not_after)
            attributes[_keys.TLS_SERVER_NOT_AFTER] = datetime.fromtimestamp(ends, UTC).isoformat().replace("+00:00", "Z")
            figures.show_peer_not_after(phase.server_address, ends)

    def _move_deadline(self, seconds: float | None) -> None:
        deadline = self.deadline
        if deadline is None or self.sock_connect_until is not None or deadline.expired():
            return
        self.budget = None if seconds is None else (Phase.TLS, seconds, "tls")
        deadline.reschedule(None if seconds is None else asyncio.get_running_loop().time() + seconds)

    def timeout_error(self, phase: Phase, budget: float, name: str, detail: str = "") -> PhaseTimeoutError:
        """Return the error for a budget of ours that ran out.

        Args:
            phase: The phase that it interrupted.
            budget: Seconds.
            name: The budget's name in ``TimeoutSettings``, or ``sock_connect``.
            detail: What else the user should know.
        """
        ended = self._ended(phase)
        address, port = (ended.server_address, ended.server_port) if ended else (None, None)
        outcome = ran_out(phase, budget, name) + (f": {detail}" if detail else "")
        text = describe(phase, self, outcome, address=address, port=port)
        return PhaseTimeoutError(text, phase=phase, budget=budget)

    @property
    def current_phase(self) -> Phase:
        """The phase that is open, or the one that ended last inside the set-up."""
        if self._open is not None:
            return self._open.phase
        cut = self._cut_phase()
        return cut.phase if cut is not None else (Phase.SETUP if self._setup is not None else Phase.REQUEST)

    @property
    def syn_retransmits(self) -> int:
        """SYN retransmissions over all races."""
        return sum(race.retransmits for race in self.races)

    @property
    def addresses_tried(self) -> int:
        """Addresses that were tried over all races."""
        return sum(race.tried for race in self.races)

    # -- the end of connect()

    def connected(self, connection: Connection | None, *, reused: bool) -> None:
        """Tell the hooks of a connection that stands."""
        self.connection = connection
        self.reused = reused
        if self._setup is not None:
            self._setup.end = _clock()
        if self.phases or self._setup is not None:
            self._emit_phases(None)

    def connect_failed(self, exc: BaseException) -> None:
        """Tell the hooks of a connection that could not be had, and explain why on the exception."""
        if self._open is not None:
            self.leave(self._open, exc)
        now = _clock()
        if self._setup is not None and self._setup.end is None:
            self._setup.end = now
            self._setup.exc = exc
        cut = self._cut_phase()
        phase = cut.phase if cut is not None else (Phase.SETUP if self._setup is not None else Phase.REQUEST)
        limited = isinstance(exc, TimeoutError) or self.timer_fired()
        error_type, cancelled = cut.outcome(timer_fired=limited) if cut is not None else _outcome(exc, limited)
        if not cancelled:
            self._write_failure(phase, cut, error_type, exc)
        if self.hooks:
            if not cancelled and error_type is not None and error_type != OTHER:
                request_error: str | None = f"{_PREFIX[phase]}_{error_type}"
            else:
                request_error = None if cancelled else public_name(exc)
            self._emit_phases(exc)
            self._finish(request_error, cancelled=cancelled, exc=exc, end=self._setup.end if self._setup else now)

    def _write_failure(
        self, phase: Phase, cut: OpenPhase | None, error_type: str | None, exc: BaseException
    ) -> None:
        if isinstance(exc, PhaseTimeoutError):
            note = str(exc)
        else:
            if isinstance(exc, asyncio.CancelledError) and self.timer_fired():
                outcome = ran_out(phase, self.budgets.total or 0.0, "total")
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

    def explain(self, exc: BaseException) -> None:
        """Add what is known to the exception that the caller gets."""
        if self.failure is None or isinstance(exc, asyncio.CancelledError):
            return
        phase, note = self.failure
        tag(exc, phase)
        if note not in str(exc):
            add_note_once(exc, note)

    def _cut_phase(self) -> OpenPhase | None:
        """Return the phase that ended the set-up: the last one that did not end well."""
        for each in reversed(self.phases):
            if each.exc is not None:
                return each
        return None

    def _ended(self, phase: Phase) -> OpenPhase | None:
        for each in reversed(self.phases):
            if each.phase is phase:
                return each
        return None

    def timer_fired(self) -> bool:
        """Say whether aiohttp's ``total`` has run out; it arrives as cancellation."""
        try:
            self._timer.assert_timeout()
        except TimeoutError:
            return True
        return False

    # -- records

    def _emit_phases(self, exc: BaseException | None) -> None:
        if not self.hooks:
            return
        limited = isinstance(exc, TimeoutError) or (exc is not None and self.timer_fired())
        for each in self.phases:
            error_type, cancelled = each.outcome(timer_fired=limited)
            self.hooks.emit(each.record(error_type, cancelled=cancelled))
        setup = self._setup
        if setup is None:
            return
        attributes = setup.attributes
        attributes[_keys.URL_SCHEME] = self.url.scheme
        attributes[_keys.CONNECTION_ATTEMPTS] = len(self.races)
        if self.peer is not None:
            attributes[_keys.NETWORK_PEER_ADDRESS], attributes[_keys.NETWORK_PEER_PORT] = self.peer
        if self.proxied:
            attributes[_keys.PROXIED] = True
        error_type, cancelled = self._setup_outcome(limited)
        self.hooks.emit(setup.record(error_type, cancelled=cancelled))

    def _setup_outcome(self, limited: bool) -> tuple[str | None, bool]:
        if self._setup is None or self._setup.exc is None:
            return None, False
        cut = self._cut_phase()
        if cut is None:
            error_type, cancelled = _outcome(self._setup.exc, limited)
            return (f"setup_{TIMED_OUT}" if error_type == TIMED_OUT else error_type), cancelled
        error_type, cancelled = cut.outcome(timer_fired=limited)
        if error_type in (None, OTHER):
            return error_type, cancelled
        return f"{_PREFIX[cut.phase]}_{error_type}", False

    def report_background(self, phase: OpenPhase, exc: BaseException | None) -> None:
        """Report a lookup that outlived its attempt."""
        self.leave(phase, exc)
        if self.hooks:
            error_type, cancelled = phase.outcome(timer_fired=False)
            self.hooks.emit(phase.record(error_type, cancelled=cancelled, background=True))

    def head_read(self, code: int, version: HttpVersion, headers: Mapping[str, str]) -> int:
        """End the request phase; return the clock at its end."""
        self.status_code = code
        now = _clock()
        self._finish(
            str(code) if code >= 400 else None,
            protocol_version="1.1" if version == HttpVersion11 else f"{version.major}.{version.minor}",
            end=now,
            headers=headers,
        )
        return now

    def headers_read(self, message: RawResponseMessage, body: StreamReader | None) -> None:
        """End the request phase with the response's head, and start the body's."""
        code = message.code
        if self.finished or (100 <= code < 200 and code != 101):
            return
        now = self.head_read(code, message.version, message.headers)
        if body is None or code == 101:
            return
        self._body = body
        self._body_start = now
        if body.is_eof():
            self._body_eof()
        else:
            body.on_eof(self._body_eof)

    def released(self) -> None:
        """Take note that the connection was given back or closed, by whatever is raised just now."""
        raised = sys.exc_info()[1]
        if self._body is not None:
            self._end_body(raised)
        elif not self.finished:
            self.superseded(raised)

    def connection_lost(self) -> None:
        """Take note that the connection is gone while its response was open."""
        if self._body is not None:
            self._end_body(None)

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
        phase = Phase.REQUEST
        if exc is not None and self.url.scheme in ("https", "wss") and is_certificate_rejection(exc):
            phase = Phase.TLS
            error_type = f"tls_{CLIENT_CERTIFICATE_REJECTED}"
            outcome = f"failed: {CLIENT_CERTIFICATE_REJECTED}"
        elif fired:
            outcome = ran_out(phase, self.budgets.total or 0.0, "total")
        elif isinstance(exc, TimeoutError):
            cause = exc.__cause__
            outcome = ran_out(phase, cause.budget, "read") if isinstance(cause, PhaseTimeoutError) else "timed out"
        else:
            elapsed = (_clock() - self.start) / 1e6
            outcome = f"failed after {elapsed:.1f} ms: {error_type}"
        self.failure = (phase, describe(phase, self, outcome))
        self._finish(error_type, exc=exc)

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
        attributes: dict[str, Any] = {}
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
                duration=((end or _clock()) - self.start) / 1e9,
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

    def _body_eof(self) -> None:
        if self._body is not None:
            self._body = None
            self._emit_body(COMPLETE, None)

    def _end_body(self, raised: BaseException | None) -> None:
        body, self._body = self._body, None
        if body is not None:
            self._emit_body(*body_outcome(body, raised, timer_fired=self.timer_fired()))

    def _emit_body(self, outcome: str, error_type: str | None) -> None:
        self.hooks.emit(
            make_record(
                PhaseRecord,
                phase=Phase.BODY,
                start_ns=self._body_start + self._wall_offset,
                duration=(_clock() - self._body_start) / 1e9,
                server_address=self.server_address,
                server_port=self.server_port,
                attributes={_keys.BODY_OUTCOME: outcome},
                error_type=error_type,
                cancelled=outcome == CANCELLED,
                request_id=self.request_id,
                attempt=self,
            )
        )


_PREFIX: Final = {
    Phase.REQUEST: "request",
    Phase.QUEUE: "queue",
    Phase.SETUP: "setup",
    Phase.DNS: "dns",
    Phase.TCP: "tcp",
    Phase.TUNNEL: "tunnel",
    Phase.TLS: "tls",
    Phase.BODY: "body",
}


def _outcome(exc: BaseException, limited: bool) -> tuple[str | None, bool]:
    if isinstance(exc, (asyncio.CancelledError, GeneratorExit)):
        return (TIMED_OUT, False) if limited else (None, True)
    return (TIMED_OUT if isinstance(exc, TimeoutError) else OTHER), False
