"""The doctor names each fault of a process that really has it, and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened._cli import main
from aiohttp_hardened.testing import HTTPServer, ThrowawayCA, TLSServer, refusing_address
from tests.cli._faults import FAULTS
from tests.cli._types import Running

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="accept queues drop SYNs on Linux only")


@contextmanager
def process_with(fault: str) -> Iterator[str]:
    """Run a process with a fault; yield the URL of its metrics."""
    command = [sys.executable, "-W", "error", "-m", "tests.cli._faults", fault]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        port = process.stdout.readline()
        assert port, f"{fault}: the process ended with {process.wait(10)}"
        yield f"http://127.0.0.1:{int(port)}/metrics"
        process.stdin.close()
        assert 0 == process.wait(20)


def diagnose(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    status = main(["doctor", "--json", *arguments])
    captured = capsys.readouterr()
    assert "" == captured.err
    return status, json.loads(captured.out)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_and_only_it(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Given one fault alone, the doctor names it and nothing else, with evidence and a fix; without one it says so."""
    expected = FAULTS[fault][1]
    with process_with(fault) as url:
        status, document = diagnose(capsys, url)
    assert expected == [(each["name"], each["error_type"]) for each in document["findings"]], document
    assert (1 if expected else 0, not expected, "totals") == (status, document["healthy"], document["judged"])
    for finding in document["findings"]:
        assert finding["evidence"]
        assert len(finding["evidence"]) == len(finding["figures"])
        assert finding["fix"]
        assert "--" not in finding["fix"], "a program has settings, not a probe's options"


def test_an_old_fault_is_over_between_two_looks(capsys: pytest.CaptureFixture[str]) -> None:
    """What happened once is named of all since the start; with ``--interval`` only what still happens is."""
    with process_with("bad bundle") as url:
        assert ["reload_rejected"] == [each["name"] for each in diagnose(capsys, url)[1]["findings"]]
        status, document = diagnose(capsys, url, "--interval", "0.1")
    assert (0, True, "interval") == (status, document["healthy"], document["judged"])
    assert {"requests": 0, "setups": 0, "lookups": 0} == document["looked_at"]


def test_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Title, name, evidence with its numbers and what to do, in lines that fit the terminal."""
    with process_with("connection per request") as url:
        assert main(["doctor", url]) == 1
    shown = capsys.readouterr().out
    assert shown.startswith(f" {url}: 1 finding\n 20 requests, 20 connection set-ups, 0 lookups since the process")
    words = " ".join(shown.split())
    assert "there is a TLS handshake every few requests [handshakes_per_request]" in words
    assert "20 handshakes, 19 avoidable, for 20 requests" in words
    assert "What to do: keep one session for the life of the process;" in words
    assert max(len(line) for line in shown.splitlines()) <= 80


def test_healthy_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file works like an endpoint; nothing measured is said to be nothing, not health."""
    file = tmp_path / "metrics.txt"
    file.write_text("aiohttp_client_ssl_contexts 0\n", "utf-8")
    assert main(["doctor", str(file)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert " metrics.txt: healthy Nothing to judge yet: 0 requests, 0 connection set-ups" in shown.replace("/", " ")


def test_many_hosts_are_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Words name five places of one fault; the document names all."""
    file = tmp_path / "metrics.txt"
    name = "aiohttp_client_tls_certificate_not_after_seconds"
    file.write_text("".join(f'{name}{{server_address="h{number}.test"}} 1000\n' for number in range(9)), "utf-8")
    assert main(["doctor", str(file)]) == 1
    assert "   and 4 more like it\n" in capsys.readouterr().out
    assert 9 == len(diagnose(capsys, str(file))[1]["findings"][0]["evidence"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "neither metrics of aiohttp-hardened nor the JSON of a probe: invalid metric name"),
        ("", "there is no metric of aiohttp_hardened in it"),
        ("python_info 1\n", "there is no metric of aiohttp_hardened in it"),
        ('{"probes": 3}', "was not written by `aiohttp-hardened probe --json`"),
        ("[]", "was not written by `aiohttp-hardened probe --json`"),
        ('{"probes": [{"attempts": [{"phases": [{}]}]}]}', "was not written by `aiohttp-hardened probe --json`"),
    ],
)
def test_a_file_that_says_nothing(text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no measurement of ours is never called healthy: status 2 and one line."""
    file = tmp_path / "file"
    file.write_text(text, "utf-8")
    assert main(["doctor", str(file)]) == 2
    captured = capsys.readouterr()
    assert "" == captured.out
    assert words in captured.err
    assert 1 == captured.err.count("\n")


def test_a_source_that_cannot_be_read(running: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A missing file, bytes, a closed port, a bad status, and two looks at a file end with 2 and say why."""
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    server = running(HTTPServer())
    with refusing_address() as (host, port):
        for arguments, words in (
            (["/nowhere"], "/nowhere: No such file or directory"),
            ([str(tmp_path / "bytes")], "codec can't decode"),
            ([f"http://user:SECRET@{host}:{port}/?token=SECRET"], "failed: connection_refused"),
            ([server.url("/status/503")], "answers with status 503"),
            ([str(tmp_path / "bytes"), "--interval", "1"], "--interval looks twice"),
        ):
            assert main(["doctor", *arguments]) == 2
            captured = capsys.readouterr()
            assert words in captured.err
            assert "SECRET" not in captured.out + captured.err
            assert 1 == captured.err.count("\n")


def test_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without prometheus_client, metrics cannot be read, and one line says what to install."""
    file = tmp_path / "metrics.txt"
    file.write_text("aiohttp_client_ssl_contexts 0\n", "utf-8")
    monkeypatch.setitem(sys.modules, "prometheus_client.parser", None)
    assert main(["doctor", str(file)]) == 2
    assert capsys.readouterr().err.endswith("pip install 'aiohttp-hardened[demo,prometheus]'\n")


def test_over_tls(running: Running, throwaway_ca: ThrowawayCA, capsys: pytest.CaptureFixture[str]) -> None:
    """``--ca-file`` is whom the endpoint's certificate is checked against."""
    server = running(TLSServer(throwaway_ca.issue("127.0.0.1")))
    assert main(["doctor", server.url()]) == 2
    assert "certificate_authority_invalid" in capsys.readouterr().err
    assert main(["doctor", server.url(), "--ca-file", str(throwaway_ca.ca_file)]) == 2
    assert "neither metrics" in capsys.readouterr().err


def test_help_says_what_totals_mean(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` says what one look and two looks judge, what each status means, and each field of the document."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["doctor", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "one look judges all since the process started" in shown
    assert "Exit status: 0 when nothing is wrong; 1 with findings; 2 when SOURCE cannot be read" in shown
    for name in ("healthy", "source", "judged", "looked_at", "findings", "error_type", "evidence", "figures", "fix"):
        assert name in shown
