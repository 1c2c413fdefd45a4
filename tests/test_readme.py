"""README.md is true: its examples run, and its tables are what the code says."""

from __future__ import annotations

import dataclasses
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from aiohttp_hardened import DEFAULTS
from aiohttp_hardened.telemetry import _names
from tests.compat._roads import PACKAGES, Road

if TYPE_CHECKING:
    from aiohttp_hardened.testing import ThrowawayCA

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)

OVER_ROADS = re.compile(r'^@over_roads\("([^"]+)"\)', re.MULTILINE)
START = r"git clone https://\S+ && cd aiohttp-hardened && python3 -m venv \.venv && \.venv/bin/pip install -e "


def command(marker: str) -> str:
    found = re.search(rf"<!-- {marker} -->\s*```\w*\n(.*?)```", README, re.DOTALL)
    assert found is not None, f"no code block after <!-- {marker} -->"
    return found[1].replace("\\\n", "").strip()


def test_the_test_command_is_complete() -> None:
    """One line goes from nothing to the tests; `.ci/run` runs what stands here."""
    assert re.fullmatch(rf"{START}'\.\[dev\]' && \.venv/bin/pytest", command("test-command"))


def test_the_demo_command_is_complete() -> None:
    """One line goes from nothing to the demo; `.ci/run` runs what stands here."""
    assert re.fullmatch(rf"{START}'\.\[demo\]' && \.venv/bin/aiohttp-hardened demo", command("demo-command"))


def test_ci_takes_its_commands_from_here() -> None:
    """`.ci/run` reads both commands instead of repeating them."""
    script = (ROOT / ".ci" / "run").read_text("utf-8")
    assert "readme_command.py README.md test-command" in script
    assert "readme_command.py README.md demo-command" in script


def test_there_are_examples() -> None:
    """README shows code."""
    assert BLOCKS != []


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_an_example_runs(number: int, tmp_path: Path, throwaway_ca: ThrowawayCA) -> None:
    """Each Python block runs by itself, its ``main(url)`` against a loopback server, without a warning."""
    example = tmp_path / "example.py"
    example.write_text(BLOCKS[number].replace("/etc/tls/", f"{tmp_path}/"), "utf-8")
    client = throwaway_ca.issue_client("orders")
    for name, file in (("ca.crt", throwaway_ca.ca_file), ("tls.crt", client.cert_file), ("tls.key", client.key_file)):
        (tmp_path / name).write_bytes(file.read_bytes())
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUNNER, str(example)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert (0, "") == (result.returncode, result.stderr)


# Examples are run as modules, so a guarded `asyncio.run(main(...))` of theirs stays silent; a `main(url)` of theirs is
# then called with the address of a loopback server.
RUNNER = """
import asyncio, runpy, sys
from aiohttp import web

async def answer(request):
    return web.json_response({"path": request.path})

async def serve():
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner

async def main(coroutine_function):
    runner = await serve()
    try:
        await coroutine_function(f"http://127.0.0.1:{runner.addresses[0][1]}/")
    finally:
        await runner.cleanup()

example = runpy.run_path(sys.argv[1], run_name="example")
if "main" in example:
    asyncio.run(main(example["main"]))
"""


def table(first_column: str) -> list[list[str]]:
    """Return the cells of the table whose header starts with ``first_column``, without the header."""
    rows: list[list[str]] = []
    inside = False
    for line in README.splitlines():
        if not line.startswith("|"):
            inside = False
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells[0] == first_column:
            inside = True
        elif inside and not set(cells[0]) <= set(":- "):
            rows.append(cells)
    assert rows, f"README has no table that starts with {first_column!r}"
    return rows


def codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def shown(value: Any) -> str:
    """Return a default as README writes it."""
    match value:
        case None | True | False:
            return {None: "none", True: "on", False: "off"}[value]
        case ssl.TLSVersion():
            return value.name.replace("v", " ").replace("_", ".")
        case float():
            return f"{value:g} s"
        case str():
            return f'"{value}"'
        case (_, _, *_):
            return f"{len(value)} keys"
        case _:
            return str(value)


def test_the_defaults_are_the_settings() -> None:
    """The defaults table has each setting once, with its value; words may follow the value."""
    documented = {codes(row[0])[0]: row[1].replace("`", "") for row in table("setting")}
    real = {
        f"{part.name}.{each.name}": shown(getattr(getattr(DEFAULTS, part.name), each.name))
        for part in dataclasses.fields(DEFAULTS)
        for each in dataclasses.fields(getattr(DEFAULTS, part.name))
    }
    assert set(real) == set(documented)
    assert real == {name: documented[name][: len(value)] for name, value in real.items()}


def constants(prefix: str) -> set[str]:
    return {value for name, value in vars(_names).items() if name.startswith(prefix) and isinstance(value, str)}


def test_the_metrics_are_those_of_the_code() -> None:
    """The metrics table names each metric of ``telemetry/_names.py`` and no other."""
    assert constants("METRIC_") == {name for row in table("metric") for name in codes(row[0])}


def test_the_packages_are_those_that_are_driven() -> None:
    """The table of packages says what ``tests/compat`` proves: each package over each of its roads, and no other."""
    real = [
        [name, package.handed_over, *("yes" if road in package.roads else "no" for road in Road), package.told]
        for name, package in PACKAGES.items()
    ]
    assert real == table("package")
    sources = [file.read_text("utf-8") for file in (ROOT / "tests" / "compat").glob("test_*.py")]
    assert set(PACKAGES) == {name for source in sources for name in OVER_ROADS.findall(source)}


def test_the_spans_are_those_of_the_code() -> None:
    """The spans table names each span of ``telemetry/_names.py`` and no other."""
    phases = [row[0] for row in table("span") if "kind CLIENT" not in row[0]]
    assert constants("SPAN_") == {name for cell in phases for name in codes(cell)}
