"""Metadata and events of stages for Dagster's pages: counts, bytes, Markdown tables and plots."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import dagster as dg

from penstock.stages import StageRecord
from penstock.text import Markdown, clean, markdown_table, markdown_text

from ..media.media_table import MEDIA
from ..pipeline.tables import RAW_OBJECTS, TEXTS, UNITS
from . import plots
from .table_columns import arrow_schema, lineage_metadata, schema_metadata

if TYPE_CHECKING:
    import polars as pl


Metadata = dict[str, dg.MetadataValue[Any]]
_BAR = "█"
_MAX_BLOCKS = 24


def dagster_name(dataset: str) -> str:
    """Return a dataset's name with only letters, digits and '_'."""
    return re.sub(r"\W", "_", dataset, flags=re.ASCII)


def table_metadata(
    header: Sequence[str],
    rows: Sequence[Sequence[object]],
    empty: str = "none",
) -> dg.MarkdownMetadataValue:
    """Return a table as metadata; the text `empty` without rows."""
    text = empty
    if rows:
        text = markdown_table(header, rows)
    return dg.MetadataValue.md(text)


def bars(counts: Mapping[str, int]) -> str:
    """Return counts as a Markdown table with bars of at most 24 blocks."""
    # 1 if all counts are 0, which would divide by zero.
    most = max(counts.values(), default=0) or 1
    rows = []
    for name, n in counts.items():
        n_blocks = round(_MAX_BLOCKS * n / most)
        if n:
            n_blocks = max(1, n_blocks)  # a small count is visible
        rows.append((name, n, _BAR * n_blocks))
    return markdown_table(("", "n", ""), rows)


def code_block(language: str, *lines: str) -> str:
    """Return lines as a fenced Markdown block whose fence no line can end."""
    cleaned = [clean(line) for line in lines]
    longest_run = 2  # of backticks: a fence has at least three
    for line in cleaned:
        for run in re.findall("`+", line):
            longest_run = max(longest_run, len(run))
    fence = "`" * (longest_run + 1)
    return "\n".join([f"{fence}{language}", *cleaned, fence])


def data_version(record: StageRecord) -> dg.DataVersion:
    """Return the record's fingerprint, by which Dagster compares results."""
    return dg.DataVersion(record.fingerprint)


def raw_objects_metadata(
    record: StageRecord,
    rows: Sequence[Mapping[str, Any]],
) -> Metadata:
    table = []
    licences = Counter[str]()
    for row in rows:
        mime = row["mime"] or row["error_code"]
        table.append((row["key"], mime, row["nbytes"], row["licence"]))
        licences[row["licence"]] += 1
    objects = markdown_table(("object", "type", "bytes", "licence"), table)
    shown = _of_record(record)
    shown |= arrow_schema(RAW_OBJECTS, TEXTS["raw_objects"])
    shown["objects"] = dg.MetadataValue.md(objects)
    shown["licences"] = _draw_bars(licences)
    return shown


def _draw_bars(counts: Mapping[str, int]) -> dg.MarkdownMetadataValue:
    by_name = dict(sorted(counts.items()))
    return dg.MetadataValue.md(bars(by_name))


def samples_metadata(
    record: StageRecord,
    refusals: Sequence[Mapping[str, Any]],
    table: "pl.DataFrame",
) -> Metadata:
    """Return the metadata of the asset [dataset, samples]. table: the batch's rows."""
    groups: dict[str, Counter[str]] = {}
    for name in ("kind", "split", "licence"):
        if name in table.columns:
            values = [str(value or "unknown") for value in table[name]]
            groups[name] = Counter(values)
    reasons = Counter(str(reason) for reason in record.body["exclude"].values())
    shown = check_metadata(record, refusals)
    shown |= plot_metadata(plots.counts(groups))
    shown["left_out_by_reason"] = table_metadata(("reason", "samples"), reasons.most_common())
    return shown


def media_metadata(admitted: Sequence[Mapping[str, Any]]) -> Metadata:
    rows = []
    codecs = Counter[str]()
    for row in admitted:
        kind = row["kind"]
        codec = row["codec"] or row["audio_codec"] or ""
        size = ""
        if row["upright_width_px"]:
            size = f"{row['upright_width_px']} x {row['upright_height_px']}"
        duration = ""
        if row["duration_s"] is not None:
            duration = f"{row['duration_s']:.2f}"
        rows.append((row["key"], kind, codec, size, duration))
        codecs[str(codec or kind)] += 1
    objects = markdown_table(("object", "kind", "codec", "px", "s"), rows)
    by_count = dict(codecs.most_common())
    shown = arrow_schema(MEDIA, TEXTS["media"])
    shown["objects"] = dg.MetadataValue.md(objects)
    shown["codecs"] = dg.MetadataValue.md(bars(by_count))
    return shown


