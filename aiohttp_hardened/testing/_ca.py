"""A certificate authority that lives as long as a test."""

from __future__ import annotations

import datetime as dt
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Generator

    import trustme

__all__ = ["CertificateFiles", "ThrowawayCA", "throwaway_ca"]

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key, as PEM files.

    Args:
        cert_file: The leaf, followed by its intermediates.
        key_file: The leaf's key, without a password.
        names: What the leaf stands for.
        serial_number: As ``ssl`` shows it in ``getpeercert()["serialNumber"]``.
        not_after: When it ends (UTC).
    """

    cert_file: Path
    key_file: Path
    names: tuple[str, ...]
    serial_number: str
    not_after: dt.datetime


class ThrowawayCA:
    """A certificate authority whose files are in a directory of the caller's.

    Needs the extra ``testing`` (trustme).

    Args:
        directory: Where PEM files are written; the caller removes it.
    """

    ca_file: Path
    """The root certificate, for ``TLSSettings(ca_files=(...,))``."""

    def __init__(self, directory: str | Path) -> None:
        import trustme  # noqa: PLC0415  # the rest of this package works without it

        self._directory = Path(directory)
        self._ca = trustme.CA()
        self._key_types = trustme.KeyType
        self._count = 0
        self.ca_file = self._directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_file)

    def issue(
        self,
        *names: str,
        not_before: dt.datetime | None = None,
        not_after: dt.datetime | None = None,
        key_type: Literal["ecdsa", "rsa"] = "ecdsa",
        intermediate: bool = False,
    ) -> CertificateFiles:
        """Issue a certificate for servers and clients.

        Args:
            names: Host names and addresses.
            not_before: Start, UTC; default: long ago.
            not_after: End, UTC; default: long from now.
            key_type: ECDSA P-256 or RSA-2048.
            intermediate: Issue it through an intermediate authority, whose
                certificate then is in ``cert_file`` too.
        """
        issuer = self._ca.create_child_ca() if intermediate else self._ca
        leaf = issuer.issue_cert(
            *names, not_before=not_before, not_after=not_after, key_type=self._key_types[key_type.upper()]
        )
        return self._write(leaf, names)

    def issue_client(self, name: str) -> CertificateFiles:
        """Issue a certificate whose common name is ``name``; ``/echo`` of a `TLSServer` shows it."""
        return self._write(self._ca.issue_cert(f"{name}.client.test", common_name=name), (name,))

    def issue_expired(self, *names: str) -> CertificateFiles:
        """Issue a certificate that ended yesterday."""
        return self.issue(*names, not_before=_now() - 30 * _DAY, not_after=_now() - _DAY)

    def issue_not_yet_valid(self, *names: str) -> CertificateFiles:
        """Issue a certificate that starts tomorrow."""
        return self.issue(*names, not_before=_now() + _DAY, not_after=_now() + 30 * _DAY)

    def issue_untrusted(self, *names: str) -> CertificateFiles:
        """Issue a certificate from an authority that nobody trusts."""
        return self._write(type(self._ca)().issue_cert(*names), names)

    def client_context(self, client: CertificateFiles | None = None) -> ssl.SSLContext:
        """Return a context that trusts this authority alone.

        Args:
            client: A certificate to show to servers that ask.
        """
        context = ssl.create_default_context(cafile=str(self.ca_file))
        if client is not None:
            context.load_cert_chain(client.cert_file, client.key_file)
        return context

    def _write(self, leaf: trustme.LeafCert, names: tuple[str, ...]) -> CertificateFiles:
        self._count += 1
        cert_file = self._directory / f"leaf-{self._count}.pem"
        key_file = self._directory / f"leaf-{self._count}.key"
        for index, blob in enumerate(leaf.cert_chain_pems):
            blob.write_to_path(cert_file, append=index > 0)
        leaf.private_key_pem.write_to_path(key_file)
        key_file.chmod(0o600)
        serial_number, not_after = _read(cert_file)
        return CertificateFiles(cert_file, key_file, names, serial_number, not_after)


def _read(cert_file: Path) -> tuple[str, dt.datetime]:
    from cryptography import x509  # noqa: PLC0415  # comes with trustme

    certificate = x509.load_pem_x509_certificate(cert_file.read_bytes())
    digits = f"{certificate.serial_number:X}"
    return digits.zfill(len(digits) + len(digits) % 2), certificate.not_valid_after_utc


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@contextmanager
def throwaway_ca() -> Generator[ThrowawayCA]:
    """Give a certificate authority in a temporary directory, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="throwaway-ca-") as directory:
        yield ThrowawayCA(directory)
