"""The same endings for sessions that somebody else built, under `instrument()`."""

from __future__ import annotations

import asyncio
import ssl
import textwrap
from dataclasses import replace
from typing import Any, Final

import aiohttp
import pytest

from aiohttp_hardened import Settings, instrument, uninstrument
from aiohttp_hardened.testing import FixedResolver, ThrowawayCA
from tests.e2e import (
    test_endings,
    test_endings_body,
    test_endings_client_certificate,
    test_endings_dns_tcp,
    test_endings_limits,
    test_endings_proxy,
    test_endings_tls,
    test_endings_upload,
    test_endings_websocket,
)
from tests.e2e._ending import BUDGET, Ending
from tests.e2e._table import Row

ROWS: Final = [
    *test_endings.endings.rows,
    *test_endings_body.endings.rows,
    *test_endings_client_certificate.endings.rows,
    *test_endings_dns_tcp.endings.rows,
    *test_endings_limits.endings.rows,
    *test_endings_proxy.endings.rows,
    *test_endings_tls.endings.rows,
    *test_endings_upload.endings.rows,
    *test_endings_websocket.endings.rows,
]


NOT_THEIRS: Final = {
    "https resumed": "only our connector keeps tickets",
    "proxy glues plaintext to its 200": "only our connector refuses it",
    "request that would verify nobody": "same",
    "expect that is never answered": "aiohttp's own read timeout begins when the request is sent to its end",
    "first use of a trust decision": "their context is built by whoever builds the session",
    "total runs out while the trust store is read": "same",
    "connect runs out while the trust store is read": "same",
    "cancelled while the trust store is read": "same",
}

CONNECT: Final = {"cause": None, "note": ["timed out: the connect budget of 0.20 s ran out"]}
"""Our budgets are not theirs: aiohttp's own limit has no cause, and covers all of connecting."""

DIFFERENT: Final[dict[str, dict[str, Any]]] = {
    "dns silent server": {
        **CONNECT,
        "tree": """
            GET ! dns_timed_out
              connection setup ! dns_timed_out
                DNS lookup ! timed_out
            DNS lookup: lookup, background, cancelled
        """,
    },
    "tcp all refused": {
        # aiohttp races what it thinks is left of the addresses.
        "attributes": {"connection setup": {"aiohttp.client.connection.attempts": 3}},
        "events": {"TCP connect": ["address failed"]},
        "note": ["failed: connection_refused (queue 0.0 ms, dns ", "6 addresses tried"],
        "tree": """
            GET ! tcp_connection_refused
              connection setup ! tcp_connection_refused
                DNS lookup: lookup
                TCP connect ! connection_refused
                TCP connect ! connection_refused
                TCP connect ! connection_refused
        """,
    },
    "tcp all dead": CONNECT,
    "tcp one refused and one dead": CONNECT,
    "queue timeout": CONNECT,
    "tls stalled": CONNECT,
    "proxy that stalls": CONNECT,
    "connect of the request": {"cause": None},
    "sock connect of the request": {"cause": None},
    "connect budget runs out in the handshake": {"cause": None},
    "headers that never come": {"cause": None},
    "body that stalls": {"cause": None},
    "server that is slow": {"cause": None},
    # aiohttp cancels those that wait; what they get is its own, and nobody gave up.
    "session closed under a lookup": {
        "raises": asyncio.CancelledError,
        "failed": None,
        "note": (),
        "tree": """
            GET: cancelled
              connection setup: cancelled
                DNS lookup: cancelled
            DNS lookup: lookup, background, cancelled
        """,
    },
    "session closed under a wait": {
        "raises": asyncio.CancelledError,
        "failed": None,
        "note": (),
        "tree": """
            GET 200
              connection setup
                TCP connect
              response body: abandoned
            GET: cancelled
              wait for connection: cancelled
        """,
    },
}


class ForeignEnding(Ending):
    """Sessions as other people build them: aiohttp's own connector, context, resolver and timeouts."""

    async def session(self, settings: Settings | None = None, **connector: Any) -> aiohttp.ClientSession:
        settings = settings or self.settings
        if settings.dns.nameservers:
            resolver = aiohttp.AsyncResolver(nameservers=settings.dns.nameservers, timeout=0.5, tries=1)
            self.stack.push_async_callback(resolver.close)
            connector["resolver"] = resolver
        else:
            connector.setdefault("resolver", FixedResolver())
        tls = settings.tls
        context = ssl.create_default_context(cafile=tls.ca_files[0])
        context.minimum_version = tls.minimum_version
        if tls.client_cert is not None:
            context.load_cert_chain(tls.client_cert, tls.client_key)
        connector.setdefault("ssl", context)
        made = aiohttp.ClientSession(connector=aiohttp.TCPConnector(**connector), timeout=self._timeout(settings))
        return await self.stack.enter_async_context(made)

    def _timeout(self, settings: Settings) -> aiohttp.ClientTimeout:
        if settings.timeouts == self.short.timeouts:
            return aiohttp.ClientTimeout(connect=BUDGET, sock_read=BUDGET)
        said, usual = settings.timeouts, self.settings.timeouts
        return aiohttp.ClientTimeout(
            total=said.total if said.total != usual.total else None,
            connect=said.connect if said.connect != usual.connect else None,
        )


def foreign(row: Row) -> Row:
    """Return what a row is for a session that somebody else built."""
    different = dict(DIFFERENT.get(row.name, {}))
    if "tree" in different:
        different["tree"] = textwrap.dedent(different["tree"]).strip()
    # The reason is on our own error alone; theirs has the same word on its span.
    return replace(row, reason=None, **different)


@pytest.mark.parametrize("row", [foreign(row) for row in ROWS if row.name not in NOT_THEIRS], ids=lambda row: row.name)
async def test_ending(row: Row, ca: ThrowawayCA, proxies: dict[str, str]) -> None:
    """A foreign session's request ends in the spans, records, metrics and words of its row."""
    loop = asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    # The server's side of a refused handshake; nothing else may reach the handler.
    loop.set_exception_handler(
        lambda loop, context: (
            None if isinstance(context.get("exception"), (ssl.SSLError, ConnectionError)) else handler(loop, context)  # type: ignore[misc]
        )
    )
    ending = ForeignEnding(ca)
    ending.proxies = proxies
    instrument(hooks=ending.hooks)
    try:
        await ending.check(row)
    finally:
        uninstrument()


def test_the_tables_name_rows_that_there_are() -> None:
    """What is different, or not theirs, is said of endings that exist."""
    assert {*DIFFERENT, *NOT_THEIRS} <= {row.name for row in ROWS}
