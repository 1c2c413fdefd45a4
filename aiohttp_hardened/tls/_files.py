"""Certificate files read once to bytes, and OpenSSL made to load exactly those bytes."""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from aiohttp_hardened.exceptions import CertificateReloadError
from aiohttp_hardened.tls._x509 import certificates, parse

if TYPE_CHECKING:
    from collections.abc import Generator

    from aiohttp_hardened.timing._figures import TLSRole

_INVALID_PURPOSE: Final = 26
"""X509_V_ERR_INVALID_PURPOSE: a certificate that is for clients alone, seen as a server's, or the reverse."""
_MOST_HANDSHAKE_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate with its intermediates and its key, as bytes.

    Args:
        certificate: PEM, the leaf first.
        key: PEM; ``None``: it is in ``certificate``.
        password: Of the key.
    """

    certificate: bytes
    key: bytes | None = field(default=None, repr=False)
    password: str | bytes | None = field(default=None, repr=False)

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into a context that nobody uses yet.

        Raises:
            CertificateReloadError: It is broken, or the key is another one's.
        """
        # Without a password OpenSSL would ask for one on the terminal.
        password = self.password if self.password is not None else _no_password
        with as_path(self.certificate) as certificate, as_path(self.key or self.certificate) as key:
            try:
                context.load_cert_chain(certificate, key, password)
            except (ssl.SSLError, ValueError) as exc:
                raise CertificateReloadError(openssl_reason(exc)) from exc


def _no_password() -> str:
    raise ValueError("the key is encrypted and there is no password for it")


def read(path: str) -> bytes:
    """Return a file's bytes.

    Raises:
        CertificateReloadError: It cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as exc:
        raise CertificateReloadError(f"cannot read {path}: {exc.strerror}") from exc


def read_pair(certificate: str, key: str | None, password: str | bytes | None) -> KeyPair:
    """Read a certificate and its key once.

    Raises:
        CertificateReloadError: One cannot be read.
    """
    return KeyPair(read(certificate), None if key is None else read(key), password)


def fingerprint(*contents: bytes | str | None) -> str:
    """Return a digest of what a context is made of."""
    digest = hashlib.sha256()
    for content in contents:
        data = content.encode() if isinstance(content, str) else content or b""
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@contextmanager
def as_path(content: bytes) -> Generator[str]:
    """Give bytes a path for the moment of loading: ``load_cert_chain`` takes nothing else.

    On Linux it is a file in memory that only this process sees; elsewhere, or where
    ``/proc`` is not to be had, a private (0600) temporary one.
    """
    descriptor = _memory_file(content)
    if descriptor is not None:
        try:
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.TemporaryDirectory(prefix="aiohttp-hardened-") as directory:
        path = Path(directory, "pem")
        path.touch(mode=0o600)
        path.write_bytes(content)
        yield str(path)


def _memory_file(content: bytes) -> int | None:
    if sys.platform != "linux":
        return None
    try:
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    except OSError:
        return None
    with open(descriptor, "wb", closefd=False) as file:
        file.write(content)
    if os.access(f"/proc/self/fd/{descriptor}", os.R_OK):
        return descriptor
    os.close(descriptor)
    return None


def openssl_reason(exc: BaseException) -> str:
    """Return OpenSSL's own word for a failure, or the exception's text."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"{exc.reason}: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError) and exc.reason:
        return exc.reason
    return str(exc)


def load_bundle(context: ssl.SSLContext, bundle: bytes) -> None:
    """Load authorities into a context that nobody uses yet.

    By path and not by ``cadata=``: CPython keeps the GIL while it parses ``cadata``,
    30-80 ms for certifi's bundle, and gives it up while OpenSSL reads a file.

    Raises:
        CertificateReloadError: It holds no certificate, or a broken one.
    """
    if not certificates(bundle):
        raise CertificateReloadError("a bundle of authorities holds no certificate")
    with as_path(bundle) as path:
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as exc:
            raise CertificateReloadError(openssl_reason(exc)) from exc


def check_pair(pair: KeyPair, role: TLSRole) -> datetime:
    """Prove a key pair by a handshake in memory; return when its certificate ends (UTC).

    The other side trusts the last certificate of the file alone, so the leaf, the
    intermediates and their dates are all checked.

    Args:
        pair: A certificate with its key.
        role: The side that will show it. One that is made for the other side alone
            is shown there: whether a peer minds is the peer's affair.

    Raises:
        CertificateReloadError: With OpenSSL's reason.
    """
    chain = certificates(pair.certificate)
    if not chain:
        raise CertificateReloadError("the certificate file holds no certificate")
    other: TLSRole = "client" if role == "server" else "server"
    for shown_by in (role, other):
        try:
            _handshake(pair, shown_by, chain[-1])
        except ssl.SSLCertVerificationError as exc:
            if exc.verify_code != _INVALID_PURPOSE or shown_by is other:
                raise CertificateReloadError(openssl_reason(exc)) from exc
        except (ssl.SSLError, ValueError) as exc:
            raise CertificateReloadError(openssl_reason(exc)) from exc
        else:
            break
    return datetime.fromtimestamp(parse(chain[0]).not_after, UTC)


def _handshake(pair: KeyPair, shown_by: TLSRole, anchor: bytes) -> None:
    """Do a handshake in memory, in which one side shows the pair and the other one verifies it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    pair.load_into(server)
    if shown_by == "server":
        checker = client
    else:
        # A server has to show something too, and this side does not look at it.
        checker = server
        client.verify_mode = ssl.CERT_NONE
        pair.load_into(client)
        server.verify_mode = ssl.CERT_REQUIRED
    checker.verify_flags = ssl.VERIFY_X509_TRUSTED_FIRST | ssl.VERIFY_X509_PARTIAL_CHAIN
    checker.load_verify_locations(cadata=anchor)
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    waiting = [
        client.wrap_bio(back, forth, server_side=False),
        server.wrap_bio(forth, back, server_side=True),
    ]
    for _ in range(_MOST_HANDSHAKE_STEPS):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            return
    raise ValueError("a handshake in memory does not come to an end")
