"""Run benchmarks by name and write what they measured as JSON."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import ssl
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

NAMES = ("overhead", "failures", "handshakes", "server")


def machine() -> dict[str, Any]:
    """Describe what the figures were measured on."""
    return {
        "python": sys.version.split()[0],
        "openssl": ssl.OPENSSL_VERSION,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "packages": {name: version(name) for name in ("aiohttp", "aiodns", "opentelemetry-sdk")},
    }


def main() -> None:
    """Run what is named, or everything."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--json", type=Path, help="where to write the figures")
    options = parser.parse_args()
    figures: dict[str, Any] = {"machine": machine()}
    print(figures["machine"])
    for name in options.names:
        if name not in NAMES:
            parser.error(f"there is no benchmark {name!r}; there are: {', '.join(NAMES)}")
        figures[name] = importlib.import_module(f"benchmarks.{name}").run()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
