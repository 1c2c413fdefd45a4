"""Run each ``async def`` test on every event loop, and let nothing survive a test.

A plugin of our own instead of pytest-asyncio or anyio: it is short, its loops are
the ones that users run, and no option of a user's can change what is proved.

* ``async def test_x()`` becomes ``test_x[asyncio]`` and ``test_x[uvloop]``, each with
  a fresh loop. ``@pytest.mark.loops("asyncio")`` restricts a test.
* A test of a plain function may ask for ``loop_name`` or ``loop_factory`` and run its own.
* What an async test needs is an async context manager, not a fixture.
* A task, timer, thread or file descriptor that outlives a test fails it, and so
  does anything that reached a loop's exception handler. A test that provokes the
  handler sets its own: ``asyncio.get_running_loop().set_exception_handler(...)``.
"""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import logging
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

pytest_plugins = ["aiohttp_hardened.testing.plugin"]

LoopFactory = "Callable[[], asyncio.AbstractEventLoop]"

LOOPS: Final[dict[str, LoopFactory]] = {"asyncio": asyncio.new_event_loop}
if importlib.util.find_spec("uvloop") is not None:
    import uvloop

    LOOPS["uvloop"] = uvloop.new_event_loop

PERMANENT_THREADS: Final = {
    "_run_safe_shutdown_loop": "pycares destroys channels on one daemon thread, made once per process",
    "libuv-worker": "libuv's pool for getaddrinfo and files, made once per process",
}
LINGERING_TIMERS: Final = {
    "Channel.close": "a c-ares channel lingers for a second after its last session, for the next one",
}
SECONDS_FOR_A_TEST: Final = 110.0
"""Unless it has a ``timeout`` marker; a little less than pytest-timeout's own."""
SECONDS_FOR_TASKS: Final = 0.5
"""Callbacks of a transport that was just closed may need a few turns of the loop."""
SECONDS_FOR_THREADS: Final = 3.0
"""pycares destroys a channel about a second after it was closed, on its own thread."""

_failed = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "loops(*names): run this async test on these event loops only")


def pytest_collection_finish() -> None:
    for loop_factory in LOOPS.values():
        loop_factory().close()  # libuv makes its signal pipe with the first loop, and keeps it
    _spare_what_stays()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _spare_what_stays()


def _spare_what_stays() -> None:
    """Let the collections after each test not walk what was imported, and what pytest and aiohttp's caches keep.

    With every module of the suite behind it a test spent more time there than in itself.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: Any, name: str, obj: object) -> None:
    if inspect.iscoroutinefunction(obj) and collector.istestfunction(obj, name):
        pytest.mark.usefixtures("loop_name")(obj)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "loop_name" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("loops")
        names = [name for name in LOOPS if marker is None or name in marker.args]
        metafunc.parametrize("loop_name", names, indirect=True)


@pytest.fixture
def loop_name(request: pytest.FixtureRequest) -> str:
    """``asyncio`` or ``uvloop``."""
    return request.param


@pytest.fixture
def loop_factory(loop_name: str) -> LoopFactory:
    """What makes an event loop of that name."""
    return LOOPS[loop_name]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    marker = pyfuncitem.get_closest_marker("timeout")
    seconds = marker.args[0] if marker else SECONDS_FOR_A_TEST
    _run_on_loop(_limited(pyfuncitem.obj(**arguments), seconds), LOOPS[pyfuncitem.funcargs["loop_name"]])
    return True


async def _limited(test: Coroutine[Any, Any, None], seconds: float) -> None:
    """End a test that hangs: pytest-timeout's signal cannot interrupt an idle uvloop."""
    try:
        async with asyncio.timeout(seconds) as limit:
            await test
    except TimeoutError:
        if limit.expired():
            pytest.fail(f"not over after {seconds:.0f} s")
        raise


