"""One ``ssl.SSLContext`` per trust decision: immutable for its holder, swapped as a whole behind it.

A context that is changed while it serves is an outage when the change fails: after a
``load_cert_chain`` that raised, every later handshake fails. So nothing is ever loaded
into a live one. What users hold is a facade; ``wrap_bio`` and ``wrap_socket`` go to the
context that is current, and a swap is the assignment of one reference.

Seam: ``ssl.SSLContext.wrap_bio``. Private names of ``ssl``: ``SSLContext._wrap_socket``,
which ``SSLSocket`` calls on the context that it was made with when it connects.
"""

from __future__ import annotations

import logging
import ssl
import weakref
from typing import TYPE_CHECKING, Any, Final, NoReturn, Self

from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._host import normalise_host
from aiohttp_hardened.tls._locks import ForkSafeLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from aiohttp_hardened.tls._reload import Reloader

_logger: Final = logging.getLogger("aiohttp_hardened")


class ImmutableContextError(SettingsError, AttributeError):
    """An attempt to change a shared context.

    An ``AttributeError`` because that is what frozen objects raise, a
    ``SettingsError`` because settings are the place to say it.
    """


class Generation:
    """A context behind the facade; identity is what tells one generation from another.

    Args:
        inner: The context; nobody else may hold it.
        number: 1 for the first one of its facade.
    """

    __slots__ = ("__weakref__", "inner", "number", "retired")

    def __init__(self, inner: ssl.SSLContext, number: int) -> None:
        self.inner = inner
        self.number = number
        self.retired = False
        """No new connection is made with it."""
        if not issubclass(inner.sslobject_class, SharedSSLObject):
            inner.sslobject_class = SharedSSLObject
        figures.change_ssl_contexts(1)
        weakref.finalize(inner, figures.change_ssl_contexts, -1).atexit = False


class _Current:
    """Holds the generation that serves; the facade's finalizer needs it without the facade."""

    __slots__ = ("generation",)

    def __init__(self, generation: Generation) -> None:
        self.generation = generation

    def retire(self) -> None:
        self.generation.retired = True


class SharedSSLObject(ssl.SSLObject):
    """An SSL object that shows the shared context, never the one behind it."""

    facade: SharedSSLContext | None = None
    generation: Generation | None = None

    def bind(self, facade: SharedSSLContext, generation: Generation) -> None:
        """Say which shared context it was made with."""
        self.facade = facade
        self.generation = generation

    @property
    def context(self) -> ssl.SSLContext:
        """The shared context; it cannot be changed through here either."""
        return self.facade if self.facade is not None else super().context

    @context.setter
    def context(self, _: ssl.SSLContext) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        _refuse("SSLObject.context")


