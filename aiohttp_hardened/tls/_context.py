"""One ``ssl.SSLContext`` per trust decision: immutable for its holder, swapped as a whole behind it.

A context that is changed while it serves is an outage when the change fails: after a
``load_cert_chain`` that raised, every later handshake fails. So nothing is ever loaded
into a live one. What users hold is a facade; ``wrap_bio`` and ``wrap_socket`` go to the
context that is current, and a swap is the assignment of one reference.
"""

from __future__ import annotations

import itertools
import ssl
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.timing._host import normalise_host

if TYPE_CHECKING:
    from collections.abc import Callable

_numbers: Final = itertools.count(1)


class ImmutableContextError(SettingsError, AttributeError):
    """An attempt to change a shared context."""


class Published(NamedTuple):
    """The context that is current, and how often it was swapped."""

    inner: ssl.SSLContext
    generation: int


def _refuse(name: str) -> NoReturn:
    raise ImmutableContextError(
        f"a shared SSL context cannot be changed ({name}): everybody who uses this trust decision would be changed "
        "with it. Say it in TLSSettings(...) and create another context, or swap the files with reload_tls()"
    )


def _shown(name: str) -> Any:
    return property(lambda self: getattr(self._published.inner, name), doc=f"As of the current context: {name}.")


class _SharedSSLSocket(ssl.SSLSocket):
    """A socket that shows the facade, never the context behind it."""

    _facade: SharedSSLContext | None = None

    @property
    def context(self) -> ssl.SSLContext:
        """The shared context."""
        return self._facade if self._facade is not None else super().context

    @context.setter
    def context(self, _: ssl.SSLContext) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        _refuse("context")


class SharedSSLContext(ssl.SSLContext):
    """A context that many share: nobody can change it, and a reload swaps it for all at once.

    Args:
        inner: The context to begin with; nobody else may hold it.
        name: The trust decision's name in telemetry.
    """

    _published: Published

    def __new__(cls, inner: ssl.SSLContext, name: str) -> Self:
        del name
        return super().__new__(cls, inner.protocol)

    def __init__(self, inner: ssl.SSLContext, name: str) -> None:
        put = object.__setattr__
        put(self, "number", next(_numbers))
        put(self, "name", name)
        put(self, "_listeners", weakref.WeakSet())
        put(self, "_swap_hooks", [])
        _prepare(inner)
        put(self, "_published", Published(inner, 1))
        figures.change_ssl_contexts(1)
        weakref.finalize(self, figures.change_ssl_contexts, -1)

    number: int
    """Unique in this process; part of a ticket's key."""
    name: str

    @property
    def generation(self) -> int:
        """1, and one more after each swap."""
        return self._published.generation

    def swap(self, inner: ssl.SSLContext) -> None:
        """Publish another context; handshakes that have begun finish with the old one.

        Args:
            inner: A context that was validated; nobody else may hold it.
        """
        _prepare(inner)
        object.__setattr__(self, "_published", Published(inner, self._published.generation + 1))
        for hook in tuple(self._swap_hooks):  # type: ignore[attr-defined]
            hook()

    def on_swap(self, hook: Callable[[], None]) -> None:
        """Call a function after each swap, in the thread that swaps."""
        self._swap_hooks.append(hook)  # type: ignore[attr-defined]

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002  (ssl's signature)
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        """Make an SSL object with the current context; a trailing dot is not part of a certificate's name."""
        published = self._published
        ssl_object: Any = published.inner.wrap_bio(incoming, outgoing, server_side, _sni(server_hostname), session)
        ssl_object.bind(self, published.generation)
        return ssl_object  # type: ignore[no-any-return]

    def wrap_socket(
        self,
        sock: Any,
        server_side: bool = False,  # noqa: FBT001, FBT002  (ssl's signature)
        do_handshake_on_connect: bool = True,  # noqa: FBT001, FBT002
        suppress_ragged_eofs: bool = True,  # noqa: FBT001, FBT002
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        """Wrap a socket with the current context."""
        wrapped: Any = self._published.inner.wrap_socket(
            sock, server_side, do_handshake_on_connect, suppress_ragged_eofs, _sni(server_hostname), session
        )
        wrapped._facade = self  # noqa: SLF001  (a class of this module)
        return wrapped  # type: ignore[no-any-return]

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse every change; setting what is already so is none."""
        try:
            same = getattr(self, name) == value
        except AttributeError:
            same = False
        if not same:
            _refuse(name)

    def __delattr__(self, name: str) -> None:
        """Refuse."""
        _refuse(name)

    def set_alpn_protocols(self, alpn_protocols: Any) -> None:
        """Accept ``["http/1.1"]``, which it has (httpcore says so before each connect); refuse others."""
        if list(alpn_protocols) != ALPN_PROTOCOLS:
            _refuse("set_alpn_protocols")

    def _refused(self, *_: object, **__: object) -> NoReturn:
        _refuse("loading into it")

    load_cert_chain = load_verify_locations = load_default_certs = set_default_verify_paths = _refused
    set_ciphers = set_npn_protocols = load_dh_params = set_ecdh_curve = set_servername_callback = _refused
    set_psk_client_callback = set_psk_server_callback = _refused

    def get_ca_certs(self, binary_form: bool = False) -> Any:  # noqa: FBT001, FBT002
        """As of the current context."""
        return self._published.inner.get_ca_certs(binary_form)

    def get_ciphers(self) -> Any:
        """As of the current context."""
        return self._published.inner.get_ciphers()

    def cert_store_stats(self) -> dict[str, int]:
        """As of the current context."""
        return self._published.inner.cert_store_stats()

    def session_stats(self) -> dict[str, int]:
        """As of the current context."""
        return self._published.inner.session_stats()

    check_hostname = _shown("check_hostname")
    hostname_checks_common_name = _shown("hostname_checks_common_name")
    keylog_filename = _shown("keylog_filename")
    maximum_version = _shown("maximum_version")
    minimum_version = _shown("minimum_version")
    num_tickets = _shown("num_tickets")
    options = _shown("options")
    post_handshake_auth = _shown("post_handshake_auth")
    protocol = _shown("protocol")  # pyright: ignore[reportIncompatibleMethodOverride]
    security_level = _shown("security_level")
    sni_callback = _shown("sni_callback")
    sslobject_class = _shown("sslobject_class")
    sslsocket_class = _shown("sslsocket_class")
    verify_flags = _shown("verify_flags")
    verify_mode = _shown("verify_mode")

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: it is shared; pickle its settings."""
        raise TypeError("a shared SSL context cannot be pickled or copied; its TLSSettings can")


ALPN_PROTOCOLS: Final = ["http/1.1"]


def _prepare(inner: ssl.SSLContext) -> None:
    inner.sslsocket_class = _SharedSSLSocket


def _sni(server_hostname: str | bytes | None) -> str | bytes | None:
    return normalise_host(server_hostname) if isinstance(server_hostname, str) and server_hostname else server_hostname
