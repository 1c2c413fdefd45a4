"""A name server on loopback that answers as it is told: well, badly, late, or not at all."""

from __future__ import annotations

import heapq
import ipaddress
import itertools
import selectors
import socket
import struct
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["FakeNameServer"]

Mode = Literal[
    "answer",
    "silent",
    "no AAAA",
    "nxdomain",
    "nodata",
    "servfail",
    "refused",
    "garbage",
    "forged",
    "truncated",
]
Kind = Literal["A", "AAAA"]

_TYPES: Final[dict[int, Kind]] = {1: "A", 28: "AAAA"}
_VERSIONS: Final[dict[int, int]] = {1: 4, 28: 6}
_RCODES: Final = {"nxdomain": 3, "servfail": 2, "refused": 5}

# RFC 1035, section 4.1: header, and what stands before the data of a record.
_HEADER: Final = struct.Struct("!6H")
_RECORD: Final = struct.Struct("!HHHIH")
_START_OF_AUTHORITY: Final = struct.Struct("!HH5I")
_SOA: Final = 6
_LENGTH: Final = struct.Struct("!H")
_NAME_OF_THE_QUESTION: Final = 0xC000 | _HEADER.size
_RESPONSE: Final = 0x8180
_TRUNCATED: Final = 0x0200
_LARGEST_QUERY: Final = 4096


@dataclass(frozen=True, slots=True)
class _Zone:
    """What is answered for a name."""

    addresses: tuple[str, ...] = ()
    mode: Mode = "nxdomain"
    delay: float = 0.0
    ttl: int = 0


