"""Sessions that somebody else builds tell what hardened ones tell, and are given back as they were."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import ssl
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from aiohttp_hardened import (
    Phase,
    Settings,
    SettingsError,
    TimeoutSettings,
    create_session,
    create_trace_config,
    failed_phase,
    instrument,
    instrument_session,
    uninstrument,
)
from aiohttp_hardened.testing import (
    FixedResolver,
    HTTPServer,
    PhaseRecorder,
    ThrowawayCA,
    TLSServer,
    dead_address,
    stalled_tls,
)
from aiohttp_hardened.timing import Attempt, _hooks
from aiohttp_hardened.timing._connection import open_connections
from aiohttp_hardened.timing._figures import figures

if TYPE_CHECKING:
    from collections.abc import Generator

COLD = [Phase.TCP, Phase.SETUP, Phase.REQUEST, Phase.BODY]
COLD_TLS = [Phase.TCP, Phase.TLS, Phase.SETUP, Phase.REQUEST, Phase.BODY]
REUSED = [Phase.REQUEST, Phase.BODY]


@pytest.fixture
def recorder() -> PhaseRecorder:
    """Keeps the records."""
    return PhaseRecorder()


@pytest.fixture(autouse=True)
def nothing_is_left() -> Generator[None]:
    """Instrumented or not, a test leaves aiohttp's class as it found it."""
    before = dict(vars(aiohttp.ClientSession))
    yield
    uninstrument()
    assert before == dict(vars(aiohttp.ClientSession))


class Attempts:
    """A hook that keeps the live attempts."""

    def __init__(self) -> None:
        self.seen: list[Attempt] = []

    def on_request_start(self, attempt: Attempt) -> None:
        self.seen.append(attempt)

    def __call__(self, record: object) -> None:
        pass


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> None:
    async with session.get(url, **options) as response:
        await response.read()


# --- which sessions


async def test_a_session_built_later_tells(recorder: PhaseRecorder) -> None:
    """What is built after `instrument()` tells of every phase, and what was built before it does not."""
    async with HTTPServer() as server, aiohttp.ClientSession() as before:
        instrument(hooks=[recorder])
        async with aiohttp.ClientSession() as after:
            await get(before, server.url())
            assert recorder.records == []
            await get(after, server.url())
            assert COLD == recorder.phases()
    recorder.check_invariants()


async def test_a_session_built_inside_a_library_tells(recorder: PhaseRecorder) -> None:
    """Subclasses, positional arguments and `aiohttp.request` build sessions too."""
    instrument(hooks=[recorder])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # aiohttp discourages what libraries do

        class TheirSession(aiohttp.ClientSession):
            __slots__ = ()
            __hash__ = None  # type: ignore[assignment]

            def __init__(self, base_url: str) -> None:
                super().__init__(base_url)

    async with HTTPServer() as server:
        async with TheirSession(server.url("/")) as session:
            await get(session, "")
        async with aiohttp.request("GET", server.url()) as response:
            await response.read()
    assert COLD * 2 == recorder.phases()


async def test_a_silent_session_is_left_alone(recorder: PhaseRecorder) -> None:
    """`create_session` says itself what is told: nothing with `hooks=()`, and once with hooks."""
    instrument(hooks=[recorder])
    own = PhaseRecorder()
    async with HTTPServer() as server:
        async with create_session(hooks=()) as silent:
            await get(silent, server.url())
            assert silent.trace_configs == []
        async with create_session(hooks=[own]) as telling:
            await get(telling, server.url())
            instrument_session(telling, hooks=[recorder])
            await get(telling, server.url())
    assert recorder.records == []
    assert COLD + REUSED == own.phases()


async def test_a_session_with_our_trace_config_tells_once(recorder: PhaseRecorder) -> None:
    """A TraceConfig of ours that the builder passed is enough."""
    instrument(hooks=[PhaseRecorder()])
    configs = [create_trace_config(hooks=[recorder])]
    async with HTTPServer() as server, aiohttp.ClientSession(trace_configs=configs) as session:
        await get(session, server.url())
        assert configs == session.trace_configs
    assert COLD == recorder.phases()
    assert len(configs) == 1


async def test_a_session_that_is_told_otherwise_later(recorder: PhaseRecorder) -> None:
    """Whoever sets a session's trace configs after it was built has the last word, as contrib's undoing does."""
    instrument(hooks=[recorder])
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        session._trace_configs = []
        await get(session, server.url())
    assert recorder.records == []


