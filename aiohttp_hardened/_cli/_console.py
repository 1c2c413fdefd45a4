"""Where the command line writes."""

from __future__ import annotations

import io
import sys
import textwrap
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.style import StyleType


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints words as they are, whatever the stream can encode.

    Args:
        stderr: Write to standard error.
    """
    stream = sys.stderr if stderr else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        # A URL from the command line may hold bytes that are no text, and a stream may know ASCII only.
        stream.reconfigure(errors="backslashreplace")
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(console: Console, text: str, *, style: StyleType = "", indent: int = 1) -> None:
    """Print a text in lines that fit, each indented.

    Args:
        console: Where.
        text: What.
        style: Of the whole.
        indent: Columns.
    """
    for line in textwrap.wrap(text, console.width - indent, break_on_hyphens=False):
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def say_title(console: Console, title: str, rest: str = "") -> None:
    """Print one line in bold, shortened where it does not fit.

    Args:
        console: Where.
        title: What may be shortened.
        rest: What may not, in normal type.
    """
    text = Text(f" {title}", style="bold")
    text.truncate(console.width - len(rest), overflow="crop" if console.options.ascii_only else "ellipsis")
    console.print(Text.assemble(text, rest), soft_wrap=True)
