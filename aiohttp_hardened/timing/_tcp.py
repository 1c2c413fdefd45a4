"""When the TCP connect is timed.

Starts: when the race over the addresses starts.
Stops: when the first socket is connected, or the race is lost.
Seam: ``socket_factory=`` of ``TCPConnector``; asyncio and uvloop both read ``SO_ERROR``
of the socket to learn the outcome of a non-blocking ``connect()``.
Blind: sockets of a caller's own factory show no events of single addresses.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.timing import _keys
from aiohttp_hardened.timing._errors import errno_word
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.timing._phase import Phase, PhaseEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp_hardened.timing._request import Attempt

AddrInfo = tuple[int, int, int, str, tuple[Any, ...]]

_TCP_INFO_TOTAL_RETRANS: Final = struct.Struct("@100xI")
"""``tcpi_total_retrans`` in Linux's ``struct tcp_info``: u32 at offset 100."""

OVERTAKEN_AFTER_NS: Final = 200_000_000
"""An address that another one overtook this long after its start has a problem."""


_GIVEN_UP: Final = -1
"""In place of an error number: the address had not answered when the race was over."""


class TimedSocket(socket.socket):
    """A socket that tells its race how its connect went."""

    _race: Race | None = None

    def connect(self, address: Any, /) -> None:
        """Connect as ``socket.socket`` does."""
        race = self._race
        if race is None:
            super().connect(address)
            return
        try:
            super().connect(address)
        except (BlockingIOError, InterruptedError):
            raise
        except OSError as exc:
            race.failed(self, exc.errno)
            raise
        race.connected(self)

    def getsockopt(self, level: int, optname: int, /, *args: Any) -> Any:
        """Answer as ``socket.socket`` does; ``SO_ERROR`` is how loops learn that a connect is done."""
        read: Any = super().getsockopt  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        value: Any = read(level, optname, *args)
        race = self._race
        if race is not None and optname == socket.SO_ERROR and level == socket.SOL_SOCKET:
            if value:
                race.failed(self, value)
            else:
                race.connected(self)
        return value

    def close(self) -> None:
        """Close as ``socket.socket`` does."""
        race = self._race
        if race is not None:
            self._race = None
            race.closed(self)
        super().close()


class _Runner:
    """One address in the race."""

    def __init__(self, address: str, port: int, sock: socket.socket) -> None:
        self.address = address
        self.port = port
        self.sock: socket.socket | None = sock
        self.started = time.perf_counter_ns()
        self.errno: int | None = None
        self.done = False


