"""The filter and the facets of a version's page, as sections."""

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from ...text import clean
from ...units import number
from ..facets.facet_record import Facet, FacetBin, FacetValue, tells_apart
from ..facets.filter_address import filter_parameters, form_pairs
from ..facets.version_filter import MOST_ADDRESS_BYTES, VersionFilter, address_bytes
from ..inspect.version_record import VersionPageRecord
from ..page_address import address, version_address
from .section import AskField, AskSection, FacetRow, FacetSection, Histogram, NoticeSection, Section
from .texts import (
    link,
)

MOST_OPEN = 8
"""Facets with values or bins, besides the ones with a term; the others are links."""
MOST_ROWS = 60
"""Most values of a facet that a person opened."""
SOME_ROWS = 8
FEW_ROWS = 5
"""Values of a facet that has no more, and of one with more: each is a link with the whole filter."""
MOST_COLOURS = 8
"""Values of `label` with a colour of their own."""
HEIGHT = 40
"""Height of a histogram, in units of its drawing."""
_COUNTABLE = ("category", "number", "bool", "time")
_REMOVE = "\N{MULTIPLICATION SIGN}"
_QUOTED_NAME = re.compile('"(?:[^"]|"")*"')
_BOUND = re.compile(r"(>=|<=|<|=) (\S+)")
"""A comparison and its number."""


def filter_sections(record: VersionPageRecord) -> list[Section]:
    """Return a line for each part of the filter but `where`; the line's page is without that part."""
    parts = (
        ("t", "", record.terms),
        ("words", "words ", _split_list(record.words)),
        ("like", "like ", _split_list(record.like)),
        ("in", "in ", record.within),
        ("not", "not ", record.without),
    )
    sections: list[Section] = []
    for parameter, word, values in parts:
        for value in values:
            rest = tuple(other for other in values if other != value)
            query = filter_query(record, **{parameter: rest})
            text = f"{_REMOVE} {word}{clean(value, 200)}"
            sections.append(NoticeSection(link(text, _version_page(record) + query)))
    return sections


