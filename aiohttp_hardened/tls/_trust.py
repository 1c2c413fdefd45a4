"""What a client context is made of: whom it trusts, who it says it is, and which checks hold."""

from __future__ import annotations

import logging
import ssl
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import certifi

from aiohttp_hardened.exceptions import CertificateReloadError
from aiohttp_hardened.tls._context import ALPN_PROTOCOLS
from aiohttp_hardened.tls._files import KeyPair, as_path, certificates, check_pair, fingerprint, openssl_reason, read
from aiohttp_hardened.tls._resumption import ResumingSSLObject, SharedSSLObject

if TYPE_CHECKING:
    from datetime import datetime

    from aiohttp_hardened._settings import TLSSettings

_logger = logging.getLogger("aiohttp_hardened")

_STRICT: Final = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
"""What ``ssl.create_default_context`` sets from Python 3.13 on."""


@dataclass(frozen=True, slots=True)
class Material:
    """The files of a trust decision, read once.

    Args:
        trust: The PEM bundles, in order; ``None`` for the system's own locations.
        pair: The client certificate.
        digest: Of all of it.
    """

    trust: tuple[bytes, ...]
    pair: KeyPair | None
    digest: str


@dataclass(frozen=True, slots=True)
class Built:
    """A context that was validated.

    Args:
        context: Nobody else has it yet.
        digest: Of what it is made of.
        not_after: When the own certificate ends.
    """

    context: ssl.SSLContext
    digest: str
    not_after: datetime | None


def read_material(tls: TLSSettings) -> Material:
    """Read every file of a trust decision once.

    Raises:
        CertificateReloadError: A file cannot be read.
    """
    paths = [*([certifi.where()] if tls.trust == "certifi" else []), *tls.ca_files]
    trust = tuple(read(path) for path in paths)
    pair: KeyPair | None = None
    if tls.client_cert is not None:
        key = read(tls.client_key) if tls.client_key is not None else None
        pair = KeyPair(read(tls.client_cert), key, tls.client_key_password)
    digest = fingerprint(*trust, b"|", *((pair.certificate, pair.key) if pair else ()))
    return Material(trust, pair, digest)


def build(tls: TLSSettings, material: Material) -> Built:
    """Build and validate a context. Takes 10-40 ms: for a thread, or for start-up.

    Args:
        tls: The trust decision.
        material: What ``read_material`` read for it.

    Raises:
        CertificateReloadError: Something in it cannot serve; with OpenSSL's reason.
    """
    context = _new_context(tls)
    context.minimum_version = tls.minimum_version
    context.verify_flags |= ssl.VERIFY_X509_TRUSTED_FIRST
    if tls.strict:
        context.verify_flags |= _STRICT
    else:
        context.verify_flags &= ~_STRICT
    context.set_alpn_protocols(ALPN_PROTOCOLS)
    context.sslobject_class = ResumingSSLObject if tls.resumption else SharedSSLObject
    for bundle in material.trust:
        _load_bundle(context, bundle)
    not_after: datetime | None = None
    if material.pair is not None:
        material.pair.load_into(context)
        not_after = check_pair(material.pair)
    if not tls.strict and tls.ca_files:
        _warn_of_strictness(tls, material)
    return Built(context, material.digest, not_after)


def _new_context(tls: TLSSettings) -> ssl.SSLContext:
    if tls.trust != "system":
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if sys.platform == "linux":
        # truststore re-reads the authorities at every ``wrap_bio`` here, 30-45 ms on the event loop.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_default_certs()
        return context
    try:
        import truststore  # noqa: PLC0415  (an extra, and not for Linux)
    except ImportError as exc:
        raise CertificateReloadError('tls.trust="system" needs the extra "system-trust" here') from exc
    return truststore.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _load_bundle(context: ssl.SSLContext, bundle: bytes) -> None:
    if not certificates(bundle):
        raise CertificateReloadError("a bundle of authorities holds no certificate")
    with as_path(bundle) as path:
        try:
            # By path and not ``cadata=``: only so the GIL is released while OpenSSL parses.
            context.load_verify_locations(cafile=path)
        except ssl.SSLError as exc:
            raise CertificateReloadError(openssl_reason(exc)) from exc
    if not context.cert_store_stats()["x509"]:
        raise CertificateReloadError("a bundle of authorities holds no certificate")


def _warn_of_strictness(tls: TLSSettings, material: Material) -> None:
    """Warn of own authorities that a context with the flags of Python 3.13 refuses."""
    for path, bundle in zip(tls.ca_files, material.trust[-len(tls.ca_files) :], strict=True):
        for pem in certificates(bundle):
            scratch = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            with as_path(pem + b"\n") as single:
                scratch.load_verify_locations(cafile=single)
            if not scratch.cert_store_stats()["x509_ca"]:
                _logger.warning("%s holds a certificate that is not an authority; strict verification refuses it", path)
