from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened.dns import _search
from aiohttp_hardened.dns._search import SearchList, parse

if TYPE_CHECKING:
    from pathlib import Path

CLUSTER = """
# Kubernetes
nameserver 10.96.0.10
search default.svc.cluster.local svc.cluster.local
options ndots:5 timeout:2
"""


@pytest.mark.parametrize(
    ("text", "host", "names"),
    [
        ("", "x.test.", ("x.test.",)),
        (CLUSTER, "api", ("api.default.svc.cluster.local.", "api.svc.cluster.local.", "api.")),
        (CLUSTER, "x.test", ("x.test.default.svc.cluster.local.", "x.test.svc.cluster.local.", "x.test.")),
        (CLUSTER, "x.test.", ("x.test.",)),
        (
            CLUSTER,
            "a.b.c.d.e.f",
            ("a.b.c.d.e.f.", "a.b.c.d.e.f.default.svc.cluster.local.", "a.b.c.d.e.f.svc.cluster.local."),
        ),
        ("search corp.test", "x.test", ("x.test.", "x.test.corp.test.")),
        ("domain corp.test.", "x", ("x.corp.test.", "x.")),
        ("domain a.test\nsearch b.test c.test", "x", ("x.b.test.", "x.c.test.", "x.")),
        ("search b.test\ndomain a.test", "x", ("x.a.test.", "x.")),
        ("search .", "x", ("x.",)),
        ("search corp.test\noptions ndots:99", "1.2.3.4.5.6.7.8.9.10.11.12.13.14.15.16", None),
        ("search corp.test\noptions ndots:x ndots", "x", ("x.corp.test.", "x.")),
        ("search corp.test", 250 * "a", (250 * "a" + ".",)),
    ],
)
def test_names(text: str, host: str, names: tuple[str, ...] | None) -> None:
    """A name is completed as resolv.conf(5) says."""
    found = parse(text).names(host)
    if names is None:  # more dots than can be asked for
        assert found[0] == f"{host}."
    else:
        assert found == names


def test_the_environment_is_stronger() -> None:
    """``LOCALDOMAIN`` and ``RES_OPTIONS`` overrule the file."""
    assert parse(CLUSTER, "a.test b.test", "ndots:1 rotate") == SearchList(("a.test", "b.test"), 1)
    assert parse(CLUSTER, "", None) == SearchList((), 5)


def test_the_domain_of_the_host_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a ``search`` the host's own domain is searched."""
    monkeypatch.setattr(socket, "gethostname", lambda: "vm.corp.test")
    assert parse("nameserver 127.0.0.1") == SearchList(("corp.test",), 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    assert parse("") == SearchList()


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="no resolv.conf")
def test_the_file_is_read_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A configuration that changes, or goes, is followed."""
    file = tmp_path / "resolv.conf"
    monkeypatch.setattr(_search, "_CONFIGURATION", file)
    monkeypatch.setattr(socket, "gethostname", lambda: "vm")
    monkeypatch.delenv("LOCALDOMAIN", raising=False)
    assert _search.names_to_ask_for("x") == ("x.",)
    for domain in ("a.test", "b.test"):
        other = tmp_path / domain
        other.write_text(f"search {domain}\n", encoding="utf-8")
        other.replace(file)
        assert _search.names_to_ask_for("x") == (f"x.{domain}.", "x.")
    file.unlink()
    assert _search.names_to_ask_for("x") == ("x.",)


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_c_ares_walks_it(monkeypatch: pytest.MonkeyPatch, platform: str) -> None:
    """Where the search list is not in a file, names are handed on as they are."""
    monkeypatch.setattr(sys, "platform", platform)
    assert _search.names_to_ask_for("x") == ("x",)
