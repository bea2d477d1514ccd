"""Pages of a run in words: the run held against another, and a window of its steps."""

from collections.abc import Iterable

from textual.widget import Widget

import loader

from ...text import clean
from ..inspect.plain_text import compared_line, window_text
from ..inspect.run_comparison import RunComparison, run_comparison
from ..inspect.step_window import StepWindow, step_window
from ..samples.marks import counted
from .addresses import AgainstPlace, StepPlace, WindowPlace
from .record_screen import PlaceList, RecordScreen, heading, line, paragraph


class AgainstScreen(RecordScreen):
    """A run held against another."""

    place: AgainstPlace

    def asked(self) -> RunComparison:
        """Return the comparison."""
        root = self.data.root
        return run_comparison(root, *(loader.read_trail(root, run) for run in self._runs))

    @property
    def _runs(self) -> tuple[str, str]:
        return self.place.run, self.place.other

    def title_of(self, record: RunComparison) -> str:
        """Return the names of both."""
        return f"{record.runs[0]} against {record.runs[1]}"

    def widgets(self, record: RunComparison) -> Iterable[Widget]:
        """Yield the result, the step in both runs, and its slots that differ."""
        yield paragraph("\n".join(clean(one, 2000) for one in record.lines))
        if record.step < 0:
            return
        yield PlaceList((f"step {record.step} of {run}", self._step(record, run)) for run in self._runs)
        yield heading("Slots that differ")
        yield from (line(compared_line(one)) for one in record.slots)
        if rest := record.n_slots - len(record.slots):
            yield line(f"and {counted(rest, 'more slot')}")

    def shown(self) -> None:
        """Put the cursor into the list of steps."""
        lists = self.query(PlaceList)
        (lists.first() if lists else self.query_one("#body")).focus()

    def _step(self, record: RunComparison, run: str) -> StepPlace:
        """Return the address of the step that differs, in one of the runs."""
        return StepPlace(run=run, step=record.step, rank=record.rank, world_size=record.world_size)

    def command(self) -> str:
        """Return the verb that tells the same."""
        return self.viewer.command("trail", "against", *self._runs)


class WindowScreen(RecordScreen):
    """A window of a run's steps."""

    place: WindowPlace

    def asked(self) -> StepWindow:
        """Return the window."""
        at = self.place
        return step_window(self.data.training(at.run), at.first, at.last)

    def title_of(self, record: StepWindow) -> str:
        """Return run and steps."""
        return f"{record.training} steps {record.first} to {record.last}"

    def widgets(self, record: StepWindow) -> Iterable[Widget]:
        """Yield mixture, buckets, repeated samples and substitutes."""
        yield paragraph(window_text(record))

    def command(self) -> str:
        """Return the verb that tells the same."""
        ends = (("--from", self.place.first), ("--to", self.place.last))
        given = [word for name, step in ends if step is not None for word in (name, step)]
        return self.viewer.command("trail", "window", self.place.run, *given)
