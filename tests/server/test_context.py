"""A server's context: what it refuses, and renewals that do not reach it half done."""

from __future__ import annotations

import logging
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import reload_tls
from aiohttp_hardened.exceptions import SettingsError
from aiohttp_hardened.server import create_server_ssl_context
from aiohttp_hardened.testing import ThrowawayCA, broken_certificate_bundle
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls import _reload
from tests.server._served import Mounted, serial_shown, serving

if TYPE_CHECKING:
    from pathlib import Path

    from aiohttp_hardened.testing import BundleFault


@pytest.fixture
def mounted(tmp_path: Path, throwaway_ca: ThrowawayCA) -> Mounted:
    return Mounted(tmp_path, throwaway_ca.issue("x.test"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"certfile": "/nowhere.pem"}, "server.certfile names '/nowhere.pem', which is not a file"),
        ({"certfile": 5}, "server.certfile is 5; it must be a file path"),
        ({"keyfile": "/nowhere.key"}, "server.keyfile names '/nowhere.key', which is not a file"),
        ({"key_password": 5}, "server.key_password must be str, bytes or None"),
        ({"client_ca": "/nowhere.pem"}, "server.client_ca names '/nowhere.pem', which is not a file"),
        ({"name": ""}, "server.name is ''; it must be a non-empty string or None"),
        ({"minimum_version": ssl.TLSVersion.TLSv1}, "it must be ssl.TLSVersion.TLSv1_2 or ssl.TLSVersion.TLSv1_3"),
        ({"alpn_protocols": "h2"}, "server.alpn_protocols"),
        ({"alpn_protocols": ("",)}, "server.alpn_protocols holds ''"),
        ({"tickets": -1}, "server.tickets is -1; it must be a whole number, 0 or more"),
        ({"strict": 1}, "server.strict is 1"),
        ({"reload_interval": 0}, "server.reload_interval is 0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(mounted: Mounted, options: dict[str, Any], said: str) -> None:
    """The error names the field, what was given and what is allowed."""
    arguments: dict[str, Any] = {"certfile": mounted.cert, "keyfile": mounted.key, **options}
    with pytest.raises(SettingsError) as caught:
        create_server_ssl_context(arguments.pop("certfile"), arguments.pop("keyfile"), **arguments)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("wrong key", "KEY_VALUES_MISMATCH"),
        ("truncated key", "tls.key"),
        ("empty", "tls.crt"),
        ("expired", "expired"),
        ("not yet valid", "not yet valid"),
    ],
)
def test_files_that_cannot_serve_are_refused_at_once(
    mounted: Mounted, throwaway_ca: ThrowawayCA, fault: BundleFault, reason: str
) -> None:
    """A service that starts with them says so, with OpenSSL's reason and the files' names."""
    bad = broken_certificate_bundle(throwaway_ca, fault, "x.test")
    mounted.write(bad)
    with pytest.raises(SettingsError) as caught:
        mounted.context()
    assert reason in str(caught.value)
    assert f"server.certfile={str(mounted.cert)!r}" in str(caught.value)


@pytest.mark.parametrize("server_name", ["x.test", None])
async def test_a_renewal_shows_on_the_next_connection(
    mounted: Mounted, throwaway_ca: ThrowawayCA, server_name: str | None
) -> None:
    """A correct pair is served from the next handshake on, to clients with and without SNI."""
    context = mounted.context()
    old, new = throwaway_ca.issue("x.test"), throwaway_ca.issue("x.test")
    mounted.write(old)
    assert "applied" == reload_tls(context).outcome
    trust = throwaway_ca.client_context()
    async with serving(context, hooks=()) as address:
        assert old.serial_number == await serial_shown(address, trust, server_name)
        mounted.write(new)
        assert "applied" == reload_tls(context).outcome
        assert new.serial_number == await serial_shown(address, trust, server_name)


@pytest.mark.parametrize("server_name", ["x.test", None])
async def test_a_wrong_key_is_rejected_and_the_old_pair_serves_on(
    mounted: Mounted, throwaway_ca: ThrowawayCA, caplog: pytest.LogCaptureFixture, server_name: str | None
) -> None:
    """A new certificate beside the old key is in the log as KEY_VALUES_MISMATCH and counted; nobody is refused."""
    old, new = throwaway_ca.issue("x.test"), throwaway_ca.issue("x.test")
    mounted.write(old)
    context = mounted.context()
    trust = throwaway_ca.client_context()
    rejected = figures.tls_reloads["mounted", "rejected"]
    async with serving(context, hooks=()) as address:
        mounted.write(new, key=old)
        with caplog.at_level(logging.WARNING, "aiohttp_hardened"):
            result = reload_tls(context)
        assert "rejected" == result.outcome
        assert "KEY_VALUES_MISMATCH" in caplog.text
        assert rejected + 1 == figures.tls_reloads["mounted", "rejected"]
        assert old.serial_number == await serial_shown(address, trust, server_name)
        mounted.write(new)
        assert "applied" == reload_tls(context).outcome
        assert new.serial_number == await serial_shown(address, trust, server_name)


async def test_the_files_are_watched(
    mounted: Mounted, throwaway_ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``reload_interval`` nobody has to ask."""
    monkeypatch.setattr(_reload, "_SECONDS_BETWEEN", 0.01)
    context = mounted.context(reload_interval=0.05)
    new = throwaway_ca.issue("x.test")
    trust = throwaway_ca.client_context()
    async with serving(context, hooks=()) as address:
        mounted.write(new)
        deadline = time.monotonic() + 20
        while await serial_shown(address, trust) != new.serial_number:
            assert time.monotonic() < deadline, "the new certificate was never served"
    del context


async def test_clients_show_certificates_when_asked(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """With ``client_ca`` a client with a certificate is served, one without is not."""
    context = mounted.context(client_ca=throwaway_ca.ca_file)
    mine = throwaway_ca.client_context(throwaway_ca.issue_client("orders"))
    async with serving(context, hooks=()) as address:
        assert await serial_shown(address, mine)
        # Under TLS 1.3 the refusal comes behind a handshake that succeeded for the client.
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serial_shown(address, at_most(throwaway_ca, ssl.TLSVersion.TLSv1_2))


def at_most(ca: ThrowawayCA, version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ca.client_context()
    context.maximum_version = version
    return context


async def test_the_minimum_version_and_alpn_hold(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """A client of TLS 1.2 is refused where 1.3 is the least; ``http/1.1`` is agreed to, and none offered is fine."""
    async with serving(mounted.context(minimum_version=ssl.TLSVersion.TLSv1_3), hooks=()) as address:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await serial_shown(address, at_most(throwaway_ca, ssl.TLSVersion.TLSv1_2))
        assert await serial_shown(address, throwaway_ca.client_context())
        offering = throwaway_ca.client_context()
        offering.set_alpn_protocols(["h2", "http/1.1"])
        assert await serial_shown(address, offering)


def test_what_is_held_cannot_be_changed(mounted: Mounted) -> None:
    """Loading into the live context is refused, and says what to do instead (CASES 2)."""
    context = mounted.context()
    with pytest.raises(Exception, match="reload_tls"):
        context.load_cert_chain(mounted.cert, mounted.key)
    with pytest.raises(Exception, match="cannot be changed"):
        context.verify_mode = ssl.CERT_OPTIONAL


def test_a_context_of_somebody_else_cannot_be_reloaded() -> None:
    """The error says what was given, and what is allowed."""
    with pytest.raises(SettingsError, match="create_server_ssl_context"):
        reload_tls(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
