"""A card in Markdown and HTML: headings, bars, table rows, and the templates of all pages.

Every expression of a template is cleaned and escaped as text; only a template's own output is `Markup`. Quote every
attribute that contains an expression. In Markdown, `~` and `join` would escape for HTML: place macros and text side by
side.
"""

import base64
import html
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from loader.errors import MissingDependency

from ..text import clean, html_text, markdown_text, terminal_text
from ..units import length, minute, number, share, size
from .tally import Counts
from .value import Card, CardColumn, CardKind, front_matter

if TYPE_CHECKING:
    from jinja2 import Environment
    from jinja2.runtime import Context

OWN = Path(__file__).parent / "rendering"
SHEETS = Path(__file__).parents[1] / "view" / "web" / "static"
"""Folder of `tokens.css`, which a page in one file includes."""
_ESCAPES = {"html": html_text, "md": markdown_text}
_DECLARING = ("e", "escape", "forceescape", "safe", "tojson", "urlize", "xmlattr")
"""Removed filters, whose results would count as escaped."""


@cache
def templates(folder: Path = OWN) -> "Environment":
    """Return the environment of a folder's `<name>.html.j2` and `<name>.md.j2`, which may include this package's.

    Additional filters: `base64`, `clean(longest)`, `number`, `share(whole)`, `size` (of bytes), `minute` (of UTC
    microseconds), `fenced` (inside a Markdown fence), `line` (keeps blanks), `percent` (for decodeURIComponent).
    Undefined names raise. Raises: MissingDependency.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
        from markupsafe import Markup
    except ImportError as error:
        raise MissingDependency(
            f"a dataset card needs the package {error.name!r}, which is not installed: "
            "pip install 'penstock-data[card]'"
        ) from error

    @pass_context
    def escape_value(context: "Context", value: Any) -> Markup:
        if isinstance(value, Markup):
            return value
        # A template is called "card.html.j2" or "card.md.j2".
        language = str(context.name).split(".")[-2]
        return Markup(_ESCAPES[language](value))

    environment = Environment(
        loader=FileSystemLoader([folder, OWN, SHEETS]),
        autoescape=True,  # macros and blocks are Markup; everything else passes through `escape_value`
        finalize=escape_value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in _DECLARING:
        del environment.filters[name]
    environment.filters |= {
        "base64": lambda data: Markup(base64.b64encode(data).decode()),  # megabytes of harmless characters
        "clean": clean,
        "line": lambda text: Markup(html.escape(terminal_text(str(text).replace("\n", " ")))),
        "percent": lambda text: Markup(quote(str(text), safe="")),
        "fenced": lambda text: Markup(clean(text)),  # one line cannot end a fence
        "number": number,
        "share": share,
        "size": size,
        "minute": minute,
    }
    return environment


_OUTCOMES = {
    "landed": "objects landed",
    "used": "used",
    "rejected": "rejected: damaged",
    "not_supported": "of a format that is not supported",
    "not_media": "not media",
    "dropped": "dropped: healthy, but not used",
}
MANY = 8
"""Most distinct values listed of a column whose values are mostly unique."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A distribution."""

    title: str
    """Heading."""
    rows: tuple[tuple[str, int, bool], ...]
    """(name, samples, whether the name is known)."""
    total: int
    """Samples of all rows."""
    note: str = ""
    """Text below the bars, or ""."""

    @property
    def most(self) -> int:
        """Samples of the longest bar, at least 1."""
        return max([n for _, n, _ in self.rows], default=0) or 1


def template_values(card: Card) -> dict[str, Any]:
    """Return the values of the page templates."""
    examples_of_kinds = []
    for kind in card.kinds:
        examples = [example for example in card.examples if example.kind == kind.name]
        if examples:
            examples_of_kinds.append((kind, examples))
    coverage_note = ""
    if card.excluded_samples:
        coverage_note = "Bytes and coverage include samples that the version leaves out."
    return {
        "card": card,
        "headline": headline(card),
        "summary": summary(card),
        "kind_rows": kind_rows(card),
        "distributions": list(distributions(card)),
        "examples_of_kinds": examples_of_kinds,
        "group_rows": group_rows(card),
        "coverage_note": coverage_note,
        "column_rows": [[column.name, column.type, *column_words(column)] for column in card.columns],
        "provenance_rows": provenance_rows(card),
        "making_rows": making_rows(card),
        "object_rows": object_rows(card),
        "excluded_rows": exclusion_counts(card),
    }


