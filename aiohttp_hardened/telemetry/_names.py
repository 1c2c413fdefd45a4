"""Every span and metric name, attribute key, unit and bucket edge: the only strings dashboards may use."""

from __future__ import annotations

from typing import Final, NamedTuple

from aiohttp_hardened.timing._keys import (
    BODY_OUTCOME,
    CANCELLED,
    CONNECTION_ATTEMPTS,
    DNS_ANSWERS,
    DNS_QUESTION_NAME,
    DNS_SOURCE,
    ERROR_TYPE,
    HTTP_STATUS_CODE,
    NETWORK_PEER_ADDRESS,
    NETWORK_PEER_PORT,
    NETWORK_TYPE,
    PROXIED,
    SERVER_ADDRESS,
    SERVER_PORT,
    TCP_SYN_RETRANSMITS,
    TLS_PROTOCOL_VERSION,
    TLS_RESUMED,
    URL_SCHEME,
)

__all__ = [
    "BODY_OUTCOME",
    "CANCELLED",
    "CONNECTION_ATTEMPTS",
    "DNS_ANSWERS",
    "DNS_QUESTION_NAME",
    "DNS_SOURCE",
    "ERROR_TYPE",
    "HTTP_STATUS_CODE",
    "NETWORK_PEER_ADDRESS",
    "NETWORK_PEER_PORT",
    "NETWORK_TYPE",
    "PROXIED",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "TCP_SYN_RETRANSMITS",
    "TLS_PROTOCOL_VERSION",
    "TLS_RESUMED",
    "URL_SCHEME",
]

SCOPE: Final = "aiohttp_hardened"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.30.0"
OTHER: Final = "_OTHER"

HTTP_REQUEST_METHOD: Final = "http.request.method"
HTTP_REQUEST_METHOD_ORIGINAL: Final = "http.request.method_original"
HTTP_REQUEST_RESEND_COUNT: Final = "http.request.resend_count"
HTTP_CONNECTION_STATE: Final = "http.connection.state"
NETWORK_PROTOCOL_VERSION: Final = "network.protocol.version"
URL_FULL: Final = "url.full"
URL_TEMPLATE: Final = "url.template"
TLS_NAME: Final = "aiohttp.tls.name"
TLS_ROLE: Final = "aiohttp.tls.role"
OUTCOME: Final = "outcome"

REQUEST_HEADER: Final = "http.request.header."
RESPONSE_HEADER: Final = "http.response.header."

UNKNOWN_METHOD_SPAN: Final = "HTTP"
SPAN_QUEUE: Final = "wait for connection"
SPAN_SETUP: Final = "connection setup"
SPAN_DNS: Final = "DNS lookup"
SPAN_TCP: Final = "TCP connect"
SPAN_TUNNEL: Final = "CONNECT tunnel"
SPAN_TLS: Final = "TLS handshake"
SPAN_BODY: Final = "response body"

METRIC_REQUEST_DURATION: Final = "http.client.request.duration"
METRIC_ACTIVE_REQUESTS: Final = "http.client.active_requests"
METRIC_OPEN_CONNECTIONS: Final = "http.client.open_connections"
METRIC_CONNECTION_DURATION: Final = "http.client.connection.duration"
METRIC_TIME_IN_QUEUE: Final = "http.client.request.time_in_queue"
METRIC_DNS_DURATION: Final = "dns.lookup.duration"
METRIC_DNS_CACHE_LOOKUPS: Final = "aiohttp.client.dns_cache.lookups"
METRIC_TCP_DURATION: Final = "aiohttp.client.tcp_connect.duration"
METRIC_SYN_RETRANSMITS: Final = "aiohttp.client.tcp_connect.syn_retransmits"
METRIC_TLS_DURATION: Final = "aiohttp.client.tls_handshake.duration"
METRIC_SETUP_DURATION: Final = "aiohttp.client.connection_setup.duration"
METRIC_NOT_AFTER: Final = "aiohttp.client.tls.certificate.not_after"
METRIC_RELOADS: Final = "aiohttp.client.tls.reloads"
METRIC_SSL_CONTEXTS: Final = "aiohttp.client.ssl_contexts"
METRIC_EXECUTOR_BUSY: Final = "aiohttp.client.executor.busy"
METRIC_EXECUTOR_QUEUED: Final = "aiohttp.client.executor.queued"
METRIC_TELEMETRY_ERRORS: Final = "aiohttp.client.telemetry.errors"

DNS_SOURCES: Final = ("cache", "lookup", "coalesced", "stale", "system")

# From 0.5 ms, with edges on both sides of where known failures cluster: the Happy Eyeballs delay
# (0.25 s), and one, two and three SYN retransmissions (1 s, 3 s, 7 s).
CONNECT_EDGES: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.24, 0.3, 0.5, 0.9, 1.2, 2.0, 2.9, 3.3, 5.0, 7.5, 10.0, 30.0,
)  # fmt: skip
# The HTTP conventions' own edges, with finer ones below and the same clusters.
REQUEST_EDGES: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0,
)  # fmt: skip
LIFETIME_EDGES: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)


class Histogram(NamedTuple):
    """What a histogram is declared with."""

    name: str
    description: str
    edges: tuple[float, ...]


HISTOGRAMS: Final = (
    Histogram(METRIC_REQUEST_DURATION, "Duration of HTTP client requests, to the response's headers.", REQUEST_EDGES),
    Histogram(METRIC_CONNECTION_DURATION, "Lifetime of connections.", LIFETIME_EDGES),
    Histogram(METRIC_TIME_IN_QUEUE, "Time that requests waited for a free pooled connection.", CONNECT_EDGES),
    Histogram(METRIC_DNS_DURATION, "Duration of DNS lookups.", CONNECT_EDGES),
    Histogram(METRIC_TCP_DURATION, "Duration of TCP races over a host's addresses.", CONNECT_EDGES),
    Histogram(METRIC_TLS_DURATION, "Duration of TLS handshakes.", CONNECT_EDGES),
    Histogram(METRIC_SETUP_DURATION, "Duration of connection set-ups: DNS, TCP, tunnel and TLS.", CONNECT_EDGES),
)
