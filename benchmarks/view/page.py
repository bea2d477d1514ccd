"""docs/benchmarks-pipeline.md from rows. Nothing here measures."""

from collections.abc import Sequence

from .browser import CONNECTIONS, WINDOW
from .rows import Row, table_lines

HEAD = """# The viewer

Made by `{command}` on {machine}. {note}

Server, client and store share two cores. A page is its HTML, then {window} images over {connections} connections. Data:
1e6 samples of 0.8 KB with 6 columns; 3,000 JPEGs of 512 x 512 px; 600 of 1920 x 1080 px; a training of 40 steps of 256
photos; a trail of 1e6 steps.

| measured | goal | figure | reached |
| --- | --- | --- | --- |"""


def page_of(rows: Sequence[Row], command: str, machine: str, note: str, notes: Sequence[str] = ()) -> str:
    """The page."""
    words = {"command": command, "machine": machine, "note": note}
    lines = table_lines(HEAD, rows, **words, window=WINDOW, connections=CONNECTIONS)
    return "\n".join([*lines, "", *notes]).rstrip() + "\n"