def headline(card: Card) -> list[tuple[str, str]]:
    """Return (name, amount) of the tiles at the top."""
    tiles = [("samples", f"{card.samples:,}")]
    if card.raw_objects is not None:
        tiles.append(("raw objects", f"{card.raw_objects:,}"))
    for modality in ("video", "audio"):
        hours = card.hours(modality)
        if hours is not None:
            tiles.append((modality, length(hours * 3600)))
    if card.sound_hours:
        tiles.append(("audio with video", length(card.sound_hours * 3600)))
    tiles.append(("in shards", size(card.nbytes)))
    if card.excluded_samples:
        tiles.append(("left out", f"{card.excluded_samples:,}"))
    return tiles


def summary(card: Card) -> str:
    """Return a sentence: the samples by kind and by split."""
    by_kind = [f"{kind.samples:,} {kind.name}" for kind in card.kinds]
    by_split = [f"{n:,} {name}" for name, n in card.splits.items()]
    kinds = ", ".join(by_kind)
    splits = ", ".join(by_split)
    return f"{card.samples:,} samples ({kinds}), in splits: {splits}."


def distributions(card: Card) -> Iterator[Bars]:
    """Yield all distributions with a value."""
    if card.licences.known or not card.licences.complete:
        yield _of_counts("Licences", card.licences, card.samples)
    for kind in card.kinds:
        yield from _of_kind(kind)


def _of_kind(kind: CardKind) -> Iterator[Bars]:
    """Yield a kind's distributions: labels, languages, resolution, aspect, length."""
    n = kind.samples
    if kind.labels.known:
        yield _of_counts(f"Labels of {kind.name} samples", kind.labels, n)
    if kind.languages.known:
        yield _of_counts(f"Languages of {kind.name} samples", kind.languages, n)
    if kind.short_sides:
        commonest = ", ".join(f"{name} ({count:,})" for name, count in kind.sizes.counts[:3])
        note = ""
        if commonest:
            note = f"Commonest sizes in px: {commonest}."
        yield _of_classes(f"Resolution of {kind.name} samples, shorter side in px", kind.short_sides, n, note)
    if kind.aspects:
        note = "Width to height, the nearest of the usual ratios."
        yield _of_classes(f"Aspect of {kind.name} samples", kind.aspects, n, note)
    if kind.duration_s is not None:
        durations = kind.duration_s
        note = (
            f"{length(durations.minimum)} to {length(durations.maximum)}, median {length(durations.p50)}, "
            f"together {length(durations.total)}."
        )
        yield _of_classes(f"Length of {kind.name} samples", kind.durations, n, note)


def _of_counts(title: str, counts: Counts, total: int) -> Bars:
    """Return bars of names; those not listed share one. total: all samples, also nameless ones."""
    rows = counts.counts
    if counts.n_others:
        rows = (*rows, (f"{counts.n_others:,} others", counts.others))
    note = ""
    if not counts.complete:
        note = f"{counts.known:,} samples have too many different values to list."
    return _bars(title, rows, counts.unknown, total, note)


def _of_classes(title: str, classes: Mapping[str, int], total: int, note: str) -> Bars:
    """Return bars of classes in their natural order. total: all samples, also unclassified ones."""
    known = sum(classes.values())
    return _bars(title, tuple(classes.items()), total - known, total, note)


def _bars(title: str, known: tuple[tuple[str, int], ...], unknown: int, total: int, note: str) -> Bars:
    """Return bars. known: (name, samples). unknown: samples without a name, the last bar."""
    rows = tuple((name, n, True) for name, n in known)
    if unknown:
        rows = (*rows, ("(unknown)", unknown, False))
    return Bars(title=title, rows=rows, total=total, note=note)


def column_words(column: CardColumn) -> tuple[str, str]:
    """Return (samples with a value, description of the values)."""
    if column.numbers is not None:
        numbers = column.numbers
        spread = f"{number(numbers.minimum)} to {number(numbers.maximum)}"
        if numbers.minimum == numbers.maximum:
            return f"{numbers.known:,}", f"always {number(numbers.minimum)}"
        return (
            f"{numbers.known:,}",
            f"{spread}, mean {number(numbers.mean)}, median {number(numbers.p50, 3)}",
        )
    if column.counts is not None:
        counts = column.counts
        if not counts.complete:
            return f"{counts.known:,}", "too many different values to list"
        distinct = len(counts.counts) + counts.n_others
        if distinct > MANY and 2 * distinct > counts.known:
            return f"{counts.known:,}", f"{distinct:,} different values"
        return f"{counts.known:,}", _first_names(counts, 4)
    return "", column.note


def _first_names(counts: Counts, most: int) -> str:
    """Return the `most` commonest names with their samples, and the number of other names."""
    names = [f"{name or '(empty)'} ({n:,})" for name, n in counts.counts[:most]]
    text = ", ".join(names)
    n_others = len(counts.counts) - len(names) + counts.n_others
    if n_others:
        text += f" and {n_others:,} others"
    return text


