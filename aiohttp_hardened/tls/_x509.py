"""The little of a certificate that ``ssl`` does not show: its dates unverified, and what strict verification asks for.

A reader of DER (X.690) along the one path that RFC 5280, section 4.1, lays out. It
decides nothing about trust; OpenSSL does.
"""

from __future__ import annotations

import binascii
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_PEM: Final = re.compile(
    rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----(.+?)-----END (?:X509 |TRUSTED )?CERTIFICATE-----", re.DOTALL
)

_BOOLEAN, _OCTET_STRING, _OID, _UTC_TIME = 0x01, 0x04, 0x06, 0x17
_VERSION, _EXTENSIONS = 0xA0, 0xA3
_LONG_FORM: Final = 0x80
_PIVOT_YEAR: Final = 50
"""RFC 5280, section 4.1.2.5.1: a UTCTime of 50 and above is of the twentieth century."""

_SUBJECT_KEY_IDENTIFIER: Final = b"\x55\x1d\x0e"
_KEY_USAGE: Final = b"\x55\x1d\x0f"
_BASIC_CONSTRAINTS: Final = b"\x55\x1d\x13"
_AUTHORITY_KEY_IDENTIFIER: Final = b"\x55\x1d\x23"


class Certificate(NamedTuple):
    """What a certificate says of itself.

    Args:
        not_before: Start, unix time.
        not_after: End, unix time.
        flaws: Why ``VERIFY_X509_STRICT`` refuses it as an authority, in words; none
            where it is no authority.
    """

    not_before: float
    not_after: float
    flaws: tuple[str, ...]


def certificates(pem: bytes) -> list[bytes]:
    """Return the certificates of a PEM file as DER, in their order.

    Raises:
        ValueError: One is not base64.
    """
    try:
        return [binascii.a2b_base64(body) for body in _PEM.findall(pem)]
    except binascii.Error as exc:
        raise ValueError(f"a certificate is not base64: {exc}") from exc


@lru_cache(maxsize=256)
def parse(der: bytes) -> Certificate:
    """Read a certificate.

    Raises:
        ValueError: It is not one.
    """
    try:
        return _parse(der)
    except (IndexError, StopIteration, UnicodeDecodeError) as exc:
        raise ValueError("a certificate is cut short") from exc


def _parse(der: bytes) -> Certificate:
    (_, certificate), *_rest = _elements(der)
    (_, body), *_rest = _elements(certificate)
    fields = list(_elements(body))
    if fields[0][0] == _VERSION:
        del fields[0]
    # serialNumber, signature, issuer, validity, subject, then the key and what is optional.
    issuer, validity, subject = fields[2][1], fields[3][1], fields[4][1]
    not_before, not_after = (_unix_time(tag, value) for tag, value in _elements(validity))
    extensions: dict[bytes, tuple[bool, bytes]] = {}
    for tag, value in fields[5:]:
        if tag == _EXTENSIONS:
            extensions = _extensions(value)
    self_issued = issuer == subject
    authority = _is_authority(extensions)
    # Without basic constraints it may be an old root; with them it is what they say.
    judged = authority or (self_issued and _BASIC_CONSTRAINTS not in extensions)
    flaws = _flaws(extensions, self_issued=self_issued) if judged else ()
    return Certificate(not_before, not_after, flaws)


def _extensions(value: bytes) -> dict[bytes, tuple[bool, bytes]]:
    found: dict[bytes, tuple[bool, bytes]] = {}
    (_, sequence), *_rest = _elements(value)
    for _, extension in _elements(sequence):
        critical, oid, content = False, b"", b""
        for tag, part in _elements(extension):
            if tag == _OID:
                oid = part
            elif tag == _BOOLEAN:
                critical = part != b"\x00"
            elif tag == _OCTET_STRING:
                content = part
        found[oid] = (critical, content)
    return found


def _is_authority(extensions: dict[bytes, tuple[bool, bytes]]) -> bool:
    if _BASIC_CONSTRAINTS not in extensions:
        return False
    (_, constraints), *_rest = _elements(extensions[_BASIC_CONSTRAINTS][1])
    return any(tag == _BOOLEAN and value != b"\x00" for tag, value in _elements(constraints))


def _flaws(extensions: dict[bytes, tuple[bool, bytes]], *, self_issued: bool) -> tuple[str, ...]:
    """Return what ``check_extensions`` of OpenSSL 3 (crypto/x509/x509_vfy.c) misses in an authority."""
    flaws: list[str] = []
    if _BASIC_CONSTRAINTS not in extensions:
        flaws.append("no basic constraints")
    elif not extensions[_BASIC_CONSTRAINTS][0]:
        flaws.append("basic constraints not critical")
    if _KEY_USAGE not in extensions:
        flaws.append("no key usage")
    if _SUBJECT_KEY_IDENTIFIER not in extensions:
        flaws.append("no subject key identifier")
    if not self_issued and _AUTHORITY_KEY_IDENTIFIER not in extensions:
        flaws.append("no authority key identifier")
    return tuple(flaws)


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length >= _LONG_FORM:
            octets = length - _LONG_FORM
            length = int.from_bytes(data[position : position + octets], "big")
            position += octets
        if position + length > len(data):
            raise ValueError("a certificate is cut short")
        yield tag, data[position : position + length]
        position += length


def _unix_time(tag: int, value: bytes) -> float:
    digits = value.decode("ascii")
    if tag == _UTC_TIME:
        digits = ("19" if int(digits[:2]) >= _PIVOT_YEAR else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()
