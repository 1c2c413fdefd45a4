"""The response protocol: where a response's head, its read timeout and its loss are seen.

Private names of aiohttp that it touches: ``client_proto.ResponseHandler`` as a class to
inherit from, its ``_payload``, ``_skip_payload`` and ``_tail``, and ``helpers._EXC_SENTINEL`` as the default
of ``set_exception``; ``WebSocketDataQueue._buffer``.
``tests/test_contract.py`` proves each on the lowest and the newest supported aiohttp.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, cast

from aiohttp import SocketTimeoutError, WSMsgType
from aiohttp.client_proto import ResponseHandler
from aiohttp.helpers import EMPTY_BODY_STATUS_CODES
from aiohttp.streams import EMPTY_PAYLOAD

from aiohttp_hardened.exceptions import PhaseTimeoutError
from aiohttp_hardened.timing._phase import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp_hardened.timing._connection import Connection
    from aiohttp_hardened.timing._request import Attempt
    from aiohttp_hardened.timing._websocket import Websocket


class TimedResponseHandler(ResponseHandler):
    """aiohttp's response protocol, which also tells the attempt that it serves.

    Args:
        loop: The connector's loop.
    """

    attempt: Attempt | None = None
    connection: Connection | None = None
    tells_only = False
    """Whether aiohttp's own timeouts hold, and its exceptions stay as they are."""
    expires: float | None = None
    """``loop.time()`` after which it is not returned to the pool."""
    generation: int | None = 0
    """The generation of the TLS context that it was made with; 0: an outdated one, ``None``: one that nobody swaps."""
    _watched: WatchedParser | None = None

    def hold_read_budget(self, seconds: float | None, *, at_once: bool = False) -> None:
        """Limit the time between two reads of the next response, whose own timeout says nothing of it.

        aiohttp sets the timeout between ``connect()`` and sending; the override is
        on this object and for one call, so that other responses pay nothing.

        Args:
            seconds: The limit; ``None``: the request's own.
            at_once: Hold it from the start: nothing more is sent before the server has
                answered. aiohttp would hold it when the request is sent to its end.
        """

        def set_response_params(**params: Any) -> None:
            del self.set_response_params
            if seconds is not None:
                params["read_timeout"] = seconds
            self.set_response_params(**params)
            if at_once:
                super(TimedResponseHandler, self).start_timeout()

        self.set_response_params = set_response_params  # type: ignore[method-assign]

    def start_timeout(self) -> None:
        """Wait for the response: the request is sent to its end."""
        super().start_timeout()
        if self.attempt is not None:
            self.attempt.request_sent()

    def set_parser(self, parser: Any, payload: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """Become a websocket's."""
        socket = None if self.attempt is None else self.attempt.upgraded(data_received_cb)
        if socket is not None:
            parser = self._watched = WatchedParser(parser, payload, socket)
        super().set_parser(parser, payload, data_received_cb)

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002  (as aiohttp has it)
        """Go on; a websocket whose reader fell behind has parsed what it held back meanwhile."""
        super().resume_reading(resume_parser)
        if self._watched is not None:
            self._watched.look()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take a parsed head with its body."""
        super().feed_data(data, size)
        if self.attempt is not None:
            message, body = data
            # An empty body is one, whichever of aiohttp's parsers says so; to HEAD, 204 and 304 there is none.
            none = body is EMPTY_PAYLOAD and (self._skip_payload or message.code in EMPTY_BODY_STATUS_CODES)
            self.attempt.headers_read(message, None if none else body)

    def set_exception(  # pyright: ignore[reportIncompatibleMethodOverride]  (the default of the cause stays aiohttp's)
        self, exc: BaseException, *cause: BaseException
    ) -> None:
        """Fail the response; a read timeout that is ours to hold gets its budget as a cause."""
        if isinstance(exc, SocketTimeoutError) and self.read_timeout:
            if self.attempt is not None:
                self.attempt.read_ran_out = self.read_timeout
            if exc.__cause__ is None and not self.tells_only:
                exc.__cause__ = self._read_timed_out(self.read_timeout)
        super().set_exception(exc, *cause)

    def _read_timed_out(self, seconds: float) -> PhaseTimeoutError:
        phase = Phase.REQUEST if self._payload is None else Phase.BODY
        what = "the response" if phase is Phase.REQUEST else "the response's body"
        return PhaseTimeoutError(
            f"reading {what} timed out: nothing came for {seconds:.2f} s", phase=phase, budget=seconds
        )

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note of the end of the connection."""
        dropped = self.transport is None  # ``close()`` and ``abort()`` forget it
        super().connection_lost(exc)
        attempt, self.attempt = self.attempt, None
        if attempt is not None:
            attempt.connection_lost(exc, dropped=dropped)
        if self.connection is not None:
            self.connection.close()

    @property
    def has_unread_bytes(self) -> bool:
        """Whether bytes came behind the response's head."""
        payload = self._payload
        return bool(self._tail) or (payload is not None and payload.total_bytes > 0)


class WatchedParser:
    """aiohttp's websocket parser, with an eye on the peer's Close frame, of which aiohttp sends no signal.

    Args:
        parser: aiohttp's.
        messages: The queue that it fills.
        socket: Is told.
    """

    def __init__(self, parser: Any, messages: Any, socket: Websocket) -> None:
        self._theirs = parser
        self._messages = messages
        self._socket = socket

    def feed_data(self, data: Any) -> Any:
        """Parse what came; a Close frame is the last of it."""
        result = self._theirs.feed_data(data)
        self.look()
        if result[0]:
            self._socket.failure = self._messages.exception()
        return result

    def look(self) -> None:
        """See whether the last message is the peer's goodbye."""
        buffer = self._messages._buffer
        if buffer and buffer[-1][0].type is WSMsgType.CLOSE:
            self._socket.closing(buffer[-1][0].data)

    def feed_eof(self) -> None:
        """Hand on that nothing more will come."""
        self._theirs.feed_eof()


_timed_classes: Final[dict[type[ResponseHandler], type[TimedResponseHandler]]] = {}


def timed_protocol(kind: type[ResponseHandler]) -> type[TimedResponseHandler]:
    """Return a class that is the given one and tells the attempt that it serves; it keeps the name and the module."""
    known = _timed_classes.get(kind)
    if known is None:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
        bases = (TimedResponseHandler,) if kind is ResponseHandler else (TimedResponseHandler, kind)
        made: Any = type(kind.__name__, bases, names)
        known = _timed_classes[kind] = made
    return known


def time_protocol(protocol: object) -> None:
    """Let a protocol that somebody else made tell the attempt that it serves; it stays the object that it is.

    Args:
        protocol: Any; one that is not aiohttp's, nor derived from it, stays as it is.
    """
    kind = type(protocol)
    if issubclass(kind, ResponseHandler) and not issubclass(kind, TimedResponseHandler):
        with contextlib.suppress(TypeError):  # its class cannot be changed: its bodies are not told of
            cast("Any", protocol).__class__ = timed_protocol(kind)
