"""A card as one HTML file: no script, no request, pictures inside; light and dark, for the screen and for paper.

Every text of the data is escaped, and a policy in the head forbids the page to load or run anything, whatever
stands in it.
"""

import base64
from collections.abc import Sequence
from importlib.resources import files

from ..value import Card, Column, Example
from .charts import bar_table, spark
from .escape import POLICY, html_text
from .sections import (
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


def render_html(card: Card) -> str:
    """The whole page."""
    style = files(__package__).joinpath("style.css").read_text("utf-8")
    sections = [
        ("samples", "Samples", _samples(card)),
        ("distributions", "Distributions", _distributions(card)),
        ("examples", "Examples", _examples(card)),
        ("shards", "What the shards hold", _groups(card)),
        ("columns", "Columns to filter on", _columns(card)),
        ("origin", "Where it comes from", _origin(card)),
        ("left-out", "What was left out", _left_out(card)),
        ("checks", "What was checked", _checks(card)),
        ("unknown", "What is not known", _plain_list(card.unknown)),
        ("use", "How to read it", _usage(card)),
    ]
    shown = [(anchor, title, body) for anchor, title, body in sections if body]
    links = " ".join(f"<a href='#{anchor}'>{title}</a>" for anchor, title, _ in shown)
    bodies = "".join(
        f"<section id={anchor}><h2>{title}</h2>{body}</section>" for anchor, title, body in shown
    )
    return (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        "<meta name=viewport content='width=device-width, initial-scale=1'><meta name=referrer content=no-referrer>"
        f"<title>{html_text(card.name)} - dataset card</title><style>{style}</style></head><body>"
        f"{_header(card)}<main>{_warnings(card)}<nav aria-label='on this page'>{links}</nav>{bodies}</main>"
        f"<footer>Made by penstock from version <span class=id>{html_text(card.id)}</span>. The same version gives "
        "the same card; card.json beside it holds the same facts for other tools.</footer></body></html>\n"
    )


def table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    right: int | None = None,
    last_is_total: bool = False,
) -> str:
    """A table of texts, escaped. right: the column from which on numbers stand on the right."""
    head = "".join(
        f"<th scope=col{_side(place, right)}>{html_text(name)}</th>" for place, name in enumerate(header)
    )
    lines = []
    for number, row in enumerate(rows):
        first, *rest = row
        cells = "".join(
            f"<td{_side(place, right)}>{html_text(cell)}</td>" for place, cell in enumerate(rest, 1)
        )
        mark = " class=total" if last_is_total and number == len(rows) - 1 else ""
        lines.append(f"<tr{mark}><th scope=row>{html_text(first)}</th>{cells}</tr>")
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"


def _side(place: int, right: int | None) -> str:
    return " class=n" if right is not None and place >= right else ""


def _header(card: Card) -> str:
    tiles = "".join(
        f"<li><b>{html_text(value)}</b><span>{html_text(what)}</span></li>" for what, value in headline(card)
    )
    return (
        f"<header><p class=over>Dataset card</p><h1>{html_text(card.dataset)}<small>@{card.number}</small></h1>"
        f"<p class=lead>{html_text(summary(card))}</p>"
        f"<p class=soft>Published {html_text(card.created)} · <span class=id>{html_text(card.id)}</span></p>"
        f"<ul class=tiles>{tiles}</ul></header>"
    )


def _warnings(card: Card) -> str:
    return "".join(f"<p class=warning role=note>⚠ {html_text(text)}</p>" for text in card.warnings)


def _samples(card: Card) -> str:
    header, rows = kind_rows(card)
    return f"<div class=panel>{table(header, rows, right=1, last_is_total=len(card.kinds) > 1)}</div>"


def _distributions(card: Card) -> str:
    panels = []
    for one in distributions(card):
        note = f"<p class=note>{html_text(one.note)}</p>" if one.note else ""
        body = bar_table(one) if one.rows or one.unknown else ""
        panels.append(f"<div class=panel><h3>{html_text(one.title)}</h3>{body}{note}</div>")
    return f"<div class='panels flow'>{''.join(panels)}</div>" if panels else ""


def _examples(card: Card) -> str:
    blocks = []
    for kind in card.kinds:
        shots = "".join(figure(example) for example in card.examples if example.kind == kind.name)
        if shots:
            blocks.append(f"<h3>{html_text(kind.name)}</h3><div class=shots>{shots}</div>")
    if not blocks:
        return ""
    note = (
        "<p class=note>Chosen by the hash of their keys, of different raw objects where there are; not the best ones."
        "</p>"
    )
    return "<br>".join(blocks) + note


