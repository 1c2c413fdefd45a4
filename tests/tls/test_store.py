"""The ticket store by itself: bounds, lifetimes, and what it learns of peers that send no tickets or refuse them."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from typing import Any

import pytest

from aiohttp_hardened.tls import _tickets
from aiohttp_hardened.tls._tickets import TicketStore


class FakeGeneration:
    retired = False


GENERATION: Any = FakeGeneration()


def key(name: str = "x.test", generation: Any = GENERATION) -> Any:
    return (generation, name, (443, None, None))


def put(store: TicketStore, key: Any, *sessions: Any, seconds: float = 60, reusable: bool = False) -> None:
    for session in sessions:
        store.put(key, session, seconds, reusable=reusable)


def taken(store: TicketStore, key: Any) -> Any:
    ticket = store.take(key)
    return None if ticket is None else ticket.session


def refuse(store: TicketStore, key: Any) -> None:
    ticket = store.take(key)
    assert ticket is not None
    store.answered(key, ticket, resumed=False)


def test_a_tls_1_3_ticket_is_used_once_and_the_newest_first() -> None:
    """RFC 8446, appendix C.4."""
    store = TicketStore()
    put(store, key(), "one", "two")
    assert ["two", "one", None] == [taken(store, key()) for _ in range(3)]
    assert len(store) == 0


def test_a_tls_1_2_session_serves_again_and_replaces_the_one_before() -> None:
    """One session is enough for a key."""
    store = TicketStore()
    put(store, key(), "one", "two", reusable=True)
    assert ["two", "two"] == [taken(store, key()) for _ in range(2)]
    assert len(store) == 1
    assert not store.wanted(key(), reusable=True)


def test_the_store_is_bounded() -> None:
    """So many per key, so many in all; the oldest go first."""
    store = TicketStore(most=6, most_per_key=3)
    put(store, key("a"), *range(5))
    assert len(store) == 3
    put(store, key("b"), *range(3))
    put(store, key("c"), "new")
    assert len(store) == 6
    assert [4, 3, None] == [taken(store, key("a")) for _ in range(3)]
    assert taken(store, key("c")) == "new"


def test_what_is_known_of_peers_is_bounded_too() -> None:
    """A thousand peers without tickets leave nothing behind that grows."""
    store = TicketStore(most=10)
    for number in range(1000):
        store.sent_none(key(str(number)))
    assert len(store._shelves) == 10


def test_the_defaults_are_the_documented_ones() -> None:
    """1024 sessions in all, 256 per key."""
    assert (1024, 256) == (_tickets.MOST_SESSIONS, _tickets.MOST_PER_KEY)
    store = TicketStore()
    put(store, key(), *range(300))
    assert len(store) == 256


@pytest.mark.parametrize("reusable", [False, True])
def test_what_has_ended_is_not_given_out(reusable: bool) -> None:
    """A lifetime of nothing is not kept, and one that ran out is dropped when it is met."""
    store = TicketStore()
    put(store, key("late"), "x", seconds=0, reusable=reusable)
    put(store, key("past"), "x", seconds=-5, reusable=reusable)
    put(store, key("soon"), "x", seconds=1e-9, reusable=reusable)
    time.sleep(0.001)
    assert [None, None, None] == [taken(store, key(name)) for name in ("late", "past", "soon")]
    assert len(store) == 0


def test_a_retired_generation_gets_and_keeps_nothing() -> None:
    """Not even from a connection that was made before the swap and reads its first data after it."""
    store = TicketStore()
    old: Any = FakeGeneration()
    put(store, key(generation=old), "before")
    old.retired = True
    store.drop_retired()
    put(store, key(generation=old), "after")
    assert len(store) == 0
    assert taken(store, key(generation=old)) is None
    assert not store.wanted(key(generation=old), reusable=False)


def test_a_finalizer_may_retire_while_the_store_is_locked() -> None:
    """Garbage collection runs finalizers anywhere, also where this thread has the lock."""
    store = TicketStore()
    old: Any = FakeGeneration()
    put(store, key(generation=old), "x")

    class Facade:
        pass

    facade: Any = Facade()
    facade.cycle = facade
    weakref.finalize(facade, store.drop_retired_later)
    with store._lock:
        old.retired = True
        del facade
        gc.collect()
    assert store.take(key()) is None
    assert len(store) == 0


def test_a_peer_without_tickets_is_left_alone_for_a_while() -> None:
    """One read in a minute, not one per connection."""
    store = TicketStore()
    assert store.wanted(key(), reusable=False)
    store.sent_none(key())
    assert not any(store.wanted(key(), reusable=False) for _ in range(5))
    assert store.reads == 1
    assert store.wanted(key("another.test"), reusable=False)


def test_a_peer_that_refuses_its_newest_tickets_is_left_alone() -> None:
    """Three tickets in a row, each issued after the refusal of the one before: then nothing is offered or read."""
    store = TicketStore()
    for _ in range(3):
        put(store, key(), "fresh")
        refuse(store, key())
    put(store, key(), "again")
    assert store.take(key()) is None
    assert not store.wanted(key(), reusable=False)


def test_a_change_of_the_peers_keys_is_one_refusal() -> None:
    """After it the old tickets are all refused, and the new ones work at once."""
    store = TicketStore()
    put(store, key(), *range(128))
    old = [store.take(key()) for _ in range(100)]
    for ticket in old:
        assert ticket is not None
        store.answered(key(), ticket, resumed=False)
    put(store, key(), "new")
    ticket = store.take(key())
    assert ticket is not None
    assert ticket.session == "new"
    store.answered(key(), ticket, resumed=True)
    assert store.wanted(key(), reusable=False)


def test_a_refused_tls_1_2_session_is_not_offered_again() -> None:
    """It would be refused each time."""
    store = TicketStore()
    put(store, key(), "old", reusable=True)
    refuse(store, key())
    assert store.take(key()) is None
    assert store.wanted(key(), reusable=True)


def test_a_peer_that_breaks_on_tickets_heals() -> None:
    """A handshake that fails with a ticket takes that key's tickets with it; after three there are none for a while."""
    store = TicketStore()
    for _ in range(3):
        put(store, key(), "one", "two")
        assert taken(store, key()) == "two"
        store.broke(key())
        assert taken(store, key()) is None
    put(store, key(), "one")
    assert taken(store, key()) is None


