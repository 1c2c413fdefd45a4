"""What a client context is made of: whom it trusts, who it says it is, and which checks hold."""

from __future__ import annotations

import logging
import os
import ssl
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import certifi

from aiohttp_hardened.exceptions import CertificateReloadError
from aiohttp_hardened.timing._current import current_attempt
from aiohttp_hardened.tls._context import ALPN_PROTOCOLS
from aiohttp_hardened.tls._files import check_pair, fingerprint, load_bundle, read, read_pair
from aiohttp_hardened.tls._locks import ForkSafeLock
from aiohttp_hardened.tls._reload import Built
from aiohttp_hardened.tls._resumption import ResumingSSLObject, TimedSharedSSLObject
from aiohttp_hardened.tls._x509 import certificates, parse

if TYPE_CHECKING:
    from datetime import datetime

    from aiohttp_hardened._settings import TLSSettings
    from aiohttp_hardened.tls._files import KeyPair

_logger: Final = logging.getLogger("aiohttp_hardened")

STRICT: Final = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
"""What ``ssl.create_default_context`` sets from Python 3.13 on."""

_alpn_lock: Final = ForkSafeLock()


class _OffersHTTP(ssl.SSLContext):
    """A client context that offers ALPN ``http/1.1`` where HTTP is spoken, and nothing to other protocols.

    Everybody shares the context, and a server that speaks something else may refuse
    a foreign protocol: PostgreSQL 17 ends such a handshake. ``ssl`` keeps the
    protocols per context; OpenSSL copies them when a connection is made.
    """

    _offering = False

    def _offer(self, offering: bool) -> None:  # noqa: FBT001  # private
        if self._offering is not offering:
            self.set_alpn_protocols(ALPN_PROTOCOLS if offering else [])
            self._offering = offering

    def wrap_bio(self, *args: Any, **options: Any) -> ssl.SSLObject:
        """Make an SSL object; inside one of our attempts it is HTTP's."""
        with _alpn_lock:
            self._offer(current_attempt.get() is not None)
            return super().wrap_bio(*args, **options)

    def _wrap_socket(self, *args: Any, **options: Any) -> Any:
        with _alpn_lock:
            self._offer(False)  # noqa: FBT003
            return super()._wrap_socket(*args, **options)  # type: ignore[misc]


