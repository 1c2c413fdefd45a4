"""What a trust decision, and a key pair, must be to serve."""

from __future__ import annotations

import datetime as dt
import logging
import ssl
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import certifi
import pytest
from cryptography import x509

from aiohttp_hardened import SettingsError, TLSSettings
from aiohttp_hardened.exceptions import CertificateReloadError
from aiohttp_hardened.tls import _files
from aiohttp_hardened.tls._files import KeyPair, check_pair
from aiohttp_hardened.tls._registry import context_for
from aiohttp_hardened.tls._x509 import certificates, parse
from tests.tls._certificates import DAY, Authority, make, write
from tests.tls._raw import in_memory, server_context

if TYPE_CHECKING:
    from aiohttp_hardened.testing import ThrowawayCA


def pair_of(leaf: Authority, *chain: Authority) -> KeyPair:
    return KeyPair(b"".join(each.pem for each in (leaf, *chain)), leaf.key_pem)


def test_a_good_pair_ends_when_its_leaf_ends() -> None:
    """Alone, with its intermediate, with its root."""
    root = make("root", authority=True)
    middle = make("middle", root, authority=True)
    leaf = make("x.test", middle, end=5 * DAY)
    for chain in ((), (middle,), (middle, root)):
        for role in ("client", "server"):
            assert leaf.certificate.not_valid_after_utc == check_pair(pair_of(leaf, *chain), role)


@pytest.mark.parametrize("role", ["client", "server"])
def test_a_chain_that_does_not_build_is_rejected(role: Any) -> None:
    """Somebody else's intermediate, one that has expired, a leaf out of its time."""
    root = make("root", authority=True)
    middle, stranger = make("middle", root, authority=True), make("stranger", root, authority=True)
    old = make("middle", root, authority=True, start=-9 * DAY, end=-DAY)
    for pair, reason in (
        (pair_of(make("x.test", middle), stranger), "unable to get"),
        (pair_of(make("x.test", old), old, root), "expired"),
        (pair_of(make("x.test", middle, start=-2 * DAY, end=-DAY), middle), "expired"),
        (pair_of(make("x.test", middle, start=DAY, end=2 * DAY), middle), "not yet valid"),
        (KeyPair(b"", b""), "holds no certificate"),
        (KeyPair(make("x.test").pem, make("y.test").key_pem), "KEY_VALUES_MISMATCH"),
    ):
        with pytest.raises(CertificateReloadError, match=reason):
            check_pair(pair, role)


def test_a_certificate_for_one_side_serves_on_the_other() -> None:
    """Whether a peer minds is the peer's affair; one that is for neither is refused."""
    root = make("root", authority=True)
    for purpose in ("client", "server"):
        for role in ("client", "server"):
            check_pair(pair_of(make("x.test", root, purpose=purpose), root), role)  # type: ignore[arg-type]
    with pytest.raises(CertificateReloadError, match="purpose"):
        check_pair(pair_of(make("x.test", root, purpose="code"), root), "client")


def test_key_and_certificate_may_be_one_file(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """``client_cert`` alone, with the key in it."""
    leaf = make("orders", make("root", authority=True))
    both = write(tmp_path / "both.pem", leaf, key=leaf)
    context_for(TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,), client_cert=both))