def test_a_peer_that_goes_silent_on_tickets_heals() -> None:
    """Offers that nobody answers for longer than a handshake takes end in full handshakes."""
    now = [1000.0]
    store = TicketStore(clock=lambda: now[0])
    put(store, key(), "one", reusable=True)
    assert ["one"] * 3 == [taken(store, key()) for _ in range(3)]
    now[0] += 9
    assert taken(store, key()) == "one"
    now[0] += 2
    assert taken(store, key()) is None
    put(store, key(), "two", seconds=600, reusable=True)
    assert taken(store, key()) is None
    now[0] += 60
    assert taken(store, key()) == "two"


def test_reads_are_capped_where_they_leak() -> None:
    """The cap is on reads; what is in store still serves."""
    store = TicketStore(most_reads=2)
    assert [True, True, False] == [store.wanted(key(), reusable=False) for _ in range(3)]
    put(store, key(), "kept")
    assert taken(store, key()) == "kept"
    unlimited = TicketStore(most_reads=None)
    assert all(unlimited.wanted(key(), reusable=False) for _ in range(5000))


def test_no_ticket_goes_to_two_threads() -> None:
    """Each of many threads takes until there is nothing left; every ticket was taken once."""
    store = TicketStore(most=10_000, most_per_key=10_000)
    put(store, key(), *range(2000))
    got: list[list[int]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def take_all(mine: list[int]) -> None:
        start.wait()
        while (session := taken(store, key())) is not None:
            mine.append(session)

    threads = [threading.Thread(target=take_all, args=(mine,)) for mine in got]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(range(2000)) == sorted(number for mine in got for number in mine)
