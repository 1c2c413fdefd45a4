"""When the connection set-up is timed, and the state machine of the phases inside it.

Starts: when a new connection is begun.
Stops: when it stands, or cannot be had.
Seam: ``BaseConnector._create_connection`` (aiohttp sends ``create_end`` on success only).
Blind: nothing known.

Phases of one connection come one after the other, so entering one leaves the one
before: nothing can be left open. Records are made when ``connect()`` is over.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp_hardened.exceptions import PhaseTimeoutError
from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._budgets import UNLIMITED
from aiohttp_hardened.timing._errors import OTHER
from aiohttp_hardened.timing._lookup_words import TIMED_OUT
from aiohttp_hardened.timing._notes import describe, ran_out
from aiohttp_hardened.timing._open_phase import OpenPhase
from aiohttp_hardened.timing._phase import Phase, PhaseEvent

if TYPE_CHECKING:
    from aiohttp.helpers import BaseTimerContext
    from yarl import URL

    from aiohttp_hardened.timing._budgets import Budgets
    from aiohttp_hardened.timing._hooks import Hooks
    from aiohttp_hardened.timing._request import Attempt
    from aiohttp_hardened.timing._tcp import Race

clock: Final = time.perf_counter_ns
"""The one clock: nanoseconds that only go forward."""


class Connecting:
    """What a send attempt does until it has a connection."""

    hooks: Hooks
    request_id: int
    url: URL
    method: str
    server_address: str
    server_port: int | None
    phases: list[OpenPhase]
    races: list[Race]
    start: int
    reused: bool

    budgets: Budgets = UNLIMITED
    proxied = False
    peer: tuple[str, int] | None = None
    tunnel: OpenPhase | None = None
    tls_port: int | None = None
    tls_route: tuple[Any, ...] | None = None
    """``(port, proxy, pin)`` of the handshake to come; ``None``: its tickets are not kept."""
    tls_generation: int | None = 0
    """The generation of the context that the handshake uses; 0: an outdated one, ``None``: one that nobody swaps."""
    deadline: asyncio.Timeout | None = None
    """The limit of the running race or handshake; it moves when the phase changes."""
    budget: tuple[Phase, float, str] | None = None
    """Which budget that limit stands for."""
    sock_connect_until: float | None = None

    _open: OpenPhase | None = None
    _setup: OpenPhase | None = None
    _timer: BaseTimerContext
    _wall_offset: int

    @property
    def _attempt(self) -> Attempt:
        # This class is a half of it, in a file of its own.
        return cast("Attempt", self)

    # -- the clock

    @staticmethod
    def now() -> int:
        """Return nanoseconds of a clock that only goes forward."""
        return clock()

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
        now = clock()
        if self._open is not None:
            self._open.end = now
        if server_address is None:
            server_address, server_port = self.server_address, self.server_port
        opened = self._open = OpenPhase(self._attempt, phase, now, server_address, server_port)
        self.phases.append(opened)
        return opened

    def leave(self, phase: OpenPhase, exc: BaseException | None = None) -> None:
        """End a phase; only the first call counts."""
        if phase.end is None:
            phase.end = clock()
            phase.exc = exc
        if self._open is phase:
            self._open = None

    def start_setup(self) -> None:
        """Start making a new connection."""
        self._setup = OpenPhase(self._attempt, Phase.SETUP, clock(), self.server_address, self.server_port)

    def trust_store_loaded(self) -> None:
        """Write down that the set-up waited for the TLS context."""
        if self._setup is not None:
            self._setup.events.append(PhaseEvent(_keys.EVENT_TRUST_STORE_LOADED, self.wall(clock()), {}))

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
        self.move_deadline(self.budgets.tls if self.tls_port is not None else None)

    def move_deadline(self, seconds: float | None) -> None:
        """Give the phase that follows its own budget; one budget over both (``sock_connect``) stays."""
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
        text = describe(phase, self._attempt, outcome, address=address, port=port)
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

    def emit_phases(self, exc: BaseException | None) -> None:
        """Hand the records of the phases to the hooks, and the set-up's after those inside it."""
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
        error_type, cancelled = self._setup_outcome(limited=limited)
        self.hooks.emit(setup.record(error_type, cancelled=cancelled))

    def _setup_outcome(self, *, limited: bool) -> tuple[str | None, bool]:
        if self._setup is None or self._setup.exc is None:
            return None, False
        cut = self._cut_phase()
        if cut is None:
            # Waiting for the trust store is in no phase, and the closed list has no word for it.
            _, cancelled = plain_outcome(self._setup.exc, limited=limited)
            return (None if cancelled else OTHER), cancelled
        error_type, cancelled = cut.outcome(timer_fired=limited)
        if error_type in (None, OTHER):
            return error_type, cancelled
        return f"{PREFIX[cut.phase]}_{error_type}", False

    def report_background(self, phase: OpenPhase, exc: BaseException | None) -> None:
        """Report a lookup that outlived its attempt."""
        self.leave(phase, exc)
        if self.hooks:
            error_type, cancelled = phase.outcome(timer_fired=False)
            self.hooks.emit(phase.record(error_type, cancelled=cancelled, background=True))


PREFIX: Final = {
    Phase.REQUEST: "request",
    Phase.QUEUE: "queue",
    Phase.SETUP: "setup",
    Phase.DNS: "dns",
    Phase.TCP: "tcp",
    Phase.TUNNEL: "tunnel",
    Phase.TLS: "tls",
    Phase.BODY: "body",
}
"""What stands before a phase's word on the set-up and on the request."""


def plain_outcome(exc: BaseException, *, limited: bool) -> tuple[str | None, bool]:
    """Return the error word and whether it was cancelled, of a failure outside every phase.

    Args:
        exc: What was raised.
        limited: A limit stands behind a cancellation.
    """
    if isinstance(exc, (asyncio.CancelledError, GeneratorExit)):
        return (TIMED_OUT, False) if limited else (None, True)
    return (TIMED_OUT if isinstance(exc, TimeoutError) else OTHER), False
