"""Sections of pages. A page makes them once from its record; HTML, terminal and plain text draw each kind once.

Texts are plain. A link names its page by the address relative to the first page, such as `v/photos/7?in=cups`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from ..rollouts.decision_lines import DecisionLines
from ..rollouts.decisions import DecisionRow
from .texts import (
    KeyLink,
    Text,
    TextPiece,
    Tone,
)
from .values import (
    AlikeSection,
    DocumentsSection,
    FieldsSection,
    MarksSection,
    ProofsSection,
    RawSection,
    SlotsSection,
)


@dataclass(frozen=True, slots=True)
class NoticeSection:
    """A sentence."""

    text: Text
    tone: Tone = ""
    kind = "notice"


@dataclass(frozen=True, slots=True)
class FactsSection:
    """Facts in one line."""

    facts: tuple[Text, ...]
    kind = "facts"


@dataclass(frozen=True, slots=True)
class LinksSection:
    """Many links, of which a page first shows some."""

    links: tuple[TextPiece, ...]
    title: Text = ""
    tone: Tone = ""
    n_more: int = 0
    """Links that the page does not have."""
    most: int = 20
    """Links shown at once."""
    kind = "links"


@dataclass(frozen=True, slots=True)
class TableColumn:
    name: str
    is_number: bool = False
    """True for numbers, aligned to the right."""
    has_links: bool = False
    """True for several links, each large enough for a finger."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSection:
    """Rows of cells. The first link of a row is the page that the row opens."""

    rows: tuple[tuple[Text, ...], ...]
    columns: tuple[TableColumn, ...] = ()
    """Header; without one, the first cell of a row names it."""
    n_more: int = 0
    """Rows that the page does not have."""
    is_walked: bool = False
    """True if arrow keys go through its links."""
    style: str = ""
    """Class of the first page's table, or ""."""
    kind = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxSection:
    """Sections under a heading."""

    title: Text
    sections: "tuple[Section, ...]"
    anchor: str = ""
    """Name of the place in the page, or ""."""
    is_card: bool = False
    """True for a box with a border."""
    kind = "box"


@dataclass(frozen=True, slots=True)
class LinesSection:
    """Lines of equally wide characters."""

    lines: tuple[str, ...]
    kind = "lines"


@dataclass(frozen=True, slots=True)
class ColumnsSection:
    """Sections side by side, if there is room."""

    sections: "tuple[Section, ...]"
    kind = "columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldSection:
    """Sections that a reader opens."""

    title: Text
    sections: "tuple[Section, ...]"
    is_open: bool = False
    anchor: str = ""
    """Name of the place in the page, or ""."""
    stage: str = ""
    """Stage of a sample that it shows, or ""."""
    kind = "fold"


@dataclass(frozen=True, slots=True)
class Tile:
    """A number in large type."""

    name: str
    value: str
    note: str
    tone: Tone = ""


@dataclass(frozen=True, slots=True)
class TilesSection:
    """The numbers to read first."""

    tiles: tuple[Tile, ...]
    kind = "tiles"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvesSection:
    """Metrics by step: every step, and a running median. A browser draws them from the page's JSON, and follows it."""

    note: str
    """Explanation for a browser."""
    chart: Mapping[str, Sequence[float | None]]
    """`step`, and metrics -> a value a step; None if missing."""
    struck: Sequence[int]
    """Unusual steps, ascending."""
    panels: tuple[str, ...]
    """Metrics that are drawn."""
    main: str
    """Metric that a reader looks for; "" without one."""
    restarts: tuple[int, ...]
    """First steps of the starts after the first one."""
    checkpoints: tuple[int, ...]
    """Steps of checkpoints."""
    has_events: bool
    """True if there is a restart, a substitution or a checkpoint."""
    steps: str
    """Address of a step without its number."""
    over: tuple[str, ...] = ()
    """Addresses of the JSON of runs to lay over, in the order of their colours."""
    kind = "curves"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskField:
    """An input."""

    name: str
    label: str
    is_number: bool = False
    """True for a whole number."""
    is_required: bool = False
    value: str = ""
    size: int = 6
    """Width in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSection:
    """Inputs for another page. A terminal has a key instead, or nothing."""

    fields: tuple[AskField, ...]
    button: str
    hint: str
    """Key of a terminal, and what it does; "" without one."""
    page: str
    """Address that gets the inputs."""
    anchor: str = ""
    """Name for the page's script."""
    hidden: tuple[tuple[str, str], ...] = ()
    """(name, value) that go with the inputs."""
    kind = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionsSection:
    """Trained and withheld rollouts by step."""

    lines: DecisionLines
    rows: Sequence[DecisionRow]
    """Decisions, by step."""
    steps: str
    """Address of a step without its number."""
    kind = "decisions"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRow:
    """A condition that needs a person."""

    name: str
    tone: Tone
    subject: TextPiece
    text: str
    remedy: str
    """Address of what to do."""


@dataclass(frozen=True, slots=True)
class AttentionSection:
    """Conditions that need a person, the worst first."""

    rows: tuple[AttentionRow, ...]
    kind = "attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetTile:
    """A dataset."""

    name: str
    """Newest version; of a dataset without one the dataset."""
    page: str | None
    """None without a version."""
    state: TextPiece | None
    n_samples: str
    facts: str
    growth: str
    """Points of an SVG polyline; "" for one version."""
    growth_label: str
    problems: tuple[str, ...]
    """Why it has no version, or it cannot be read."""
    cost: str = ""
    """Its cost in one line; "" if unknown."""


