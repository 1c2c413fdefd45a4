"""Alerts on names, addresses and the pool."""

from __future__ import annotations

import bisect
from typing import Final

from aiohttp_hardened._settings import DEFAULTS
from aiohttp_hardened.telemetry import _names
from tools.dashboards._alert import Alert
from tools.dashboards._recordings import (
    CONNECT_QUANTILE,
    DNS_FAILURE_RATIO,
    DNS_FAILURES,
    DNS_P99,
    FEWEST,
    SERVER,
    total,
)
from tools.dashboards._series import DNS_ASKED, ERROR, GAVE_UP, HOST, NAME, PORT, QUEUE, STALE

_SERVER_NAME: Final = f"{{{{ $labels.{HOST} }}}}:{{{{ $labels.{PORT} }}}}"
_QUESTION: Final = f"{{{{ $labels.{NAME} }}}}"
_SLOW_LOOKUP: Final = 0.05
_MUCH: Final = 0.05
# One of these may be a lost packet; the others are answers.
_PASSING_DNS: Final = "timed_out|server_failure|_OTHER"


def around(seconds: float) -> tuple[float, float]:
    """Return the edges of the bucket that a connect of this duration falls into."""
    above = bisect.bisect_left(_names.CONNECT_EDGES, seconds)
    return _names.CONNECT_EDGES[above - 1], _names.CONNECT_EDGES[above]


def _cluster(*durations: float) -> str:
    """Return an expression for servers of which a quantile of the connects falls into the bucket of a duration.

    Quantiles that were recorded have connects beyond them, so one slow connect is no cluster. Buckets are not
    selected by ``le``: its text differs between exporters.
    """
    inside = (f"{CONNECT_QUANTILE} > {low} <= {high}" for low, high in map(around, durations))
    return f"max by ({', '.join(SERVER)}) ({' or '.join(inside)})"


SLOW_DNS = Alert(
    name="AiohttpSlowDNS",
    expr=f"{DNS_P99} > {_SLOW_LOOKUP}",
    pending="5m",
    severity="warning",
    summary=f"DNS lookups of {_QUESTION} are slow",
    description=f"The p99 of {_QUESTION} is {{{{ $value | humanizeDuration }}}} over 15 minutes; it should be below "
    "50 ms.",
    means="Real lookups of this name (no cached or shared answers) take longer than 50 ms. Each new connection to "
    "the host pays for it, as unexplained latency before a byte is sent.",
    confirm="""`aiohttp-hardened probe https://HOST/ -n 3`: the line `dns` is long; it names the source. Ask each name
server of `/etc/resolv.conf` by itself: `aiohttp-hardened probe https://HOST/ --resolver 192.0.2.53`. Compare with
`--resolver system`. The DNS dashboard shows whether one name is slow or all are.""",
    fix="""One name: its own name servers are slow or far; raise the record's TTL. All names: the resolver is slow or
far, or searches suffixes first (`ndots` in `/etc/resolv.conf`; a trailing dot in the host spares them). Source
`system`: the name waits for a thread that calls `getaddrinfo`; take it off `dns.system_suffixes` if name servers know
it. Until then a longer `dns.cache_ttl` hides most of it.""",
)

DNS_FAILING = Alert(
    name="AiohttpDNSFailures",
    expr=f'{DNS_FAILURE_RATIO}{{{ERROR}!~"{_PASSING_DNS}"}} > {_MUCH}\n'
    f"or\n({DNS_FAILURE_RATIO} > {_MUCH} and {DNS_FAILURES} >= {FEWEST})",
    severity="warning",
    summary=f"Lookups of {_QUESTION} fail: {{{{ $labels.{ERROR} }}}}",
    description=f"{{{{ $value | humanizePercentage }}}} of the lookups of {_QUESTION} within 10 minutes ended with "
    f"{{{{ $labels.{ERROR} }}}}.",
    means=f"""The name servers do not give an address for this name. `host_not_found`, `no_data`, `refused` and
`malformed_name` are answers and count from the first; `server_failure` and `timed_out` may be one lost packet and count
from {FEWEST} within 10 minutes. Names with an old answer go on to work meanwhile, see `AiohttpStaleDNS`.""",
    confirm="""`aiohttp-hardened probe https://HOST/`: the request fails in `dns` with the same word. Add
`--resolver ADDRESS` for each name server: do all of them say so?""",
    fix="""`host_not_found`, `malformed_name`: the name in your configuration is wrong, or was removed. `no_data`: the
name exists without an address. `refused`: this name server does not serve you. `server_failure`, `timed_out`: the name
server, or the way to it, is broken; repair it, or name others in `dns.nameservers`.""",
)

