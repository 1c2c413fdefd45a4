"""A process with one fault, whose metrics the real Prometheus exporter serves: ``python -m tests.cli._faults NAME``.

It makes its requests, prints the port of ``/metrics``, and keeps what it made until its
standard input ends. Figures of the process (contexts, reloads, certificates) are the
fault's alone, which they would not be inside a test's own process.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
import sys
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import aiohttp
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import start_http_server

from aiohttp_hardened import (
    DNSSettings,
    PoolSettings,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_connector,
    create_session,
    create_ssl_context,
    reload_tls,
)
from aiohttp_hardened.telemetry import MetricHook
from aiohttp_hardened.testing import (
    FakeNameServer,
    FixedResolver,
    HTTPServer,
    ThrowawayCA,
    TLSServer,
    accept_queue_overflow,
    broken_certificate_bundle,
    dead_address,
    full_default_executor,
    plaintext_peer,
    refusing_address,
    scripted_proxy,
    server_context,
    stalled_tls,
    throwaway_ca,
)
from tests.e2e._peers import openssl_server

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Hooks = list[Any]

IN_THREE_DAYS = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)


async def get(session: aiohttp.ClientSession, url: str, times: int = 1, **options: Any) -> None:
    for _ in range(times):
        with suppress(aiohttp.ClientError, TimeoutError, ValueError):
            async with session.get(url, **options) as response:
                await response.read()


def trusting(ca: ThrowawayCA, **options: Any) -> Settings:
    tls = TLSSettings(trust="none", ca_files=(str(ca.ca_file),), **options.pop("tls", {}))
    return Settings(tls=tls, **options)


@asynccontextmanager
async def healthy(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    """Many names, a pool that fills at once and is used, and 150 lookups, so that one slow one is no p99."""
    with FakeNameServer() as names:
        async with TLSServer(ca.issue("shop.test", "*.shop.test")) as server, HTTPServer() as http:
            for number in range(150):
                names.set(f"n{number}.test", http.host)
            names.set("shop.test", server.host)
            settings = trusting(ca, dns=DNSSettings(nameservers=(names.address,)))
            async with create_session(settings, hooks=hooks) as session:
                for number in range(150):
                    await get(session, http.url(host=f"n{number}.test"))
                await asyncio.gather(*(get(session, server.url(host="shop.test"), 20) for _ in range(8)))
                yield


@asynccontextmanager
async def executor_full(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    """Names are looked up by threads, and no thread is free."""
    async with HTTPServer() as server:
        connector = create_connector(resolver=aiohttp.ThreadedResolver(), force_close=True)
        async with create_session(hooks=hooks, connector=connector) as session:
            async with full_default_executor(at_most=0.5):
                await get(session, server.url(host="localhost"))
            async with full_default_executor(at_most=60):
                waiting = asyncio.create_task(get(session, server.url(host="127.0.0.1.localhost")))
                await asyncio.sleep(0.1)
                yield
            await waiting


@asynccontextmanager
async def executor_full_beside_aiodns(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    """The executor is full, and lookups do not need it."""
    async with healthy(hooks, ca), full_default_executor(at_most=60):
        job = asyncio.get_running_loop().run_in_executor(None, bool)
        yield
    await job


@asynccontextmanager
async def dead_first_address(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    async with HTTPServer() as server:
        with dead_address("127.0.0.2", server.port):
            connector = create_connector(resolver=FixedResolver(("127.0.0.2", "127.0.0.1")), force_close=True)
            async with create_session(hooks=hooks, connector=connector) as session:
                await get(session, server.url(host="x.test"), 10)
                yield


@asynccontextmanager
async def every_address_dead(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    with dead_address() as (host, port):
        async with create_session(Settings(timeouts=TimeoutSettings(tcp=0.3)), hooks=hooks) as session:
            await get(session, f"http://{host}:{port}/", 2)
            yield


@asynccontextmanager
async def accept_queue(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    async with accept_queue_overflow(drop_for=0.4) as (host, port):
        connector = create_connector(force_close=True)
        async with create_session(hooks=hooks, connector=connector) as session:
            await asyncio.gather(*(get(session, f"http://{host}:{port}/") for _ in range(5)))
            await get(session, f"http://{host}:{port}/", 5)
            yield


@asynccontextmanager
async def connection_per_request(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    async with TLSServer(ca.issue("127.0.0.1")) as server:
        settings = trusting(ca)
        connector = create_connector(settings, force_close=True)
        async with create_session(settings, hooks=hooks, connector=connector) as session:
            await get(session, server.url(), 20)
            yield


@asynccontextmanager
async def no_tickets(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    """Pools are used and come to their end, as with ``max_connection_age``; the peer gives no tickets."""
    context = server_context(ca.issue("127.0.0.1"))
    context.num_tickets = 0
    async with TLSServer(context=context) as server:
        for _ in range(30):
            async with create_session(trusting(ca), hooks=hooks) as session:
                await get(session, server.url(), 12)
        yield


@asynccontextmanager
async def context_per_client(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(TLSServer(ca.issue("127.0.0.1")))
        for number in range(20):
            settings = trusting(ca, tls={"name": f"client {number}"})
            session = await stack.enter_async_context(create_session(settings, hooks=hooks))
            await get(session, server.url())
        yield


@asynccontextmanager
async def bad_bundle(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    client = ca.issue_client("orders")
    settings = trusting(ca, tls={"client_cert": str(client.cert_file), "client_key": str(client.key_file)})
    server = TLSServer(ca.issue("127.0.0.1"), client_ca=ca.ca_file)
    async with server, create_session(settings, hooks=hooks) as session:
        await get(session, server.url(), 5)
        broken_certificate_bundle(ca, "wrong key", "orders", over=client)
        assert await asyncio.to_thread(lambda: reload_tls(settings.tls).outcome) == "rejected"
        await get(session, server.url(), 5)
        yield


@asynccontextmanager
async def plaintext_in_the_tunnel(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    answer = b"HTTP/1.1 200 OK\r\n\r\n220 injected\r\n"
    async with scripted_proxy(answer) as proxy, create_session(trusting(ca), hooks=hooks) as session:
        await get(session, "https://x.test/", 3, proxy=proxy)
        yield


@asynccontextmanager
async def proxy_credentials(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    answer = b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n"
    async with scripted_proxy(answer) as proxy, create_session(trusting(ca), hooks=hooks) as session:
        await get(session, "https://x.test/", 3, proxy=proxy)
        yield


@asynccontextmanager
async def names_of(hooks: Hooks, *, dns: float = 5.0, **zone: Any) -> AsyncGenerator[None]:
    with FakeNameServer() as names:
        async with HTTPServer() as server:
            names.set("x.test", *(() if zone.get("mode") else (server.host,)), **zone)
            settings = Settings(dns=DNSSettings(nameservers=(names.address,)), timeouts=TimeoutSettings(dns=dns))
            async with create_session(settings, hooks=hooks) as session:
                await get(session, server.url(host="x.test"), 3)
                yield


@asynccontextmanager
async def stale_names(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    with FakeNameServer() as names:
        async with HTTPServer() as server:
            names.set("x.test", server.host, ttl=0)
            settings = Settings(dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.01))
            connector = create_connector(settings, force_close=True)
            async with create_session(settings, hooks=hooks, connector=connector) as session:
                await get(session, server.url(host="x.test"))
                names.stop()
                await asyncio.sleep(0.05)
                await get(session, server.url(host="x.test"), 5)
                yield


@asynccontextmanager
async def full_pool(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    settings = Settings(pool=PoolSettings(limit=1), timeouts=TimeoutSettings(queue=0.1))
    async with HTTPServer() as server, create_session(settings, hooks=hooks) as session:
        await asyncio.gather(*(get(session, server.url("/slow?seconds=0.5")) for _ in range(3)))
        yield


@asynccontextmanager
async def certificate(hooks: Hooks, ca: ThrowawayCA, issued: Any) -> AsyncGenerator[None]:
    async with TLSServer(issued) as server, create_session(trusting(ca), hooks=hooks) as session:
        asyncio.get_running_loop().set_exception_handler(ignore_refused_handshakes)
        await get(session, server.url(), 12)
        yield


@asynccontextmanager
async def own_certificate_ends(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    client = ca.issue("orders.test", not_after=IN_THREE_DAYS)
    settings = trusting(ca, tls={"client_cert": str(client.cert_file), "client_key": str(client.key_file)})
    create_ssl_context(settings.tls)
    async with HTTPServer() as server, create_session(settings, hooks=hooks) as session:
        await get(session, server.url())
        yield


@asynccontextmanager
async def plaintext_port(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    async with plaintext_peer() as (host, port), create_session(trusting(ca), hooks=hooks) as session:
        await get(session, f"https://{host}:{port}/", 3)
        yield


@asynccontextmanager
async def stalled_handshakes(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    with stalled_tls() as (host, port):
        async with create_session(trusting(ca, timeouts=TimeoutSettings(tls=0.2)), hooks=hooks) as session:
            await get(session, f"https://{host}:{port}/", 3)
            yield


@asynccontextmanager
async def client_certificate_missing(hooks: Hooks, ca: ThrowawayCA, version: str) -> AsyncGenerator[None]:
    with openssl_server(ca.issue("127.0.0.1"), ca.ca_file, version) as url:
        async with create_session(trusting(ca), hooks=hooks) as session:
            await get(session, url, 12)
            yield


@asynccontextmanager
async def nobody_listens(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    with refusing_address() as (host, port):
        async with create_session(hooks=hooks) as session:
            await get(session, f"http://{host}:{port}/", 3)
            yield


@asynccontextmanager
async def broken_hook(hooks: Hooks, ca: ThrowawayCA) -> AsyncGenerator[None]:
    def broken(record: Any) -> None:
        raise RuntimeError(record.phase)

    async with HTTPServer() as server, create_session(hooks=[*hooks, broken]) as session:
        await get(session, server.url(), 3)
        yield


def ignore_refused_handshakes(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)):
        loop.default_exception_handler(context)


FAULTS: dict[str, tuple[Any, list[tuple[str, str | None]]]] = {
    # DESIGN, section 1, in its order.
    "executor full": (executor_full, [("default_executor_full", None)]),
    "executor full, beside aiodns": (executor_full_beside_aiodns, [("default_executor_full", None)]),
    "dead first address": (dead_first_address, [("dead_address", None)]),
    "every address dead": (every_address_dead, [("connect_failing", "timed_out")]),
    "accept queue": (accept_queue, [("syn_retransmissions", None)]),
    "connection per request": (connection_per_request, [("handshakes_per_request", None)]),
    "context per client": (context_per_client, [("contexts_growing", None)]),
    "bad bundle": (bad_bundle, [("reload_rejected", None)]),
    "plaintext in the tunnel": (plaintext_in_the_tunnel, [("plaintext_before_tls", None)]),
    "no tickets": (no_tickets, [("resumption_lost", None)]),
    # What else README's symptoms name.
    "slow names": (lambda hooks, _: names_of(hooks, delay=0.2), [("dns_slow", None)]),
    "silent names": (lambda hooks, _: names_of(hooks, dns=0.3, mode="silent"), [("dns_failing", "timed_out")]),
    "unknown names": (lambda hooks, _: names_of(hooks, mode="nxdomain"), [("dns_failing", "host_not_found")]),
    "stale names": (stale_names, [("dns_stale", None)]),
    "full pool": (full_pool, [("pool_exhausted", None)]),
    "nobody listens": (nobody_listens, [("connect_failing", "connection_refused")]),
    "proxy credentials": (proxy_credentials, [("proxy_refuses", "proxy_authentication_required")]),
    "untrusted": (
        lambda hooks, ca: certificate(hooks, ca, ca.issue_untrusted("127.0.0.1")),
        [("tls_failing", "certificate_authority_invalid")],
    ),
    "expired": (
        lambda hooks, ca: certificate(hooks, ca, ca.issue_expired("127.0.0.1")),
        [("tls_failing", "certificate_expired")],
    ),
    "plaintext port": (plaintext_port, [("tls_failing", "plaintext_peer")]),
    "stalled handshakes": (stalled_handshakes, [("tls_failing", "timed_out")]),
    "client certificate missing, TLS 1.2": (
        lambda hooks, ca: client_certificate_missing(hooks, ca, "1.2"),
        [("tls_failing", "client_certificate_rejected")],
    ),
    "client certificate missing, TLS 1.3": (
        lambda hooks, ca: client_certificate_missing(hooks, ca, "1.3"),
        [("tls_failing", "client_certificate_rejected")],
    ),
    "peer's certificate ends": (
        lambda hooks, ca: certificate(hooks, ca, ca.issue("127.0.0.1", not_after=IN_THREE_DAYS)),
        [("certificate_ends", None)],
    ),
    "own certificate ends": (own_certificate_ends, [("certificate_ends", None)]),
    "broken hook": (broken_hook, [("telemetry_errors", None)]),
    "healthy": (healthy, []),
}
"""Each fault with what the doctor must say of it, and nothing else."""


async def main(name: str) -> None:
    meters = MeterProvider([PrometheusMetricReader()])
    server, thread = start_http_server(0, "127.0.0.1")
    with throwaway_ca() as ca:
        async with FAULTS[name][0]([MetricHook(meter_provider=meters)], ca):
            print(server.server_port, flush=True)
            # Not on the default executor: some faults keep it busy.
            loop, over = asyncio.get_running_loop(), asyncio.Event()
            loop.add_reader(sys.stdin.fileno(), over.set)
            await over.wait()
            loop.remove_reader(sys.stdin.fileno())
    server.shutdown()
    server.server_close()
    thread.join()
    meters.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
