"""Addresses of the viewer's pages, as on the web."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, unquote

from ..facets.filter_address import parse_filter
from ..facets.version_filter import VersionFilter


@dataclass(frozen=True, slots=True, kw_only=True)
class PageAddress:
    """An address of a page."""

    @property
    def parent(self) -> "PageAddress | None":
        """One level up; or None."""
        return RootPage()


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPage(PageAddress):
    """The first page: training runs and datasets."""

    @property
    def parent(self) -> PageAddress | None:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPage(PageAddress):
    """A training run."""

    run: str
    """Run name or plan hash."""
    unusual: int = 0
    """Index of the first unusual step listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfRun(PageAddress):
    """A page below a training run's."""

    run: str
    """Run name or plan hash."""

    @property
    def parent(self) -> PageAddress | None:
        return RunPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPage(PageOfRun):
    """Two training runs."""

    other: str
    """Second run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionsPage(PageOfRun):
    """Decisions of an online run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPage(PageOfRun):
    """A decision of an online run."""

    step: int
    """Any step that it decides."""

    @property
    def parent(self) -> PageAddress | None:
        return DecisionsPage(run=self.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRangePage(PageOfRun):
    """Consecutive steps of a training run."""

    first: int | None = None
    """First step; None for the last 100."""
    last: int | None = None
    """Last step, included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPage(PageOfRun):
    """A rank's part of a step."""

    step: int
    """Global step."""
    rank: int | None = None
    """Data-parallel; None for a recorded one."""
    world_size: int | None = None
    """Ranks; None for the recorded number."""
    slot: int | None = None
    """Under the cursor; None for the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPage(PageAddress):
    """One slot of a step."""

    step: StepPage
    """The page that opened it."""
    slot: int
    """Global slot."""
    explain: bool = False
    """Open its provenance first."""
    search_from: str | None = None
    """First unopened run to search; None searches open ones."""

    @property
    def parent(self) -> PageAddress | None:
        return replace(self.step, slot=self.slot)


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPage(PageAddress):
    """A page of a version's samples."""

    dataset: str
    """Dataset name."""
    number: int
    filter: VersionFilter = field(default_factory=VersionFilter)
    """Filter and order of the samples."""
    first: int = 0
    """Index of the first sample among the matches."""
    facet: str = ""
    """Column whose facet shows all of its values and has the cursor; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplePage(PageAddress):
    """A sample of a version."""

    version: VersionPage
    """The page that opened it."""
    ordinal: int
    """Index in the version."""
    search_from: str | None = None
    """See `SlotPage`."""

    @property
    def parent(self) -> PageAddress | None:
        return self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class DifferencePage(PageAddress):
    """Two versions of a dataset."""

    dataset: str
    """Dataset name."""
    number: int
    """First version's number."""
    other: int
    """Second version's number."""

    @property
    def parent(self) -> PageAddress | None:
        return VersionPage(dataset=self.dataset, number=self.other)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOfVersion(PageAddress):
    """A page below a version's."""

    dataset: str
    """Dataset name."""
    number: int

    @property
    def parent(self) -> PageAddress | None:
        return VersionPage(dataset=self.dataset, number=self.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsPage(PageOfVersion):
    """A version's columns, groups and annotations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineagePage(PageOfVersion):
    """A version's lineage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPage(PageAddress):
    """Cost of all datasets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsPage(PageOfVersion):
    """A version's near-duplicates and clusters."""

    cosine: str = ""
    """Least cosine of near-duplicates, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesPage(PageAddress):
    """All slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicePage(PageAddress):
    """One slice."""

    dataset: str
    """Dataset name."""
    name: str

    @property
    def parent(self) -> PageAddress | None:
        return SlicesPage()


def parse_page(address: str) -> PageAddress | None:
    """Return the page of an address relative to the first page, such as `v/photos/7?in=cups`; None for other pages."""
    path, _, query = address.partition("#")[0].partition("?")
    parameters = parse_qs(query)
    match [unquote(part) for part in path.split("/")]:
        case [""]:
            return RootPage()
        case ["cost"]:
            return CostPage()
        case ["slices"]:
            return SlicesPage()
        case ["slices", dataset, name]:
            return SlicePage(dataset=dataset, name=name)
        case ["r", run, *rest]:
            return _page_of_run(run, rest, parameters)
        case ["v", dataset, number, *rest] if number.isdecimal():
            return _page_of_version(dataset, int(number), rest, parameters)
    return None


def _page_of_run(
    run: str, rest: Sequence[str], parameters: Mapping[str, Sequence[str]]
) -> PageAddress | None:
    match rest:
        case []:
            return RunPage(run=run, unusual=_number(parameters, "unusual") or 0)
        case ["against", other]:
            return ComparisonPage(run=run, other=other)
        case ["decisions"]:
            return DecisionsPage(run=run)
        case [step, "decision"] if step.isdecimal():
            return DecisionPage(run=run, step=int(step))
        case ["window"]:
            return StepRangePage(run=run, first=_number(parameters, "from"), last=_number(parameters, "to"))
        case [step, *slot] if step.isdecimal():
            rank = _number(parameters, "rank")
            world_size = _number(parameters, "world")
            page = StepPage(run=run, step=int(step), rank=rank, world_size=world_size)
            if not slot:
                return page
            if len(slot) == 1 and slot[0].isdecimal():
                search_from = _word(parameters, "trainings") or None
                return SlotPage(step=page, slot=int(slot[0]), search_from=search_from)
    return None


def _page_of_version(
    dataset: str, number: int, rest: Sequence[str], parameters: Mapping[str, Sequence[str]]
) -> PageAddress | None:
    def values(name: str) -> Sequence[str]:
        return parameters.get(name, ())

    page = VersionPage(
        dataset=dataset,
        number=number,
        filter=parse_filter(values),
        first=_number(parameters, "from") or 0,
        facet=_word(parameters, "facet"),
    )
    match rest:
        case []:
            return page
        case ["s", ordinal] if ordinal.isdecimal():
            search_from = _word(parameters, "trainings") or None
            return SamplePage(version=page, ordinal=int(ordinal), search_from=search_from)
        case ["columns"]:
            return ContentsPage(dataset=dataset, number=number)
        case ["lineage"]:
            return LineagePage(dataset=dataset, number=number)
        case ["groups"]:
            return GroupsPage(dataset=dataset, number=number, cosine=_word(parameters, "cosine"))
        case ["diff", other] if other.isdecimal():
            return DifferencePage(dataset=dataset, number=number, other=int(other))
    return None


def _word(parameters: Mapping[str, Sequence[str]], name: str) -> str:
    values = parameters.get(name, ("",))
    return values[0]


def _number(parameters: Mapping[str, Sequence[str]], name: str) -> int | None:
    word = _word(parameters, name)
    if word.isdecimal():
        return int(word)
    return None
