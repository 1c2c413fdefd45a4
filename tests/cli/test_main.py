"""The command line as a command: arguments, extras, pipes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aiohttp_hardened._cli import main
from aiohttp_hardened.testing import HTTPServer
from tests.cli._types import Running

ROOT = Path(__file__).parent.parent.parent


def start(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "aiohttp_hardened", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        cwd=ROOT,
        env=os.environ | environment,
    )


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` names each command and ends with status 0."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--help"])
    shown = capsys.readouterr().out
    assert "demo" in shown
    assert "probe" in shown
    assert "dashboards" in shown
    assert "doctor" in shown


def test_help_documents_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """``probe --help`` says what each exit status means."""
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["probe", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit status: 0 when every request ended with a status below 400; 1 when one did not" in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["ftp://127.0.0.1/"], "no URL that begins with http:// or https://"),
        (["https:///path"], "no URL"),
        (["http://127.0.0.1:99999/"], "no URL: Port out of range"),
        (["http://127.0.0.1/", "--proxy", "127.0.0.1:3128"], "'127.0.0.1:3128' is no URL"),
        (["http://127.0.0.1/", "--ca-file", "/nowhere.pem"], "tls.ca_files names '/nowhere.pem', which is not a file"),
        (["https://127.0.0.1/", "--ca-file", __file__], "holds no certificate"),
        (["http://127.0.0.1/", "--client-key", __file__], "a key needs its certificate"),
        (["http://127.0.0.1/", "--resolver", "127.0.0.1:99999"], "dns.nameservers holds '127.0.0.1:99999'"),
        (["http://127.0.0.1/", "--resolver", "system", "--resolver", "127.0.0.1"], "the system resolver reads its own"),
    ],
)
def test_wrong_values_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be meant ends with status 2 and one clear line, before anything is requested."""
    assert main(["probe", *arguments]) == 2
    captured = capsys.readouterr()
    assert "" == captured.out
    assert words in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["probe"],
        ["frobnicate"],
        ["probe", "http://127.0.0.1/", "-n", "0"],
        ["probe", "http://127.0.0.1/", "-n", "many"],
        ["probe", "http://127.0.0.1/", "--timeout", "0"],
        ["probe", "http://127.0.0.1/", "--timeout", "nan"],
        ["demo", "--metrics-port", "65536"],
        ["demo", "--duration", "inf"],
        ["doctor"],
        ["doctor", "-", "--interval", "0"],
    ],
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage ends with status 2 and says what is allowed."""
    with pytest.raises(SystemExit, match=r"^2$"):
        main(arguments)
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["demo"], ["probe", "http://127.0.0.1/"], ["doctor", "-"]])
def test_a_missing_extra_is_named(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without rich, one line says what to install, and the status is 2."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert f"aiohttp-hardened {arguments[0]} needs rich" in message
    assert message.endswith("pip install 'aiohttp-hardened[demo]'\n")
    assert message.count("\n") == 1


def test_as_a_module(running: Running) -> None:
    """``python -m aiohttp_hardened`` is the command; nothing but its output is printed."""
    server = running(HTTPServer())
    with start("probe", server.url()) as process:
        shown, errors = process.communicate(timeout=30)
    assert (0, "") == (process.returncode, errors)
    assert "ok, 127.0.0.1" in shown


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_a_reader_that_goes_away(flags: list[str], running: Running) -> None:
    """A closed pipe ends it without a traceback, as ``| head`` does."""
    server = running(HTTPServer())
    with start("probe", server.url(), "-n", "2", *flags) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert "" == process.stderr.read()
        assert process.wait(30) == 1


def test_a_stream_that_knows_ascii_only(running: Running) -> None:
    """Bars are drawn with what the stream can encode."""
    server = running(HTTPServer())
    with start("probe", server.url(), PYTHONIOENCODING="ascii") as process:
        shown, errors = process.communicate(timeout=30)
    assert (0, "") == (process.returncode, errors)
    assert shown.isascii()
    assert "request            ====" in shown