@dataclass(frozen=True, slots=True)
class TrustMaterial:
    """The files of a trust decision, read once.

    Args:
        tls: The trust decision.
        bundles: The PEM bundles of authorities; ``ca_files`` come last.
        directories: OpenSSL's own directories of authorities, if they are part of it.
        pair: The client certificate.
        digest: Of all of it.
    """

    tls: TLSSettings
    bundles: tuple[bytes, ...]
    directories: tuple[str, ...]
    pair: KeyPair | None
    digest: str

    def build(self) -> Built:
        """Build and validate a context. Takes 20-60 ms: for a thread, or for start-up.

        Raises:
            CertificateReloadError: Something in it cannot serve; with OpenSSL's reason.
        """
        tls = self.tls
        truststore = tls.trust == "system" and sys.platform != "linux"
        context = new_truststore_context() if truststore else _OffersHTTP(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = tls.minimum_version
        context.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | (STRICT if tls.strict else ssl.VerifyFlags(0))
        honour_keylog(context)
        if not truststore:
            context.sslobject_class = ResumingSSLObject if tls.resumption else TimedSharedSSLObject
        for bundle in self.bundles:
            load_bundle(context, bundle)
        for directory in self.directories:
            context.load_verify_locations(capath=directory)
        own = len(tls.ca_files)
        for path, bundle in zip(tls.ca_files, self.bundles[len(self.bundles) - own :], strict=True):
            check_authorities(path, bundle, strict=tls.strict)
        not_after: datetime | None = None
        if self.pair is not None:
            self.pair.load_into(context)
            not_after = check_pair(self.pair, "client")
        _warm(context)
        return Built(context, not_after)


def read_trust(tls: TLSSettings) -> TrustMaterial:
    """Read every file of a trust decision once.

    Raises:
        CertificateReloadError: A file cannot be read, or there is no system store.
    """
    paths = [*([certifi.where()] if tls.trust == "certifi" else []), *tls.ca_files]
    directories: tuple[str, ...] = ()
    if tls.trust == "system" and sys.platform == "linux":
        # The plain default locations: truststore re-reads them at every ``wrap_bio`` here, 30-45 ms on the event loop.
        default = ssl.get_default_verify_paths()
        named = os.environ.get(default.openssl_capath_env, default.openssl_capath)
        directories = tuple(each for each in named.split(os.pathsep) if Path(each).is_dir())
        paths[:0] = [default.cafile] if default.cafile else []
        if not paths and not directories:
            raise CertificateReloadError(f"there is no system trust store: no {default.openssl_cafile}, no {named}")
    bundles = tuple(read(path) for path in paths)
    pair: KeyPair | None = None
    if tls.client_cert is not None:
        pair = read_pair(tls.client_cert, tls.client_key, tls.client_key_password)
    own = (pair.certificate, pair.key) if pair is not None else ()
    digest = fingerprint(*bundles, *map(_listing, directories), "|", *own)
    return TrustMaterial(tls, bundles, directories, pair, digest)


def _listing(directory: str) -> str:
    """Return what tells that a directory of authorities changed."""
    entries: list[str] = []
    for entry in sorted(Path(directory).iterdir()):
        try:
            stat = entry.stat()
        except OSError:
            continue  # a dangling link: OpenSSL does not follow it either
        entries.append(f"{entry.name} {stat.st_size} {stat.st_mtime_ns}")
    return "\n".join(entries)


def honour_keylog(context: ssl.SSLContext) -> None:
    """Write the keys of a context's connections where ``SSLKEYLOGFILE`` says, as default contexts do."""
    keylog = os.environ.get("SSLKEYLOGFILE")
    if keylog and not sys.flags.ignore_environment:
        context.keylog_filename = keylog


def check_authorities(path: str, bundle: bytes, *, strict: bool) -> None:
    """Reject a file of own authorities that are all out of date; warn of those that strict verification refuses.

    Raises:
        CertificateReloadError: None of them can vouch for anybody now.
    """
    now = time.time()
    try:
        found = [parse(der) for der in certificates(bundle)]
    except ValueError as exc:
        raise CertificateReloadError(f"{path}: {exc}") from exc
    if all(each.not_after < now for each in found):
        raise CertificateReloadError(f"{path}: every certificate in it has expired")
    if all(each.not_before > now for each in found):
        raise CertificateReloadError(f"{path}: no certificate in it is valid yet")
    flaws = sorted({flaw for each in found for flaw in each.flaws})
    if flaws:
        reason = _REFUSED if strict else _REFUSED_ELSEWHERE
        _logger.warning("%s holds an authority with %s: %s", path, ", ".join(flaws), reason)


_REFUSED: Final = (
    "its certificates will be refused, as by a default context of Python 3.13. Reissue it, or say strict=False"
)
_REFUSED_ELSEWHERE: Final = "a default context of Python 3.13 or later refuses it; here strict=False accepts it"


def _warm(context: ssl.SSLContext) -> None:
    """Make the first connection here: OpenSSL 3.0 takes 1-6 ms for the first of a context, later ones 0.02."""
    first = context.wrap_bio(ssl.MemoryBIO(), ssl.MemoryBIO(), server_hostname="localhost")
    try:
        first.do_handshake()
    except ssl.SSLWantReadError:
        return


def new_truststore_context() -> ssl.SSLContext:
    """Return a context that asks the operating system (macOS, Windows) about a peer's chain.

    It does not resume: truststore verifies the chain behind each handshake, and a
    resumed one has none.

    Raises:
        CertificateReloadError: The extra is not installed.
    """
    try:
        import truststore  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  # an extra, and not for Linux
    except ImportError as exc:
        raise CertificateReloadError(
            'tls.trust="system" needs truststore here: pip install "aiohttp-hardened[system-trust]"'
        ) from exc

    class SystemContext(_OffersHTTP, truststore.SSLContext):  # type: ignore[misc,unused-ignore]
        pass

    context: Any = SystemContext(ssl.PROTOCOL_TLS_CLIENT)
    # The class that verifies behind the handshake is made per context, and there is no public way to it.
    inner = context._ctx  # noqa: SLF001

    class SystemSSLObject(TimedSharedSSLObject, inner.sslobject_class):  # type: ignore[misc,name-defined,unused-ignore]
        def do_handshake(self) -> None:
            super().do_handshake()
            if inner.verify_mode is not ssl.CERT_REQUIRED:
                # https://github.com/sethmlarson/truststore/issues/209: it was seen to stay off.
                raise ssl.SSLError("the system's verification was switched off during the handshake")

    inner.sslobject_class = SystemSSLObject
    return context  # type: ignore[no-any-return]
