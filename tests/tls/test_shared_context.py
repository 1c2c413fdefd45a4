"""One context per trust decision: the same object, built once, that nobody can change."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import pickle
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import aiohttp
import pytest
from cryptography.hazmat.primitives import serialization

from aiohttp_hardened import (
    Settings,
    SettingsError,
    TLSSettings,
    UnverifiedRequestError,
    create_connector,
    create_session,
    create_ssl_context,
)
from aiohttp_hardened.testing import CertificateFiles, FixedResolver, ThrowawayCA, TLSServer, scripted_proxy
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls import _registry
from aiohttp_hardened.tls._context import SharedSSLContext

if TYPE_CHECKING:
    from pathlib import Path


def trusting(ca: ThrowawayCA, **options: Any) -> TLSSettings:
    return TLSSettings(trust="none", ca_files=(str(ca.ca_file),), **options)


def test_equal_settings_share_one_context(throwaway_ca: ThrowawayCA) -> None:
    """Equal settings give the same object; others another one."""
    first = create_ssl_context(trusting(throwaway_ca, name="same"))
    assert first is create_ssl_context(trusting(throwaway_ca, name="same"))
    assert first is not create_ssl_context(trusting(throwaway_ca, name="other"))


async def test_fifty_first_requests_build_one_context(throwaway_ca: ThrowawayCA, monkeypatch: Any) -> None:
    """However many wait, one context is built; one caller's cancellation does not disturb the other 49 (CASES 9)."""
    built = []
    real = _registry._make

    def slow(tls: TLSSettings) -> SharedSSLContext:
        built.append(tls)
        time.sleep(0.05)
        return real(tls)

    monkeypatch.setattr(_registry, "_make", slow)
    tls = trusting(throwaway_ca, name=f"fifty {uuid4()}")
    waiting = [asyncio.create_task(_registry.context_ready(tls)) for _ in range(50)]
    await asyncio.sleep(0.01)
    waiting[0].cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(found[0], asyncio.CancelledError)
    assert [tls] == built
    assert {id(found[1])} == {id(each) for each in found[1:]}


async def test_a_thousand_sessions_make_one_context(
    throwaway_ca: ThrowawayCA, monkeypatch: pytest.MonkeyPatch, loop_name: str
) -> None:
    """A session per request is no reason to read a trust store per request."""
    settings = Settings(tls=trusting(throwaway_ca, name=f"a thousand sessions on {loop_name}"))
    built: list[TLSSettings] = []
    make = _registry._make
    monkeypatch.setattr(_registry, "_make", lambda tls: (built.append(tls), make(tls))[1])
    async with TLSServer(throwaway_ca.issue("127.0.0.1")) as server:
        for number in range(1000):
            async with create_session(settings, hooks=()) as session:
                if number % 50 == 0:
                    assert (await session.get(server.url())).status == 200
        assert server.connections == 20
    assert built == [settings.tls]


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_https_proxy_is_not_shown_the_client_certificate(scheme: str, throwaway_ca: ThrowawayCA) -> None:
    """A proxy may ask for a certificate too; the one for the target is not its business."""
    client = throwaway_ca.issue_client("orders")
    tls = trusting(throwaway_ca, client_cert=client.cert_file, client_key=client.key_file)
    async with (
        TLSServer(throwaway_ca.issue("127.0.0.1"), client_ca=throwaway_ca.ca_file) as proxy,
        create_session(Settings(tls=tls), hooks=()) as session,
    ):
        for _ in range(2):
            with pytest.raises(SettingsError, match=r"tls\.client_cert.*https proxy"):
                await session.get(f"{scheme}://x.test/", proxy=proxy.url())
        assert proxy.connections == 0


def test_threads_and_loops_get_one_context(throwaway_ca: ThrowawayCA) -> None:
    """A caller that looks just when a build ends does not begin another one."""
    for number in range(20):
        tls = trusting(throwaway_ca, name=f"race {number}")
        found: list[ssl.SSLContext] = []
        barrier = threading.Barrier(4)

        def ask(tls: TLSSettings = tls, barrier: threading.Barrier = barrier, found: Any = found) -> None:
            barrier.wait()
            for _ in range(20):
                found.append(create_ssl_context(tls))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(each) for each in found}) == 1


