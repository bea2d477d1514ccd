"""Pages of a run in words: the run held against another."""

from collections.abc import Iterable

from textual.widget import Widget
from textual.widgets import OptionList
from textual.widgets.option_list import Option

import loader
from penstock.card.rendering.escape import clean

from ..inspect.plain_text import compared_line
from ..inspect.runs.run_comparison import RunComparison, run_comparison
from .addresses import AgainstPlace, StepPlace
from .record_screen import RecordScreen, heading, line, paragraph


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
        yield OptionList(*(Option(f"step {record.step} of {run}") for run in record.runs), markup=False)
        yield heading("Slots that differ")
        yield from (line(compared_line(one)) for one in record.slots)

    def shown(self) -> None:
        """Put the cursor into the list of steps."""
        lists = self.query(OptionList)
        (lists.first() if lists else self.query_one("#body")).focus()

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the step that differs."""
        found = self.record
        self.viewer.open(
            StepPlace(
                run=self._runs[event.option_index],
                step=found.step,
                rank=found.rank,
                world_size=found.world_size,
            )
        )

    def command(self) -> str:
        """Return the verb that tells the same."""
        return self.viewer.command("trail", "against", *self._runs)
