"""The page of the asset [dataset, quarantine]: verdicts on samples, with links to the viewer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import dagster as dg

import loader
from resources.alerts import sample_page, version_page

from .report import Metadata, code_block, link, markdown_table, viewer_metadata

if TYPE_CHECKING:
    from ..feedback.quarantine import Quarantined


def quarantine_metadata(url: str, found: "Quarantined") -> Metadata:
    """Return the metadata of the asset [dataset, quarantine]: verdicts, and their ledgers. url: of the root."""
    if found.record is None:
        return {"ledgers": dg.MetadataValue.int(0)}
    judged = [row for row in found.rows if row["verdict"] != "elsewhere"]
    table = [
        (
            row["verdict"],
            _sample_link(found.judged, row),
            row.get("code") or "",
            row.get("reason") or "",
            row["ledger"],
        )
        for row in judged
    ]
    plans = sorted({str(row["ledger"]).split("/")[1] for row in judged})[:5]
    ask = [f"penstock explain {plan} --step STEP --root {url}" for plan in plans]
    return (
        {name: dg.MetadataValue.int(n) for name, n in found.record.counts.items()}
        | {
            "excluded": dg.MetadataValue.int(len(found.excluded)),
            "version": dg.MetadataValue.text(
                found.version.name if found.version else "none: nothing to leave out"
            ),
            "judged_now": dg.MetadataValue.md(
                markdown_table(("verdict", "sample", "code", "why", "ledger"), table) if table else "none"
            ),
            "explain": dg.MetadataValue.md(code_block("sh", *ask) if ask else "none"),
            "stage_record": dg.MetadataValue.text(found.record.path),
        }
        | viewer_metadata(version_page(found.version.dataset, found.version.number) if found.version else "")
    )


def _sample_link(version: loader.Version | None, row: Mapping[str, Any]) -> str:
    """Return the key of a sample, with a link to its page in the version that it was judged in."""
    if version is None or row.get("row", -1) < 0:
        return str(row["key"])
    position = version.parts.position(row["part"])
    before = int(version.parts.live_members(position)[: row["row"]].sum())
    ordinal = int(version.parts.first_ordinal[position]) + before
    return link(row["key"], sample_page(version.dataset, version.number, ordinal))