async def test_twice_is_once(recorder: PhaseRecorder) -> None:
    """Called again, the latest hooks hold for sessions built after that, and nothing is told twice."""
    first = PhaseRecorder()
    instrument(hooks=[first])
    async with HTTPServer() as server, aiohttp.ClientSession() as early:
        instrument(hooks=[recorder])
        instrument(hooks=[recorder])
        async with aiohttp.ClientSession() as late:
            await get(early, server.url())
            await get(late, server.url())
            instrument_session(late, hooks=[recorder])
            await get(late, server.url())
    assert COLD == first.phases()
    assert COLD + REUSED == recorder.phases()


async def test_a_session_that_exists(recorder: PhaseRecorder) -> None:
    """A session in use, with connections in its pool, tells from now on; its own trace configs stay."""
    seen: list[object] = []

    async def started(_: object, context: Any, params: object) -> None:
        seen.append(context.trace_request_ctx)

    theirs = aiohttp.TraceConfig()
    theirs.on_request_start.append(started)
    given = [theirs]
    async with HTTPServer() as server, aiohttp.ClientSession(trace_configs=given) as session:
        await get(session, server.url())
        instrument_session(session, hooks=[recorder])
        await get(session, server.url(), trace_request_ctx={"url.template": "/"})
        assert given == [theirs]
        assert theirs is session.trace_configs[0]
    assert REUSED == recorder.phases()
    assert recorder.errors() == []
    assert [None, {"url.template": "/"}] == seen
    recorder.check_invariants()


async def test_a_redirect_on_a_connection_from_before(recorder: PhaseRecorder) -> None:
    """Both hops tell of a good end, though the connection was made when nobody listened."""
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        await get(session, server.url())
        instrument_session(session, hooks=[recorder])
        await get(session, server.url("/redirect?to=/"))
    assert [302, 200] == [each.status_code for each in recorder.requests()]
    assert recorder.errors() == []


# --- nothing is different for the caller


async def test_a_connector_stays_what_it_is(recorder: PhaseRecorder) -> None:
    """Its object, its settings, and what its class is called."""
    instrument(hooks=[recorder])
    connector = aiohttp.TCPConnector(limit=7)
    async with aiohttp.ClientSession(connector=connector) as session:
        assert connector is session.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        assert 7 == connector.limit
        assert "aiohttp.connector.TCPConnector" == f"{type(connector).__module__}.{type(connector).__qualname__}"


async def test_a_warning_names_the_caller(recorder: PhaseRecorder) -> None:
    """No frame of ours stands between the caller and aiohttp's warnings, on the session and on a request."""
    instrument(hooks=[recorder])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        async with aiohttp.ClientSession(auth=aiohttp.BasicAuth("user", "secret")):
            pass
    assert {__file__} == {warning.filename for warning in caught}


async def test_an_error_of_the_constructor_is_aiohttps(recorder: PhaseRecorder) -> None:
    """A session that cannot be built raises what it would have."""
    instrument(hooks=[recorder])
    with pytest.raises(ValueError, match="base_url must have a trailing '/'"):
        aiohttp.ClientSession("http://127.0.0.1/x")