@dataclass(frozen=True, slots=True)
class DatasetsSection:
    """Datasets, with their growth and some images."""

    tiles: tuple[DatasetTile, ...]
    kind = "datasets"


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetRow:
    """A value or a bin of a column."""

    label: str
    n: int
    """Samples that it finds."""
    all: int
    """Samples without any filter."""
    query: str
    """Query of the version's page with its term, or without it if the filter has it."""
    is_on: bool
    """True if the filter has its term."""
    colour: int
    """Number of the category whose dot stands before it; 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Bins of a column, as bars one unit wide."""

    counts: tuple[int, ...]
    """Samples of each bin that the filter finds."""
    all_path: str
    """SVG path of the bins without any filter."""
    found_path: str
    """SVG path of the bins with the filter."""
    low: str
    high: str
    edges: str
    """Ends of the bins, one more than there are bins, separated by blanks; "" for times."""
    rest: str
    """Query of the version's page without the column's terms."""
    chosen: tuple[int, int] | None
    """First bin that the filter's term takes, and the end; None without a term over bins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FacetSection:
    """Values or bins of a column."""

    column: str
    note: str
    version: str
    """Address of the version's page."""
    query: str
    """Query of that page with all of the column's values or bins."""
    is_open: bool
    """True if the page draws its values or bins."""
    is_countable: bool
    """True for a kind of column that has values or bins."""
    histogram: Histogram | None
    """None without bins."""
    rows: tuple[FacetRow, ...]
    largest: int
    """Samples of the row with the most, without any filter; at least 1."""
    n_more: int
    """Values that are not shown."""
    is_whole: bool
    """True if the page shows as many values as it can."""
    bounds: AskSection | None
    """Inputs for a range of numbers; None unless a person opened the facet."""
    kind = "facet"


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceAction:
    """A change of a slice by a person."""

    label: str
    path: str
    """Path of the request, `slice/exclude` or `slice/remove`."""
    version: str
    """Version with the slice, such as `photos@8`."""
    name: str
    """Slice in its dataset."""
    text: str
    """Consequence, for the person who confirms it."""
    command: tuple[str, ...]
    """Words of the equal `penstock` command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionsSection:
    """Buttons that change a root. A server that only reads, and a terminal, have the commands instead."""

    actions: tuple[SliceAction, ...]
    kind = "actions"


Section: TypeAlias = (
    NoticeSection
    | FactsSection
    | LinksSection
    | TableSection
    | BoxSection
    | FoldSection
    | TilesSection
    | CurvesSection
    | AskSection
    | ActionsSection
    | DecisionsSection
    | LinesSection
    | FacetSection
    | ColumnsSection
    | AttentionSection
    | DatasetsSection
    | MarksSection
    | ProofsSection
    | SlotsSection
    | FieldsSection
    | DocumentsSection
    | AlikeSection
    | RawSection
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionPage:
    """A page as sections."""

    title: Text
    """Heading."""
    facts: tuple[Text, ...] = ()
    """Facts beside the heading."""
    actions: tuple[AskSection, ...] = ()
    """Inputs beside the heading."""
    caption: str
    """Heading and facts in one line, for the first line of a terminal."""
    location: tuple[TextPiece, ...]
    """Names of the pages above and of this one."""
    tabs: tuple[TextPiece, ...] = ()
    """Pages about the same thing; this one is strong."""
    notices: tuple[Section, ...] = ()
    """Messages above everything."""
    top: tuple[Section, ...] = ()
    """Sections across the page."""
    sections: tuple[Section, ...]
    side: tuple[Section, ...] = ()
    """Sections beside the others."""
    folds: tuple[FoldSection, ...] = ()
    """Details that few readers need, below the others."""
    parent: str = ""
    """Address of the page above."""
    run: str = ""
    """Run whose step the key `g` opens."""
    keys: tuple[KeyLink, ...] = ()
    command: tuple[object, ...] = ()
    """Words of the equal `penstock` command."""
    names: tuple[str, ...] = ()
    """Names after the command's words, such as keys of samples."""
    sample: tuple[str, str] | None = None
    """(version, key) of the sample that the page shows; None for other pages."""
    like: str = ""
    """Address of the samples most similar to it, or ""."""
    key_help: tuple[tuple[str, str], ...] = ()
    """(keys, meaning), besides the keys of all pages."""
    layout: Literal["", "board", "run", "step", "sample", "episode", "rollout"] = ""
    styles: tuple[str, ...] = ()
    """Style sheets besides the ones of all pages."""
    scripts: tuple[str, ...] = ()
    """Scripts besides the ones of all pages."""


def columns(*names: str, numbers: Iterable[str] = (), links: Iterable[str] = ()) -> tuple[TableColumn, ...]:
    """Return a header. numbers: names of columns aligned to the right. links: names of those with several links."""
    aligned = set(numbers)
    linked = set(links)
    header = []
    for name in names:
        is_number = name in aligned
        has_links = name in linked
        header.append(TableColumn(name, is_number, has_links))
    return tuple(header)
