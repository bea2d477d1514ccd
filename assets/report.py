"""Metadata and events of stages for Dagster's pages: counts, bytes, Markdown tables and plots."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from penstock.stages import StageRecord
from penstock.text import clean, markdown_text

from . import plots
from .media.media_table import MEDIA
from .table_columns import arrow_schema, lineage_metadata, schema_metadata
from .tables import RAW_OBJECTS, TEXTS, UNITS

if TYPE_CHECKING:
    import polars as pl

    from .release.version_asset import Release


Metadata = dict[str, dg.MetadataValue[Any]]
_MAX_ROWS = 50
_BAR, _MAX_BLOCKS = "█", 24


class Markdown(str):
    """Markup for a table cell, such as a link, which is not escaped."""


def dagster_name(dataset: str) -> str:
    """Return a dataset's name with only letters, digits and '_'."""
    return re.sub(r"\W", "_", dataset, flags=re.ASCII)


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a Markdown table. Cells but `Markdown` are escaped; rows beyond 50 are only counted."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(_cell(value) for value in row) + " |" for row in rows[:_MAX_ROWS]]
    if len(rows) > _MAX_ROWS:
        lines.append(f"\nand {len(rows) - _MAX_ROWS} more")
    return "\n".join(lines)


def table_metadata(
    header: Sequence[str], rows: Sequence[Sequence[object]], empty: str = "none"
) -> dg.MarkdownMetadataValue:
    """Return a table as metadata; the text `empty` without rows."""
    return dg.MetadataValue.md(markdown_table(header, rows) if rows else empty)


def bars(counts: Mapping[str, int]) -> str:
    """Return counts as a Markdown table with bars of at most 24 blocks."""
    most = max(counts.values(), default=0) or 1
    rows = [(name, n, _BAR * max(1 if n else 0, round(_MAX_BLOCKS * n / most))) for name, n in counts.items()]
    return markdown_table(("", "n", ""), rows)


def _cell(value: object) -> str:
    return value if isinstance(value, Markdown) else markdown_text(value)


def code_block(language: str, *lines: str) -> str:
    """Return lines as a fenced Markdown block whose fence no line can end."""
    cleaned = [clean(line) for line in lines]
    fence = "`" * (1 + max(2, *(len(run) for line in cleaned for run in re.findall("`+", line)), 0))
    return "\n".join([f"{fence}{language}", *cleaned, fence])


def data_version(record: StageRecord) -> dg.DataVersion:
    """Return the record's fingerprint, by which Dagster compares results."""
    return dg.DataVersion(record.fingerprint)


def raw_objects_metadata(record: StageRecord, rows: Sequence[Mapping[str, Any]]) -> Metadata:
    table = [(row["key"], row["mime"] or row["error_code"], row["nbytes"], row["licence"]) for row in rows]
    licences = {row["licence"]: sum(r["licence"] == row["licence"] for r in rows) for row in rows}
    return (
        _of_record(record)
        | arrow_schema(RAW_OBJECTS, TEXTS["raw_objects"])
        | {
            "objects": dg.MetadataValue.md(markdown_table(("object", "type", "bytes", "licence"), table)),
            "licences": dg.MetadataValue.md(bars(dict(sorted(licences.items())))),
        }
    )


def samples_metadata(
    record: StageRecord, refusals: Sequence[Mapping[str, Any]], table: "pl.DataFrame"
) -> Metadata:
    """Return the metadata of the asset [dataset, samples]. table: the batch's rows."""
    named = {name: table[name] for name in ("kind", "split", "licence") if name in table.columns}
    groups: dict[str, Counter[str]] = {
        name: Counter(str(value or "unknown") for value in values) for name, values in named.items()
    }
    reasons = Counter(str(reason) for reason in record.body["exclude"].values())
    return (
        check_metadata(record, refusals)
        | _plot(plots.counts(groups))
        | {"left_out_by_reason": table_metadata(("reason", "samples"), reasons.most_common())}
    )


def media_metadata(admitted: Sequence[Mapping[str, Any]]) -> Metadata:
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
    return arrow_schema(MEDIA, TEXTS["media"]) | {
        "objects": dg.MetadataValue.md(markdown_table(("object", "kind", "codec", "px", "s"), rows)),
        "codecs": dg.MetadataValue.md(bars(dict(codecs.most_common()))),
    }


def units_metadata(
    record: StageRecord, rows: Sequence[Mapping[str, Any]], refusals: Sequence[Mapping[str, Any]]
) -> Metadata:
    kinds = Counter(str(row["kind"]) for row in rows)
    origins = lineage_metadata(
        record.dataset,
        {name: [("raw_objects", name.removeprefix("raw_"))] for name in ("raw_key", "raw_sha256")}
        | {"kind": [("media", "kind")]},
    )
    return (
        check_metadata(record, refusals)
        | arrow_schema(UNITS, TEXTS["units"])
        | origins
        | {"kinds": dg.MetadataValue.md(bars(dict(sorted(kinds.items()))))}
    )