class FakeNameServer:
    """A name server (UDP and TCP) on a thread of its own; it needs no event loop.

    ::

        with FakeNameServer() as names:
            names.set("x.test", "127.0.0.1")
            settings = Settings(dns=DNSSettings(nameservers=(names.address,)))

    Names that were not set do not exist. ``stop()`` lets it die, ``start()`` lets it
    come back on the same port.

    Args:
        host: A loopback address.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._host = host
        self._port = 0
        self._zones: dict[tuple[str, Kind | None], _Zone] = {}
        self._thread: threading.Thread | None = None
        self._wake: socket.socket | None = None
        self.queries: Counter[tuple[str, str]] = Counter()
        """How often each ``(name, "A" or "AAAA")`` was asked."""

    @property
    def address(self) -> str:
        """``host:port``, as ``DNSSettings.nameservers`` takes it."""
        return f"{self._host}:{self._port}"

    def set(
        self,
        name: str,
        *addresses: str,
        mode: Mode = "answer",
        delay: float = 0.0,
        ttl: int = 60,
        kind: Kind | None = None,
    ) -> None:
        """Say what is answered for a name.

        Args:
            name: The name; without a trailing dot.
            *addresses: IPv4 and IPv6.
            mode: ``answer``; ``silent``; ``no AAAA`` (silent about IPv6); ``nxdomain``,
                ``nodata``, ``servfail``, ``refused``; ``garbage`` (cannot be parsed);
                ``forged`` (answers a question that nobody asked); ``truncated`` (over
                UDP: the answer comes over TCP).
            delay: Seconds before the answer.
            ttl: Seconds that an answer, or "no such name" and "no data", may be cached.
            kind: Only for questions of this type; ``None``: for both.
        """
        self._zones[name.lower(), kind] = _Zone(addresses, mode, delay, ttl)

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop."""
        self.stop()

    def start(self) -> None:
        """Begin to answer; on the same port as before."""
        udp, tcp = _bind(self._host, self._port)
        self._port = udp.getsockname()[1]
        self._wake, woken = socket.socketpair()
        serve = _Service(udp, tcp, woken, self._reply).run
        self._thread = threading.Thread(target=serve, name="fake name server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Die: the port is closed, and the system refuses queries."""
        thread, self._thread = self._thread, None
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.close()
        if thread is not None:
            thread.join()

    def _reply(self, query: bytes, *, over_tcp: bool) -> tuple[bytes, float] | None:
        """Return the answer to a query and after how many seconds it is due; ``None``: there is none."""
        identity: int = _HEADER.unpack_from(query)[0]
        name, end = _name(query, _HEADER.size)
        number = int.from_bytes(query[end : end + 2], "big")
        kind = _TYPES.get(number)
        self.queries[name, kind or str(number)] += 1
        zone = self._zones.get((name, kind)) or self._zones.get((name, None), _Zone())
        if zone.mode == "silent" or (zone.mode == "no AAAA" and kind == "AAAA"):
            return None
        if zone.mode == "garbage":
            return _LENGTH.pack(identity) + b"\xff" * 20, zone.delay
        truncated = zone.mode == "truncated" and not over_tcp
        answers = zone.mode in ("answer", "no AAAA", "forged", "truncated") and not truncated
        records = _records(zone, number) if answers else []
        flags = _RESPONSE | _RCODES.get(zone.mode, 0) | (_TRUNCATED if truncated else 0)
        question = query[_HEADER.size : end + 4]
        if zone.mode == "forged":
            question = b"\x06forged" + question
        negative = [] if records or truncated or zone.mode in ("servfail", "refused") else [_authority(zone.ttl)]
        header = _HEADER.pack(identity, flags, 1, len(records), len(negative), 0)
        return header + question + b"".join(records + negative), zone.delay


class _Service:
    """The loop of one life of a name server; it ends when its ``woken`` socket is closed at the other end."""

    def __init__(
        self,
        udp: socket.socket,
        tcp: socket.socket,
        woken: socket.socket,
        reply: Callable[..., tuple[bytes, float] | None],
    ) -> None:
        self._udp, self._tcp, self._woken = udp, tcp, woken
        self._reply = reply
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._open: set[socket.socket] = {udp, tcp, woken}

    def run(self) -> None:
        """Answer until told to stop."""
        for sock in self._open:
            sock.settimeout(0.0)
            self._selector.register(sock, selectors.EVENT_READ)
        try:
            while True:
                timeout = max(0.0, self._due[0][0] - time.monotonic()) if self._due else None
                ready = [key.fileobj for key, _ in self._selector.select(timeout)]
                if self._woken in ready:
                    return
                for readable in ready:
                    self._read(readable)
                while self._due and self._due[0][0] <= time.monotonic():
                    _ignoring_lost_clients(heapq.heappop(self._due)[2])
        finally:
            self._selector.close()
            for sock in self._open:
                sock.close()

    def _read(self, sock: object) -> None:
        if sock is self._udp:
            _ignoring_lost_clients(self._read_datagram)
        elif sock is self._tcp:
            client, _ = self._tcp.accept()
            self._open.add(client)
            self._selector.register(client, selectors.EVENT_READ)
        elif isinstance(sock, socket.socket):
            self._read_stream(sock)

    def _read_datagram(self) -> None:
        query, client = self._udp.recvfrom(_LARGEST_QUERY)
        self._answer(query, over_tcp=False, send=lambda message: self._udp.sendto(message, client))

    def _read_stream(self, client: socket.socket) -> None:
        try:
            message = client.recv(_LARGEST_QUERY)
        except OSError:
            message = b""
        if not message:
            self._selector.unregister(client)
            self._open.discard(client)
            client.close()
            return
        # A query is far smaller than a segment: each read holds whole ones, each behind its length.
        while len(message) > _LENGTH.size:
            (length,) = _LENGTH.unpack_from(message)
            query, message = message[_LENGTH.size : _LENGTH.size + length], message[_LENGTH.size + length :]
            self._answer(query, over_tcp=True, send=lambda reply: client.sendall(_LENGTH.pack(len(reply)) + reply))

    def _answer(self, query: bytes, *, over_tcp: bool, send: Callable[[bytes], object]) -> None:
        try:
            reply = self._reply(query, over_tcp=over_tcp)
        except (struct.error, IndexError):
            # No query.
            return
        if reply is not None:
            message, delay = reply
            heapq.heappush(self._due, (time.monotonic() + delay, next(self._order), lambda: send(message)))


def _ignoring_lost_clients(step: Callable[[], object]) -> None:
    try:
        step()
    except OSError:
        # A client that is gone; the system tells a UDP socket of it at its next call.
        return


def _bind(host: str, port: int) -> tuple[socket.socket, socket.socket]:
    """Return a UDP and a listening TCP socket on one port; 0: any that is free for both."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempts_left in reversed(range(20)):
        udp = socket.socket(family, socket.SOCK_DGRAM)
        tcp = socket.socket(family, socket.SOCK_STREAM)
        try:
            udp.bind((host, port))
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tcp.bind((host, udp.getsockname()[1]))
            tcp.listen()
        except OSError:
            udp.close()
            tcp.close()
            if port or not attempts_left:
                raise
        else:
            return udp, tcp
    raise AssertionError  # the last attempt raises


def _name(message: bytes, at: int) -> tuple[str, int]:
    """Return the name that is written in a message at an offset, and where it ends."""
    labels: list[str] = []
    while message[at]:
        length = message[at]
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += length + 1
    return ".".join(labels).lower(), at + 1


def _authority(ttl: int) -> bytes:
    """Return what says for how long "no" may be cached (RFC 2308)."""
    data = _START_OF_AUTHORITY.pack(_NAME_OF_THE_QUESTION, _NAME_OF_THE_QUESTION, 1, 3600, 600, 86400, ttl)
    return _RECORD.pack(_NAME_OF_THE_QUESTION, _SOA, 1, ttl, len(data)) + data


def _records(zone: _Zone, number: int) -> list[bytes]:
    packed = (ipaddress.ip_address(each) for each in zone.addresses)
    return [
        _RECORD.pack(_NAME_OF_THE_QUESTION, number, 1, zone.ttl, len(each.packed)) + each.packed
        for each in packed
        if each.version == _VERSIONS.get(number)
    ]