class Race:
    """One TCP race of an attempt over the addresses of a host.

    Args:
        attempt: Who connects.
        host: The host as it stands in the URL (a proxy's, when it is one that is connected to).
        port: Its port.
        addresses: The addresses, in the order in which they start.
        factory: A caller's own ``socket_factory``; its sockets are used as they are.
    """

    def __init__(
        self,
        attempt: Attempt,
        host: str,
        port: int | None,
        addresses: tuple[str, ...],
        factory: Callable[[AddrInfo], socket.socket] | None = None,
    ) -> None:
        self._attempt = attempt
        self.host = host
        self.port = port
        self.addresses = addresses
        self._factory = factory
        self._phase = attempt.enter(Phase.TCP, normalise_host(host), port)
        attempt.races.append(self)
        self._runners: list[_Runner] = []
        self.retransmits = 0
        self.winner: tuple[str, int] | None = None
        self.failed_addresses: list[str] = []
        """Addresses that failed, or were overtaken after ``OVERTAKEN_AFTER_NS``."""

    def make_socket(self, addr_info: AddrInfo) -> socket.socket:
        """Make the socket for one address.

        Args:
            addr_info: As ``socket.getaddrinfo`` gives it.
        """
        family, kind, proto, _, address = addr_info
        if self._factory is not None:
            sock = self._factory(addr_info)
        else:
            sock = TimedSocket(family=family, type=kind, proto=proto)
            sock._race = self  # noqa: SLF001  (its own class, same module)
        self._runners.append(_Runner(address[0], address[1], sock))
        return sock

    def connected(self, sock: socket.socket) -> None:
        """End the phase with the first socket that is connected."""
        if self.winner is not None:
            return
        runner = self._runner(sock)
        if runner is None:
            return
        runner.done = True
        self._win(runner)
        self._attempt.leave(self._phase)
        self._attempt.tcp_connected()

    def failed(self, sock: socket.socket, errno: int | None) -> None:
        """Write down that one address failed."""
        runner = self._runner(sock)
        if runner is None or runner.done:
            return
        runner.done = True
        runner.errno = errno
        self._event(runner, _keys.EVENT_ADDRESS_FAILED, errno_word(errno))

    def closed(self, sock: socket.socket) -> None:
        """Read a socket's last figures; an unfinished one was overtaken or given up."""
        runner = self._runner(sock)
        if runner is None:
            return
        self.retransmits += _retransmits(sock)
        runner.sock = None
        if runner.done:
            return
        runner.done = True
        if self.winner is not None:
            self._event(runner, _keys.EVENT_ADDRESS_OVERTAKEN, None)
        else:
            runner.errno = _GIVEN_UP

    def finish(self, exc: BaseException | None = None) -> None:
        """End the race once its outcome has reached the connector.

        Args:
            exc: What the race or the handshake after it raised.
        """
        if self.winner is None and exc is None:
            self._win_by_elimination()
        if self.winner is None and isinstance(exc, TimeoutError):
            self.failed_addresses.extend(each.address for each in self._runners if each.errno == _GIVEN_UP)
        self._attempt.leave(self._phase, exc)
        for runner in self._runners:
            sock, runner.sock = runner.sock, None
            if isinstance(sock, TimedSocket):
                sock._race = None  # noqa: SLF001  (its own class, same module)
        attributes = self._phase.attributes
        attributes[_keys.TCP_ADDRESSES_TRIED] = self.tried
        if sys.platform == "linux":
            attributes[_keys.TCP_SYN_RETRANSMITS] = self.retransmits
        tried = {"ipv6" if ":" in runner.address else "ipv4" for runner in self._runners}
        if self.winner is not None:
            attributes[_keys.NETWORK_TYPE] = "ipv6" if ":" in self.winner[0] else "ipv4"
        elif len(tried) == 1:
            attributes[_keys.NETWORK_TYPE] = tried.pop()
        if self.winner is None and len(self._runners) == 1:
            attributes[_keys.NETWORK_PEER_ADDRESS] = self._runners[0].address
            attributes[_keys.NETWORK_PEER_PORT] = self._runners[0].port

    @property
    def tried(self) -> int:
        """How many addresses have started."""
        return len(self._runners)

    def _runner(self, sock: socket.socket) -> _Runner | None:
        for runner in self._runners:
            if runner.sock is sock:
                return runner
        return None

    def _win(self, runner: _Runner) -> None:
        self.winner = (runner.address, runner.port)
        if runner.sock is not None:
            self.retransmits += _retransmits(runner.sock)
            if isinstance(runner.sock, TimedSocket):
                runner.sock._race = None  # noqa: SLF001  (its own class, same module)
        attributes = self._phase.attributes
        attributes[_keys.NETWORK_PEER_ADDRESS] = runner.address
        attributes[_keys.NETWORK_PEER_PORT] = runner.port
        self._attempt.peer = self.winner

    def _win_by_elimination(self) -> None:
        """Find the winner among a caller's own sockets: the one that is still open."""
        for runner in self._runners:
            if runner.sock is not None and runner.sock.fileno() != -1:
                self._win(runner)
                return

    def _event(self, runner: _Runner, name: str, error_type: str | None) -> None:
        now = self._phase.end or time.perf_counter_ns()
        attributes: dict[str, Any] = {
            _keys.NETWORK_PEER_ADDRESS: runner.address,
            _keys.NETWORK_PEER_PORT: runner.port,
        }
        if error_type is not None:
            attributes[_keys.ERROR_TYPE] = error_type
        self._phase.events.append(PhaseEvent(name, self._attempt.wall(now), attributes))
        if error_type is not None or now - runner.started >= OVERTAKEN_AFTER_NS:
            self.failed_addresses.append(runner.address)


def _retransmits(sock: socket.socket) -> int:
    if sys.platform != "linux":
        return 0
    try:
        info = socket.socket.getsockopt(sock, socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_TOTAL_RETRANS.size)
    except OSError:
        return 0
    if len(info) < _TCP_INFO_TOTAL_RETRANS.size:
        return 0
    return int(_TCP_INFO_TOTAL_RETRANS.unpack(info)[0])
