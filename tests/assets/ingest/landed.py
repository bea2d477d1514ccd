"""Rows of landed objects, for tests that land none."""

from collections.abc import Mapping, Sequence
from typing import Any

import loader
from assets.pipeline.stages import OpenBatch
from assets.spec import DatasetSpec
from loader.storage import Store
from penstock.compute.pool import Compute, InlineCompute


def raw_object(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of the landed object of a media row."""
    words = ("uri", "etag", "label", "title", "text", "licence", "author", "origin")
    told = {name: row[name] for name in ("key", "sha256", "mime")}
    return dict.fromkeys(words, "") | told | {"nbytes": 1, "segments": None}


def open_batch(
    root: loader.Root,
    landing: Store,
    spec: DatasetSpec,
    audits: Sequence[Mapping[str, Any]],
    compute: Compute | None = None,
) -> OpenBatch:
    """A first batch with these media rows."""
    return OpenBatch(
        root=root,
        landing=landing,
        files=landing,
        compute=compute or InlineCompute(),
        spec=spec,
        txn="t",
        raws={row["key"]: raw_object(row) for row in audits},
        audits=[dict(row) for row in audits],
        published={},
        labels=[],
        provenance={"partition": "b"},
    )