class SharedSSLContext(ssl.SSLContext):
    """A context that many share: nobody can change it, and a reload swaps it for all at once.

    Args:
        inner: The context to begin with; nobody else may hold it.
        reloader: What rebuilds it, kept for as long as the facade lives.
    """

    _aiofastnet_force_fallback_ssl = True
    """aiofastnet would take the ``SSL_CTX`` of the facade itself, which knows no authority; this is its public
    switch to ``wrap_bio``."""

    _current: _Current
    _listeners: list[weakref.ref[Callable[[], object]]]
    _lock: ForkSafeLock
    reloader: Reloader | None

    def __new__(cls, inner: ssl.SSLContext, reloader: Reloader | None = None) -> Self:  # noqa: ARG004  # ``__init__`` takes both
        return super().__new__(cls, inner.protocol)

    def __init__(self, inner: ssl.SSLContext, reloader: Reloader | None = None) -> None:
        put = object.__setattr__
        put(self, "_current", _Current(Generation(inner, 1)))
        put(self, "_listeners", [])
        put(self, "_lock", ForkSafeLock())
        put(self, "reloader", reloader)
        weakref.finalize(self, self._current.retire).atexit = False

    # -- the swap

    @property
    def generation(self) -> int:
        """1, and one more after each swap."""
        return self._current.generation.number

    def swap(self, inner: ssl.SSLContext) -> None:
        """Publish another context; handshakes that have begun finish with the old one.

        Args:
            inner: A context that was validated; nobody else may hold it.
        """
        before = self._current.generation
        self._current.generation = Generation(inner, before.number + 1)
        before.retired = True
        with self._lock:
            listeners = [listener() for listener in self._listeners]
            self._listeners[:] = [ref for ref, listener in zip(self._listeners, listeners, strict=True) if listener]
        for listener in listeners:
            if listener is None:
                continue
            try:
                listener()
            except Exception:
                _logger.exception("a listener to the swap of a TLS context failed; the swap stands")

    def on_swap(self, listener: Callable[[], object]) -> None:
        """Call a function after each swap, in the thread that swaps.

        Args:
            listener: Held weakly, bound methods too: it is called for as long as
                its owner lives.
        """
        bound = hasattr(listener, "__self__") and hasattr(listener, "__func__")
        reference: weakref.ref[Callable[[], object]] = weakref.WeakMethod(listener) if bound else weakref.ref(listener)
        with self._lock:
            count = len(self._listeners)
            if count & (count - 1) == 0:  # now and then, for sessions may come and go without a swap
                self._listeners[:] = [each for each in self._listeners if each() is not None]
            self._listeners.append(reference)

    # -- making connections

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002  # ssl's signature
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make an SSL object with the current context; a trailing dot is not part of a certificate's name."""
        generation = self._current.generation
        ssl_object = generation.inner.wrap_bio(incoming, outgoing, server_side, _sni(server_hostname), session)
        if isinstance(ssl_object, SharedSSLObject):
            ssl_object.bind(self, generation)
        return ssl_object

    def wrap_socket(
        self,
        sock: Any,
        server_side: bool = False,  # noqa: FBT001, FBT002  # ssl's signature
        do_handshake_on_connect: bool = True,  # noqa: FBT001, FBT002
        suppress_ragged_eofs: bool = True,  # noqa: FBT001, FBT002
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        """Wrap a socket with the current context; what it accepts later, with the one that is current then."""
        inner = self._current.generation.inner
        # One that wraps in a way of its own (truststore verifies behind the handshake) is left to it.
        wrap = super().wrap_socket if type(inner).wrap_socket is ssl.SSLContext.wrap_socket else inner.wrap_socket
        return wrap(sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, _sni(server_hostname), session)

    def _wrap_socket(self, *args: Any, **options: Any) -> Any:
        return self._current.generation.inner._wrap_socket(*args, **options)  # type: ignore[attr-defined]  # noqa: SLF001

    # -- immutability

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse every change; setting what is already so is none."""
        try:
            same = bool(getattr(self, name) == value)
        except AttributeError:
            same = False
        if not same:
            _refuse(name)

    def __delattr__(self, name: str) -> None:
        """Refuse."""
        _refuse(name)

    def set_alpn_protocols(self, alpn_protocols: Iterable[str]) -> None:
        """Accept ``["http/1.1"]``, which httpcore says before each connect; refuse others."""
        if list(alpn_protocols) != ALPN_PROTOCOLS:
            _refuse("set_alpn_protocols")

    def get_ca_certs(self, binary_form: bool = False) -> Any:  # noqa: FBT001, FBT002  # ssl's signature
        """As of the current context."""
        return self._current.generation.inner.get_ca_certs(binary_form)

    def get_ciphers(self) -> Any:
        """As of the current context."""
        return self._current.generation.inner.get_ciphers()

    def cert_store_stats(self) -> dict[str, int]:
        """As of the current context."""
        return self._current.generation.inner.cert_store_stats()

    def session_stats(self) -> dict[str, int]:
        """As of the current context."""
        return self._current.generation.inner.session_stats()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it is shared; pickle its settings."""
        raise TypeError("a shared SSL context cannot be pickled or copied; its TLSSettings can")


ALPN_PROTOCOLS: Final = ["http/1.1"]


def _refuse(name: str) -> NoReturn:
    raise ImmutableContextError(
        f"a shared SSL context cannot be changed ({name}): everybody who uses it would be changed with it. "
        "Say it in TLSSettings(...) or create_server_ssl_context(...) and create another context, "
        "or swap the files with reload_tls()"
    )


def _sni(server_hostname: str | bytes | None) -> str | bytes | None:
    return normalise_host(server_hostname) if isinstance(server_hostname, str) and server_hostname else server_hostname


def _shown(name: str) -> property:
    return property(lambda self: getattr(self._current.generation.inner, name), doc="As of the current context.")


def _refused(name: str) -> Callable[..., NoReturn]:
    def refused(_: SharedSSLContext, *__: object, **___: object) -> NoReturn:
        """Refuse: nothing is loaded into a context that serves."""
        _refuse(name)

    return refused


def _cover() -> None:
    """Cover what this Python's ``ssl.SSLContext`` has: attributes are shown, whatever sets or loads is refused.

    By kind and not by name, so that a method which a later Python adds does not
    reach the facade's own, empty context and seem to work.
    """
    for name in dir(ssl.SSLContext):
        if name in SharedSSLContext.__dict__ or name.startswith("__"):
            continue
        attribute = getattr(ssl.SSLContext, name)
        if name.startswith(("set_", "load_")):
            setattr(SharedSSLContext, name, _refused(name))
        elif not callable(attribute) or isinstance(attribute, type):
            setattr(SharedSSLContext, name, _shown(name))


_cover()