async def test_a_failed_build_is_tried_again(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """A failure is everybody's who waited, and nobody's who asks later (CASES 9)."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("nothing\n")
    tls = TLSSettings(trust="none", ca_files=(str(bundle),))
    for outcome in await asyncio.gather(*(_registry.context_ready(tls) for _ in range(3)), return_exceptions=True):
        assert isinstance(outcome, SettingsError)
        assert "holds no certificate" in str(outcome)
    bundle.write_bytes(throwaway_ca.ca_file.read_bytes())
    assert isinstance(await _registry.context_ready(tls), ssl.SSLContext)


async def test_the_loop_is_not_blocked_by_the_first_request(throwaway_ca: ThrowawayCA) -> None:
    """The bundle of certifi is parsed in a thread; a heartbeat goes on meanwhile (CASES 29)."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            start = time.perf_counter()
            await asyncio.sleep(0.002)
            late.append(time.perf_counter() - start - 0.002)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.01)
    context = await _registry.context_ready(
        TLSSettings(ca_files=(str(throwaway_ca.ca_file),), name=f"heartbeat {uuid4()}")
    )
    beating.cancel()
    assert len(context.get_ca_certs()) > 50
    # Blocking would be one beat of the whole build; the rest is the machine's noise.
    assert len(late) > 3
    assert sorted(late)[len(late) // 2] < 0.01


async def test_a_session_that_speaks_http_builds_none() -> None:
    """No TLS, no context; and a second session on one decision makes no second one."""
    before = figures.ssl_contexts
    async with create_session(Settings(tls=TLSSettings(name="never")), hooks=()):
        assert before == figures.ssl_contexts
        assert _registry.peek(TLSSettings(name="never")) is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verify_mode", ssl.CERT_NONE),
        ("check_hostname", False),
        ("minimum_version", ssl.TLSVersion.TLSv1),
        ("verify_flags", ssl.VerifyFlags(0)),
        ("options", ssl.Options(0)),
        ("keylog_filename", "/tmp/keys"),
        ("sslobject_class", ssl.SSLObject),
        ("anything", 1),
    ],
)
def test_it_cannot_be_changed(name: str, value: Any, throwaway_ca: ThrowawayCA) -> None:
    """Setting an attribute is refused, says what to do instead, and changes nothing (CASES 30)."""
    context = create_ssl_context(trusting(throwaway_ca))
    with pytest.raises(AttributeError, match=r"TLSSettings\(\.\.\.\)"):
        setattr(context, name, value)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_nothing_can_be_loaded_into_it(throwaway_ca: ThrowawayCA) -> None:
    """Loading is refused; what it has already may be said again (httpcore does)."""
    context = create_ssl_context(trusting(throwaway_ca))
    for load in (
        context.load_verify_locations,
        context.load_cert_chain,
        context.load_default_certs,
        context.set_ciphers,
    ):
        with pytest.raises(SettingsError, match="cannot be changed"):
            load("x")  # type: ignore[operator]
    context.set_alpn_protocols(["http/1.1"])
    context.check_hostname = True
    with pytest.raises(SettingsError):
        context.set_alpn_protocols(["h2"])
    with pytest.raises(AttributeError):
        del context.verify_mode


def test_it_is_shared_and_not_copied(throwaway_ca: ThrowawayCA) -> None:
    """A copy would not be the shared one; its settings travel instead."""
    context = create_ssl_context(trusting(throwaway_ca))
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="TLSSettings can"):
            attempt(context)  # type: ignore[operator]


async def test_no_way_leads_behind_it(throwaway_ca: ThrowawayCA, loopback_certificate: CertificateFiles) -> None:
    """A connection's SSL object and socket show the shared context, never the one behind it."""
    context = create_ssl_context(trusting(throwaway_ca))
    async with TLSServer(loopback_certificate) as server:
        _, writer = await asyncio.open_connection(server.host, server.port, ssl=context)
        shown = writer.get_extra_info("ssl_object")
        assert shown.context is context
        with pytest.raises(AttributeError):
            shown.context = ssl.create_default_context()
        writer.close()
        await writer.wait_closed()


async def test_the_verify_flags_are_the_same_on_every_python(throwaway_ca: ThrowawayCA) -> None:
    """``strict`` is what Python 3.13 does by default, made explicit; it can be switched off."""
    strict = ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    assert strict == create_ssl_context(trusting(throwaway_ca)).verify_flags & strict
    assert not create_ssl_context(trusting(throwaway_ca, strict=False)).verify_flags & strict


