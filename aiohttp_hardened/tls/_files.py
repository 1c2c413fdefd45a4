"""Certificate files read once to bytes, and OpenSSL made to load exactly those bytes."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from aiohttp_hardened.exceptions import CertificateReloadError

if TYPE_CHECKING:
    from collections.abc import Generator

_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
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
    key: bytes | None
    password: str | bytes | None

    def load_into(self, context: ssl.SSLContext) -> None:
        """Load the pair into a context that nobody uses yet.

        Raises:
            CertificateReloadError: It is broken, or the key is another one's.
        """
        with as_path(self.certificate) as certificate, as_path(self.key) as key:
            try:
                # Without a password callback OpenSSL would ask on the terminal.
                context.load_cert_chain(
                    certificate or "", key, self.password if self.password is not None else _no_password
                )
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
        with open(path, "rb") as file:  # noqa: PTH123  (settings hold plain strings)
            return file.read()
    except OSError as exc:
        raise CertificateReloadError(f"cannot read {path}: {exc.strerror}") from exc


def fingerprint(*contents: bytes | str | None) -> str:
    """Return a digest of what a context is made of."""
    digest = hashlib.sha256()
    for content in contents:
        data = content.encode() if isinstance(content, str) else content or b""
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


@contextmanager
def as_path(content: bytes | None) -> Generator[str | None]:
    """Give bytes a path for the moment of loading: ``load_cert_chain`` takes nothing else.

    On Linux it is a file in memory that only this process sees; elsewhere a private
    (0600) temporary one.
    """
    if content is None:
        yield None
        return
    if sys.platform == "linux":
        descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, path = tempfile.mkstemp()
    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123  (a descriptor)
            file.write(content)
        yield path
    finally:
        os.unlink(path)  # noqa: PTH108  (a plain string)


def openssl_reason(exc: BaseException) -> str:
    """Return OpenSSL's own word for a failure, or the exception's text."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return f"{exc.reason}: {exc.verify_message}"
    if isinstance(exc, ssl.SSLError) and exc.reason:
        return exc.reason
    return str(exc)


def certificates(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM file, one by one."""
    return _CERTIFICATE.findall(pem)


def check_pair(pair: KeyPair) -> datetime:
    """Prove a key pair by a handshake in memory; return when its certificate ends.

    The client trusts the last certificate of the file alone, so the leaf, the
    intermediates, their order and their dates are all checked.

    Args:
        pair: A certificate with its key.

    Raises:
        CertificateReloadError: With OpenSSL's reason.
    """
    chain = certificates(pair.certificate)
    if not chain:
        raise CertificateReloadError("the certificate file holds no certificate")
    # The pair is shown by the client's side: a client certificate is no good for a server, and a
    # server's is checked for the purpose it is made for (``_purpose``).
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair.load_into(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    pair.load_into(client)
    server.verify_mode = ssl.CERT_REQUIRED
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    server.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with as_path(chain[-1] + b"\n") as anchor:
        server.load_verify_locations(cafile=anchor)
    try:
        shown = _handshake(client, server)
    except ssl.SSLCertVerificationError as exc:
        if exc.verify_code != _INVALID_PURPOSE:
            raise CertificateReloadError(openssl_reason(exc)) from exc
        shown = _handshake_as_server(pair, chain[-1])
    except ssl.SSLError as exc:
        raise CertificateReloadError(openssl_reason(exc)) from exc
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(shown["notAfter"]), UTC)


_INVALID_PURPOSE: Final = 26
"""X509_V_ERR_INVALID_PURPOSE: a certificate for servers only, seen from a server."""


def _handshake_as_server(pair: KeyPair, anchor_pem: bytes) -> dict[str, Any]:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair.load_into(server)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.verify_flags &= ~ssl.VERIFY_X509_STRICT
    with as_path(anchor_pem + b"\n") as anchor:
        client.load_verify_locations(cafile=anchor)
    try:
        return _handshake(server, client, first_is_server=True)
    except ssl.SSLError as exc:
        raise CertificateReloadError(openssl_reason(exc)) from exc


def _handshake(shower: ssl.SSLContext, checker: ssl.SSLContext, *, first_is_server: bool = False) -> dict[str, Any]:
    """Do a handshake in memory; return the certificate that one side showed as the other one checked it."""
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    showing = shower.wrap_bio(forth, back, server_side=first_is_server)
    checking = checker.wrap_bio(back, forth, server_side=not first_is_server)
    waiting = [showing, checking]
    for _ in range(_MOST_HANDSHAKE_STEPS):
        for side in tuple(waiting):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(side)
        if not waiting:
            break
    return checking.getpeercert() or {}