def _split_list(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    return (text,)


def _version_page(record: VersionPageRecord) -> str:
    return version_address(f"{record.dataset}@{record.number}")


def link_filter(record: VersionPageRecord) -> VersionFilter:
    """Return the filter that the page's links repeat: a refused part that is too long for them is left out."""
    written = record.address
    return replace(
        written,
        where=_repeat_value(written.where),
        words=_repeat_value(written.words),
        like=_repeat_value(written.like),
        sort=_repeat_value(written.sort),
    )


def _repeat_value(text: str) -> str:
    if address_bytes(text) > MOST_ADDRESS_BYTES:
        return ""
    return text


def _layout(record: VersionPageRecord) -> dict[str, str]:
    layout = ""
    if record.layout == "table":
        layout = "table"
    return {
        "box": record.box,
        "cols": ",".join(record.columns),
        "as": layout,
    }


def filter_query(record: VersionPageRecord, **changes: object) -> str:
    """Return the query of the page with these parameters of its filter changed; "?" for the whole version."""
    parameters = {**filter_parameters(link_filter(record)), **_layout(record)}
    return address("", **{**parameters, **changes}) or "?"


def form_parameters(record: VersionPageRecord) -> list[tuple[str, str]]:
    """Return the (name, value) pairs that the filter's form sends along: all but its boxes."""
    rest = replace(
        link_filter(record),
        where="",
        words="",
        sort="",
    )
    return [*form_pairs(rest), *((name, value) for name, value in _layout(record).items() if value)]


def facet_sections(
    record: VersionPageRecord,
    opened: Collection[str],
    *,
    stays_open: bool = False,
) -> list[FacetSection]:
    """Return the facets. opened: columns of which a person wants all. stays_open: a row's page opens its facet, too."""
    sections = []
    n_open = 0
    for facet in record.facets:
        is_opened = facet.column in opened
        has_content = bool(facet.terms) or tells_apart(facet)
        is_in_sight = is_opened or bool(facet.terms) or n_open < MOST_OPEN
        is_open = facet.is_counted and has_content and is_in_sight
        n_open += is_open
        n_rows = 0
        if is_open and is_opened:
            n_rows = MOST_ROWS
        elif is_open:
            n_rows = SOME_ROWS
        section = _facet(
            record,
            facet,
            n_rows,
            stays_open=is_opened or stays_open,
        )
        sections.append(section)
    # A person looks for the facets that were asked for.
    return sorted(sections, key=lambda section: section.column not in opened)


def _facet(
    record: VersionPageRecord,
    facet: Facet,
    n_rows: int,
    *,
    stays_open: bool,
) -> FacetSection:
    # A facet counts all terms but its own, and a click keeps the others.
    others = tuple(term for term in record.terms if term not in facet.terms)
    is_whole = n_rows == MOST_ROWS
    bounds = None
    histogram = None
    if n_rows and facet.bins:
        histogram = _histogram(record, facet, others)
        if is_whole and histogram.edges:
            bounds = _bounds_form(record, facet, others)
    shown = _visible_parts(facet, is_whole)
    if len(shown) > n_rows and not is_whole:
        n_rows = min(n_rows, FEW_ROWS)
    changes: dict[str, object] = {}
    if stays_open:
        changes["facet"] = facet.column
    colours = label_colours(record)
    rows = []
    for part in shown[:n_rows]:
        is_on = part.where in facet.terms
        terms = others
        if not is_on:
            terms = (*others, part.where)
        label = _label(part)
        colour = 0
        if facet.column == "label":
            colour = colours.get(label, 0)
        row = FacetRow(
            label=label,
            n=part.n,
            all=part.all,
            query=filter_query(record, t=terms, **changes),
            is_on=is_on,
            colour=colour,
        )
        rows.append(row)
    n_more = 0
    if n_rows:
        n_more = len(shown) - len(rows)
    return FacetSection(
        column=facet.column,
        note=facet_note(facet),
        version=_version_page(record),
        query=filter_query(record, facet=facet.column),
        is_open=n_rows > 0,
        is_countable=facet.kind in _COUNTABLE,
        histogram=histogram,
        rows=tuple(rows),
        largest=max([1, *(part.all for part in shown)]),
        n_more=n_more,
        is_whole=is_whole,
        bounds=bounds,
    )


def _visible_parts(facet: Facet, is_whole: bool) -> list[FacetValue | FacetBin]:
    """Return the values, and the bins of a facet that a person opened: a histogram stands for the bins of others."""
    parts: list[FacetValue | FacetBin] = list(facet.values)
    if is_whole or facet.kind == "time":
        parts += facet.bins
    return [part for part in parts if part.all or part.where in facet.terms]


def label_colours(record: VersionPageRecord) -> dict[str, int]:
    """Return label -> number of its colour, from 1; the most frequent labels have one."""
    for facet in record.facets:
        if facet.column == "label" and facet.kind == "category":
            labels = [str(value.value) for value in facet.values if value.value is not None]
            return {label: position + 1 for position, label in enumerate(labels[:MOST_COLOURS])}
    return {}


def _label(part: FacetValue | FacetBin) -> str:
    if isinstance(part, FacetBin):
        return _range(part)
    if part.value is None:
        return "without"
    text = str(part.value)
    if not text.strip():
        # An empty text, and blanks, would be no name.
        return repr(text[:80])
    return clean(text, 80)


def _range(part: FacetBin) -> str:
    low = part.low
    high = part.high
    if isinstance(low, str) or isinstance(high, str):
        return clean(low, 30)
    if low == high:
        return number(low)
    return f"{number(low)} to {number(high)}"


def _histogram(record: VersionPageRecord, facet: Facet, others: Sequence[str]) -> Histogram:
    bins = facet.bins
    all_counts = [part.all for part in bins]
    found_counts = [part.n for part in bins]
    tallest = max(all_counts) or 1
    edges = ""
    if not isinstance(bins[0].low, str):
        # Not JSON: HTML writes each quote as six characters. A bin ends where the next one begins.
        ends = [*(part.low for part in bins), bins[-1].high]
        edges = " ".join(map(str, ends))
    return Histogram(
        counts=tuple(found_counts),
        all_path=_path(all_counts, tallest),
        found_path=_path(found_counts, tallest),
        low=_end(facet.low),
        high=_end(facet.high),
        edges=edges,
        rest=filter_query(record, t=others),
        chosen=_choose_bins(facet.terms, bins),
    )


def _end(value: float | str | None) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return clean(value, 30)
    return number(value)


def _path(counts: Sequence[int], tallest: int) -> str:
    """Return a vertical line for each bin, one unit apart; a bin with a sample is at least one unit high."""
    bars = []
    for position, n in enumerate(counts):
        if not n:
            continue
        height = max(1, round((HEIGHT - 1) * n / tallest))
        bars.append(f"M{position} {HEIGHT}v-{height}")
    return "".join(bars)


def _choose_bins(terms: Sequence[str], bins: Sequence[FacetBin]) -> tuple[int, int] | None:
    """Return the bins between the bounds that a term names, as this page writes terms."""
    if not terms:
        return None
    text = " ".join(terms)
    without_names = _QUOTED_NAME.sub("", text)
    bounds = set(_BOUND.findall(without_names))
    inside = []
    for position, part in enumerate(bins):
        if bounds & _bounds(part):
            inside.append(position)
    if not inside:
        return None
    return inside[0], inside[-1] + 1


def _bounds(part: FacetBin) -> set[tuple[str, str]]:
    """Return the comparisons of terms that begin or end with a bin."""
    low = str(part.low)
    high = str(part.high)
    return {
        (">=", low),
        ("=", low),
        ("<", high),
        ("<=", high),
    }


def _bounds_form(record: VersionPageRecord, facet: Facet, others: Sequence[str]) -> AskSection:
    present = {"low": facet.low, "high": facet.high}
    for sign, bound in _BOUND.findall(_QUOTED_NAME.sub("", " ".join(facet.terms))):
        if sign in (">=", "="):
            present["low"] = bound
        if sign in ("<", "<=", "="):
            present["high"] = bound
    fields = [
        AskField(
            name=name,
            label=label,
            is_required=True,
            value=str(present[name]),
            size=8,
        )
        for name, label in (("low", "from"), ("high", "to"))
    ]
    rest = replace(link_filter(record), terms=tuple(others))
    hidden = (
        *form_pairs(rest),
        *((name, value) for name, value in _layout(record).items() if value),
        ("range", facet.column),
        ("facet", facet.column),
    )
    return AskSection(
        fields=tuple(fields),
        button="Show",
        hint="",
        page=_version_page(record),
        hidden=hidden,
    )


def facet_note(facet: Facet) -> str:
    """Return the words beside a facet's name."""
    if facet.kind == "identifier":
        return "identifier"
    if facet.bins and facet.scale == "log":
        return "log"
    if facet.bins or not facet.n_values:
        return ""
    noun = "values"
    if facet.n_values == 1:
        noun = "value"
    return f"{number(facet.n_values)} {noun}"
