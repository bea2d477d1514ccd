"""Cells of a line of characters, for steps."""

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_CELLS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepScale:
    """Cells of the steps from `first` to `last`."""

    first: int
    last: int
    most_cells: int

    @property
    def n_cells(self) -> int:
        n_steps = self.last - self.first + 1
        # A line of more cells than steps would have holes.
        n_cells = min(self.most_cells, n_steps)
        return max(LEAST_CELLS, n_cells)

    def step_cell(self, step: float) -> int:
        span = max(1, self.last - self.first)
        distance = step - self.first
        cell = distance * self.n_cells // span
        # The last step is in the last cell.
        return min(int(cell), self.n_cells - 1)

    def strokes(self, steps: Sequence[int]) -> str:
        cells = [" "] * self.n_cells
        for step in steps:
            cell = self.step_cell(step)
            cells[cell] = "!"
        return "".join(cells)

    def ends(self) -> str:
        start = f"{self.first:,}"
        end = f"{self.last:,}"
        room = max(1, self.n_cells - len(end))
        return start.ljust(room) + end