_FEATURE_TEXTS = {
    "key": "key of the sample",
    "code": "why the sample was refused; empty for one that was not",
    "reason": "the same in words",
}


def features_metadata(
    record: StageRecord, rows: Sequence[Mapping[str, Any]], texts: Mapping[str, str] | None = None
) -> Metadata:
    """Return the metadata of an asset [dataset, feature_<name>]. texts: column -> description."""
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
    kinds = {
        name: next((type(row[name]).__name__ for row in rows if row.get(name) is not None), "")
        for name in names
    }
    deps = {name: [("units", "key")] for name in ("key", *names)}
    refused = [(row["key"], row["code"], row["reason"]) for row in rows if row["code"]]
    scores = {name: [row[name] for row in rows if name in row] for name in names}
    return (
        _of_record(record)
        | schema_metadata(
            {"key": "str", **kinds, "code": "str", "reason": "str"}, {**_FEATURE_TEXTS, **(texts or {})}
        )
        | lineage_metadata(record.dataset, deps)
        | _plot(plots.histograms(scores))
        | {
            "scores": table_metadata(("column", "known", "min", "mean", "max"), table),
            "refused_samples": table_metadata(("sample", "code", "reason"), refused),
        }
    )


def check_metadata(record: StageRecord, refusals: Sequence[Mapping[str, Any]]) -> Metadata:
    """Return the metadata of a check on objects: those without a sample, with the reason."""
    table = [
        (row["key"], row["outcome"], row["stage"], row["code"], row["reason"])
        for row in refusals
        if row["outcome"] != "used"
    ]
    header = ("object", "outcome", "stage", "code", "reason")
    return _of_record(record) | {"refused": table_metadata(header, table)}


def version_metadata(release: "Release", history: Mapping[int, int]) -> Metadata:
    """Return the metadata of the asset [dataset, version]. history: version number -> samples."""
    version = release.version
    groups = [
        (name, body["n_rows"], body["nbytes"], ", ".join(sorted(body["field_nbytes"])))
        for name, body in sorted(version.manifest["groups"].items())
    ]
    approvals = [
        (one.name, approval["by"], approval["reason"], ", ".join(approval["checks"]))
        for one in release.versions
        if (approval := one.manifest["producer"].get("approval"))
    ]
    return {
        "version": dg.MetadataValue.text(version.name),
        "id": dg.MetadataValue.text(version.id),
        "samples": dg.MetadataValue.int(len(version)),
        "published_batches": dg.MetadataValue.text(", ".join(release.published) or "none: nothing was new"),
        "approved": table_metadata(("version", "approved by", "reason", "though these failed"), approvals),
        "held_back_batches": dg.MetadataValue.text(", ".join(release.held_back) or "none"),
        "groups": dg.MetadataValue.md(markdown_table(("group", "samples", "bytes", "fields"), groups)),
        "dagster/row_count": dg.MetadataValue.int(len(version)),
    } | _plot(plots.growth(history, {name: nbytes for name, _, nbytes, _ in groups}))


def exclusions_metadata(counts: Mapping[tuple[str, str], int]) -> Metadata:
    """Return the metadata of exclusions. counts: (person, reason) -> samples."""
    rows = [
        (by, reason, n) for (by, reason), n in sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    ]
    return {
        "excluded_samples": dg.MetadataValue.int(sum(counts.values())),
        "excluded_by_people": table_metadata(("excluded by", "reason", "samples"), rows),
    }


def viewer_metadata(url: str) -> Metadata:
    """Return a link to a page of the viewer; {} if `url` is ""."""
    return {"viewer": dg.MetadataValue.url(url)} if url else {}


def link(text: str, url: str) -> str:
    """Return a link as a table cell; only the text if `url` is ""."""
    return Markdown(f"[{markdown_text(text)}]({url})") if url else text


def _plot(image: str) -> Metadata:
    return {"plot": dg.MetadataValue.md(image)} if image else {}


def _of_record(record: StageRecord) -> Metadata:
    facts: Metadata = {name: dg.MetadataValue.int(n) for name, n in record.counts.items()}
    facts["stage_record"] = dg.MetadataValue.text(record.path)
    facts["verdict"] = dg.MetadataValue.text(record.verdict)
    return facts


@contextmanager
def as_failures(*errors: type[Exception]) -> Iterator[None]:
    """Turn these errors into a `dg.Failure` without a retry."""
    try:
        yield
    except errors as error:
        raise dg.Failure(str(error), allow_retries=False) from error


def check_and_materialize(
    record: StageRecord,
    check: str,
    checked: Mapping[str, dg.MetadataValue[Any]],
    shown: Mapping[str, dg.MetadataValue[Any]],
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
    """Yield the check's result, then the materialization, with their metadata.

    Raises: dg.Failure if the record's verdict is not `published`.
    """
    passed = record.verdict == "published"
    yield dg.AssetCheckResult(check_name=check, passed=passed, metadata=checked)
    if not passed:
        raise dg.Failure(record.reason, metadata=dict(checked), allow_retries=False)
    yield dg.MaterializeResult(metadata=dict(shown), data_version=data_version(record))
