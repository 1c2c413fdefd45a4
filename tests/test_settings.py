"""Settings: every default, every refusal, and what a frozen value must survive."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import math
import pickle
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from aiohttp_hardened import _settings
from aiohttp_hardened._settings import (
    DEFAULTS,
    DNSSettings,
    PoolSettings,
    Settings,
    TelemetrySettings,
    TimeoutSettings,
    TLSSettings,
)
from aiohttp_hardened.exceptions import HardenedError, SettingsError

DEFAULT_VALUES = {
    "timeouts.total": 300.0,
    "timeouts.queue": 10.0,
    "timeouts.dns": 5.0,
    "timeouts.tcp": 5.0,
    "timeouts.tls": 5.0,
    "timeouts.connect": 10.0,
    "timeouts.read": 30.0,
    "pool.limit": 100,
    "pool.limit_per_host": 0,
    "pool.keepalive": 15.0,
    "pool.max_connection_age": 300.0,
    "dns.resolver": "aiodns",
    "dns.nameservers": (),
    "dns.cache_ttl": 300.0,
    "dns.stale_ttl": 3600.0,
    "dns.system_suffixes": (".local",),
    "dns.quarantine": 30.0,
    "dns.happy_eyeballs_delay": 0.25,
    "tls.name": None,
    "tls.trust": "certifi",
    "tls.ca_files": (),
    "tls.client_cert": None,
    "tls.client_key": None,
    "tls.client_key_password": None,
    "tls.minimum_version": ssl.TLSVersion.TLSv1_2,
    "tls.strict": True,
    "tls.resumption": True,
    "tls.reload_interval": None,
    "tls.allow_unverified": False,
    "telemetry.max_hosts": 100,
    "telemetry.request_spans": "auto",
    "telemetry.keep_query": False,
    "telemetry.sensitive_query_keys": (
        "AWSAccessKeyId",
        "Signature",
        "sig",
        "X-Goog-Signature",
        "X-Amz-Signature",
        "X-Amz-Credential",
        "X-Amz-Security-Token",
    ),
    "telemetry.propagate_to": None,
}

PARTS: dict[str, type[Any]] = {
    "timeouts": TimeoutSettings,
    "pool": PoolSettings,
    "dns": DNSSettings,
    "tls": TLSSettings,
    "telemetry": TelemetrySettings,
}

BUDGETS = ("total", "queue", "dns", "tcp", "tls", "connect", "read")
OPTIONAL_SECONDS = (
    *(("timeouts", name) for name in BUDGETS),
    ("pool", "max_connection_age"),
    ("dns", "happy_eyeballs_delay"),
    ("tls", "reload_interval"),
)
SECONDS_OR_ZERO = (("dns", "cache_ttl"), ("dns", "stale_ttl"), ("dns", "quarantine"))
SECONDS = (*OPTIONAL_SECONDS, *SECONDS_OR_ZERO, ("pool", "keepalive"))
COUNTS = (("pool", "limit"), ("pool", "limit_per_host"), ("telemetry", "max_hosts"))
FLAGS = (
    ("tls", "strict"),
    ("tls", "resumption"),
    ("tls", "allow_unverified"),
    ("telemetry", "keep_query"),
)
STRINGS = (("dns", "nameservers"), ("dns", "system_suffixes"), ("telemetry", "sensitive_query_keys"))


def flat(settings: Settings) -> dict[str, Any]:
    return {
        f"{part}.{each.name}": getattr(getattr(settings, part), each.name)
        for part, kind in PARTS.items()
        for each in dataclasses.fields(kind)
    }


@pytest.fixture
def pem(tmp_path: Path) -> str:
    path = tmp_path / "some.pem"
    path.write_text("-----BEGIN CERTIFICATE-----\n", "ascii")
    return str(path)


@pytest.fixture
def mutual(pem: str) -> Settings:
    return Settings(
        timeouts=TimeoutSettings(dns=1, queue=None),
        tls=TLSSettings(ca_files=(pem,), client_cert=pem, client_key=pem, client_key_password="swordfish"),
    )


def test_defaults() -> None:
    """Every default has the value that the README and DESIGN promise, and no setting is without one."""
    assert DEFAULT_VALUES == flat(DEFAULTS)


def test_defaults_is_the_empty_settings_object() -> None:
    """``DEFAULTS`` is ``Settings()``."""
    assert DEFAULTS == Settings()


def test_settings_are_keyword_only() -> None:
    """A positional argument is refused, so that fields may be reordered."""
    for kind in (*PARTS.values(), Settings):
        with pytest.raises(TypeError):
            kind(1)


@pytest.mark.parametrize("value", [-1, -0.001, 0, 0.0, math.nan, math.inf, -math.inf, "5", True, b"1", (1,)])
@pytest.mark.parametrize(("part", "name"), SECONDS)
def test_seconds_that_cannot_be_meant_are_refused(part: str, name: str, value: object) -> None:
    """Negative, zero, NaN, endless and non-numeric seconds name the field, the value and what is allowed."""
    if (part, name) in SECONDS_OR_ZERO and value == 0:
        assert getattr(PARTS[part](**{name: value}), name) == 0.0
        return
    with pytest.raises(SettingsError) as caught:
        PARTS[part](**{name: value})
    assert str(caught.value).startswith(f"{part}.{name} is {value!r}; it must be a number of seconds, ")


@pytest.mark.parametrize(("part", "name"), SECONDS)
def test_seconds_become_floats(part: str, name: str) -> None:
    """A whole number of seconds equals, hashes and reads as the float."""
    settings = PARTS[part](**{name: 7})
    assert (7.0, float) == (getattr(settings, name), type(getattr(settings, name)))
    assert settings == PARTS[part](**{name: 7.0})


@pytest.mark.parametrize(("part", "name"), OPTIONAL_SECONDS)
def test_none_switches_a_budget_off(part: str, name: str) -> None:
    """``None`` is allowed where a limit can be switched off."""
    assert getattr(PARTS[part](**{name: None}), name) is None


@pytest.mark.parametrize(("part", "name"), sorted(set(SECONDS) - set(OPTIONAL_SECONDS)))
def test_none_is_refused_where_it_means_nothing(part: str, name: str) -> None:
    """``None`` is refused where there is nothing to switch off."""
    with pytest.raises(SettingsError, match=rf"^{part}\.{name} is None"):
        PARTS[part](**{name: None})


@pytest.mark.parametrize("value", [-1, 1.5, "3", True, None])
@pytest.mark.parametrize(("part", "name"), COUNTS)
def test_counts_that_cannot_be_meant_are_refused(part: str, name: str, value: object) -> None:
    """A count is a whole number, and the message says from where on."""
    with pytest.raises(SettingsError, match=rf"^{part}\.{name} is .*; it must be a whole number, \d or more$"):
        PARTS[part](**{name: value})


def test_no_host_at_all_is_refused() -> None:
    """``max_hosts=0`` would hide every host."""
    with pytest.raises(SettingsError, match="1 or more"):
        TelemetrySettings(max_hosts=0)


@pytest.mark.parametrize("value", [0, 1, None, "yes"])
@pytest.mark.parametrize(("part", "name"), FLAGS)
def test_flags_that_cannot_be_meant_are_refused(part: str, name: str, value: object) -> None:
    """A flag is True or False, nothing that merely looks like it."""
    with pytest.raises(SettingsError, match=rf"^{part}\.{name} is .*; it must be True or False$"):
        PARTS[part](**{name: value})


@pytest.mark.parametrize("value", ["one", b"one", 1, None, (1,), [b"x"]])
@pytest.mark.parametrize(("part", "name"), STRINGS)
def test_a_lone_string_is_not_a_tuple_of_strings(part: str, name: str, value: object) -> None:
    """``nameservers="10.0.0.1"`` would be eight name servers of one letter."""
    with pytest.raises(SettingsError, match=rf"^{part}\.{name} is .*; it must be a tuple of strings$"):
        PARTS[part](**{name: value})


@pytest.mark.parametrize(
    ("part", "name", "value", "allowed"),
    [
        ("dns", "resolver", "threaded", '"aiodns", "system"'),
        ("telemetry", "request_spans", True, '"auto", "always", "never"'),
        ("tls", "trust", "mozilla", '"certifi", "system" or "none"'),
        ("tls", "trust", None, '"certifi", "system" or "none"'),
        ("tls", "minimum_version", ssl.TLSVersion.TLSv1, "ssl.TLSVersion.TLSv1_2 or ssl.TLSVersion.TLSv1_3"),
        ("tls", "minimum_version", "1.3", "ssl.TLSVersion.TLSv1_2 or ssl.TLSVersion.TLSv1_3"),
        ("tls", "name", "", "a non-empty string or None"),
        ("tls", "name", 3, "a non-empty string or None"),
        ("tls", "ca_files", "ca.pem", "a tuple of file paths"),
        ("tls", "ca_files", Path("ca.pem"), "a tuple of file paths"),
        ("tls", "client_cert", 3, "a file path or None"),
        ("tls", "client_key", b"key", "a file path or None"),
        ("telemetry", "propagate_to", "example.org", "a tuple of strings"),
    ],
)
def test_a_wrong_value_names_what_is_allowed(part: str, name: str, value: object, allowed: str) -> None:
    """The message holds the field, what was given, and what is allowed."""
    with pytest.raises(SettingsError) as caught:
        PARTS[part](**{name: value})
    assert f"{part}.{name} is {value!r}" in str(caught.value)
    assert allowed in str(caught.value)


@pytest.mark.parametrize("value", ["/etc/ssl/private-ca.pem", "ca.pem", Path("/etc/ssl/private-ca.pem")])
def test_a_path_as_trust_says_ca_files(value: str | Path) -> None:
    """``trust="/path"`` is answered with the setting that was meant."""
    with pytest.raises(SettingsError, match=rf"tls\.trust is .*say ca_files=\('{value}',\)"):
        TLSSettings(trust=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["client_cert", "client_key", "ca_files"])
def test_a_missing_file_is_refused(name: str, tmp_path: Path) -> None:
    """A file that does not exist is found when the settings are made, not at the first request."""
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(SettingsError) as caught:
        TLSSettings(**{name: (missing,) if name == "ca_files" else missing})
    assert f"tls.{name} names {missing!r}, which is not a file" == str(caught.value)


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    """A folder is refused where a file is meant."""
    with pytest.raises(SettingsError, match="is not a file"):
        TLSSettings(ca_files=(str(tmp_path),))


def test_a_key_without_its_certificate_is_refused(pem: str) -> None:
    """A key, or its password, without a certificate cannot be meant."""
    with pytest.raises(SettingsError, match=r"tls\.client_key .*tls\.client_cert"):
        TLSSettings(client_key=pem)
    with pytest.raises(SettingsError, match=r"tls\.client_key_password .*tls\.client_cert"):
        TLSSettings(client_key_password="swordfish")


def test_a_refused_password_is_not_in_the_message(pem: str) -> None:
    """A password of the wrong kind is refused without being shown."""
    with pytest.raises(SettingsError) as caught:
        TLSSettings(client_cert=pem, client_key_password=12345)  # type: ignore[arg-type]
    assert "tls.client_key_password" in str(caught.value)
    assert "12345" not in str(caught.value)


def test_trust_in_nobody_is_refused() -> None:
    """``trust="none"`` needs an authority."""
    with pytest.raises(SettingsError, match=r"tls\.trust.*tls\.ca_files"):
        TLSSettings(trust="none")


def test_there_is_no_switch_for_verification() -> None:
    """No setting is called ``verify``."""
    with pytest.raises(TypeError):
        TLSSettings(verify=False)  # type: ignore[call-arg]


def test_paths_may_be_path_objects(pem: str) -> None:
    """A ``Path`` is kept as a string, so equal files make equal settings."""
    assert TLSSettings(ca_files=(pem,), client_cert=pem) == TLSSettings(
        ca_files=[Path(pem)],  # type: ignore[arg-type]
        client_cert=Path(pem),  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("server", ["127.0.0.1", "127.0.0.1:53", "::1", "[::1]", "[::1]:5353", "ns.example.org:53"])
def test_nameservers_that_are_understood(server: str) -> None:
    """A name server is a host, or a host and a port, of either address family."""
    assert (server,) == DNSSettings(nameservers=(server,)).nameservers


@pytest.mark.parametrize("server", ["", ":53", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "[]", "[::1]:x", "h:٣"])
def test_nameservers_that_cannot_be_meant_are_refused(server: str) -> None:
    """A name server without a host or with an impossible port is refused."""
    with pytest.raises(SettingsError) as caught:
        DNSSettings(nameservers=(server,))
    assert f'dns.nameservers holds {server!r}; each is "host" or "host:port"' == str(caught.value)


def test_nameservers_of_the_system_resolver_are_refused() -> None:
    """The system resolver asks nobody whom we name."""
    with pytest.raises(SettingsError, match=r"dns\.nameservers"):
        DNSSettings(resolver="system", nameservers=("127.0.0.1",))


@pytest.mark.parametrize("suffix", ["", ".", "local"])
def test_suffixes_start_with_a_dot(suffix: str) -> None:
    """A suffix without its dot would match half a label."""
    with pytest.raises(SettingsError, match=r"dns\.system_suffixes"):
        DNSSettings(system_suffixes=(suffix,))


@pytest.mark.parametrize("part", PARTS)
def test_a_part_in_the_wrong_place_is_refused(part: str) -> None:
    """Each part of ``Settings`` is of its own class."""
    with pytest.raises(SettingsError, match=rf"^Settings\.{part} is dict; it must be {PARTS[part].__name__}$"):
        Settings(**{part: {}})


def test_settings_errors_are_value_errors() -> None:
    """Code that catches ``ValueError`` catches ours."""
    assert issubclass(SettingsError, ValueError)
    assert issubclass(SettingsError, HardenedError)


def test_settings_are_frozen(mutual: Settings) -> None:
    """Neither a setting nor a part can be changed or added."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        mutual.tls = TLSSettings()  # type: ignore[misc]
    for part, kind in PARTS.items():
        for each in dataclasses.fields(kind):
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(getattr(mutual, part), each.name, None)
    # A frozen slots class of CPython 3.11 answers a new name with TypeError (cpython#90055's family).
    with pytest.raises((AttributeError, TypeError)):
        mutual.tls.verify = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_settings_survive_pickle(mutual: Settings, protocol: int) -> None:
    """A settings object that was sent to a worker is equal, hashes equally, and is used as the same key."""
    again = pickle.loads(pickle.dumps(mutual, protocol))
    assert mutual == again
    assert hash(mutual) == hash(again)
    assert "here" == {mutual: "here"}[again]