def _run_on_loop(test: Coroutine[Any, Any, None], loop_factory: LoopFactory) -> None:
    complaints: list[str] = []
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: complaints.append(_complaint(context)))
        runner.run(_run_and_settle(test))
    gc.collect()
    if complaints:
        pytest.fail("the loop's exception handler was called:\n" + "\n".join(complaints), pytrace=False)


async def _run_and_settle(test: Coroutine[Any, Any, None]) -> None:
    files = _files()
    await test
    gc.collect()
    deadline = time.monotonic() + SECONDS_FOR_TASKS
    # A TLS transport that was closed says goodbye first; the loop must run for that.
    while any("socket:" in name for name in _files() - files) and time.monotonic() < deadline:  # noqa: ASYNC110  # same
        await asyncio.sleep(0.01)
    while (left := _tasks_and_timers()) and time.monotonic() < deadline:  # noqa: ASYNC110  # nothing tells the end
        await asyncio.sleep(0.01)
    if left:
        pytest.fail("outlived the test:\n" + "\n".join(left), pytrace=False)


def _tasks_and_timers() -> list[str]:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    # Only asyncio's own loop shows its timers.
    timers = getattr(asyncio.get_running_loop(), "_scheduled", ())
    running = [repr(timer) for timer in timers if not timer.cancelled()]
    return [repr(task) for task in tasks] + [
        timer for timer in running if not any(name in timer for name in LINGERING_TIMERS)
    ]


def _complaint(context: dict[str, Any]) -> str:
    others = {key: value for key, value in context.items() if key != "message"}
    return f"{context.get('message')}: {others}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


@pytest.fixture(autouse=True)
def no_thread_or_file_survives(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Generator[None]:
    """Compare this process' threads and file descriptors before and after a test."""
    threads, files = _threads(), _files()
    yield
    if request.node.stash.get(_failed, False):
        return
    caplog.get_records("call").clear()  # their tracebacks hold the frames of the test, and all that these hold
    deadline = time.monotonic() + SECONDS_FOR_THREADS
    while (left := _new_threads(threads) + _new_files(files)) and time.monotonic() < deadline:
        time.sleep(0.02)
        gc.collect()
    if left:
        pytest.fail("outlived the test:\n" + "\n".join(left), pytrace=False)


@pytest.fixture(autouse=True)
def no_error_in_quiet_logs(request: pytest.FixtureRequest) -> Generator[None]:
    """Fail what was caught and logged where nobody looks: by asyncio, or at a failed detach."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = records.append  # type: ignore[method-assign]
    loggers = [logging.getLogger(name) for name in ("asyncio", "opentelemetry.context")]
    for logger in loggers:
        logger.addHandler(handler)
    yield
    for logger in loggers:
        logger.removeHandler(handler)
    if records and not request.node.stash.get(_failed, False):
        pytest.fail("\n".join(record.getMessage() for record in records), pytrace=False)


def _threads() -> dict[int, str]:
    """Return this process' threads by id, those that Python does not know included (Linux)."""
    names = {thread.native_id or 0: thread.name for thread in threading.enumerate()}
    if sys.platform == "linux":
        for entry in Path("/proc/self/task").iterdir():
            try:
                names.setdefault(int(entry.name), (entry / "comm").read_text().strip())
            except OSError:
                continue  # it ended meanwhile
    return names


def _new_threads(before: dict[int, str]) -> list[str]:
    return [
        f"thread {name}"
        for number, name in _threads().items()
        if number not in before and not any(word in name for word in PERMANENT_THREADS)
    ]


def _files() -> Counter[str]:
    """Count the open file descriptors by what they stand for (Linux)."""
    found: Counter[str] = Counter()
    if sys.platform == "linux":
        for entry in Path("/proc/self/fd").iterdir():
            try:
                found[str(entry.readlink())] += 1
            except OSError:
                continue  # the one that listed them
    return found


def _new_files(before: Counter[str]) -> list[str]:
    return [f"file descriptor {name} ({count})" for name, count in (_files() - before).items()]