@pytest.mark.parametrize("options", [{"ssl": False}, {"verify_ssl": False}])
async def test_a_connector_that_would_not_verify_is_refused(options: dict[str, Any]) -> None:
    """There is no way to switch verification off by accident."""
    with pytest.raises(UnverifiedRequestError, match="allow_unverified=True"):
        create_connector(**options)


async def test_a_request_that_would_not_verify_is_refused(
    throwaway_ca: ThrowawayCA, loopback_certificate: CertificateFiles
) -> None:
    """``ssl=False`` and a context with ``CERT_NONE`` are refused before anything is sent, unless allowed."""
    careless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    careless.check_hostname = False
    careless.verify_mode = ssl.CERT_NONE
    async with TLSServer(loopback_certificate) as server:
        async with create_session(Settings(tls=trusting(throwaway_ca)), hooks=()) as session:
            for asked in (False, careless):
                with pytest.raises(UnverifiedRequestError):
                    await session.get(server.url(), ssl=asked)
        assert server.requests == []
        allowed = trusting(throwaway_ca, allow_unverified=True)
        async with (
            create_session(Settings(tls=allowed), hooks=()) as session,
            session.get(server.url(), ssl=False) as good,
        ):
            assert good.status == 200


async def test_a_pin_is_checked_on_top_of_verification(throwaway_ca: ThrowawayCA) -> None:
    """The right pin does not make an untrusted certificate good, and a wrong pin makes a trusted one bad."""
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    for issue, right, kind in (
        (throwaway_ca.issue, True, None),
        (throwaway_ca.issue, False, aiohttp.ServerFingerprintMismatch),
        (throwaway_ca.issue_untrusted, True, aiohttp.ClientConnectorCertificateError),
    ):
        certificate = issue("127.0.0.1")
        der = ssl.PEM_cert_to_DER_cert(certificate.cert_file.read_text())
        pin = aiohttp.Fingerprint(hashlib.sha256(der if right else b"other").digest())
        async with (
            TLSServer(certificate) as server,
            create_session(Settings(tls=trusting(throwaway_ca)), hooks=()) as session,
        ):
            if kind is None:
                async with session.get(server.url(), ssl=pin) as response:
                    assert response.status == 200
            else:
                with pytest.raises(kind):
                    await session.get(server.url(), ssl=pin)


async def test_mutual_tls_with_an_encrypted_key(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """A client certificate is shown, its key's password used and never printed."""
    client = throwaway_ca.issue_client("orders")
    key = tmp_path / "key.pem"
    loaded = serialization.load_pem_private_key(client.key_file.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    tls = trusting(throwaway_ca, client_cert=client.cert_file, client_key=key, client_key_password="hunter2")
    assert "hunter2" not in repr(tls)
    async with (
        TLSServer(throwaway_ca.issue("127.0.0.1"), client_ca=throwaway_ca.ca_file) as server,
        create_session(Settings(tls=tls), hooks=()) as session,
        session.get(server.url("/echo")) as response,
    ):
        assert (await response.json())["client"] == "orders"


def test_a_key_without_its_password_is_refused(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """OpenSSL is not left to ask on the terminal."""
    client = throwaway_ca.issue_client("orders")
    key = tmp_path / "key.pem"
    loaded = serialization.load_pem_private_key(client.key_file.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"hunter2"),
        )
    )
    with pytest.raises(SettingsError, match=r"tls\.client_cert"):
        create_ssl_context(trusting(throwaway_ca, client_cert=client.cert_file, client_key=key))


@pytest.mark.parametrize("route", ["direct", "proxy"])
async def test_a_trailing_dot_is_no_part_of_a_name(route: str, throwaway_ca: ThrowawayCA) -> None:
    """``x.test.`` is verified as ``x.test``, directly and through CONNECT (CASES 20)."""
    async with (
        TLSServer(throwaway_ca.issue("x.test")) as server,
        scripted_proxy(target=(server.host, server.port)) as proxy,
    ):
        settings = Settings(tls=trusting(throwaway_ca))
        connector = create_connector(settings, resolver=FixedResolver())
        async with (
            create_session(settings, hooks=(), connector=connector) as session,
            session.get(server.url(host="x.test."), proxy=proxy if route == "proxy" else None) as response,
        ):
            assert response.status == 200
        assert ["x.test"] == server.server_names
