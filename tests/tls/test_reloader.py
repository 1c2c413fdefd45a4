"""The reload by itself, for clients and servers: retried, logged once, watched, and gone with its context."""

from __future__ import annotations

import asyncio
import gc
import hashlib
import logging
import ssl
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from aiohttp_hardened import TLSSettings
from aiohttp_hardened.timing._figures import figures
from aiohttp_hardened.tls._files import KeyPair, check_pair, read_pair
from aiohttp_hardened.tls._registry import context_for, name_of, peek, reload_tls
from aiohttp_hardened.tls._reload import Built, Reloader
from tests.tls._raw import ask, server_context, shared, tls_server

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from aiohttp_hardened.testing import CertificateFiles, ThrowawayCA
    from aiohttp_hardened.tls._context import SharedSSLContext


@dataclass(frozen=True)
class ServerPair:
    """What a server would give the reloader: a pair of files, and how a context comes of them."""

    pair: KeyPair

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.pair.certificate + (self.pair.key or b"")).hexdigest()

    def build(self) -> Built:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.pair.load_into(context)
        return Built(context, check_pair(self.pair, "server"))


class Mounted:
    """A pair of files that is replaced."""

    def __init__(self, directory: Path, first: CertificateFiles) -> None:
        self.certificate, self.key = directory / "tls.crt", directory / "tls.key"
        self.write(first)

    def write(self, files: CertificateFiles, key: CertificateFiles | None = None) -> None:
        self.certificate.write_bytes(files.cert_file.read_bytes())
        self.key.write_bytes((key or files).key_file.read_bytes())

    def read(self) -> ServerPair:
        return ServerPair(read_pair(str(self.certificate), str(self.key), None))


@pytest.fixture
def mounted(tmp_path: Path, throwaway_ca: ThrowawayCA) -> Mounted:
    """A server's pair of files."""
    return Mounted(tmp_path, throwaway_ca.issue("x.test"))


def wait_until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


async def test_a_server_is_reloaded_by_the_same_means(
    mounted: Mounted, throwaway_ca: ThrowawayCA, loop_name: str
) -> None:
    """A good pair reaches the next handshake, a bad one none (CASES 2)."""
    reloader = Reloader(f"front {loop_name}", "server", mounted.read)
    name = reloader.name
    context = reloader.create()
    new = throwaway_ca.issue("x.test", intermediate=True)
    async with tls_server(context) as port:
        client = shared(throwaway_ca)
        await ask(client, port)
        mounted.write(new, throwaway_ca.issue("x.test"))
        rejected = reloader.reload()
        assert (rejected.outcome, rejected.reason) == ("rejected", "KEY_VALUES_MISMATCH")
        await ask(client, port, outside=True)
        mounted.write(new)
        applied = reloader.reload()
        assert (applied.outcome, applied.not_after) == ("applied", new.not_after)
        await ask(client, port, outside=True)
        assert reloader.reload().outcome == "unchanged"
    assert figures.own_not_after[name, "server"] == new.not_after.timestamp()
    assert figures.tls_reloads[name, "rejected"] == figures.tls_reloads[name, "applied"] == 1
    del context
    gc.collect()
    assert (name, "server") not in figures.own_not_after


