"""What an alert is, and how it becomes a rule and a section of the runbook."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import Any, Final, Literal

RUNBOOK: Final = "https://github.com/aiohttp-hardened/aiohttp-hardened/blob/main/aiohttp_hardened/dashboards/runbook.md"


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One alert, and what to do about it.

    Args:
        name: Of the rule, and of the runbook's section.
        expr: PromQL.
        pending: How long it must hold, in Prometheus' notation.
        severity: ``critical``: connections fail now, or will for certain; ``warning``: look today.
        summary: One line; a template.
        description: What was measured; a template.
        means: For the runbook: what goes on.
        confirm: For the runbook: how to see it by yourself.
        fix: For the runbook: what removes it.
    """

    name: str
    expr: str
    pending: str = "0m"
    severity: Literal["critical", "warning"]
    summary: str
    description: str
    means: str
    confirm: str
    fix: str

    def rule(self) -> dict[str, Any]:
        """Return it as Prometheus wants it."""
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.pending,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                # GitHub's anchor of a heading.
                "runbook_url": f"{RUNBOOK}#{self.name.lower()}",
            },
        }

    def section(self) -> str:
        """Return its section of the runbook, in Markdown."""
        parts = (("What it means", self.means), ("How to confirm", self.confirm), ("How to fix", self.fix))
        paragraphs = (f"**{title}.** {' '.join(words.split())}" for title, words in parts)
        text = "\n\n".join(map(_wrapped, paragraphs))
        return f"## {self.name}\n\n{text}\n"


def _wrapped(paragraph: str) -> str:
    """Break lines, but not inside code."""
    whole = re.sub(r"`[^`]*`", lambda code: code[0].replace(" ", "\0"), paragraph)
    return textwrap.fill(whole, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")