def kind_rows(card: Card) -> tuple[list[str], list[list[str]]]:
    """Return (header, one row per kind with one column per split)."""
    splits = list(card.splits)
    header = ["kind", *splits, "samples", "share", "raw objects", "length"]
    rows = []
    for kind in card.kinds:
        cells = [_of_split(kind, name) for name in splits]
        together = ""
        if kind.seconds:
            together = length(sum(kind.seconds.values()))
        objects = "unknown"
        if kind.raw_objects is not None:
            objects = f"{kind.raw_objects:,}"
        rows.append(
            [kind.name, *cells, f"{kind.samples:,}", share(kind.samples, card.samples), objects, together]
        )
    if len(card.kinds) > 1:
        objects = "unknown"
        if card.raw_objects is not None:
            objects = f"{card.raw_objects:,}"
        totals = [f"{n:,}" for n in card.splits.values()]
        rows.append(["all", *totals, f"{card.samples:,}", "100 %", objects, ""])
    return header, rows


def _of_split(kind: CardKind, name: str) -> str:
    """Return the cell of a kind and a split: its samples, and their duration if it is known."""
    n = kind.splits.get(name, 0)
    cell = f"{n:,}"
    seconds = kind.seconds.get(name)
    if seconds:
        cell += f" ({length(seconds)})"
    return cell


def group_rows(card: Card) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows). Bytes and rows include excluded samples."""
    header = ["group", "fields", "of", "samples", "coverage", "bytes", "share"]
    all_rows = card.samples + card.excluded_samples
    rows = []
    for group in card.groups:
        fields = [f"{name} ({size(n)})" for name, n in group.fields.items()]
        row = [
            group.name,
            ", ".join(fields),
            ", ".join(group.modalities),
            f"{group.rows:,}",
            share(group.rows, all_rows),
            size(group.nbytes),
            share(group.nbytes, card.nbytes),
        ]
        rows.append(row)
    return header, rows


def exclusion_counts(card: Card) -> list[tuple[str, str]]:
    """Return (reason, excluded samples)."""
    rows = [(reason, f"{n:,}") for reason, n in card.excluded.counts]
    if card.excluded.n_others:
        rows.append((f"{card.excluded.n_others:,} other reasons", f"{card.excluded.others:,}"))
    return rows


def object_rows(card: Card) -> list[tuple[str, str]]:
    """Return (outcome, raw objects)."""
    counts = card.history.counts
    rows = []
    for name, text in _OUTCOMES.items():
        if name in counts:
            rows.append((text, f"{counts[name]:,}"))
    for outcome, stage, code, n in card.history.refused:
        rows.append((f"{outcome} at {stage}: {code}", f"{n:,}"))
    return rows


def provenance_rows(card: Card) -> list[tuple[str, str]]:
    """Return (name, value) of the version's origin."""
    history = card.history
    rows = [
        ("version", card.id),
        ("parent", card.parent or "none: the first version"),
        ("created", card.created),
    ]
    for name, value in history.run.items():
        rows.append((name.replace("_", " "), value))
    if history.batches:
        rows.append(("batches", f"{history.batches:,} in {history.versions:,} versions"))
    for name, n in card.sources.counts:
        rows.append(("source", f"{name} ({n:,} samples)"))
    if card.folders.counts:
        rows.append(("folders", _first_names(card.folders, 12)))
    if card.subjects is not None:
        rows.append(("subjects", f"{card.subjects:,}"))
    return rows


def making_rows(card: Card) -> list[tuple[str, str, str]]:
    """Return (kind, text, batches) of each policy, featurizer and filter."""
    history = card.history
    rows = [("cut by", text, f"{n:,}") for text, n in history.policies]
    for name, version, parameters, n in history.featurizers:
        text = f"{name} {version}"
        if parameters:
            text += f" ({parameters})"
        rows.append(("featurizer", text, f"{n:,}"))
    rows += [("filter", text, f"{n:,}") for text, n in history.filters]
    return rows


def render_html(card: Card) -> str:
    """Return a page. Raises: MissingDependency."""
    return templates().get_template("card.html.j2").render(template_values(card))


def render_markdown(card: Card, sheets: Mapping[str, str] | None = None) -> str:
    """Return the text. sheets: kind -> file name of its contact sheet. Raises: MissingDependency."""
    body = templates().get_template("card.md.j2").render(template_values(card), sheets=sheets or {})
    return re.sub(r"\n{3,}", "\n\n", f"{front_matter(card)}\n\n{body.strip()}\n")


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: int | None = None) -> str:
    """Return a Markdown table. right: first right-aligned column. Raises: MissingDependency."""
    text: str = templates().get_template("parts.md.j2").module.table(header, rows, right)  # type: ignore[attr-defined]
    return text.strip()
