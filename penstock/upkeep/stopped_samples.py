"""Find samples of batches that the gate stopped: no version has them."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import loader
from loader.dataset.shards.part import part_rows
from loader.errors import ObjectNotFound

from ..exclusion_records import ExcludedSample
from ..stages import VERDICTS, current_record, current_records

if TYPE_CHECKING:
    from loader import Root

SAMPLES = "samples"
"""Stage whose records list a batch's parts."""
FACTS = ("unit_id", "raw_uri", "raw_sha256")


def find_stopped(
    root: "Root",
    dataset: str,
    keys: Collection[str],
    *,
    whole_objects: bool,
) -> dict[str, ExcludedSample]:
    """Return key -> sample. Searches the batches whose newest verdict is failed.

    Reads the tables of these batches. Parts that the collector deleted have no samples.

    whole_objects: True excludes every sample ever cut from the same raw objects.
    """
    samples: dict[str, ExcludedSample] = {}
    verdicts = current_records(root.store, dataset, VERDICTS)
    for partition, verdict in verdicts.items():
        # Its samples are in a version, where the caller finds them.
        if verdict.verdict == "published":
            continue
        record = current_record(root.store, dataset, SAMPLES, partition)
        if record is None:
            continue
        for body in record.body["parts"]:
            part = loader.Part.from_json(body)
            try:
                rows = part_rows(root.store, part)
            except ObjectNotFound:  # collected: the batch must be cut again
                continue
            for row in rows:
                key = row["key"]
                if key in keys:
                    samples[key] = _build_sample(row, whole_objects)
    return samples


def _build_sample(
    row: dict[str, Any],
    whole_objects: bool,
) -> ExcludedSample:
    """Return the sample of a row of a part's samples table. Absent and null facts become ""."""
    facts: dict[str, str] = {}
    for name in FACTS:
        facts[name] = row.get(name) or ""
    # As for published samples: a sample without an end is its whole raw object.
    is_whole = bool(facts["raw_sha256"]) and not row.get("raw_end")
    return ExcludedSample(
        key=row["key"],
        whole_object=whole_objects or is_whole,
        **facts,
    )
