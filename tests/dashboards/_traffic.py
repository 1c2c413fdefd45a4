"""Traffic that meets every fault which the dashboards and rules tell of: ``python -m tests.dashboards._traffic``.

Its metrics are served for Prometheus and pushed by OTLP, as ``OTEL_*`` says. It ends when its standard input does, or
after three minutes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import shutil
import ssl
import sys
from contextlib import AsyncExitStack, suppress
from typing import Any

import aiohttp
from aiohttp import web

from aiohttp_hardened import (
    DNSSettings,
    PoolSettings,
    Settings,
    TimeoutSettings,
    TLSSettings,
    create_session,
    create_ssl_context,
    reload_tls,
    telemetry,
)
from aiohttp_hardened.server import HardenedTCPSite, create_server_ssl_context
from aiohttp_hardened.testing import (
    FakeNameServer,
    HTTPServer,
    TLSServer,
    accept_queue_overflow,
    dead_address,
    full_default_executor,
    plaintext_peer,
    refusing_address,
    scripted_proxy,
    stalled_tls,
    throwaway_ca,
)

MOST_SECONDS = 180
PAUSE = 0.2
SOON = dt.datetime.now(dt.UTC) + dt.timedelta(days=3)


class Scene:
    """The servers, and what is done to them over and over.

    Args:
        stack: It stops the servers.
    """

    def __init__(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.ca = stack.enter_context(throwaway_ca())
        self.names = stack.enter_context(FakeNameServer())
        self.contexts: list[ssl.SSLContext] = []

    async def open(self) -> None:
        """Start the servers, and the sessions that are kept."""
        enter = self.stack.enter_async_context
        names = self.names
        well = ("shop.test", "pair.test", "twins.test", "full.test", "slow.test", "old.test")
        self.good = await enter(TLSServer(self.ca.issue(*well)))
        self.plain = await enter(HTTPServer())
        self.soon = await enter(TLSServer(self.ca.issue("soon.test", not_after=SOON)))
        self.forged = await enter(TLSServer(self.ca.issue_untrusted("forged.test")))
        self.expired = await enter(TLSServer(self.ca.issue_expired("expired.test")))
        self.plaintext = await enter(plaintext_peer())
        self.stalled = self.stack.enter_context(stalled_tls())
        self.refusing = self.stack.enter_context(refusing_address())
        self.dead = self.stack.enter_context(dead_address("127.0.0.2", self.good.port))
        self.proxy = await enter(scripted_proxy(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"))
        for name in (*well, "soon.test", "forged.test", "expired.test", "plaintext.test", "stalled.test", "plain.test"):
            names.set(name, "127.0.0.1", delay=0.12 if name == "slow.test" else 0.01, ttl=0)
        names.set("twins.test", self.dead.host, self.good.host)
        names.set("refusing.test", self.refusing.host)
        names.set("broken.test", mode="servfail")
        names.set("silent.test", mode="silent")
        self.settings = Settings(
            timeouts=TimeoutSettings(connect=5.0, tls=0.3, dns=0.4, queue=0.05),
            dns=DNSSettings(nameservers=(names.address,), cache_ttl=0.1, quarantine=0.01),
            tls=TLSSettings(name="shop", trust="none", ca_files=(str(self.ca.ca_file),)),
        )
        self.kept = await enter(create_session(self.settings))
        self.old = await enter(create_session(self.settings, cookie_jar=aiohttp.DummyCookieJar()))
        await get(self.old, self.good.url(host="old.test"), headers={"Connection": "close"})
        names.set("old.test", mode="servfail")
        self._own_certificate()
        await self._serve()

    async def _serve(self) -> None:
        issued = self.ca.issue("shop.test")
        runner = web.AppRunner(web.Application(), access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        self.stack.push_async_callback(runner.cleanup)
        context = create_server_ssl_context(issued.cert_file, issued.key_file, name="served")
        await HardenedTCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        self.served = f"shop.test:{runner.addresses[0][1]}"

    def _own_certificate(self) -> None:
        issued = self.ca.issue("client.test", not_after=SOON)
        self.own = issued.cert_file.with_name("own.pem")
        shutil.copy(issued.cert_file, self.own)
        self.key = issued.key_file
        self.mutual = dataclasses.replace(
            self.settings.tls, name="own", client_cert=str(self.own), client_key=str(self.key)
        )
        self.contexts.append(create_ssl_context(self.mutual))

    def part(self, **parts: Any) -> Settings:
        """Return the settings with other parts."""
        return dataclasses.replace(self.settings, **parts)

    async def steady(self) -> None:
        """Requests on kept connections, good and bad answers, a body that is read late."""
        url = self.good.url
        for path in ("/", "/bytes?count=5000", "/status/503", "/slow?seconds=0.1", "/status/404"):
            await get(self.kept, url(path, host="shop.test"))
        await get(self.kept, url(host="soon.test").replace(str(self.good.port), str(self.soon.port)))
        await get(self.kept, self.plain.url("/close-keepalive", host="plain.test"))
        for _ in range(2):  # the second finds the name in the cache
            await get(self.kept, self.plain.url(host="plain.test"), headers={"Connection": "close"})
        await asyncio.gather(*(get(self.kept, url("/slow?seconds=0.3", host="pair.test")) for _ in range(3)))

    async def fresh(self) -> None:
        """A session per request, whose handshakes are resumed, and one whose are not."""
        full = self.part(tls=dataclasses.replace(self.settings.tls, name="full", resumption=False))
        for settings, name in ((self.settings, "shop.test"), *[(full, "full.test")] * 6):
            async with create_session(settings) as session:
                await get(session, self.good.url(host=name))

    async def names_that_fail(self) -> None:
        """Slow, missing, failing and silent names; an old answer; the system's resolver."""
        for name in ("slow.test", "gone.test", "broken.test", "silent.test"):
            await get(self.kept, self.good.url(host=name), headers={"Connection": "close"})
        await get(self.old, self.good.url(host="old.test"), headers={"Connection": "close"})
        async with create_session(self.part(dns=DNSSettings(resolver="system"))) as session:
            await get(session, self.plain.url(host="localhost"))

    async def addresses_that_fail(self) -> None:
        """A dead first address, a closed port."""
        await get(self.kept, self.good.url(host="twins.test"), headers={"Connection": "close"})
        await get(self.kept, f"https://refusing.test:{self.refusing.port}/")

    async def overflow(self) -> None:
        """A burst on an accept queue that is full at first."""
        async with accept_queue_overflow(drop_for=0.6) as late, create_session(self.settings) as session:
            await asyncio.gather(*(get(session, f"http://{late.host}:{late.port}/") for _ in range(10)))
        await asyncio.sleep(2)  # each is a server of its own, with series of its own

    async def handshakes_that_fail(self) -> None:
        """Certificates, peers and proxies of all kinds."""
        await get(self.kept, self.forged.url(host="forged.test"))
        await get(self.kept, self.expired.url(host="expired.test"))
        await get(self.kept, f"https://plaintext.test:{self.plaintext.port}/")
        await get(self.kept, f"https://stalled.test:{self.stalled.port}/")
        await get(self.kept, self.good.url(host="shop.test"), proxy=self.proxy)
        for scheme in ("https", "http"):  # a server of ours sees them from the other side
            await get(self.kept, f"{scheme}://{self.served}/", headers={"Connection": "close"})

    async def queue(self) -> None:
        """More requests than connections."""
        async with create_session(self.part(pool=PoolSettings(limit=1))) as session:
            urls = [self.good.url(f"/slow?seconds={seconds}", host="shop.test") for seconds in (0.02, 0.2, 0.2)]
            await asyncio.gather(*(get(session, url) for url in urls))

    async def reload(self) -> None:
        """Reloads that are applied, find nothing changed, and are rejected."""
        good = self.own.read_bytes()
        other = self.ca.issue("other.test").cert_file.read_bytes()
        for content in (good, good + good, good + good, other):
            self.own.write_bytes(content)
            await asyncio.to_thread(reload_tls, self.mutual)
        self.own.write_bytes(good)

    async def inside(self) -> None:
        """A context for each tenant, a hook that raises, and an executor that is full."""
        tenant = dataclasses.replace(self.settings.tls, name=f"tenant {len(self.contexts)}")
        self.contexts.append(await asyncio.to_thread(create_ssl_context, tenant))
        async with create_session(self.settings, hooks=[raise_always, telemetry.MetricHook()]) as session:
            await get(session, self.plain.url())
        async with full_default_executor(at_most=2):
            asyncio.get_running_loop().run_in_executor(None, int)
            await asyncio.sleep(1.2)


def raise_always(record: object) -> None:
    raise RuntimeError("a hook that is broken")


async def get(session: aiohttp.ClientSession, url: str, **options: Any) -> None:
    with suppress(aiohttp.ClientError, TimeoutError):
        async with session.get(url, **options) as response:
            await response.read()


async def over_and_over(what: Any) -> None:
    while True:
        await what()
        await asyncio.sleep(PAUSE)


async def main() -> None:
    asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
    telemetry.setup()
    async with AsyncExitStack() as stack:
        scene = Scene(stack)
        await scene.open()
        faults = (
            scene.steady,
            scene.fresh,
            scene.names_that_fail,
            scene.addresses_that_fail,
            scene.overflow,
            scene.handshakes_that_fail,
            scene.queue,
            scene.reload,
            scene.inside,
        )
        running = [asyncio.create_task(over_and_over(fault)) for fault in faults]
        reader = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        ended = asyncio.create_task(reader.read())
        done, _ = await asyncio.wait([*running, ended], timeout=MOST_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        for task in (*running, ended):
            task.cancel()
        await asyncio.wait([*running, ended])
        for task in done - {ended}:
            task.result()


if __name__ == "__main__":
    asyncio.run(main())
