"""Write one part from samples, for a worker whose parts another process publishes."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...errors import EmptyVersion, InvalidSample
from ...storage import Store
from ..names import check_part_name
from ..shards.part import Part
from .part_writer import PartWriter, group_chooser, make_sample
from .spill import Spill


def write_part(
    store: Store,
    txn: str,
    samples: Iterable[Sequence[Any]],
    group: str = "media",
    *,
    groups: Mapping[str, str] | None = None,
    name: str | None = None,
) -> Part:
    """Write one part from (key, fields[, metadata[, source]]) tuples, in hash order of their keys.

    name: identifies the part within its transaction, for workers that may be retried. Attempts with one name are one
    part; publishing two of them raises Conflict.

    Raises: EmptyVersion if there are no samples; InvalidSample.
    """
    name = check_part_name(name or secrets.token_hex(8))
    spill = Spill()
    writer = PartWriter(
        store,
        txn=txn,
        attempt=secrets.token_hex(8),
        name=name,
        group_of=group_chooser(group, groups),
    )
    try:
        for sample in samples:
            if not isinstance(sample, tuple | list) or not 2 <= len(sample) <= 4:
                raise InvalidSample(
                    "a sample is a tuple (key, fields), (key, fields, metadata) or (key, fields, metadata, source); "
                    f"got {_describe_type(sample)}",
                    what="sample",
                    given=_describe_type(sample),
                    accepted="a tuple of length 2 to 4",
                )
            spill.add(make_sample(*sample))
        if not spill.n_samples:
            raise EmptyVersion(
                "a part needs at least one sample; the iterable given was empty",
                what="samples",
                where=f"part {name}",
                given=0,
                accepted="at least 1",
            )
        for sorted_sample in spill.drain():
            writer.add(sorted_sample)
        return writer.finish()
    finally:
        writer.close()
        spill.close()


def _describe_type(sample: object) -> str:
    name = f"a {type(sample).__name__}"
    if isinstance(sample, tuple | list):
        return f"{name} of length {len(sample)}"
    return name
