"""A card as Markdown: what a repository, or the Hugging Face Hub as README.md, shows. Every text is escaped."""

from collections.abc import Mapping, Sequence

from ...units import share
from ..value import Card, Example
from .escape import markdown_text
from .hub_metadata import front_matter
from .sections import (
    Bars,
    column_words,
    distributions,
    group_rows,
    headline,
    kind_rows,
    making_rows,
    object_rows,
    provenance_rows,
    summary,
)

BAR_LETTERS = 20
_MAX_CELL = 300


def render_markdown(card: Card, sheets: Mapping[str, str] | None = None) -> str:
    """The whole card. sheets: kind -> file name of a picture of its examples, beside the Markdown file."""
    blocks = [
        front_matter(card),
        f"# {markdown_text(card.dataset)} @ {card.number}",
        markdown_text(summary(card)),
    ]
    blocks += [f"> **Warning.** {markdown_text(text)}" for text in card.warnings]
    blocks.append(" · ".join(f"**{markdown_text(value)}** {what}" for what, value in headline(card)))
    blocks += ["## Samples", table(*kind_rows(card), right=1)]
    blocks += _distributions(card)
    blocks += _examples(card, sheets or {})
    blocks += ["## What the shards hold", table(*group_rows(card))]
    if card.excluded_samples:
        blocks.append("Bytes and coverage include samples that the version leaves out.")
    blocks += _columns(card)
    blocks += ["## Where it comes from", table(["", ""], [list(row) for row in provenance_rows(card)])]
    blocks += _making(card)
    if card.unknown:
        blocks += ["## What is not known", "\n".join(f"- {markdown_text(text)}" for text in card.unknown)]
    blocks += ["## How to read it", _usage(card)]
    return "\n\n".join(blocks) + "\n"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: int | None = None) -> str:
    """A Markdown table. right: the column from which on numbers stand on the right."""
    marks = [" ---: |" if right is not None and place >= right else " --- |" for place in range(len(header))]
    lines = ["| " + " | ".join(markdown_text(name) for name in header) + " |", "|" + "".join(marks)]
    lines += ["| " + " | ".join(markdown_text(cell, _MAX_CELL) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def bars(one: Bars) -> str:
    """A distribution as a table with a bar in each row."""
    most = max((n for _, n in one.rows), default=0) or 1
    rows = [(name, f"{n:,}", share(n, one.total), _bar(n, most)) for name, n in one.rows]
    if one.unknown:
        rows.append(("(unknown)", f"{one.unknown:,}", share(one.unknown, one.total), ""))
    return table(["", "samples", "share", ""], rows)


def _bar(n: int, most: int) -> str:
    return "█" * max(1 if n else 0, round(BAR_LETTERS * n / most))


def _distributions(card: Card) -> list[str]:
    blocks = ["## Distributions"]
    for one in distributions(card):
        blocks.append(f"### {markdown_text(one.title)}")
        if one.note:
            blocks.append(markdown_text(one.note))
        if one.rows:
            blocks.append(bars(one))
    return blocks if len(blocks) > 1 else []


def _examples(card: Card, sheets: Mapping[str, str]) -> list[str]:
    blocks = ["## Examples"] if card.examples else []
    for kind in card.kinds:
        mine = [example for example in card.examples if example.kind == kind.name]
        if not mine:
            continue
        blocks.append(f"### {markdown_text(kind.name)}")
        if kind.name in sheets:
            alt = f"{sum(bool(one.picture) for one in mine)} {kind.name} samples, in the order of the table"
            blocks.append(f"![{markdown_text(alt)}]({sheets[kind.name]})")
        blocks.append(table(["sample", "split", "", "text"], [_example_row(example) for example in mine]))
    return blocks


def _example_row(example: Example) -> list[str]:
    facts = "; ".join(f"{name}: {value}" for name, value in example.facts.items())
    if example.trouble:
        facts = f"{facts}; not shown: {example.trouble}"
    return [example.key, example.split, facts, example.caption]


def _columns(card: Card) -> list[str]:
    if not card.columns:
        return []
    rows = [[column.name, column.type, *column_words(column)] for column in card.columns]
    return ["## Columns to filter on", table(["column", "type", "known", "values"], rows)]


def _making(card: Card) -> list[str]:
    blocks = []
    if rows := object_rows(card):
        blocks += ["### What became of what landed", table(["", "objects"], rows, right=1)]
    if rows_made := making_rows(card):
        blocks += ["### How it was made", table(["", "", "batches"], rows_made)]
    if card.excluded_samples:
        blocks += ["## Samples left out", table(["why", "samples"], _excluded(card), right=1)]
    if card.history.checks:
        rows_checked = [
            [one.name, f"{one.batches:,}", f"{one.failed:,}", one.newest] for one in card.history.checks
        ]
        header = ["check", "batches passed", "failed", "of the newest batch"]
        blocks += ["## What was checked", table(header, rows_checked)]
    return blocks


def _excluded(card: Card) -> list[list[str]]:
    rows = [[reason, f"{n:,}"] for reason, n in card.excluded.counts]
    if card.excluded.n_others:
        rows.append([f"{card.excluded.n_others:,} other reasons", f"{card.excluded.others:,}"])
    return rows


def _usage(card: Card) -> str:
    lines = [
        "import loader",
        "",
        f'version = loader.Root(...).open("{card.name}")',
        "version.samples()  # polars",
    ]
    return "\n".join(["```python", *lines, "```"])
