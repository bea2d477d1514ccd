"""Runs that a reader lays over a run's curves: its name and theirs by colour, and the input for another one."""

from collections.abc import Sequence

from ...text import clean
from ..page_address import address
from .section import AskField, AskSection, FactsSection, Section
from .texts import (
    Text,
    TextPiece,
    link,
)

MOST_OVER = 3
"""Runs that are laid over another one."""


def over_ask(run: str, over: Sequence[str]) -> AskSection:
    """Return the input for another run to lay over. over: runs laid over it already."""
    return AskSection(
        fields=(AskField(name="over", label="lay over run", is_required=True, size=9),),
        button="Lay over",
        hint="",
        page=address("r", run),
        hidden=tuple(("over", other) for other in over),
    )


def legend(run: str, over: Sequence[str]) -> list[Section]:
    """Return the names of a run's curves by colour, if there are other runs' curves."""
    if not over:
        return []
    own = TextPiece(clean(run, 60), style="strong", colour=1)
    names: list[Text] = [own]
    for colour, other in enumerate(over, 2):
        name = TextPiece(clean(other, 60), address("r", other), colour=colour)
        comparison = link("compare", address("r", run, "against", other))
        others = [each for each in over if each != other]
        removal = link("remove", address("r", run, over=others))
        names.append((name, comparison, removal))
    return [FactsSection(tuple(names))]


def chart_addresses(over: Sequence[str]) -> tuple[str, ...]:
    """Return the addresses of the JSON of runs."""
    return tuple(address("r", f"{run}.json") for run in over)
