"""docs/benchmarks-pipeline.md from rows. Nothing here measures."""

from collections.abc import Sequence

from .browser import CONNECTIONS, WINDOW
from .rows import Row, table_lines

HEAD = """# The viewer

Made by `{command}` on {machine}. {note}

Server, client and store share the cores. A page is its HTML, then {window} images over {connections} connections.

"""


def page_of(rows: Sequence[Row], command: str, machine: str, note: str, notes: Sequence[str] = ()) -> str:
    """The page."""
    words = {"command": command, "machine": machine, "note": note}
    lines = table_lines(HEAD, rows, **words, window=WINDOW, connections=CONNECTIONS)
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"