def test_a_half_written_pair_is_retried(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """The certificate is new and the key still old for a moment (CASES 2)."""
    reloader = Reloader("half", "server", mounted.read)
    context = reloader.create()
    new = throwaway_ca.issue("x.test")
    mounted.certificate.write_bytes(new.cert_file.read_bytes())
    timer = threading.Timer(0.05, mounted.write, (new,))
    timer.start()
    assert reloader.reload().outcome == "applied"
    timer.join()
    assert context.generation == 2


def test_a_file_that_is_away_for_a_moment_is_retried(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """Some write a file by removing it first; when it stays away, that is the reason."""
    reloader = Reloader("away", "server", mounted.read)
    context = reloader.create()
    new = throwaway_ca.issue("x.test")
    mounted.key.unlink()
    timer = threading.Timer(0.05, mounted.write, (new,))
    timer.start()
    assert reloader.reload().outcome == "applied"
    timer.join()
    mounted.key.unlink()
    assert str(reloader.reload().reason) == f"cannot read {mounted.key}: No such file or directory"
    assert context.generation == 2


def test_the_same_rejection_is_logged_once_and_counted_each_time(
    mounted: Mounted, throwaway_ca: ThrowawayCA, caplog: pytest.LogCaptureFixture
) -> None:
    """A watcher looks every few seconds; a log that repeats itself hides what is new."""
    reloader = Reloader("again", "server", mounted.read)
    context = reloader.create()
    for files in (throwaway_ca.issue_expired("x.test"), throwaway_ca.issue_not_yet_valid("x.test")):
        mounted.write(files)
        with caplog.at_level(logging.ERROR, "aiohttp_hardened"):
            outcomes = [reloader.reload().outcome for _ in range(3)]
        assert outcomes == ["rejected"] * 3
    assert len(caplog.records) == 2
    assert figures.tls_reloads["again", "rejected"] == 6
    assert context.generation == 1


def test_the_watcher_ends_with_its_context(mounted: Mounted, throwaway_ca: ThrowawayCA) -> None:
    """It takes what changed, is stopped by nothing that is wrong, and leaves no thread."""
    reloader = Reloader("watched", "server", mounted.read)
    context = reloader.create()
    reloader.watch(0.01)
    mounted.write(throwaway_ca.issue_expired("x.test"))
    wait_until(lambda: figures.tls_reloads["watched", "rejected"] > 1)
    mounted.write(throwaway_ca.issue("x.test"))
    wait_until(lambda: figures.tls_reloads["watched", "applied"] == 1)
    assert context.generation == 2
    wait_until(lambda: figures.tls_reloads["watched", "unchanged"] > 1)
    names = {thread.name for thread in threading.enumerate()}
    assert "aiohttp_hardened watches watched" in names
    del context
    gc.collect()
    wait_until(lambda: "aiohttp_hardened watches watched" not in {thread.name for thread in threading.enumerate()})


def test_a_watched_decision_lives_as_long_as_somebody_holds_it(throwaway_ca: ThrowawayCA) -> None:
    """Unlike others it is not kept for the next user, for its thread would be kept too."""
    tls = TLSSettings(trust="none", ca_files=(throwaway_ca.ca_file,), reload_interval=60, name="held")
    context: SharedSSLContext | None = context_for(tls)
    assert peek(tls) is context
    context = None
    gc.collect()
    assert peek(tls) is None


def test_a_process_ends_while_somebody_watches(throwaway_ca: ThrowawayCA) -> None:
    """At once, and with status 0."""
    code = (
        "import sys\n"
        "from aiohttp_hardened import TLSSettings, create_ssl_context\n"
        "held = create_ssl_context(TLSSettings(trust='none', ca_files=(sys.argv[1],), reload_interval=3600))\n"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", code, str(throwaway_ca.ca_file)], check=True, timeout=30)
    assert time.monotonic() - start < 10


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork here")
def test_a_forked_child_watches_and_builds(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """A server that forks its workers rotates in each of them, and a build that was under way is begun anew."""
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(throwaway_ca.ca_file.read_bytes())
    code = (
        "import os, sys, time, pathlib\n"
        "from concurrent.futures import Future\n"
        "from aiohttp_hardened import TLSSettings, create_ssl_context\n"
        "from aiohttp_hardened.tls import _registry\n"
        "bundle = pathlib.Path(sys.argv[1])\n"
        "watched = create_ssl_context(TLSSettings(trust='none', ca_files=(bundle,), reload_interval=0.02))\n"
        "other = TLSSettings(trust='none', ca_files=(bundle,))\n"
        "_registry._building[other] = Future()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    create_ssl_context(other)\n"
        "    bundle.write_bytes(bundle.read_bytes() * 2)\n"
        "    end = time.monotonic() + 10\n"
        "    while watched.generation == 1 and time.monotonic() < end:\n"
        "        time.sleep(0.01)\n"
        "    os._exit(watched.generation)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(bundle)],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert done.stdout.split() == ["2"]


def test_a_decision_that_nobody_uses_yet_is_built(
    throwaway_ca: ThrowawayCA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """``reload_tls`` before the first request says whether the files can serve."""
    bundle = tmp_path / "ca.pem"
    bundle.write_text("nothing")
    tls = TLSSettings(trust="none", ca_files=(bundle,), name="early")
    with caplog.at_level(logging.ERROR, "aiohttp_hardened"):
        result = reload_tls(tls)
    assert (result.outcome, result.reason) == ("rejected", "a bundle of authorities holds no certificate")
    assert "holds no certificate" in caplog.text
    bundle.write_bytes(throwaway_ca.ca_file.read_bytes())
    assert [reload_tls(tls).outcome for _ in range(2)] == ["applied", "unchanged"]
    assert {outcome: figures.tls_reloads["early", outcome] for outcome in ("applied", "unchanged", "rejected")} == {
        "applied": 1,
        "unchanged": 1,
        "rejected": 1,
    }


async def test_the_systems_store_is_reloaded_too(
    throwaway_ca: ThrowawayCA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``trust="system"`` notices an authority that was removed from the default file or directory."""
    if sys.platform != "linux":
        pytest.skip("the default locations are Linux's")
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    store, directory = tmp_path / "store.pem", tmp_path / "certs"
    directory.mkdir()
    monkeypatch.setenv("SSL_CERT_FILE", str(store))
    monkeypatch.setenv("SSL_CERT_DIR", f"{tmp_path / 'nowhere'}:{directory}")
    store.write_bytes(throwaway_ca.ca_file.read_bytes() * 2)
    tls = TLSSettings(trust="system", name=f"system {tmp_path}")
    context = context_for(tls)
    async with tls_server(server_context(throwaway_ca.issue("x.test"))) as port:
        await ask(context, port)
        assert reload_tls(tls).outcome == "unchanged"
        (directory / "another.pem").write_bytes(throwaway_ca.ca_file.read_bytes())
        assert reload_tls(tls).outcome == "applied"
        store.unlink()
        assert reload_tls(tls).outcome == "applied"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(context, port)


def test_names_tell_decisions_apart(throwaway_ca: ThrowawayCA, tmp_path: Path) -> None:
    """The given name, or the trust and the files' names: no paths, few values."""
    ca = throwaway_ca.ca_file
    client = throwaway_ca.issue_client("x")
    assert name_of(TLSSettings()) == "certifi"
    assert name_of(TLSSettings(trust="none", ca_files=(ca,))) == "ca.pem"
    assert name_of(TLSSettings(ca_files=(ca,), client_cert=client.cert_file, client_key=client.key_file)) == (
        f"certifi+ca.pem+{client.cert_file.name}"
    )
    assert name_of(TLSSettings(name="orders")) == "orders"