STALE_DNS = Alert(
    name="AiohttpStaleDNS",
    expr=f"{total(DNS_ASKED, STALE, '10m', ('job',))} > 0",
    severity="warning",
    summary="{{ $labels.job }} lives on old DNS answers",
    description="{{ $value | humanize }} requests within 10 minutes went to the last good answer, for the name "
    "servers fail.",
    means="""Name servers time out or fail, and requests go to the last good addresses (RFC 8767). Nothing is broken
yet. When an answer is older than `dns.stale_ttl` (an hour by default), or when the addresses change, requests fail.""",
    confirm="""`aiohttp-hardened probe https://HOST/`: a new process has no old answer, so it fails in `dns` with
`timed_out` or `server_failure`. The DNS dashboard shows the failing names.""",
    fix="""Repair the name servers, or name others in `dns.nameservers`. It ends by itself: they are asked again every
30 s.""",
)

SYN_RETRANSMISSIONS = Alert(
    name="AiohttpSYNRetransmissions",
    expr=_cluster(1.0, 3.0),
    pending="2m",
    severity="warning",
    summary=f"Connects to {_SERVER_NAME} wait for a SYN retransmission",
    description="Connects cluster at {{ $value | humanizeDuration }}: the kernel sends a SYN again after 1 s, and "
    "once more after 3 s.",
    means="""SYNs to this server are lost and sent again; each loss costs 1 s, the second 2 s more. Nearly always the
server's accept queue overflows: more connections arrive at once than its listen backlog holds. Otherwise the network
drops packets.""",
    confirm="""`aiohttp-hardened probe https://HOST/ -n 20` while it happens: some lines `tcp` are near 1 s or 3 s and
tell of retransmissions. The panel "SYN retransmissions by host" counts them (Linux). On the server, `nstat -az
TcpExtListenOverflows` grows, and `ss -ltn` shows Recv-Q at Send-Q, which is the backlog.""",
    fix="""Raise the server's backlog above its bursts (`backlog=1024` for aiohttp.web; `net.core.somaxconn` caps it),
accept faster, or run more workers. On the client, keep connections: fewer of them are opened at once. If the server
drops none, look for packet loss on the way.""",
)

DEAD_ADDRESS = Alert(
    name="AiohttpDeadAddress",
    expr=_cluster(DEFAULTS.dns.happy_eyeballs_delay),
    pending="5m",
    severity="warning",
    summary=f"Connects to {_SERVER_NAME} wait for an address that does not answer",
    description="Connects cluster at {{ $value | humanizeDuration }}, the Happy Eyeballs delay: the first address "
    "is tried in vain, then the next one wins.",
    means="""One of the host's addresses drops packets. A race over the addresses starts with it, waits 0.25 s (RFC
8305), and goes on with the next, which wins. Quarantine puts the dead address last for 30 s, so only some connects pay.
When the last good address dies too, connects fail.""",
    confirm="""`aiohttp-hardened probe https://HOST/ -n 3`: the line `tcp` takes some 250 ms and below it an address is
`overtaken`. If there is no such line, the host is simply that far away: silence the alert for it.""",
    fix="""Repair the address or take it out of DNS. If it is all IPv6 (or all IPv4) addresses of many hosts, this
network has no working route for that family: repair that.""",
)

QUEUE_TIMEOUTS = Alert(
    name="AiohttpQueueTimeouts",
    expr=f"{total(f'{QUEUE}_count', GAVE_UP, '10m', SERVER)} > 0",
    severity="warning",
    summary=f"Requests to {_SERVER_NAME} give up waiting for a connection",
    description="{{ $value | humanize }} requests within 10 minutes found the pool full for all of their queue budget.",
    means="""All pooled connections were busy for longer than `timeouts.queue` (10 s by default). The host itself may be
fine: no connection was ever tried.""",
    confirm="""`aiohttp-hardened probe https://HOST/`: if it is quick, the pool is the problem, not the host. On the
pool dashboard active connections stand at `pool.limit` or `limit_per_host`, and the time in queue climbs.""",
    fix="""Read each body to its end or release the response (`async with`): unread responses keep their connection.
Raise `pool.limit` or `pool.limit_per_host`. If requests became slow, look there first: a pool of 100 at 1 s each does
100 requests in a second.""",
)

ALERTS = (SLOW_DNS, DNS_FAILING, STALE_DNS, SYN_RETRANSMISSIONS, DEAD_ADDRESS, QUEUE_TIMEOUTS)
