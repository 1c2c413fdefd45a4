"""Certificate files as a renewal that went wrong leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp_hardened.testing._ca import CertificateFiles, ThrowawayCA

__all__ = ["BundleFault", "broken_certificate_bundle"]

BundleFault = Literal[
    "wrong key", "truncated key", "truncated certificate", "empty", "missing key", "expired", "not yet valid"
]


def broken_certificate_bundle(
    ca: ThrowawayCA, fault: BundleFault, *names: str, over: CertificateFiles | None = None
) -> CertificateFiles:
    """Write a certificate and key that must not be served.

    Args:
        ca: Who issues the certificate.
        fault: What is wrong with the files.
        names: Host names and addresses.
        over: Files to overwrite, as a renewal does; default: new ones.
    """
    issue = {"expired": ca.issue_expired, "not yet valid": ca.issue_not_yet_valid}.get(fault, ca.issue)
    files = issue(*names)
    if fault == "wrong key":
        files.key_file.write_bytes(ca.issue(*names).key_file.read_bytes())
    elif fault == "truncated key":
        files.key_file.write_bytes(files.key_file.read_bytes()[:40])
    elif fault == "truncated certificate":
        files.cert_file.write_bytes(files.cert_file.read_bytes()[:200])
    elif fault == "empty":
        files.cert_file.write_bytes(b"")
    elif fault == "missing key":
        files.key_file.unlink()
    return files if over is None else _overwrite(over, files)


def _overwrite(target: CertificateFiles, source: CertificateFiles) -> CertificateFiles:
    _replace(source.key_file, target.key_file)
    _replace(source.cert_file, target.cert_file)
    return type(source)(target.cert_file, target.key_file, source.names, source.serial_number, source.not_after)


def _replace(source: Path, target: Path) -> None:
    if source.exists():
        target.write_bytes(source.read_bytes())
    else:
        target.unlink()
