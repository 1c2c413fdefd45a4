"""The attribute keys that phase records carry.

Names without ``aiohttp.`` are those of the OpenTelemetry semantic conventions
(registry, ``network``, ``dns``, ``tls``, ``http``, ``url``, ``server``, ``error``).
"""

from __future__ import annotations

from typing import Final

SERVER_ADDRESS: Final = "server.address"
SERVER_PORT: Final = "server.port"
URL_SCHEME: Final = "url.scheme"
ERROR_TYPE: Final = "error.type"
HTTP_STATUS_CODE: Final = "http.response.status_code"

NETWORK_PEER_ADDRESS: Final = "network.peer.address"
NETWORK_PEER_PORT: Final = "network.peer.port"
NETWORK_TYPE: Final = "network.type"

DNS_QUESTION_NAME: Final = "dns.question.name"
DNS_ANSWERS: Final = "dns.answers"
DNS_SOURCE: Final = "aiohttp.client.dns.source"

TCP_ADDRESSES_TRIED: Final = "aiohttp.client.tcp.addresses_tried"
TCP_SYN_RETRANSMITS: Final = "aiohttp.client.tcp.syn_retransmits"

TLS_PROTOCOL_NAME: Final = "tls.protocol.name"
TLS_PROTOCOL_VERSION: Final = "tls.protocol.version"
TLS_CIPHER: Final = "tls.cipher"
TLS_RESUMED: Final = "tls.resumed"
TLS_ESTABLISHED: Final = "tls.established"
TLS_SERVER_NOT_AFTER: Final = "tls.server.not_after"

CONNECTION_ATTEMPTS: Final = "aiohttp.client.connection.attempts"
PROXIED: Final = "aiohttp.client.proxied"
BODY_OUTCOME: Final = "aiohttp.client.body.outcome"
NETWORK_PROTOCOL_NAME: Final = "network.protocol.name"
WEBSOCKET_CLOSE_CODE: Final = "aiohttp.client.websocket.close_code"
UPLOAD_DURATION: Final = "aiohttp.client.upload.duration"
UPLOAD_OUTCOME: Final = "aiohttp.client.upload.outcome"
CANCELLED: Final = "aiohttp.client.cancelled"

WEBSOCKET: Final = "websocket"
"""The value of ``network.protocol.name`` on the record of a websocket's life."""

EVENT_ADDRESS_FAILED: Final = "address failed"
EVENT_ADDRESS_OVERTAKEN: Final = "address overtaken"
EVENT_TRUST_STORE_LOADED: Final = "trust store loaded"
