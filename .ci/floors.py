"""Print the floors of the runtime dependencies as pip constraints: what the "lowest" cells install."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
for requirement in project["dependencies"]:
    floor = re.match(r"([\w-]+)>=([\w.]+)", requirement)
    assert floor is not None, f"{requirement} has no floor"
    print(f"{floor[1]}=={floor[2]}")
