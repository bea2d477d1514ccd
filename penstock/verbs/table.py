"""Tables of the command line: described once, shown as plain text or, on a terminal, by rich."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from ..text import terminal_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the command line."""

    form: Sequence[str]
    """The format of each column in plain text, with the blanks before it; one with '>' holds numbers."""
    header: Sequence[str]
    """The name of each column."""
    rows: Sequence[Sequence[object]]
    """Cells in the order of the columns; a row may end before the last one."""
    titled: bool = True
    """True when plain text has the header too."""

    def __str__(self) -> str:
        rows = [self.header, *self.rows] if self.titled else self.rows
        return "\n".join(
            "".join(form.format(cell) for form, cell in zip(self.form, row, strict=False)) for row in rows
        )


Text = str | Sequence[str | Table]
"""Lines and tables, in the order in which they are shown."""


def show(text: Text) -> None:
    """Print a text: tables by rich on a terminal, unless NO_COLOR is set or TERM is dumb.

    Else, and where rich is not installed, as plain text.
    """
    blocks = [text] if isinstance(text, str) else text
    if not (sys.stdout.isatty() and any(isinstance(block, Table) for block in blocks) and _by_rich(blocks)):
        print(terminal_text("\n".join(map(str, blocks))), flush=True)


def _by_rich(blocks: Sequence[str | Table]) -> bool:
    """Print blocks by rich; return False where nothing was printed."""
    try:
        import rich.box
        import rich.console
        import rich.table
        import rich.text
    except ImportError:
        return False
    console = rich.console.Console(file=sys.stdout, markup=False, highlight=False, emoji=False)
    if console.no_color or console.is_dumb_terminal:
        return False
    for block in blocks:
        if isinstance(block, str):
            print(terminal_text(block), flush=True)
            continue
        shown = rich.table.Table(box=rich.box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for name, form in zip(block.header, block.form, strict=True):
            shown.add_column(
                rich.text.Text(name), justify="right" if ">" in form else "left", overflow="fold"
            )
        for row in block.rows:
            shown.add_row(*(rich.text.Text(terminal_text(str(cell))) for cell in row))
        console.print(shown)
    return True
