"""The whole public API, as a user writes it: type-checked by mypy and pyright, never run."""

from __future__ import annotations

import datetime as dt
import ssl
from typing import Literal, assert_type

import aiohttp
from aiohttp import web

import aiohttp_hardened
from aiohttp_hardened import (
    DEFAULTS,
    DNSSettings,
    PoolSettings,
    Settings,
    TelemetrySettings,
    TimeoutSettings,
    TLSSettings,
    create_connector,
    create_session,
    create_ssl_context,
    create_trace_config,
    failed_phase,
    instrument,
    instrument_session,
    reload_tls,
    uninstrument,
)
from aiohttp_hardened.exceptions import (
    CertificateReloadError,
    DNSLookupError,
    HardenedError,
    PhaseTimeoutError,
    PlaintextBoundaryError,
    ReloadResult,
    SettingsError,
    UnverifiedRequestError,
)
from aiohttp_hardened.server import (
    HandshakeRecord,
    HardenedTCPSite,
    create_server_ssl_context,
    reload_on_sighup,
    run_app,
)
from aiohttp_hardened.telemetry import MetricHook, SpanHook, setup
from aiohttp_hardened.timing import Attempt, Phase, PhaseHook, PhaseRecord, RequestRecord

SETTINGS = Settings(
    timeouts=TimeoutSettings(total=60, queue=None, dns=2.5, tcp=2, tls=2, connect=5, read=None),
    pool=PoolSettings(limit=10, limit_per_host=2, keepalive=5.0, max_connection_age=None),
    dns=DNSSettings(
        resolver="system",
        nameservers=(),
        cache_ttl=60,
        stale_ttl=0,
        system_suffixes=(".local", ".internal"),
        quarantine=10,
        happy_eyeballs_delay=None,
    ),
    tls=TLSSettings(
        name="partners",
        trust="none",
        ca_files=("ca.pem",),
        client_cert="client.pem",
        client_key="client.key",
        client_key_password=b"secret",
        minimum_version=ssl.TLSVersion.TLSv1_3,
        strict=False,
        resumption=False,
        reload_interval=60,
        allow_unverified=True,
    ),
    telemetry=TelemetrySettings(
        max_hosts=10,
        request_spans="always",
        keep_query=True,
        sensitive_query_keys=("token",),
        propagate_to=("example.org", ".internal"),
    ),
)


def print_record(record: PhaseRecord) -> None:
    assert_type(record.phase, Phase)
    assert_type(record.start_ns, int)
    assert_type(record.end_ns, int)
    assert_type(record.duration, float)
    assert_type(record.server_address, str)
    assert_type(record.server_port, int | None)
    assert_type(record.error_type, str | None)
    assert_type(record.cancelled, bool)
    assert_type(record.request_id, int)
    print(record.phase.value, dict(record.attributes), [event.name for event in record.events])
    if isinstance(record, RequestRecord):
        assert_type(record.method, str)
        assert_type(record.status_code, int | None)
        assert_type(record.resend_count, int)
        assert_type(record.reused, bool)


class CountingHook:
    """A listener that also wants to know where a request starts."""

    def __init__(self) -> None:
        self.started = 0

    def __call__(self, record: PhaseRecord, /) -> None:
        print_record(record)

    def on_request_start(self, attempt: Attempt) -> None:
        self.started += 1
        attempt.headers["X-Attempt"] = f"{attempt.method} {attempt.url}"


async def sessions() -> None:
    hook: PhaseHook = print_record
    async with create_session() as session:
        assert_type(session, aiohttp.ClientSession)
    async with create_session(SETTINGS, hooks=()):
        pass
    async with create_session(
        DEFAULTS,
        hooks=[hook, CountingHook(), SpanHook(), MetricHook()],
        base_url="https://example.org/",
        headers={"X-From": "us"},
        timeout=aiohttp.ClientTimeout(total=3),
        trace_configs=[aiohttp.TraceConfig()],
        connector=create_connector(SETTINGS, limit=5, ttl_dns_cache=10),
        raise_for_status=True,
    ) as session:
        await request(session)
    connector = create_connector()
    assert_type(connector, aiohttp.TCPConnector)
    async with aiohttp.ClientSession(connector=connector, trace_configs=[create_trace_config(hooks=[hook])]):
        pass
    assert_type(create_trace_config(SETTINGS), aiohttp.TraceConfig)
    assert_type(create_ssl_context(), ssl.SSLContext)
    assert_type(create_ssl_context(SETTINGS.tls), ssl.SSLContext)


async def existing_services(session: aiohttp.ClientSession) -> None:
    instrument()
    instrument(SETTINGS, hooks=[print_record, CountingHook()])
    instrument_session(session)
    instrument_session(session, SETTINGS, hooks=())
    uninstrument()


async def request(session: aiohttp.ClientSession) -> None:
    try:
        async with session.get("/items/1", trace_request_ctx={"url.template": "/items/{id}"}) as response:
            await response.read()
    except aiohttp.ClientConnectorDNSError as error:
        if isinstance(error.os_error, DNSLookupError):
            assert_type(error.os_error.reason, str)
    except TimeoutError as error:
        assert_type(failed_phase(error), Phase | None)
        if isinstance(error.__cause__, PhaseTimeoutError):
            assert_type(error.__cause__.phase, Phase)
            assert_type(error.__cause__.budget, float)
    except UnverifiedRequestError as error:
        as_aiohttp_error: aiohttp.ClientConnectionError = error
        print(as_aiohttp_error)
    except PlaintextBoundaryError as error:
        as_own_error: HardenedError = error
        print(as_own_error)


def wrong_settings() -> None:
    try:
        TimeoutSettings(dns=-1)
    except SettingsError as error:
        as_value_error: ValueError = error
        print(as_value_error)


def providers() -> None:
    setup()
    setup(**{"service.name": "orders"})


def reloading(error: CertificateReloadError, result: ReloadResult) -> None:
    own: HardenedError = error
    print(own, aiohttp_hardened.__version__)
    assert_type(reload_tls(SETTINGS.tls), ReloadResult)
    assert_type(result.outcome, Literal["applied", "unchanged", "rejected"])
    assert_type(result.reason, str | None)
    assert_type(result.not_after, dt.datetime | None)


def shaken(record: HandshakeRecord) -> None:
    assert_type(record.duration, float)
    assert_type(record.error_type, str | None)


async def serve(runner: web.AppRunner, app: web.Application) -> None:
    context = create_server_ssl_context("tls.crt", "tls.key", client_ca="ca.crt", reload_interval=60.0)
    assert_type(context, ssl.SSLContext)
    assert_type(reload_tls(context), ReloadResult)
    app.cleanup_ctx.append(reload_on_sighup(context))
    site = HardenedTCPSite(
        runner, "127.0.0.1", 8443, ssl_context=context, backlog=1024, ssl_handshake_timeout=10.0, hooks=[shaken]
    )
    await site.start()


def serve_alone(app: web.Application) -> None:
    assert_type(run_app(app, certfile="tls.crt", keyfile="tls.key", reload_interval=60.0), None)
