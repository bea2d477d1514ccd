"""What Dagster's pages show of a stage: counts, bytes, small Markdown tables and plots."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from . import plots
from .stages import StageRecord

if TYPE_CHECKING:
    import polars as pl

    from .version import Release

Metadata = dict[str, dg.MetadataValue[Any]]
_MAX_ROWS = 50
_BAR = "█"


def dagster_name(dataset: str) -> str:
    """The name of a dataset where Dagster takes letters, digits and '_' only: groups, jobs, sensors."""
    return re.sub(r"\W", "_", dataset, flags=re.ASCII)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; cells are escaped, rows beyond 50 are counted and not shown."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(f"\nand {len(rows) - _MAX_ROWS} more")
    return "\n".join(lines)


def bars(counts: Mapping[str, int], width: int = 24) -> str:
    """Counts as a Markdown table with a bar each, the largest `width` blocks long."""
    most = max(counts.values(), default=0) or 1
    rows = [(name, n, _BAR * max(1 if n else 0, round(width * n / most))) for name, n in counts.items()]
    return markdown_table(("", "n", ""), rows)


def _cell(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def raw_objects_metadata(record: StageRecord, rows: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of the asset [dataset, raw_objects]."""
    table = [(row["key"], row["mime"] or row["error_code"], row["nbytes"], row["licence"]) for row in rows]
    licences = {row["licence"]: sum(r["licence"] == row["licence"] for r in rows) for row in rows}
    return _of_record(record) | {
        "objects": dg.MetadataValue.md(markdown_table(("object", "type", "bytes", "licence"), table)),
        "licences": dg.MetadataValue.md(bars(dict(sorted(licences.items())))),
    }


def samples_metadata(
    record: StageRecord, refusals: Sequence[Mapping[str, Any]], table: "pl.DataFrame"
) -> Metadata:
    """Of the asset [dataset, samples]. table: the rows that the batch would add to the samples table."""
    named = {name: table[name] for name in ("kind", "split", "licence") if name in table.columns}
    groups: dict[str, Counter[str]] = {
        name: Counter(str(value or "unknown") for value in values) for name, values in named.items()
    }
    return check_metadata(record, refusals) | _plot(plots.counts(groups))


def media_metadata(admitted: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of the asset [dataset, media]: what the admitted objects are."""
    rows = [
        (
            row["key"],
            row["kind"],
            row["codec"] or row["audio_codec"] or "",
            f"{row['upright_width_px']} x {row['upright_height_px']}" if row["upright_width_px"] else "",
            f"{row['duration_s']:.2f}" if row["duration_s"] is not None else "",
        )
        for row in admitted
    ]
    codecs = Counter(str(row["codec"] or row["audio_codec"] or row["kind"]) for row in admitted)
    return {
        "objects": dg.MetadataValue.md(markdown_table(("object", "kind", "codec", "px", "s"), rows)),
        "codecs": dg.MetadataValue.md(bars(dict(codecs.most_common()))),
    }


def units_metadata(
    record: StageRecord, rows: Sequence[Mapping[str, Any]], refusals: Sequence[Mapping[str, Any]]
) -> Metadata:
    """Of the asset [dataset, units]."""
    kinds = Counter(str(row["kind"]) for row in rows)
    return check_metadata(record, refusals) | {
        "kinds": dg.MetadataValue.md(bars(dict(sorted(kinds.items()))))
    }


def features_metadata(record: StageRecord, rows: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of an asset [dataset, feature_<name>]: the range of each score, and what was refused."""
    names = [
        name
        for name in dict.fromkeys(n for row in rows for n in row)
        if name not in ("key", "code", "reason")
    ]
    table = []
    for name in names:
        values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
        known = sum(row.get(name) is not None for row in rows)
        spread = (
            (f"{min(values):.4g}", f"{sum(values) / len(values):.4g}", f"{max(values):.4g}")
            if values
            else ("", "", "")
        )
        table.append((name, known, *spread))
    refused = [(row["key"], row["code"], row["reason"]) for row in rows if row["code"]]
    scores = {name: [row[name] for row in rows if name in row] for name in names}
    return (
        _of_record(record)
        | _plot(plots.histograms(scores))
        | {
            "scores": dg.MetadataValue.md(
                markdown_table(("column", "known", "min", "mean", "max"), table) if table else "none"
            ),
            "refused_samples": dg.MetadataValue.md(
                markdown_table(("sample", "code", "reason"), refused) if refused else "none"
            ),
        }
    )


def check_metadata(record: StageRecord, refusals: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of a check on objects: every one that gave no sample, and why."""
    table = [
        (row["key"], row["outcome"], row["stage"], row["code"], row["reason"])
        for row in refusals
        if row["outcome"] != "used"
    ]
    return _of_record(record) | {
        "refused": dg.MetadataValue.md(
            markdown_table(("object", "outcome", "stage", "code", "reason"), table) if table else "none"
        )
    }


def version_metadata(release: "Release", history: Mapping[int, int]) -> Metadata:
    """Of the asset [dataset, version]. history: samples by version number."""
    version = release.version
    groups = [
        (name, body["n_rows"], body["nbytes"], ", ".join(sorted(body["field_nbytes"])))
        for name, body in sorted(version.manifest["groups"].items())
    ]
    return {
        "version": dg.MetadataValue.text(version.name),
        "id": dg.MetadataValue.text(version.id),
        "samples": dg.MetadataValue.int(len(version)),
        "published_batches": dg.MetadataValue.text(", ".join(release.published) or "none: nothing was new"),
        "held_back_batches": dg.MetadataValue.text(", ".join(release.held_back) or "none"),
        "groups": dg.MetadataValue.md(markdown_table(("group", "samples", "bytes", "fields"), groups)),
        "dagster/row_count": dg.MetadataValue.int(len(version)),
    } | _plot(plots.growth(history, {name: nbytes for name, _, nbytes, _ in groups}))


def _plot(image: str) -> Metadata:
    return {"plot": dg.MetadataValue.md(image)} if image else {}


def _of_record(record: StageRecord) -> Metadata:
    facts: Metadata = {name: dg.MetadataValue.int(n) for name, n in record.counts.items()}
    facts["stage_record"] = dg.MetadataValue.text(record.path)
    facts["verdict"] = dg.MetadataValue.text(record.verdict)
    return facts