def figure(example: Example) -> str:
    """One sample: its picture, or why there is none, its caption and what is told of it, escaped."""
    facts = [value for name, value in example.facts.items() if name != "licence"]
    told = [*facts, example.split, example.facts.get("licence", "licence unknown")]
    quote = f"<q dir=auto>{html_text(example.caption)}</q>" if example.caption else ""
    caption = (
        f"<figcaption>{quote}<div class=facts>{html_text(' · '.join(filter(None, told)))}</div>"
        f"<div class=facts><code>{html_text(example.key)}</code></div></figcaption>"
    )
    if example.picture:
        data = base64.b64encode(example.picture).decode()
        said = f"{example.alt}: {example.caption}" if example.caption else example.alt
        picture = (
            f'<img src="data:{example.media_type};base64,{data}" width={example.width_px} height={example.height_px} '
            f'alt="{html_text(said)}" loading=lazy>'
        )
        frame = f"<div class=frame>{picture}</div>"
    elif example.trouble:
        frame = f"<div class=trouble>Not shown: {html_text(example.trouble)}</div>"
    else:
        frame = ""
    shape = example.modality if example.picture else "text"
    return f"<figure class={shape}>{frame}{caption}</figure>"


def _groups(card: Card) -> str:
    header, rows = group_rows(card)
    note = (
        "<p class=note>Bytes and coverage include samples that the version leaves out.</p>"
        if card.excluded_samples
        else ""
    )
    return f"<div class=panel>{table(header, rows, right=3)}{note}</div>"


def _columns(card: Card) -> str:
    rows = "".join(_column_row(column) for column in card.columns)
    if not rows:
        return ""
    head = "<th scope=col>column</th><th scope=col>type</th><th scope=col class=n>known</th>"
    head += "<th scope=col>values</th><th scope=col>distribution</th>"
    return (
        f"<div class=panel><div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        "</div>"
    )


def _column_row(column: Column) -> str:
    known, words = column_words(column)
    varies = column.numbers is not None and column.numbers.minimum < column.numbers.maximum
    picture = spark(column.name, column.numbers) if column.numbers is not None and varies else ""
    name, kind = html_text(column.name), html_text(column.type)
    return (
        f"<tr><th scope=row class=name><code>{name}</code></th><td class=soft>{kind}</td>"
        f"<td class=n>{known}</td><td>{html_text(words, 240)}</td><td>{picture}</td></tr>"
    )


def _origin(card: Card) -> str:
    pairs = "".join(
        f"<dt>{html_text(name)}</dt><dd>{html_text(value)}</dd>" for name, value in provenance_rows(card)
    )
    made = making_rows(card)
    how = (
        f"<br><div class=panel><h3>How it was made</h3>{table(['', '', 'batches'], made, right=2)}</div>"
        if made
        else ""
    )
    return f"<div class=panel><dl>{pairs}</dl></div>{how}"


def _left_out(card: Card) -> str:
    panels = []
    if rows := object_rows(card):
        panels.append(f"<div class=panel><h3>Raw objects</h3>{table(['', 'objects'], rows, right=1)}</div>")
    if card.excluded_samples:
        reasons = [(reason, f"{n:,}") for reason, n in card.excluded.counts]
        if card.excluded.n_others:
            reasons.append((f"{card.excluded.n_others:,} other reasons", f"{card.excluded.others:,}"))
        body = table(["why", "samples"], reasons, right=1)
        title = f"{card.excluded_samples:,} samples, counted nowhere else on this page"
        panels.append(f"<div class=panel><h3>{title}</h3>{body}</div>")
    return f"<div class=panels>{''.join(panels)}</div>" if panels else ""


def _checks(card: Card) -> str:
    rows = []
    for check in card.history.checks:
        verdict = (
            "<span class=failed>not all passed</span>" if check.failed else "<span class=passed>passed</span>"
        )
        rows.append(
            f"<tr><th scope=row>{html_text(check.name)}</th><td>{verdict}</td>"
            f"<td class=n>{check.batches:,} of {check.batches + check.failed:,}</td>"
            f"<td>{html_text(check.newest)}</td></tr>"
        )
    if not rows:
        return ""
    head = "<th scope=col>check</th><th scope=col>verdict</th><th scope=col class=n>batches</th>"
    head += "<th scope=col>of the newest batch</th>"
    return (
        f"<div class=panel><div class=scroll><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div></div>"
    )


def _plain_list(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{html_text(text)}</li>" for text in texts)
    return f"<div class=panel><ul class=plain>{items}</ul></div>" if items else ""


def _usage(card: Card) -> str:
    code = f"""import loader

version = loader.Root(...).open("{card.name}")
version.samples()                    # the columns above, as a polars LazyFrame
version.where("licence IS NOT NULL") # a view to plan a training from"""
    return f"<pre><code>{html_text_lines(code)}</code></pre>"


def html_text_lines(text: str) -> str:
    """Several lines, each escaped, spaces kept."""
    return "\n".join(
        line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;") for line in text.split("\n")
    )
