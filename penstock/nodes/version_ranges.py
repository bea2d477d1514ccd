"""Checksums that published versions have for ranges of shards, so that no record decides which bytes are right."""

import logging
from collections.abc import Iterable, Iterator

import numpy as np

import loader
from loader.dataset.shards.address import UNKNOWN_CRC
from loader.dataset.shards.index import ROW_GROUP_ROWS
from loader.dataset.shards.shard import crc32c
from loader.dataset.tables.manifest import read_record_manifest
from loader.errors import Forbidden, PenstockError, Throttled, Transient
from loader.storage import RangeReader
from loader.storage.mirror import primary_store

from .range_reads import ObjectRange

_log = logging.getLogger(__name__)
VERSIONS = 64
"""Newest versions that are searched for a shard."""


def version_crcs(root: loader.Root, ranges: Iterable[ObjectRange]) -> dict[ObjectRange, str]:
    """Return the CRC-32C of each range of a shard that is read here as its version has it; others are left out.

    A field is checked by the CRC-32C of its version's index, another range by the version's SHA-256 of pages.

    Raises: Forbidden, Throttled or Transient if the store does not show the versions or the ranges.
    """
    by_address: dict[str, list[ObjectRange]] = {}
    for a_range in ranges:
        by_address.setdefault(a_range.address, []).append(a_range)
    crcs: dict[ObjectRange, str] = {}
    try:
        for version in _versions(root):
            own_shards = [key for key in by_address if version.parts.find_shard(key) is not None]
            for address in own_shards:
                # The first version that has the shard decides.
                for a_range in by_address.pop(address):
                    crc = _crc(version, a_range)
                    if crc is not None:
                        crcs[a_range] = f"{crc:08x}"
            if not by_address:
                break
    except (Forbidden, Throttled, Transient):
        raise
    except PenstockError as error:
        _log.warning("could not search the versions of %s: %s", root.url, error)
    return crcs


def _versions(root: loader.Root) -> Iterator[loader.Version]:
    """Yield the newest version of each dataset, then the others, newest first."""
    records = [record for name in root.datasets() for record in root.versions(name)]
    newest = {record.dataset: record for record in records}
    others = [record for record in records if record is not newest[record.dataset]]
    # Newest first: trainings read these, and VERSIONS ends the search.
    others.sort(key=lambda record: -record.n)
    # A mirror could hide a difference of the primary.
    store = primary_store(root.store)
    for record in [*newest.values(), *others][:VERSIONS]:
        manifest = read_record_manifest(store, record)
        yield loader.Version(
            store,
            dataset=record.dataset,
            number=record.number,
            id=record.id,
            manifest=manifest,
            verify="sha256",
        )


def _crc(version: loader.Version, a_range: ObjectRange) -> int | None:
    """Return the CRC-32C of a range as read here; None if it differs from its version, or is gone."""
    address, begin, end = a_range
    try:
        expected = _index_crc(version, a_range)
        store: RangeReader = version.store
        if expected is None:
            store = version.shard_store  # checks the pages
        data = store.get_range(address, begin, end - begin).data
        crc = crc32c(data)
    except (Forbidden, Throttled, Transient):
        raise
    except PenstockError as error:
        _log.info("%s[%d:%d] differs from its version here: %s", address, begin, end, error)
        return None
    if expected in (None, crc):
        return crc
    return None


def _index_crc(version: loader.Version, a_range: ObjectRange) -> int | None:
    """Return the CRC-32C of a field that has exactly this range; None if there is none."""
    shard = version.parts.find_shard(a_range.address)
    assert shard is not None
    part = version.parts.position(shard["part"])
    for number in range(-(-int(version.parts.n_rows[part]) // ROW_GROUP_ROWS)):
        rows = version.stretch(shard["group"], part, number).rows
        for field, offset in rows.offset.items():
            nbytes = rows.nbytes[field]
            for row in np.flatnonzero((offset == a_range.begin) & (nbytes == a_range.end - a_range.begin)):
                crc = int(rows.crc32c[field][row])
                if crc == UNKNOWN_CRC:
                    return None
                return crc
    return None
