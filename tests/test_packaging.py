"""The package as users get it: what the wheel holds, what importing does, which names there are."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, entry_points, requires
from pathlib import Path
from typing import Any

import pytest

import aiohttp_hardened

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

PUBLIC_NAMES = {
    "DEFAULTS",
    "DNSSettings",
    "PoolSettings",
    "Settings",
    "TLSSettings",
    "TelemetrySettings",
    "TimeoutSettings",
    "create_connector",
    "create_session",
    "create_ssl_context",
    "create_trace_config",
    "failed_phase",
}


def run_python(code: str) -> str:
    """Run code in a fresh interpreter in which every warning is an error."""
    command = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, timeout=60).stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT, timeout=60)
    (path,) = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def metadata(wheel: zipfile.ZipFile, name: str) -> str:
    (path,) = (each for each in wheel.namelist() if each.endswith(f".dist-info/{name}"))
    return wheel.read(path).decode("utf-8")


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Every file of the wheel is the package's or its metadata: no test, no benchmark, no cache."""
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {"aiohttp_hardened", f"aiohttp_hardened-{PROJECT['version']}.dist-info"} == tops
    assert [name for name in wheel.namelist() if re.search(r"test_|conftest|bench|__pycache__|\.pyc$", name)] == []


def test_the_wheel_holds_every_module(wheel: zipfile.ZipFile) -> None:
    """No source file and no data file of the package is left out."""
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "aiohttp_hardened").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert sources == {name for name in wheel.namelist() if name.startswith("aiohttp_hardened/")}


def test_the_wheel_is_typed_and_licensed(wheel: zipfile.ZipFile) -> None:
    """``py.typed`` and the licence are in it."""
    assert "aiohttp_hardened/py.typed" in wheel.namelist()
    assert "Apache License" in metadata(wheel, "licenses/LICENSE")
    assert "License-Expression: Apache-2.0" in metadata(wheel, "METADATA")


def test_the_runtime_dependencies_are_five(wheel: zipfile.ZipFile) -> None:
    """Without an extra, five distributions are needed, each with a floor, and aiohttp with a ceiling."""
    needed = re.findall(r"^Requires-Dist: ([^;\n]+)$", metadata(wheel, "METADATA"), re.MULTILINE)
    names = {re.match(r"[\w-]+", each)[0]: each for each in needed}  # type: ignore[index]
    assert {"aiodns", "aiohttp", "certifi", "opentelemetry-api", "opentelemetry-sdk"} == set(names)
    assert [each for each in needed if ">=" not in each] == []
    assert "<4" in names["aiohttp"]


def test_the_wheel_has_a_command(wheel: zipfile.ZipFile) -> None:
    """``aiohttp-hardened`` is a command of the installed package, and its function exists."""
    assert "aiohttp-hardened = aiohttp_hardened._cli:main" in metadata(wheel, "entry_points.txt")
    assert run_python("from aiohttp_hardened._cli import main; print(callable(main))") == "True\n"


def test_the_installed_package_is_this_one() -> None:
    """The environment's metadata is that of ``pyproject.toml``."""
    try:
        installed = requires("aiohttp-hardened") or []
    except PackageNotFoundError:
        pytest.skip("the package is on the path but not installed")
    assert len(PROJECT["dependencies"]) == len([each for each in installed if "extra ==" not in each])
    (command,) = entry_points(group="console_scripts", name="aiohttp-hardened")
    assert command.value == "aiohttp_hardened._cli:main"


def test_version_is_said_once() -> None:
    """``__version__`` is the version in ``pyproject.toml``, and no source file repeats it."""
    try:
        requires("aiohttp-hardened")
    except PackageNotFoundError:
        pytest.skip("the package is on the path but not installed")
    assert aiohttp_hardened.__version__ == PROJECT["version"]
    repeated = f'"{PROJECT["version"]}"'
    assert [path for path in (ROOT / "aiohttp_hardened").rglob("*.py") if repeated in path.read_text("utf-8")] == []


def test_all_is_sorted_and_resolves() -> None:
    """``__all__`` is sorted without regard to case of kind, has no double, and every name is there."""
    names = list(aiohttp_hardened.__all__)
    assert sorted(names) == sorted(set(names))
    assert [name for name in names if not hasattr(aiohttp_hardened, name)] == []
    assert [name for name in names if name.startswith("_")] == []


def test_star_import_gives_the_public_names() -> None:
    """``from aiohttp_hardened import *`` gives the promised names and no other."""
    code = "import json; before = set(globals()); from aiohttp_hardened import *; "
    code += "print(json.dumps(sorted(set(globals()) - before - {'before'})))"
    given = set(json.loads(run_python(code)))
    assert set(aiohttp_hardened.__all__) == given
    assert PUBLIC_NAMES - given == set()


def test_every_public_name_is_type_checked() -> None:
    """``tests/typing/api.py`` uses each public name."""
    tree = ast.parse((ROOT / "tests" / "typing" / "api.py").read_text("utf-8"))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert set(aiohttp_hardened.__all__) - used == set()


@pytest.mark.parametrize("module", ["aiohttp_hardened", "aiohttp_hardened.timing", "aiohttp_hardened.exceptions"])
def test_importing_loads_no_optional_part(module: str) -> None:
    """Importing loads neither the SDK nor what an extra installs: an import costs what it needs."""
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = json.loads(run_python(code))
    optional = ("opentelemetry.sdk", "rich", "trustme", "truststore", "prometheus_client", "pytest", "uvloop", "proxy")
    assert [name for name in loaded if name.startswith(optional)] == []


def test_timing_loads_no_opentelemetry() -> None:
    """The vocabulary of records needs no telemetry library once the package's own front door is left out."""
    code = (
        "import sys, types, json; package = types.ModuleType('aiohttp_hardened'); "
        f"package.__path__ = [{str(ROOT / 'aiohttp_hardened')!r}]; sys.modules['aiohttp_hardened'] = package; "
        "import aiohttp_hardened.timing; print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    assert run_python(code) == "[]\n"


def test_importing_starts_nothing() -> None:
    """Importing makes no thread, opens no file or socket, builds no context, and changes no environment."""
    code = """
import asyncio, gc, os, ssl, sys, threading
import aiohttp, aiodns, certifi, opentelemetry.trace, opentelemetry.metrics, opentelemetry.propagate
folder = "/proc/self/fd"
def state():
    contexts = sum(isinstance(each, ssl.SSLContext) for each in gc.get_objects())
    descriptors = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return threading.active_count(), descriptors, contexts, dict(os.environ), aiohttp.ClientSession.__init__
before = state()
import aiohttp_hardened
from aiohttp_hardened import *
print(before == state())
"""
    assert run_python(code) == "True\n"
