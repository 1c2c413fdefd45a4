"""Certificates that trustme does not issue: with a purpose, out of date in the middle, or by an old authority."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from pathlib import Path

PURPOSES = {
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
    "code": ExtendedKeyUsageOID.CODE_SIGNING,
}
DAY = dt.timedelta(days=1)


@dataclass
class Authority:
    """An authority, or a leaf, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make(
    name: str,
    issuer: Authority | None = None,
    *,
    authority: bool = False,
    purpose: str | None = None,
    start: dt.timedelta = -DAY,
    end: dt.timedelta = 30 * DAY,
    old: bool = False,
    constraints: bool = True,
) -> Authority:
    """Issue a certificate.

    Args:
        name: Its name, for leaves also the host's.
        issuer: Who signs it; ``None``: itself.
        authority: It may issue others.
        purpose: Its only extended key usage.
        start: When it begins, from now.
        end: When it ends, from now.
        constraints: It says whether it is an authority.
        old: Made as by an authority of long ago: constraints not critical, no key usage, no identifiers.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    now = dt.datetime.now(dt.UTC)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer = issuer.key if issuer is not None else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer is not None else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + start)
        .not_valid_after(now + end)
    )
    extensions: list[tuple[Any, bool]] = []
    if constraints:
        builder = builder.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=not old)
    if not old:
        usage = dict.fromkeys(
            (
                "content_commitment",
                "key_encipherment",
                "data_encipherment",
                "key_agreement",
                "encipher_only",
                "decipher_only",
            ),
            False,
        )
        extensions = [
            (
                x509.KeyUsage(digital_signature=not authority, key_cert_sign=authority, crl_sign=authority, **usage),
                True,
            ),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False),
        ]
    if not authority:
        extensions.append((x509.SubjectAlternativeName([x509.DNSName(name)]), False))
    if purpose is not None:
        extensions.append((x509.ExtendedKeyUsage([PURPOSES[purpose]]), False))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return Authority(builder.sign(signer, hashes.SHA256()), key)


def write(path: Path, *certificates: Authority, key: Authority | None = None) -> str:
    """Write PEM, the key first where it is one file."""
    path.write_bytes((key.key_pem if key is not None else b"") + b"".join(each.pem for each in certificates))
    return str(path)
