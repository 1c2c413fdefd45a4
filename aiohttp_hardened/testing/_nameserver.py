"""A name server on loopback that answers as it is told: well, badly, late, or not at all."""

from __future__ import annotations

import ipaddress
import socket
import struct
import threading
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

Mode = Literal["answer", "silent", "no AAAA", "nxdomain", "nodata", "servfail", "refused", "garbage", "truncated"]

_A: Final = 1
_AAAA: Final = 28
_TYPES: Final = {_A: "A", _AAAA: "AAAA"}
_HEADER: Final = struct.Struct("!6H")
_RECORD: Final = struct.Struct("!HHHIH")
_QUESTION_POINTER: Final = 0xC00C
_RESPONSE: Final = 0x8180
_TRUNCATED: Final = 0x0200
_RCODES: Final = {"nxdomain": 3, "servfail": 2, "refused": 5}
_SECONDS_TO_NOTICE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Zone:
    """What is answered for a name.

    Args:
        addresses: IPv4 and IPv6.
        mode: How.
        delay: Seconds before the answer.
        ttl: Seconds.
    """

    addresses: tuple[str, ...] = ()
    mode: Mode = "answer"
    delay: float = 0.0
    ttl: int = 60


class FakeNameServer:
    """A UDP name server on a thread of its own.

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
        self._zones: dict[str, Zone] = {}
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._timers: list[threading.Timer] = []
        self.queries: Counter[tuple[str, str]] = Counter()
        """How often each ``(name, "A" or "AAAA")`` was asked."""

    @property
    def address(self) -> str:
        """``host:port``, as ``DNSSettings.nameservers`` takes it."""
        return f"{self._host}:{self._port}"

    def set(
        self, name: str, *addresses: str, mode: Mode = "answer", delay: float = 0.0, ttl: int = 60
    ) -> None:
        """Say what is answered for a name.

        Args:
            name: The name; without a trailing dot.
            *addresses: IPv4 and IPv6.
            mode: ``answer``, ``silent``, ``no AAAA`` (silent about IPv6), ``nxdomain``,
                ``nodata``, ``servfail``, ``refused``, ``garbage`` or ``truncated``.
            delay: Seconds before the answer.
            ttl: Seconds.
        """
        self._zones[name.lower()] = Zone(addresses, mode, delay, ttl)

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
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self._host, self._port))
        self._socket.settimeout(_SECONDS_TO_NOTICE)
        self._port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, args=(self._socket,), name="fake name server")
        self._thread.start()

    def stop(self) -> None:
        """Die: the port is closed, and queries are refused by the system."""
        sock, self._socket = self._socket, None
        thread, self._thread = self._thread, None
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._timers.clear()
        if thread is not None:
            thread.join()
        if sock is not None:
            sock.close()

    def _serve(self, sock: socket.socket) -> None:
        while self._socket is sock:
            try:
                query, client = sock.recvfrom(512)
            except (TimeoutError, ConnectionError):
                continue
            answer = self._answer(query)
            if answer is None:
                continue
            message, delay = answer
            if not delay:
                sock.sendto(message, client)
                continue
            timer = threading.Timer(delay, self._send, (sock, message, client))
            self._timers.append(timer)
            timer.start()

    def _send(self, sock: socket.socket, message: bytes, client: tuple[str, int]) -> None:
        if self._socket is sock:
            sock.sendto(message, client)

    def _answer(self, query: bytes) -> tuple[bytes, float] | None:
        identity = _HEADER.unpack_from(query)[0]
        name, end = _name(query, _HEADER.size)
        kind = int.from_bytes(query[end : end + 2], "big")
        self.queries[name, _TYPES.get(kind, str(kind))] += 1
        question = query[_HEADER.size : end + 4]
        zone = self._zones.get(name, Zone(mode="nxdomain"))
        if zone.mode == "silent" or (zone.mode == "no AAAA" and kind == _AAAA):
            return None
        if zone.mode == "garbage":
            return identity.to_bytes(2, "big") + b"\xff" * 20, zone.delay
        flags = _RESPONSE | _RCODES.get(zone.mode, 0)
        if zone.mode == "truncated":
            flags |= _TRUNCATED
        records = [] if zone.mode in ("nodata", "truncated", *_RCODES) else _records(zone, kind)
        header = _HEADER.pack(identity, flags, 1, len(records), 0, 0)
        return header + question + b"".join(records), zone.delay


def _name(message: bytes, at: int) -> tuple[str, int]:
    labels = []
    while message[at]:
        length = message[at]
        labels.append(message[at + 1 : at + 1 + length].decode("ascii", "replace"))
        at += length + 1
    return ".".join(labels).lower(), at + 1


def _records(zone: Zone, kind: int) -> list[bytes]:
    packed = (ipaddress.ip_address(each) for each in zone.addresses)
    wanted = 4 if kind == _A else 6
    return [
        _RECORD.pack(_QUESTION_POINTER, kind, 1, zone.ttl, len(each.packed)) + each.packed
        for each in packed
        if each.version == wanted and kind in _TYPES
    ]