async def test_a_failure_of_ours_is_contained(
    recorder: PhaseRecorder, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session that we cannot attach to is built all the same; the failure is counted and logged."""
    monkeypatch.setattr(_hooks, "_last_logged", {})
    instrument(hooks=[recorder])
    before = figures.telemetry_errors

    class Odd(list[aiohttp.TraceConfig]):
        def __bool__(self) -> bool:
            return True

        def __iter__(self) -> Any:
            self.asked = getattr(self, "asked", 0) + 1
            if self.asked == 1:
                raise RuntimeError("odd")
            return super().__iter__()

    async with HTTPServer() as server, aiohttp.ClientSession(trace_configs=Odd()) as session:
        await get(session, server.url())
    assert 1 == figures.telemetry_errors - before
    assert "telemetry hook instrument failed" in caplog.text


async def test_notes_without_hooks() -> None:
    """`hooks=()` adds no TraceConfig, and failures still say where they happened."""
    instrument(hooks=())
    async with aiohttp.ClientSession() as session:
        assert session.trace_configs == []
        with dead_address() as (host, port), pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
            await session.get(f"http://{host}:{port}/", timeout=aiohttp.ClientTimeout(sock_connect=0.1))
    assert Phase.TCP is failed_phase(caught.value)
    (note,) = caught.value.__cause__.__notes__
    assert "tcp connect to" in note
    assert "the sock_connect budget of 0.10 s ran out" in note


@pytest.mark.parametrize("wrong", [{"settings": "fast"}, {"hooks": [1]}, {"hooks": 1}])
def test_wrong_arguments(wrong: dict[str, Any]) -> None:
    """What cannot be told is refused when it is asked for, and nothing is instrumented."""
    with pytest.raises((SettingsError, TypeError)):
        instrument(**wrong)
    assert "_trace_configs" not in vars(aiohttp.ClientSession)


def test_something_that_is_no_session() -> None:
    """The error names what was given, and what it must be."""
    with pytest.raises(SettingsError, match=r"session is str; it must be an aiohttp\.ClientSession"):
        instrument_session("session")  # type: ignore[arg-type]


# --- others that wrap


async def test_wrappers_come_and_go_in_any_order(recorder: PhaseRecorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever wraps `__init__` and `_request` later keeps the wrapper, and ours is gone when it is to go."""
    calls: list[str] = []

    def wrap(name: str) -> None:
        wrapped = getattr(aiohttp.ClientSession, name)

        @functools.wraps(wrapped)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            calls.append(name)
            return wrapped(*args, **kwargs)

        monkeypatch.setattr(aiohttp.ClientSession, name, wrapper)

    with monkeypatch.context():
        instrument(hooks=[recorder])
        wrap("__init__")
        wrap("_request")
        async with HTTPServer() as server:
            async with aiohttp.ClientSession() as session:
                await get(session, server.url())
            uninstrument()
            async with aiohttp.ClientSession() as session:
                await get(session, server.url())
                assert session.trace_configs == []
    assert ["__init__", "_request"] * 2 == calls
    assert COLD == recorder.phases()
    monkeypatch.undo()


async def test_a_middleware_that_retries(recorder: PhaseRecorder) -> None:
    """Each send is an attempt of its own, with its `http.request.resend_count`."""
    instrument(hooks=[recorder])

    async def twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        first = await handler(request)
        first.release()
        return await handler(request)

    async with HTTPServer() as server, aiohttp.ClientSession(middlewares=[twice]) as session:
        await get(session, server.url())
    assert [0, 1] == [each.resend_count for each in recorder.requests()]
    recorder.check_invariants()


# --- what cannot be split


async def test_a_context_with_a_class_of_its_own(recorder: PhaseRecorder, throwaway_ca: ThrowawayCA) -> None:
    """Its handshake is inside the set-up, and nothing is said of it."""

    class TheirSSLObject(ssl.SSLObject):
        pass

    context = ssl.create_default_context(cafile=throwaway_ca.ca_file)
    context.sslobject_class = TheirSSLObject
    instrument(hooks=[recorder])
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server, aiohttp.ClientSession() as session:
        await get(session, server.url(), ssl=context)
    assert COLD == recorder.phases()
    assert context.sslobject_class is TheirSSLObject


async def test_a_connector_that_connects_in_its_own_way(recorder: PhaseRecorder, throwaway_ca: ThrowawayCA) -> None:
    """What it does before the handshake is not called a TCP connect."""

    class Theirs(aiohttp.TCPConnector):
        async def _wrap_create_connection(self, *args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)  # a SOCKS proxy, an SSH tunnel
            return await super()._wrap_create_connection(*args, **kwargs)

    context = ssl.create_default_context(cafile=throwaway_ca.ca_file)
    instrument(hooks=[recorder])
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server:
        async with aiohttp.ClientSession(connector=Theirs()) as session:
            await get(session, server.url(), ssl=context)
            await get(session, server.url(), ssl=context)
            assert "Theirs" == type(session.connector).__name__
        assert server.port == recorder.only(Phase.TLS).server_port
    assert [Phase.TLS, Phase.SETUP, *REUSED, *REUSED] == recorder.phases()


async def test_a_connector_whose_class_cannot_change(recorder: PhaseRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """It is left as it is, once said in the log, and its requests are as good as ever."""

    class Theirs(aiohttp.TCPConnector):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "__class__":
                raise TypeError("not mine")
            super().__setattr__(name, value)

    instrument(hooks=[recorder])
    async with HTTPServer() as server, aiohttp.ClientSession(connector=Theirs()) as session:
        await get(session, server.url())
        assert type(session.connector) is Theirs
        assert not hasattr(session.connector, "_hardening")
    assert "cannot be timed: not mine" in caplog.text
    assert recorder.records == []


# --- giving back


async def test_everything_is_given_back(recorder: PhaseRecorder, throwaway_ca: ThrowawayCA) -> None:
    """Class, factory, socket factory, trace configs, contexts and the count of pools are what they were."""
    context = ssl.create_default_context(cafile=throwaway_ca.ca_file)

    def factory(info: Any) -> Any:
        raise NotImplementedError

    plain, own = aiohttp.TCPConnector(), aiohttp.TCPConnector(socket_factory=factory)
    before = [dict(vars(each)) for each in (plain, own)]
    kinds = [type(each) for each in (plain, own)]
    instrument(hooks=[recorder])
    async with (
        TLSServer(throwaway_ca.issue("127.0.0.1")) as server,
        aiohttp.ClientSession(connector=plain) as session,
        aiohttp.ClientSession(connector=own) as idle,
    ):
        await get(session, server.url(), ssl=context)
        assert "sslobject_class" in vars(context)
        assert any(connection.server_port == server.port for connection, _ in open_connections())
        uninstrument()
        assert kinds == [type(each) for each in (plain, own)]
        for name in ("_factory", "_socket_factory", "_hardening"):
            assert [each.get(name) for each in before] == [vars(each).get(name) for each in (plain, own)]
        assert session.trace_configs == idle.trace_configs == []
        assert "sslobject_class" not in vars(context)
        assert not any(connection.server_port == server.port for connection, _ in open_connections())
        recorder.clear()
        await get(session, server.url(), ssl=context)
        await get(session, server.url(), ssl=context, headers={"Connection": "close"})
        await get(session, server.url(), ssl=context)
    assert recorder.records == []


async def test_undone_while_a_request_connects(recorder: PhaseRecorder) -> None:
    """It ends as it would have, is told of to its end, and then the connector is what it was."""
    attempts = Attempts()
    instrument(hooks=[recorder, attempts])
    with stalled_tls() as (_, port):
        async with aiohttp.ClientSession() as session:
            task = asyncio.create_task(
                session.get(f"https://127.0.0.1:{port}/", timeout=aiohttp.ClientTimeout(sock_connect=0.3))
            )
            while not any(each.current_phase is Phase.TLS for each in attempts.seen):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            uninstrument()
            assert type(session.connector) is not aiohttp.TCPConnector
            with pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
                await task
            assert type(session.connector) is aiohttp.TCPConnector
    assert Phase.TLS is failed_phase(caught.value)
    assert [(Phase.TLS, "timed_out"), (Phase.SETUP, "tls_timed_out")] == recorder.errors()[:2]
    recorder.check_invariants()


@pytest.mark.parametrize("again", ["instrument_session", "create_session"])
async def test_undone_and_done_again_while_a_request_connects(recorder: PhaseRecorder, again: str) -> None:
    """A connector that was on its way back is kept: until it is undone again, or for good by a hardened session."""
    attempts = Attempts()
    instrument(hooks=[recorder, attempts])
    with stalled_tls() as (_, port):
        async with aiohttp.ClientSession() as session:
            task = asyncio.create_task(
                session.get(f"https://127.0.0.1:{port}/", timeout=aiohttp.ClientTimeout(sock_connect=0.3))
            )
            while not any(each.current_phase is Phase.TLS for each in attempts.seen):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            uninstrument()
            if again == "instrument_session":
                instrument_session(session, hooks=[recorder])
            else:
                hardened = create_session(hooks=(), connector=session.connector, connector_owner=False)
                await hardened.close()
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await task
            assert type(session.connector) is not aiohttp.TCPConnector
            uninstrument()
            assert (type(session.connector) is aiohttp.TCPConnector) == (again == "instrument_session")
    recorder.check_invariants()


async def test_undone_while_a_body_is_read(recorder: PhaseRecorder) -> None:
    """The body's record comes all the same."""
    instrument(hooks=[recorder])
    async with (
        HTTPServer() as server,
        aiohttp.ClientSession() as session,
        session.get(server.url("/stream?chunks=3&seconds=0.1")) as response,
    ):
        uninstrument()
        await response.read()
    assert COLD == recorder.phases()
    recorder.check_invariants()


async def test_a_shared_connector_that_a_hardened_session_uses_is_not_given_back(recorder: PhaseRecorder) -> None:
    """`create_session(connector=)` makes it ours for good, with our budgets."""
    instrument(hooks=[recorder])
    own = PhaseRecorder()
    async with HTTPServer() as server, aiohttp.TCPConnector() as connector:
        theirs = aiohttp.ClientSession(connector=connector, connector_owner=False)
        settings = Settings(timeouts=TimeoutSettings(tcp=0.1))
        ours = create_session(settings, hooks=[own], connector=connector, connector_owner=False)
        uninstrument()
        await get(theirs, server.url())
        await get(ours, server.url())
        with dead_address() as (host, port), pytest.raises(aiohttp.ConnectionTimeoutError) as caught:
            await ours.get(f"http://{host}:{port}/")
        assert "timed out after 0.10 s" in caught.value.__notes__[0]
        assert theirs.closed is ours.closed is False
        await theirs.close()
        await ours.close()
    assert recorder.records == []
    assert [*REUSED, Phase.TCP, Phase.SETUP, Phase.REQUEST] == own.phases()


async def test_undone_from_another_thread(recorder: PhaseRecorder) -> None:
    """A connector changes on its own loop's thread only: a request there may be between two of our methods."""
    instrument(hooks=[recorder])
    async with aiohttp.ClientSession() as session:
        thread = threading.Thread(target=uninstrument)
        thread.start()
        thread.join()
        assert type(session.connector) is not aiohttp.TCPConnector
        await asyncio.sleep(0)
        assert type(session.connector) is aiohttp.TCPConnector


def test_undone_from_another_thread_under_load(recorder: PhaseRecorder, loop_factory: Any) -> None:
    """Requests in flight on a loop are not disturbed by whoever instruments and undoes it elsewhere."""
    over = threading.Event()
    failures: list[BaseException] = []

    async def load() -> int:
        count = 0
        async with HTTPServer() as server, aiohttp.TCPConnector(force_close=True) as connector:

            async def ask() -> None:
                nonlocal count
                while not over.is_set():
                    async with aiohttp.ClientSession(connector=connector, connector_owner=False) as session:
                        await get(session, server.url())
                        count += 1

            await asyncio.gather(*(ask() for _ in range(16)))
        return count

    counts: list[int] = []

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=loop_factory) as runner:
                counts.append(runner.run(load()))
        except BaseException as exc:  # noqa: BLE001  (whatever it is, it is the finding)
            failures.append(exc)

    thread = threading.Thread(target=run)
    thread.start()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        instrument(hooks=[recorder])
        time.sleep(0.002)
        uninstrument()
        time.sleep(0.002)
    over.set()
    thread.join(60)
    assert failures == []
    assert counts[0] >= len(recorder.requests()) > 16
    recorder.check_invariants()


def test_undone_after_the_loop_is_gone(recorder: PhaseRecorder, loop_factory: Any) -> None:
    """A session and a connector that outlive their loop are given back too."""

    async def build() -> tuple[aiohttp.ClientSession, aiohttp.TCPConnector]:
        connector = aiohttp.TCPConnector()
        session = aiohttp.ClientSession(connector=connector)
        await session.close()
        return session, connector

    instrument(hooks=[recorder])
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        session, connector = runner.run(build())
    uninstrument()
    assert type(connector) is aiohttp.TCPConnector
    assert session.trace_configs == []


async def test_a_session_that_is_gone_is_not_kept(recorder: PhaseRecorder) -> None:
    """Neither the session nor its connector lives on because it was instrumented."""
    instrument(hooks=[recorder])
    session = aiohttp.ClientSession()
    gone = [weakref.ref(session), weakref.ref(session.connector)]
    await session.close()
    del session
    gc.collect()
    assert [None, None] == [each() for each in gone]


async def test_undoing_nothing() -> None:
    """`uninstrument()` is harmless where nothing is instrumented, and twice."""
    async with aiohttp.ClientSession() as session:
        uninstrument()
        uninstrument()
        assert session.trace_configs == []


async def test_a_pooled_protocol_becomes_ours(recorder: PhaseRecorder) -> None:
    """A connection from before tells of its loss too: the body that it carried was cut."""
    async with HTTPServer() as server, aiohttp.ClientSession() as session:
        await get(session, server.url())
        assert type(next(iter(session.connector._conns.values()))[0][0]) is ResponseHandler
        instrument_session(session, hooks=[recorder])
        with pytest.raises(aiohttp.ClientPayloadError):
            await get(session, server.url("/cut"))
    assert [(Phase.BODY, "aiohttp.ClientPayloadError")] == recorder.errors()


async def test_debug_mode_of_the_loop(recorder: PhaseRecorder, caplog: pytest.LogCaptureFixture) -> None:
    """Where a session was built is the caller's line, as asyncio's debug mode keeps it."""
    caplog.set_level(logging.CRITICAL, "asyncio")
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    instrument(hooks=[recorder])
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(resolver=FixedResolver())) as session:
        assert __file__ == session._source_traceback[-1].filename
    loop.set_debug(False)
