"""Every default of the package, as literals on one screen.

Settings are frozen, hashable, comparable, picklable and loop-free: make them at
import time, keep them in a module, send them to a worker. Seconds are ``float``;
``None`` switches a budget off.
"""

from __future__ import annotations

import math
import os
import ssl
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from aiohttp_hardened.exceptions import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "DEFAULTS",
    "DNSSettings",
    "PoolSettings",
    "Settings",
    "TLSSettings",
    "TelemetrySettings",
    "TimeoutSettings",
]

_HIGHEST_PORT = 65535
_LONGEST_ALPN = 255
_RETIRED = "(RFC 8996 retired the older ones)"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutSettings:
    """Budgets in seconds, each exact to the loop's tick; ``None`` switches one off.

    Args:
        total: The whole request including its body (aiohttp's own ``total``).
        queue: Waiting for a free pooled connection.
        dns: One lookup, everything included.
        tcp: One TCP race over all addresses.
        tls: One handshake.
        connect: DNS + TCP + tunnel + TLS over all addresses.
        read: Between two reads from the socket (aiohttp's ``sock_read``).
    """

    total: float | None = 300.0
    queue: float | None = 10.0
    dns: float | None = 5.0
    tcp: float | None = 5.0
    tls: float | None = 5.0
    connect: float | None = 10.0
    read: float | None = 30.0

    def __post_init__(self) -> None:
        for name in ("total", "queue", "dns", "tcp", "tls", "connect", "read"):
            _positive_seconds(self, "timeouts", name, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How many connections are kept, and for how long.

    Args:
        limit: Simultaneous connections in all; 0 is unlimited.
        limit_per_host: Simultaneous connections to one endpoint; 0 is unlimited.
        keepalive: Seconds an idle connection is kept.
        max_connection_age: Seconds (± 10 %, drawn per connection) after which a
            connection is closed instead of returned to the pool, so that a
            failover reaches busy connections too. ``None``: no limit.
    """

    limit: int = 100
    limit_per_host: int = 0
    keepalive: float = 15.0
    max_connection_age: float | None = 300.0

    def __post_init__(self) -> None:
        _count(self, "pool", "limit")
        _count(self, "pool", "limit_per_host")
        _positive_seconds(self, "pool", "keepalive")
        _positive_seconds(self, "pool", "max_connection_age", optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class DNSSettings:
    """How names become addresses.

    Args:
        resolver: ``"aiodns"``, or ``"system"``: ``getaddrinfo`` on an executor of
            its own.
        nameservers: ``"host"`` or ``"host:port"``; empty is the system's
            configuration.
        cache_ttl: Seconds that an answer is reused (aiohttp's ``ttl_dns_cache``).
        stale_ttl: Seconds that a last good answer may still be served while the
            name servers fail (RFC 8767); 0 switches it off.
        system_suffixes: Names that only the system resolver knows (NSS, mDNS).
        quarantine: Seconds that an address which failed, or was overtaken, goes
            behind its siblings; 0 switches it off.
        happy_eyeballs_delay: Seconds before the next address joins the race
            (RFC 8305, section 5). ``None``: one after the other.
    """

    resolver: Literal["aiodns", "system"] = "aiodns"
    nameservers: tuple[str, ...] = ()
    cache_ttl: float = 300.0
    stale_ttl: float = 3600.0
    system_suffixes: tuple[str, ...] = (".local",)
    quarantine: float = 30.0
    happy_eyeballs_delay: float | None = 0.25

    def __post_init__(self) -> None:
        _one_of(self, "dns", "resolver", ("aiodns", "system"))
        _strings(self, "dns", "nameservers")
        for server in self.nameservers:
            _nameserver(server)
        if self.nameservers and self.resolver == "system":
            raise SettingsError(
                'dns.nameservers are asked by resolver="aiodns" only; the system resolver reads its own configuration'
            )
        _positive_seconds(self, "dns", "cache_ttl", zero=True)
        _positive_seconds(self, "dns", "stale_ttl", zero=True)
        _strings(self, "dns", "system_suffixes")
        for suffix in self.system_suffixes:
            if not suffix.startswith(".") or suffix == ".":
                raise SettingsError(
                    f'dns.system_suffixes holds {suffix!r}; each suffix starts with a dot, like ".local"'
                )
        _positive_seconds(self, "dns", "quarantine", zero=True)
        _positive_seconds(self, "dns", "happy_eyeballs_delay", optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSSettings:
    """One trust decision: whom this client believes, and who it says it is.

    Equal settings share one ``ssl.SSLContext``. There is no ``verify=False``.

    Args:
        name: The name of this trust decision in telemetry; derived when ``None``.
        trust: ``"certifi"``, ``"system"``, or ``"none"`` together with ``ca_files``.
        ca_files: PEM files of certificate authorities, added to ``trust``.
        client_cert: PEM file of the client certificate, with its intermediates.
        client_key: PEM file of its key; ``None`` when the key is in ``client_cert``.
        client_key_password: Password of the key; never shown by ``repr``.
        minimum_version: The lowest protocol version that is negotiated.
        strict: Set ``VERIFY_X509_STRICT`` and ``VERIFY_X509_PARTIAL_CHAIN`` as
            Python 3.13 does, on every Python; ``False`` is for old private CAs.
        resumption: Offer the tickets of earlier connections.
        reload_interval: Seconds between two looks at the files; ``None``: only
            ``reload_tls()`` reloads.
        allow_unverified: Let a request say ``ssl=False``.
    """

    name: str | None = None
    trust: Literal["certifi", "system", "none"] = "certifi"
    ca_files: tuple[str, ...] = ()
    client_cert: str | None = None
    client_key: str | None = None
    client_key_password: str | bytes | None = field(default=None, repr=False)
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    strict: bool = True
    resumption: bool = True
    reload_interval: float | None = None
    allow_unverified: bool = False

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise SettingsError(f"tls.name is {self.name!r}; it must be a non-empty string or None")
        self._check_trust()
        self._check_client_certificate()
        _tls_version(self, "tls", "minimum_version")
        for name in ("strict", "resumption", "allow_unverified"):
            _boolean(self, "tls", name)
        _positive_seconds(self, "tls", "reload_interval", optional=True)

    def _check_trust(self) -> None:
        if self.trust not in ("certifi", "system", "none"):
            hint = f"; for a file of your own say ca_files=({str(self.trust)!r},)" if _path_like(self.trust) else ""
            raise SettingsError(f'tls.trust is {self.trust!r}; it must be "certifi", "system" or "none"{hint}')
        _paths(self, "tls", "ca_files")
        if self.trust == "none" and not self.ca_files:
            raise SettingsError('tls.trust="none" trusts nobody; name the authorities in tls.ca_files')

    def _check_client_certificate(self) -> None:
        for name in ("client_cert", "client_key"):
            _optional_path(self, "tls", name)
        if self.client_key is not None and self.client_cert is None:
            raise SettingsError("tls.client_key is set but tls.client_cert is not; a key needs its certificate")
        if self.client_key_password is not None:
            if not isinstance(self.client_key_password, (str, bytes)):
                raise SettingsError("tls.client_key_password must be str, bytes or None")
            if self.client_cert is None:
                raise SettingsError("tls.client_key_password is set but tls.client_cert is not")


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetrySettings:
    """What is told, and what is kept back.

    Args:
        max_hosts: Distinct ``server.address`` values on metrics; further ones
            are ``_OTHER``.
        request_spans: ``"auto"``: a request span of our own unless another
            instrumentation already makes one; or ``"always"``, ``"never"``.
        keep_query: Keep the query of ``url.full``, but for the values of
            ``sensitive_query_keys``. Off: every value is ``REDACTED``.
        sensitive_query_keys: The keys whose values are always ``REDACTED``; the
            default is the seven of the HTTP semantic conventions.
        propagate_to: Host names, or suffixes that start with a dot, that trace
            context is sent to; ``None``: every host.
    """

    max_hosts: int = 100
    request_spans: Literal["auto", "always", "never"] = "auto"
    keep_query: bool = False
    sensitive_query_keys: tuple[str, ...] = (
        "AWSAccessKeyId",
        "Signature",
        "sig",
        "X-Goog-Signature",
        "X-Amz-Signature",
        "X-Amz-Credential",
        "X-Amz-Security-Token",
    )
    propagate_to: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _count(self, "telemetry", "max_hosts", minimum=1)
        _one_of(self, "telemetry", "request_spans", ("auto", "always", "never"))
        _boolean(self, "telemetry", "keep_query")
        _strings(self, "telemetry", "sensitive_query_keys")
        if self.propagate_to is not None:
            _strings(self, "telemetry", "propagate_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of a session; ``DEFAULTS`` is this with nothing said.

    Args:
        timeouts: Budgets.
        pool: Connections kept.
        dns: Names and addresses.
        tls: The trust decision.
        telemetry: What is told.
    """

    timeouts: TimeoutSettings = field(default_factory=TimeoutSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    dns: DNSSettings = field(default_factory=DNSSettings)
    tls: TLSSettings = field(default_factory=TLSSettings)
    telemetry: TelemetrySettings = field(default_factory=TelemetrySettings)

    def __post_init__(self) -> None:
        for each in fields(self):
            value, wanted = getattr(self, each.name), each.default_factory
            if not isinstance(value, wanted):  # type: ignore[arg-type]
                raise SettingsError(
                    f"Settings.{each.name} is {type(value).__name__}; it must be {wanted.__name__}"  # type: ignore[union-attr]
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLSSettings:
    """What a server shows and asks for; the arguments of ``server.create_server_ssl_context``.

    Args:
        certfile: PEM file of the certificate, with its intermediates.
        keyfile: PEM file of its key; ``None`` when the key is in ``certfile``.
        key_password: Password of the key; never shown by ``repr``.
        client_ca: PEM file of the authorities whose client certificates are asked for.
        name: The context's name in telemetry and in the log; ``certfile`` when ``None``.
        minimum_version: The lowest protocol version that is negotiated.
        alpn_protocols: What is agreed to, in the order of preference.
        tickets: Tickets per full handshake; 0 switches resumption off.
        strict: As ``TLSSettings.strict``, for client certificates.
        reload_interval: Seconds between two looks at the files; ``None``: no look.
    """

    certfile: str
    keyfile: str | None = None
    key_password: str | bytes | None = field(default=None, repr=False)
    client_ca: str | None = None
    name: str | None = None
    minimum_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    alpn_protocols: tuple[str, ...] = ("http/1.1",)
    tickets: int = 2
    strict: bool = True
    reload_interval: float | None = None

    def __post_init__(self) -> None:
        _optional_path(self, "server", "certfile", optional=False)
        _optional_path(self, "server", "keyfile")
        _optional_path(self, "server", "client_ca")
        if self.key_password is not None and not isinstance(self.key_password, (str, bytes)):
            raise SettingsError("server.key_password must be str, bytes or None")
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise SettingsError(f"server.name is {self.name!r}; it must be a non-empty string or None")
        _tls_version(self, "server", "minimum_version")
        _strings(self, "server", "alpn_protocols")
        for protocol in self.alpn_protocols:
            if not protocol.isascii() or not 0 < len(protocol) <= _LONGEST_ALPN:
                raise SettingsError(f'server.alpn_protocols holds {protocol!r}; each is 1-255 of ASCII, as "http/1.1"')
        _count(self, "server", "tickets")
        _boolean(self, "server", "strict")
        _positive_seconds(self, "server", "reload_interval", optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteSettings:
    """How connections are accepted; the arguments of ``server.HardenedTCPSite`` and ``server.run_app``.

    Args:
        backlog: Connections that the kernel holds until they are accepted; beyond it SYNs are dropped.
        ssl_handshake_timeout: Seconds for one handshake.
    """

    backlog: int = 1024
    ssl_handshake_timeout: float = 10.0

    def __post_init__(self) -> None:
        _count(self, "server", "backlog", minimum=1)
        _positive_seconds(self, "server", "ssl_handshake_timeout")


def _set(settings: object, name: str, value: object) -> None:
    object.__setattr__(settings, name, value)


def _positive_seconds(settings: Any, part: str, name: str, *, optional: bool = False, zero: bool = False) -> None:
    value = getattr(settings, name)
    if value is None and optional:
        return
    allowed = "a number of seconds, " + ("0 or more" if zero else "above 0") + (", or None" if optional else "")
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be {allowed}")
    if not math.isfinite(value) or value < 0 or (value == 0 and not zero):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be {allowed}")
    _set(settings, name, float(value))


def _count(settings: Any, part: str, name: str, *, minimum: int = 0) -> None:
    value = getattr(settings, name)
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise SettingsError(f"{part}.{name} is {value!r}; it must be a whole number, {minimum} or more")


def _tls_version(settings: Any, part: str, name: str) -> None:
    value = getattr(settings, name)
    if value not in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        raise SettingsError(
            f"{part}.{name} is {value!r}; it must be ssl.TLSVersion.TLSv1_2 or ssl.TLSVersion.TLSv1_3 {_RETIRED}"
        )


def _boolean(settings: Any, part: str, name: str) -> None:
    value = getattr(settings, name)
    if not isinstance(value, bool):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be True or False")


def _one_of(settings: Any, part: str, name: str, allowed: tuple[str, ...]) -> None:
    value = getattr(settings, name)
    if value not in allowed:
        words = ", ".join(f'"{word}"' for word in allowed)
        raise SettingsError(f"{part}.{name} is {value!r}; it must be one of {words}")


def _strings(settings: Any, part: str, name: str) -> None:
    value = getattr(settings, name)
    if isinstance(value, (str, bytes)) or not _iterable_of(value, str):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be a tuple of strings")
    _set(settings, name, tuple(value))


def _paths(settings: Any, part: str, name: str) -> None:
    value = getattr(settings, name)
    if isinstance(value, (str, bytes, os.PathLike)) or not _iterable_of(value, (str, os.PathLike)):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be a tuple of file paths")
    given: tuple[str | os.PathLike[str], ...] = tuple(value)
    paths = tuple(os.fspath(path) for path in given)
    for path in paths:
        _existing_file(path, part, name)
    _set(settings, name, paths)


def _optional_path(settings: Any, part: str, name: str, *, optional: bool = True) -> None:
    value = getattr(settings, name)
    if value is None and optional:
        return
    if not isinstance(value, (str, os.PathLike)):
        raise SettingsError(f"{part}.{name} is {value!r}; it must be a file path{' or None' if optional else ''}")
    path = os.fspath(cast("str | os.PathLike[str]", value))
    _existing_file(path, part, name)
    _set(settings, name, path)


def _existing_file(path: str, part: str, name: str) -> None:
    if not Path(path).is_file():
        raise SettingsError(f"{part}.{name} names {path!r}, which is not a file")


def _iterable_of(value: Any, kinds: type | tuple[type, ...]) -> bool:
    try:
        items: Iterable[Any] = tuple(value)
    except TypeError:
        return False
    return all(isinstance(item, kinds) for item in items)


def _path_like(value: object) -> bool:
    return isinstance(value, os.PathLike) or (isinstance(value, str) and ("/" in value or "." in value))


def _nameserver(server: str) -> None:
    host, port = server, "53"
    if server.startswith("["):
        host, _, rest = server[1:].partition("]")
        port = rest.removeprefix(":") if rest else port
    elif server.count(":") == 1:
        host, _, port = server.partition(":")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= _HIGHEST_PORT):
        raise SettingsError(f'dns.nameservers holds {server!r}; each is "host" or "host:port"')


DEFAULTS = Settings()
SITE = SiteSettings()