def test_bytes_are_loaded_without_proc(throwaway_ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no memory file, a private temporary one serves and goes."""
    monkeypatch.setattr(_files, "_memory_file", lambda _: None)
    with _files.as_path(b"secret") as path:
        there = Path(path)
        assert there.read_bytes() == b"secret"
        assert there.stat().st_mode & 0o077 == 0
    assert not there.parent.exists()
    check_pair(pair_of(make("x.test")), "client")


@pytest.mark.parametrize(
    ("dates", "reason"),
    [({"start": -9 * DAY, "end": -DAY}, "expired"), ({"start": DAY, "end": 9 * DAY}, "not valid yet|valid yet")],
)
def test_authorities_that_are_all_out_of_date_are_refused(dates: Any, reason: str, tmp_path: Path) -> None:
    """A bundle that trusts nobody would fail every handshake; one good authority among old ones is enough."""
    past, good = make("past", authority=True, **dates), make("good", authority=True)
    only = write(tmp_path / "only.pem", past)
    with pytest.raises(SettingsError, match=reason):
        context_for(TLSSettings(trust="none", ca_files=(only,)))
    both = write(tmp_path / "both.pem", past, good)
    assert len(context_for(TLSSettings(trust="none", ca_files=(both,))).get_ca_certs()) == 2


@pytest.mark.parametrize("strict", [True, False])
def test_an_authority_that_a_stricter_python_refuses_is_warned_of(
    strict: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the file, what is missing and what to do; and the handshake says the same."""
    old = make("old root", authority=True, old=True)
    leaf = make("x.test", old)
    bundle = write(tmp_path / "old.pem", old)
    with caplog.at_level(logging.WARNING, "aiohttp_hardened"):
        context = context_for(TLSSettings(trust="none", ca_files=(bundle,), strict=strict))
    (record,) = caplog.records
    message = record.getMessage()
    assert bundle in message
    for flaw in ("basic constraints not critical", "no key usage", "no subject key identifier"):
        assert flaw in message
    assert "strict=False" in message
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(write(tmp_path / "leaf.pem", leaf, key=leaf))
    if strict:
        with pytest.raises(ssl.SSLCertVerificationError):
            in_memory(context, server, "x.test")
    else:
        in_memory(context, server, "x.test")


def test_a_root_without_basic_constraints_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As authorities were made before there were extensions."""
    bundle = write(tmp_path / "bare.pem", make("bare root", authority=True, constraints=False))
    with caplog.at_level(logging.WARNING, "aiohttp_hardened"):
        context_for(TLSSettings(trust="none", ca_files=(bundle,)))
    assert "no basic constraints" in caplog.text


def test_a_good_authority_is_not_warned_of(
    tmp_path: Path, throwaway_ca: ThrowawayCA, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither trustme's nor a self-signed leaf that is pinned as an authority of its own."""
    leaf = make("x.test")
    for bundle in (str(throwaway_ca.ca_file), write(tmp_path / "leaf.pem", leaf)):
        context = context_for(TLSSettings(trust="none", ca_files=(bundle,), name=f"good {bundle}"))
    assert caplog.records == []
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(write(tmp_path / "both.pem", leaf, key=leaf))
    in_memory(context, server, "x.test")


def test_what_is_read_of_a_certificate_is_what_cryptography_reads(throwaway_ca: ThrowawayCA) -> None:
    """Dates in both encodings (RFC 5280: from 2050 on another one), and the whole of certifi's bundle."""
    pems = [
        make("far", authority=True, end=dt.timedelta(days=365 * 40)).pem,
        throwaway_ca.ca_file.read_bytes(),
    ]
    pems.append(Path(certifi.where()).read_bytes())
    for pem in pems:
        ours = [parse(der) for der in certificates(pem)]
        with warnings.catch_warnings(action="ignore"):  # certifi has one with the serial number 0
            theirs = x509.load_pem_x509_certificates(pem)
        assert len(ours) == len(theirs)
        for mine, real in zip(ours, theirs, strict=True):
            assert mine.not_before == real.not_valid_before_utc.timestamp()
            assert mine.not_after == real.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("cut", [1, 2, 5, 20, 100, 200])
def test_a_broken_certificate_is_a_value_error(cut: int) -> None:
    """Wherever it is cut; never another exception."""
    (der,) = certificates(make("x.test").pem)
    with pytest.raises(ValueError, match=r"cut short|not enough|does not match|unconverted"):
        parse(der[:cut])


def test_a_bundle_that_is_no_base64_is_refused(tmp_path: Path) -> None:
    """With the field that names it."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n")
    with pytest.raises(SettingsError, match=r"tls\.ca_files"):
        context_for(TLSSettings(trust="none", ca_files=(str(bundle),)))


def test_the_minimum_version_holds(throwaway_ca: ThrowawayCA) -> None:
    """TLS 1.3 at least, against a server of 1.2."""
    context = context_for(
        TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,), minimum_version=ssl.TLSVersion.TLSv1_3)
    )
    certificate = throwaway_ca.issue("x.test")
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        in_memory(context, server_context(certificate, ssl.TLSVersion.TLSv1_2), "x.test")
    ours, _ = in_memory(context, server_context(certificate), "x.test")
    assert ours.version() == "TLSv1.3"
