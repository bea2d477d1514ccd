"""What Dagster's pages show of a stage: counts, bytes and small Markdown tables."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from .stages import StageRecord

if TYPE_CHECKING:
    from .version import Release

Metadata = dict[str, dg.MetadataValue[Any]]
_MAX_ROWS = 50
_BAR = "█"


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


def samples_metadata(record: StageRecord, refusals: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of the asset [dataset, samples]."""
    kinds = {kind: record.counts[kind] for kind in ("image", "video", "audio")}
    return check_metadata(record, refusals) | {"kinds": dg.MetadataValue.md(bars(kinds))}


def check_metadata(record: StageRecord, refusals: Sequence[Mapping[str, Any]]) -> Metadata:
    """Of the check on samples: every object that gave none, and why."""
    table = [(row["key"], row["outcome"], row["stage"], row["code"], row["reason"]) for row in refusals]
    return _of_record(record) | {
        "refused": dg.MetadataValue.md(
            markdown_table(("object", "outcome", "stage", "code", "reason"), table) if table else "none"
        )
    }


def version_metadata(release: "Release") -> Metadata:
    """Of the asset [dataset, version]."""
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
    }


def _of_record(record: StageRecord) -> Metadata:
    facts: Metadata = {name: dg.MetadataValue.int(n) for name, n in record.counts.items()}
    facts["stage_record"] = dg.MetadataValue.text(record.path)
    facts["verdict"] = dg.MetadataValue.text(record.verdict)
    return facts
