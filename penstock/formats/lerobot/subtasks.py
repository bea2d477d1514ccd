"""Write the texts of style `subtask` as LeRobot 0.4 does: a number for each row, and the texts in `meta/`.

The field `subtask_index.npy` has the numbers, and the texts of its rows are theirs. If a number has two texts, or a row
a text without a number, the texts stay lines of `language_persistent`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from loader.modalities.language import ActiveText, LanguageLine

from .language import SUBTASK, subtask_lines
from .rows import I64, spans_of, value_runs

MOST_TEXTS = 2**16
"""Most rows of `meta/subtasks.parquet`: LeRobot takes a number as the row of its text."""


def texts_of_numbers(
    lines: Sequence[LanguageLine], numbers: Any, ns: I64, known: Mapping[int, str]
) -> dict[int, str] | None:
    """Return number -> text of an episode, or None if numbers and texts do not go together.

    numbers: int [rows]; negative for rows without a subtask. ns: int64 [rows]: times of the rows. known: texts of other
    episodes.
    """
    subtask = ActiveText(line for line in lines if line.style == SUBTASK and line.text is not None)
    clock = ns.tolist()
    texts: dict[int, str] = {}
    for number, start, stop in value_runs(numbers.tolist()):
        # An edited text may begin within a run of one number.
        texts_of_rows = {subtask.at(time) for time in clock[start:stop]}
        if number < 0 and texts_of_rows == {None}:
            continue
        text = texts_of_rows.pop()
        expected = texts.get(number, known.get(number, text))
        if texts_of_rows or text is None or text != expected or not 0 <= number < MOST_TEXTS:
            return None
        texts[number] = text
    return texts


def lines_beside(
    lines: Sequence[LanguageLine], numbers: Any, ns: I64, texts: Mapping[int, str]
) -> list[LanguageLine] | None:
    """Return the lines that an import does not make of numbers and texts; None if it makes others than there are."""
    # Counts take linear time: comparing each pair took 0.7 s for 8,000 lines.
    imported = Counter(subtask_lines(spans_of(numbers, texts, "subtasks"), ns))
    rest = []
    for line in lines:
        # A line with calls of tools has no hash, and an import makes none.
        if line.tool_calls is None and imported[line] > 0:
            imported[line] -= 1
        else:
            rest.append(line)
    if imported.total():
        return None
    return rest
