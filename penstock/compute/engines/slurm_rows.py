"""Rows of Slurm's commands, whose columns may hold any text: a drain reason of two lines, a name with `|`.

A random mark ends each column, so no text ends a row early or forges another one. Rejected: `--json` needs a plugin
that clusters leave out, and its types differ from release to release.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Answer = Callable[[Sequence[str]], str]
"""`SlurmQueue.answer`: runs a command of Slurm and returns its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRows:
    """Rows of a command's output."""

    whole: Sequence[Sequence[str]]
    """Values of each row. No first value has a line's end: it is a name or number of Slurm's own."""
    rest: Sequence[str] = ()
    """Values of a last row that is cut off; () without one."""


def new_mark() -> str:
    """Return a mark that no user can guess. It ends a column in a format of `sinfo`, `squeue` or `sacct`."""
    return f"|{secrets.token_hex(8)}|"


def split_rows(text: str, mark: str, n_columns: int) -> PrintedRows:
    """Return the rows of an output in which `mark` ends each of `n_columns` columns."""
    values = text.split(mark)
    end = (len(values) - 1) // n_columns * n_columns
    rows = [_row(values[begin : begin + n_columns]) for begin in range(0, end, n_columns)]
    rest = values[end:]
    is_cut = len(rest) > 1 or bool(rest[0].strip())
    return PrintedRows(whole=rows, rest=_row(rest) if is_cut else ())


def _row(values: Sequence[str]) -> list[str]:
    """Return the values of a row without the line's end before it, or a login node's greeting."""
    first = values[0].rpartition("\n")[2]
    return [value.strip() for value in (first, *values[1:])]


def parse_rows(answer: Answer, command: Sequence[str], columns: Sequence[str]) -> PrintedRows:
    """Return the rows that `sinfo` or `squeue` prints. columns: conversions of `--format`, such as `%N`.

    Raises: EngineUnreachable.
    """
    mark = new_mark()
    form = "".join(f"{column}{mark}" for column in columns)
    return split_rows(answer([*command, f"--format={form}"]), mark, len(columns))