def units_metadata(
    record: StageRecord,
    rows: Sequence[Mapping[str, Any]],
    refusals: Sequence[Mapping[str, Any]],
) -> Metadata:
    kinds = Counter(str(row["kind"]) for row in rows)
    origins = {
        "raw_key": [("raw_objects", "key")],
        "raw_sha256": [("raw_objects", "sha256")],
        "kind": [("media", "kind")],
    }
    shown = check_metadata(record, refusals)
    shown |= arrow_schema(UNITS, TEXTS["units"])
    shown |= lineage_metadata(record.dataset, origins)
    shown["kinds"] = _draw_bars(kinds)
    return shown


_FEATURE_TEXTS = {
    "key": "key of the sample",
    "code": "why the sample was refused; empty for one that was not",
    "reason": "the same in words",
}


def features_metadata(
    record: StageRecord,
    rows: Sequence[Mapping[str, Any]],
    texts: Mapping[str, str] | None = None,
) -> Metadata:
    """Return the metadata of an asset [dataset, feature_<name>]. texts: column -> description."""
    names = _feature_columns(rows)
    scores: dict[str, list[Any]] = {}
    types = {"key": "str"}
    table = []
    for name in names:
        values = [row[name] for row in rows if name in row]
        known = [value for value in values if value is not None]
        scores[name] = values
        types[name] = ""
        if known:
            types[name] = type(known[0]).__name__
        table.append((name, len(known), *_spread(known)))
    types |= {"code": "str", "reason": "str"}
    descriptions = {**_FEATURE_TEXTS, **(texts or {})}
    deps = {name: [("units", "key")] for name in ("key", *names)}
    refused = [(row["key"], row["code"], row["reason"]) for row in rows if row["code"]]
    shown = _of_record(record)
    shown |= schema_metadata(types, descriptions)
    shown |= lineage_metadata(record.dataset, deps)
    shown |= plot_metadata(plots.histograms(scores))
    shown["scores"] = table_metadata(("column", "known", "min", "mean", "max"), table)
    shown["refused_samples"] = table_metadata(("sample", "code", "reason"), refused)
    return shown


def _feature_columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    # A dict keeps the order in which columns first appear.
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return [name for name in names if name not in _FEATURE_TEXTS]


def _spread(values: Sequence[Any]) -> tuple[str, str, str]:
    """Return the least number, the mean and the largest as text; "" without numbers."""
    numbers = [value for value in values if isinstance(value, int | float)]
    if not numbers:
        return "", "", ""
    mean = sum(numbers) / len(numbers)
    return f"{min(numbers):.4g}", f"{mean:.4g}", f"{max(numbers):.4g}"


def check_metadata(
    record: StageRecord,
    refusals: Sequence[Mapping[str, Any]],
) -> Metadata:
    """Return the metadata of a check on objects: those without a sample, with the reason."""
    header = ("object", "outcome", "stage", "code", "reason")
    table = []
    for row in refusals:
        outcome = row["outcome"]
        if outcome != "used":
            table.append((row["key"], outcome, row["stage"], row["code"], row["reason"]))
    shown = _of_record(record)
    shown["refused"] = table_metadata(header, table)
    return shown


def exclusions_metadata(counts: Mapping[tuple[str, str], int]) -> Metadata:
    """Return the metadata of exclusions. counts: (person, reason) -> samples."""
    rows = [(person, reason, n) for (person, reason), n in counts.items()]
    rows.sort(key=lambda row: (-row[2], row[0], row[1]))  # the most samples first
    n_samples = sum(counts.values())
    return {
        "excluded_samples": dg.MetadataValue.int(n_samples),
        "excluded_by_people": table_metadata(("excluded by", "reason", "samples"), rows),
    }


def viewer_metadata(url: str) -> Metadata:
    """Return a link to a page of the viewer; {} if `url` is ""."""
    if not url:
        return {}
    return {"viewer": dg.MetadataValue.url(url)}


def link(text: str, url: str) -> str:
    """Return a link as a table cell; only the text if `url` is ""."""
    if not url:
        return text
    return Markdown(f"[{markdown_text(text)}]({url})")


def plot_metadata(image: str) -> Metadata:
    if not image:
        return {}
    return {"plot": dg.MetadataValue.md(image)}


def _of_record(record: StageRecord) -> Metadata:
    shown: Metadata = {}
    for name, n in record.counts.items():
        shown[name] = dg.MetadataValue.int(n)
    shown["stage_record"] = dg.MetadataValue.text(record.path)
    shown["verdict"] = dg.MetadataValue.text(record.verdict)
    return shown


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
    check_facts: Mapping[str, dg.MetadataValue[Any]],
    asset_facts: Mapping[str, dg.MetadataValue[Any]],
) -> Iterator[dg.AssetCheckResult | dg.MaterializeResult[None]]:
    """Yield the check's result, then the materialization, with their metadata.

    Raises: dg.Failure if the record's verdict is not `published`.
    """
    passed = record.verdict == "published"
    yield dg.AssetCheckResult(check_name=check, passed=passed, metadata=check_facts)
    if not passed:
        # No retry: the same batch fails again.
        raise dg.Failure(record.reason, metadata=dict(check_facts), allow_retries=False)
    yield dg.MaterializeResult(metadata=dict(asset_facts), data_version=data_version(record))
