"""Write the dashboards, the rules and the runbook that the package ships."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from tools.dashboards._connection_setup import connection_setup
from tools.dashboards._dns import dns
from tools.dashboards._overview import overview
from tools.dashboards._pool import pool
from tools.dashboards._rules import rules, runbook
from tools.dashboards._tls import tls

TARGET: Final = Path(__file__).parent.parent.parent / "aiohttp_hardened" / "dashboards"


def generated() -> dict[str, str]:
    """Return the text of each file by its name."""
    boards = (overview(), connection_setup(), tls(), dns(), pool())
    documents = {f"{board['uid'].removeprefix('aiohttp-hardened-')}.json": board for board in boards}
    return {
        **{name: json.dumps(board, indent=2) + "\n" for name, board in documents.items()},
        "rules.yml": rules(),
        "runbook.md": runbook(),
    }


if __name__ == "__main__":
    for name, text in generated().items():
        (TARGET / name).write_text(text, "utf-8")
