"""Print the part of a README command that comes after `git clone ... && cd ...`.

Usage: readme_command.py README.md test-command
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

readme, marker = sys.argv[1:]
block = re.search(rf"<!-- {marker} -->\s*```\w*\n(.*?)```", Path(readme).read_text("utf-8"), re.DOTALL)
assert block is not None, f"{readme} has no code block after <!-- {marker} -->"
command = re.fullmatch(r"git clone \S+ && cd \S+ && (.+)", block[1].replace("\\\n", "").strip())
assert command is not None, f"the {marker} of {readme} is not one line that starts with git clone and cd"
print(command[1])
