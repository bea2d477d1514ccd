"""What Slurm's commands print, rendered into the format that a caller asks for."""

import re
from collections.abc import Sequence

_MARK = re.compile(r"\|[0-9a-f]{16}\|")


def printed(command: Sequence[str], *rows: Sequence[object]) -> str:
    """Return rows as sinfo and squeue print them: each value, then the mark that the command's format has."""
    mark = _MARK.search(" ".join(command))
    assert mark is not None, command
    return "".join("".join(f"{value}{mark[0]}" for value in row) + "\n" for row in rows)
