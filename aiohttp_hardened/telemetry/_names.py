"""Every span and metric name, attribute key, unit, description and bucket edge: the only strings dashboards may use."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from aiohttp_hardened.timing._keys import (
    BODY_OUTCOME,
    CANCELLED,
    CONNECTION_ATTEMPTS,
    DNS_ANSWERS,
    DNS_QUESTION_NAME,
    DNS_SOURCE,
    ERROR_TYPE,
    EVENT_ADDRESS_FAILED,
    EVENT_ADDRESS_OVERTAKEN,
    EVENT_TRUST_STORE_LOADED,
    HTTP_STATUS_CODE,
    NETWORK_PEER_ADDRESS,
    NETWORK_PEER_PORT,
    NETWORK_PROTOCOL_NAME,
    NETWORK_TYPE,
    PROXIED,
    SERVER_ADDRESS,
    SERVER_PORT,
    TCP_ADDRESSES_TRIED,
    TCP_SYN_RETRANSMITS,
    TLS_CIPHER,
    TLS_ESTABLISHED,
    TLS_PROTOCOL_NAME,
    TLS_PROTOCOL_VERSION,
    TLS_RESUMED,
    TLS_SERVER_NOT_AFTER,
    UPLOAD_DURATION,
    UPLOAD_OUTCOME,
    URL_SCHEME,
    WEBSOCKET,
    WEBSOCKET_CLOSE_CODE,
)

__all__ = [
    "BODY_OUTCOME",
    "CANCELLED",
    "CONNECTION_ATTEMPTS",
    "DNS_ANSWERS",
    "DNS_QUESTION_NAME",
    "DNS_SOURCE",
    "ERROR_TYPE",
    "EVENT_ADDRESS_FAILED",
    "EVENT_ADDRESS_OVERTAKEN",
    "EVENT_TRUST_STORE_LOADED",
    "HTTP_STATUS_CODE",
    "NETWORK_PEER_ADDRESS",
    "NETWORK_PEER_PORT",
    "NETWORK_PROTOCOL_NAME",
    "NETWORK_TYPE",
    "PROXIED",
    "SERVER_ADDRESS",
    "SERVER_PORT",
    "TCP_ADDRESSES_TRIED",
    "TCP_SYN_RETRANSMITS",
    "TLS_CIPHER",
    "TLS_ESTABLISHED",
    "TLS_PROTOCOL_NAME",
    "TLS_PROTOCOL_VERSION",
    "TLS_RESUMED",
    "TLS_SERVER_NOT_AFTER",
    "UPLOAD_DURATION",
    "UPLOAD_OUTCOME",
    "URL_SCHEME",
    "WEBSOCKET",
    "WEBSOCKET_CLOSE_CODE",
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
SPAN_WEBSOCKET: Final = "websocket"

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
METRIC_SERVER_TLS_DURATION: Final = "aiohttp.server.tls_handshake.duration"
METRIC_SSL_CONTEXTS: Final = "aiohttp.client.ssl_contexts"
METRIC_EXECUTOR_BUSY: Final = "aiohttp.client.executor.busy"
METRIC_EXECUTOR_QUEUED: Final = "aiohttp.client.executor.queued"
METRIC_TELEMETRY_ERRORS: Final = "aiohttp.client.telemetry.errors"

SOURCE_CACHE: Final = "cache"
SOURCE_LOOKUP: Final = "lookup"
SOURCE_COALESCED: Final = "coalesced"
SOURCE_STALE: Final = "stale"
SOURCE_SYSTEM: Final = "system"
DNS_SOURCES: Final = (SOURCE_CACHE, SOURCE_LOOKUP, SOURCE_COALESCED, SOURCE_STALE, SOURCE_SYSTEM)

# From 0.5 ms, with edges on both sides of where known failures cluster: the Happy Eyeballs delay
# (0.25 s), and one, two and three SYN retransmissions (1 s, 3 s, 7 s).
CONNECT_EDGES: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.24, 0.3,
    0.5, 0.9, 1.2, 2.0, 2.9, 3.3, 5.0, 7.5, 10.0, 30.0,
)  # fmt: skip
# The HTTP conventions' own edges, with finer ones below, and upper edges for the same clusters.
REQUEST_EDGES: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.3,
    0.5, 0.75, 1.0, 1.25, 2.5, 3.0, 3.5, 5.0, 7.5, 10.0, 30.0,
)  # fmt: skip
LIFETIME_EDGES: Final = (0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)

MetricKind = Literal["histogram", "counter", "up_down_counter", "gauge"]


class Metric(NamedTuple):
    """What a metric is declared with.

    Args:
        name: Its name.
        kind: What it is. Whatever is not a histogram is observed at collection.
        unit: In the notation of UCUM.
        description: One sentence.
        attributes: Every key that its points may carry.
        edges: Of a histogram's buckets.
    """

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()


_SERVER: Final = (SERVER_ADDRESS, SERVER_PORT)

METRICS: Final = (
    Metric(
        METRIC_REQUEST_DURATION,
        "histogram",
        "s",
        "Duration of HTTP client requests, until the response's headers are read.",
        (HTTP_REQUEST_METHOD, *_SERVER, HTTP_STATUS_CODE, NETWORK_PROTOCOL_VERSION, ERROR_TYPE),
        REQUEST_EDGES,
    ),
    Metric(
        METRIC_ACTIVE_REQUESTS, "up_down_counter", "{request}", "Requests under way.", (HTTP_REQUEST_METHOD, *_SERVER)
    ),
    Metric(
        METRIC_OPEN_CONNECTIONS,
        "up_down_counter",
        "{connection}",
        "Connections, active and idle.",
        (HTTP_CONNECTION_STATE, *_SERVER),
    ),
    Metric(METRIC_CONNECTION_DURATION, "histogram", "s", "Lifetime of connections.", _SERVER, LIFETIME_EDGES),
    Metric(
        METRIC_TIME_IN_QUEUE,
        "histogram",
        "s",
        "Time that requests waited for a free pooled connection.",
        (*_SERVER, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(
        METRIC_DNS_DURATION,
        "histogram",
        "s",
        "Duration of DNS lookups.",
        (DNS_QUESTION_NAME, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(
        METRIC_DNS_CACHE_LOOKUPS,
        "counter",
        "{lookup}",
        "Names asked for, by where the answer came from.",
        (DNS_SOURCE,),
    ),
    Metric(
        METRIC_TCP_DURATION,
        "histogram",
        "s",
        "Duration of TCP races over a host's addresses.",
        (*_SERVER, NETWORK_TYPE, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(METRIC_SYN_RETRANSMITS, "counter", "{segment}", "SYN segments that were sent again.", _SERVER),
    Metric(
        METRIC_TLS_DURATION,
        "histogram",
        "s",
        "Duration of TLS handshakes.",
        (*_SERVER, TLS_PROTOCOL_VERSION, TLS_RESUMED, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(
        METRIC_SETUP_DURATION,
        "histogram",
        "s",
        "Duration of connection set-ups: DNS, TCP, tunnel and TLS.",
        (*_SERVER, URL_SCHEME, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(
        METRIC_NOT_AFTER,
        "gauge",
        "s",
        "End of certificates, own and peers', as unix time.",
        (TLS_NAME, TLS_ROLE, SERVER_ADDRESS),
    ),
    Metric(METRIC_RELOADS, "counter", "{reload}", "Reloads of trust decisions, by outcome.", (TLS_NAME, OUTCOME)),
    Metric(
        METRIC_SERVER_TLS_DURATION,
        "histogram",
        "s",
        "Duration of TLS handshakes with clients of this server.",
        (TLS_PROTOCOL_VERSION, TLS_RESUMED, ERROR_TYPE),
        CONNECT_EDGES,
    ),
    Metric(METRIC_SSL_CONTEXTS, "gauge", "{context}", "Live SSL contexts."),
    Metric(METRIC_EXECUTOR_BUSY, "gauge", "{thread}", "Threads of default executors that work."),
    Metric(METRIC_EXECUTOR_QUEUED, "gauge", "{job}", "Jobs that wait for a thread of a default executor."),
    Metric(METRIC_TELEMETRY_ERRORS, "counter", "{error}", "Contained failures of hooks."),
)
