"""Certificates that change: read once, validate apart, swap one reference; a bad one changes nothing.

Nothing here knows what a context is for: clients (``_trust.py``) and servers give it
a way to read their files, and what was read knows how to build a context.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from aiohttp_hardened.exceptions import CertificateReloadError, ReloadResult
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls._context import SharedSSLContext
from aiohttp_hardened.tls._locks import ForkSafeLock

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from datetime import datetime

    from aiohttp_hardened.timing._figures import TLSRole

_logger: Final = logging.getLogger("aiohttp_hardened")

_TRIES: Final = 3
_SECONDS_BETWEEN: Final = 0.1
"""A certificate and its key are two files: for a moment they may not belong together."""
_SECONDS_TO_STOP: Final = 2.0
"""How long the interpreter's end waits for a look at the files that has begun."""


@dataclass(frozen=True, slots=True)
class Built:
    """A context that was validated.

    Args:
        context: Nobody else has it yet.
        not_after: When the own certificate ends (UTC), if there is one.
    """

    context: ssl.SSLContext
    not_after: datetime | None


class Material(Protocol):
    """The bytes that a context is made of, read once."""

    @property
    def digest(self) -> str:
        """Tells whether the bytes changed."""
        ...

    def build(self) -> Built:
        """Build a context apart from the one that serves, and validate it.

        Raises:
            CertificateReloadError: It cannot serve; with OpenSSL's reason.
        """
        ...


class Reloader:
    """Rebuilds one shared context from its files.

    Args:
        name: The context's name in telemetry.
        role: Which side of a connection it is for.
        read: Reads the files once; raises `CertificateReloadError` when it cannot.
    """

    _interval = 0.0
    _gone: threading.Event
    _thread: threading.Thread | None = None

    def __init__(self, name: str, role: TLSRole, read: Callable[[], Material]) -> None:
        self.name = name
        self.role: Final[TLSRole] = role
        self._read = read
        self._lock = ForkSafeLock()
        self._digest = ""
        self._rejected: tuple[str, str] | None = None
        self._facade: weakref.ref[SharedSSLContext]
        self.not_after: datetime | None = None
        """When the own certificate that serves now ends (UTC)."""

    def create(self) -> SharedSSLContext:
        """Build the context for the first time; call it once. The reloader lives as long as the context.

        Raises:
            CertificateReloadError: It cannot serve; with OpenSSL's reason.
        """
        figures.announce_reloads(self.name)
        material = self._read()
        built = material.build()
        context = SharedSSLContext(built.context, self)
        self._facade = weakref.ref(context)
        _own_certificates[self.name, self.role] += 1
        weakref.finalize(context, _forget_own_certificate, self.name, self.role).atexit = False
        self._serves(material, built)
        return context

    def reload(self, *, asked: bool = False) -> ReloadResult:
        """Read the files again, and swap the context if they can serve. Blocks; for any thread.

        A rejection leaves everything as it was; it is logged (once for the same
        files and reason) and counted.

        Args:
            asked: Somebody asked and looks for the answer in the log: it is there
                though it may be what was said before, and though nothing changed.
        """
        with self._lock:
            if asked:
                self._rejected = None
            try:
                result = self._read_and_swap()
                if asked and result.outcome == "unchanged":
                    _logger.info("tls reload of %r: the files are unchanged%s", self.name, _ends(self.not_after))
            except CertificateReloadError as exc:
                result = ReloadResult("rejected", reason=str(exc), not_after=self.not_after)
            figures.count_reload(self.name, result.outcome)
            return result

    def _read_and_swap(self) -> ReloadResult:
        for attempt in range(1, _TRIES + 1):
            digest = ""
            try:
                material = self._read()
                digest = material.digest
                if digest == self._digest:
                    self._rejected = None
                    return ReloadResult("unchanged", not_after=self.not_after)
                built = material.build()
            except CertificateReloadError as exc:
                rejected = (digest, str(exc))
                if rejected != self._rejected and attempt < _TRIES:
                    time.sleep(_SECONDS_BETWEEN)
                    continue
                self._log_rejection(rejected)
                raise
            context = self._facade()
            if context is not None:
                context.swap(built.context)
                self._serves(material, built)
                _logger.info(
                    "tls reload of %r applied, generation %d%s", self.name, context.generation, _ends(built.not_after)
                )
            return ReloadResult("applied", not_after=built.not_after)
        raise AssertionError("unreachable")

    def _log_rejection(self, rejected: tuple[str, str]) -> None:
        if rejected != self._rejected:
            self._rejected = rejected
            _logger.error("tls reload of %r rejected, what was loaded serves on: %s", self.name, rejected[1])

    def _serves(self, material: Material, built: Built) -> None:
        self._digest = material.digest
        self._rejected = None
        self.not_after = built.not_after
        if built.not_after is not None:
            figures.own_not_after[self.name, self.role] = built.not_after.timestamp()

    # -- the watcher

    def watch(self, interval: float) -> None:
        """Look at the files every so often, on a thread that ends with the context.

        Args:
            interval: Seconds.
        """
        self._interval = interval
        _watching.add(self)
        self.resume_watching()

    def resume_watching(self) -> None:
        """Start the thread; a forked child has none."""
        context = self._facade()
        if context is None:
            return
        self._gone = threading.Event()
        weakref.finalize(context, self._gone.set).atexit = False
        # A daemon, or a process could not end while somebody holds the context; ``_stop_watching`` joins it.
        self._thread = threading.Thread(
            target=self._watch, args=(self._gone,), name=f"aiohttp_hardened watches {self.name}", daemon=True
        )
        self._thread.start()

    def _watch(self, gone: threading.Event) -> None:
        while not gone.wait(self._interval):
            try:
                self.reload()
            except Exception:
                _logger.exception("tls reload of %r failed, what was loaded serves on", self.name)

    def stop_watching(self) -> None:
        """End the thread."""
        self._gone.set()
        if self._thread is not None:
            self._thread.join(_SECONDS_TO_STOP)


def _ends(not_after: datetime | None) -> str:
    return "" if not_after is None else f", certificate ends {not_after:%Y-%m-%d %H:%M:%S} UTC"


_watching: Final[weakref.WeakSet[Reloader]] = weakref.WeakSet()
_own_certificates: Final[Counter[tuple[str, TLSRole]]] = Counter()


def _forget_own_certificate(name: str, role: TLSRole) -> None:
    """Let the gauge of a certificate go with the last context of its name."""
    _own_certificates[name, role] -= 1
    if not _own_certificates[name, role]:
        figures.own_not_after.pop((name, role), None)


@atexit.register
def _stop_watching() -> None:
    for reloader in tuple(_watching):
        reloader.stop_watching()


def _resume_watching() -> None:
    for reloader in tuple(_watching):
        reloader.resume_watching()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_watching)
