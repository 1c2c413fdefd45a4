from __future__ import annotations

import socket
import struct
import time

import pytest

from aiohttp_hardened.testing import FakeNameServer

A, AAAA = 1, 28


def query(name: str, kind: int = A, identity: int = 7) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", identity, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", kind, 1)


def ask(names: FakeNameServer, message: bytes, timeout: float = 2.0) -> bytes:
    host, port = names.address.rsplit(":", 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout)
        sock.connect((host, int(port)))
        sock.send(message)
        return sock.recv(512)


def header(message: bytes) -> tuple[int, int, int, int, int, int]:
    return struct.unpack_from("!6H", message)


def test_an_answer() -> None:
    """An answer repeats identity and question, and holds the addresses of the family with their TTL."""
    with FakeNameServer() as names:
        names.set("X.test", "127.0.0.1", "127.0.0.2", "::1", ttl=9)
        answer = ask(names, query("x.TEST"))
        assert header(answer) == (7, 0x8180, 1, 2, 0, 0)
        assert answer[12:].startswith(query("x.TEST")[12:])
        assert answer.endswith(bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 2]))
        assert ask(names, query("x.test", AAAA)).endswith(bytes(15) + b"\x01")
        assert names.queries == {("x.test", "A"): 1, ("x.test", "AAAA"): 1}


@pytest.mark.parametrize(
    ("mode", "code", "authority"), [("nxdomain", 3, 1), ("nodata", 0, 1), ("servfail", 2, 0), ("refused", 5, 0)]
)
def test_negative_answers(mode: str, code: int, authority: int) -> None:
    """A refusal holds no record; "no" says for how long it may be cached."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", mode=mode)
        assert header(ask(names, query("x.test"))) == (7, 0x8180 | code, 1, 0, authority, 0)


def test_unknown_names_do_not_exist() -> None:
    """What was not set does not exist."""
    with FakeNameServer() as names:
        assert header(ask(names, query("x.test")))[1] & 15 == 3


@pytest.mark.parametrize(("mode", "kind"), [("silent", A), ("silent", AAAA), ("no AAAA", AAAA)])
def test_silence(mode: str, kind: int) -> None:
    """A silent name is counted, not answered."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", mode=mode)
        with pytest.raises(TimeoutError):
            ask(names, query("x.test", kind), 0.1)
        assert sum(names.queries.values()) == 1


def test_one_type_only() -> None:
    """What is set for one type holds for that type."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", "::1")
        names.set("x.test", mode="refused", kind="AAAA")
        assert header(ask(names, query("x.test", A)))[3] == 1
        assert header(ask(names, query("x.test", AAAA)))[1] & 15 == 5


def test_delays_do_not_add_up() -> None:
    """A delayed answer delays no other."""
    with FakeNameServer() as names:
        names.set("late.test", "127.0.0.1", delay=0.3)
        names.set("x.test", "127.0.0.1")
        host, port = names.address.rsplit(":", 1)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(2.0)
            sock.connect((host, int(port)))
            begun = time.monotonic()
            sock.send(query("late.test", identity=1))
            sock.send(query("late.test", identity=2))
            sock.send(query("x.test", identity=3))
            assert [header(sock.recv(512))[0] for _ in range(3)] == [3, 1, 2]
            assert 0.3 <= time.monotonic() - begun < 0.55


def test_truncated_is_whole_over_tcp() -> None:
    """A truncated answer says so, and comes whole over TCP, however many are asked for at once."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", mode="truncated")
        assert header(ask(names, query("x.test")))[1:4] == (0x8380, 1, 0)
        host, port = names.address.rsplit(":", 1)
        with socket.create_connection((host, int(port)), 2.0) as sock:
            one = query("x.test")
            sock.sendall(2 * (struct.pack("!H", len(one)) + one))
            received = b""
            while len(received) < 2 * (len(one) + 18):
                received += sock.recv(4096)
        assert header(received[2:])[3] == 1
        assert names.queries["x.test", "A"] == 3


@pytest.mark.parametrize("mode", ["garbage", "forged"])
def test_lies(mode: str) -> None:
    """A lie carries the right identity, and not what was asked."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1", mode=mode)
        answer = ask(names, query("x.test"))
        assert answer[:2] == b"\0\x07"
        assert not answer[12:].startswith(query("x.test")[12:])


def test_it_dies_and_comes_back() -> None:
    """A name server that is stopped refuses, and comes back on its port with what it knew."""
    names = FakeNameServer()
    for _ in range(2):
        with names:
            address = names.address
            names.set("x.test", "127.0.0.1")
            assert header(ask(names, query("x.test")))[3] == 1
        with pytest.raises(ConnectionRefusedError):
            ask(names, query("x.test"))
        names.stop()
        assert names.address == address


def test_nonsense_does_not_stop_it() -> None:
    """A datagram that is no query is not answered, and the next one is."""
    with FakeNameServer() as names:
        names.set("x.test", "127.0.0.1")
        for nonsense in (b"", b"\0", b"\xff" * 11, b"\xff" * 40, b"\0" * 12):
            with pytest.raises(TimeoutError):
                ask(names, nonsense, 0.05)
        assert header(ask(names, query("x.test")))[3] == 1