def test_settings_survive_copies(mutual: Settings) -> None:
    """Shallow and deep copies and ``dataclasses.replace`` are equal and hash equally."""
    for again in (copy.copy(mutual), copy.deepcopy(mutual), dataclasses.replace(mutual)):
        assert mutual == again
        assert hash(mutual) == hash(again)


def test_replace_checks_again() -> None:
    """``dataclasses.replace`` is refused what the constructor is refused."""
    with pytest.raises(SettingsError, match=r"timeouts\.dns"):
        dataclasses.replace(DEFAULTS.timeouts, dns=-1)


def test_different_settings_differ(mutual: Settings) -> None:
    """One different field makes a different settings object."""
    assert mutual != DEFAULTS
    assert mutual != dataclasses.replace(mutual, tls=dataclasses.replace(mutual.tls, client_key_password="other"))


@pytest.mark.parametrize("password", ["swordfish", b"swordfish"])
def test_repr_hides_the_password(pem: str, password: str | bytes) -> None:
    """Neither ``repr`` nor ``str`` shows the password of a key or the contents of a file."""
    settings = Settings(tls=TLSSettings(client_cert=pem, client_key=pem, client_key_password=password))
    for text in (repr(settings), str(settings), f"{settings.tls}", repr(settings.tls)):
        assert "client_cert" in text
        assert "swordfish" not in text
        assert "BEGIN" not in text


def test_settings_need_no_loop_and_no_thread() -> None:
    """Settings are made at import time and used from two ``asyncio.run`` in a row and from another thread."""
    settings = Settings()

    async def read() -> float | None:
        return settings.timeouts.dns

    seen: list[float | None] = [asyncio.run(read()), asyncio.run(read())]
    thread = threading.Thread(target=lambda: seen.append(asyncio.run(read())))
    thread.start()
    thread.join()
    assert [5.0, 5.0, 5.0] == seen


def test_every_setting_is_explained() -> None:
    """Each field has its line in the docstring of its class."""
    for kind in (*PARTS.values(), Settings):
        for each in dataclasses.fields(kind):
            assert f"\n    {each.name}: " in dedented(kind.__doc__ or ""), f"{kind.__name__}.{each.name}"


def dedented(docstring: str) -> str:
    return docstring.replace("\n        ", "\n    ")


def test_public_names_are_sorted() -> None:
    """``__all__`` is sorted as ruff sorts it and holds names that exist."""
    assert [name for name in _settings.__all__ if not hasattr(_settings, name)] == []
    assert len(set(_settings.__all__)) == len(_settings.__all__)
