"""Megatron-Energon: archives as WebDataset's, each of one split, their offsets, and the folder `.nv-meta`.

The index follows from keys and sizes alone: it is made when all archives are there, and no payload is read for it.
"""

import sqlite3
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

import numpy as np

from loader.json_text import canonical_json

from ..exporting.exporter import Loss
from ..exporting.outbox import Outbox
from ..exporting.selection import ADDRESSES, Selection, WorkUnit, metadata_json
from ..reading.exported import metadata_member
from .energon_index import INDEX
from .energon_meta import FOLDER, INFO, SPLIT
from .tar_members import Place, end_of, metadata_loss, places, put_archive

ALL = "train"
"""Split of samples of a version without the column `split`."""
DATASET = {"__class__": "CrudeWebdataset", "__module__": "megatron.energon"}
"""Samples as mappings of fields to bytes, which the user's code turns into its own."""
_TABLES = """
CREATE TABLE samples (
    tar_file_id INTEGER NOT NULL, sample_key TEXT NOT NULL UNIQUE, sample_index INTEGER NOT NULL,
    byte_offset INTEGER, byte_size INTEGER);
CREATE TABLE sample_parts (
    tar_file_id INTEGER, sample_index INTEGER, part_name TEXT, content_byte_offset INTEGER, content_byte_size INTEGER);
"""
_INDEXES = """
CREATE INDEX idx_samples_by_tar_and_idx ON samples(tar_file_id, sample_index);
CREATE INDEX idx_sample_parts_seq ON sample_parts(tar_file_id, sample_index, content_byte_offset);
CREATE INDEX idx_sample_parts_full
    ON sample_parts(tar_file_id, sample_index, part_name, content_byte_offset, content_byte_size);
"""


def losses(selection: Selection) -> list[Loss]:
    """Return metadata without a name left, and samples that Energon reads in no split."""
    found = metadata_loss(selection)
    if "split" in selection.columns:
        n = sum(one is None for one in selection.frame.filter(selection.members)["split"])
        if n:
            why = "Energon reads the samples of a split alone: their archives are written, and are in none"
            found.append(Loss(f"{n} samples without a split", why))
    return found


def units(selection: Selection) -> list[WorkUnit]:
    """Return the samples of each part that are of one split."""
    out = list[WorkUnit]()
    for unit in selection.by_part():
        splits = np.array([_split(selection, ordinal) or "" for ordinal in unit.ordinals.tolist()], object)
        for split in dict.fromkeys(splits.tolist()):
            out.append(replace(unit, number=len(out), ordinals=unit.ordinals[splits == split]))
    return out


def write(selection: Selection, unit: WorkUnit, outbox: Outbox) -> dict[str, Any]:
    """Put an archive and its offsets."""
    starts = put_archive(selection, unit, outbox, _name(unit))
    outbox.put(f"{_name(unit)}.idx", np.array(starts, "<u8").tobytes())
    return {}


def finish(selection: Selection, facts: Sequence[dict[str, Any]], outbox: Outbox) -> None:
    """Put the folder `.nv-meta`; the list of archives is the last of it."""
    made = units(selection)
    splits: dict[str, list[str]] = {}
    for unit in made:
        if split := _split(selection, int(unit.ordinals[0])) if "split" in selection.columns else ALL:
            splits.setdefault(split, []).append(_name(unit))
    with outbox.path(INDEX) as path:
        _write_index(path, selection, made)
    outbox.put(f"{FOLDER}{SPLIT[0]}", canonical_json({"exclude": [], "split_parts": splits}))
    outbox.put(f"{FOLDER}dataset.yaml", canonical_json(DATASET))
    of = f"{selection.version.id} {selection.n_samples} {' '.join(selection.fields)}"
    outbox.put(f"{FOLDER}index.uuid", str(uuid.uuid5(uuid.NAMESPACE_URL, of)).encode())
    counts = {_name(unit): len(unit.ordinals) for unit in made}
    outbox.put(f"{FOLDER}{INFO[0]}", canonical_json({"shard_counts": counts}))


def _name(unit: WorkUnit) -> str:
    return f"{unit.number:06d}.tar"


def _split(selection: Selection, ordinal: int) -> str | None:
    found: str | None = selection.frame["split"][ordinal] if "split" in selection.columns else None
    return found


def _write_index(path: str, selection: Selection, made: Sequence[WorkUnit]) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.executescript(
            "PRAGMA page_size=4096; PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;" + _TABLES
        )
        database.execute("BEGIN")
        for unit in made:
            start = 0
            for number, (key, members) in enumerate(_layout(selection, unit)):
                end = end_of(members, start)
                database.execute(
                    "INSERT INTO samples VALUES (?, ?, ?, ?, ?)",
                    (unit.number, key, number, start, end - start),
                )
                rows = [(unit.number, number, one.name, one.offset, one.nbytes) for one in members]
                database.executemany("INSERT INTO sample_parts VALUES (?, ?, ?, ?, ?)", rows)
                start = end
        database.execute("COMMIT")
        database.executescript(_INDEXES)


def _layout(selection: Selection, unit: WorkUnit) -> Iterator[tuple[str, list[Place]]]:
    """Yield key and members of each sample, as `put_archive` lays them."""
    member, at = metadata_member(selection.fields), 0
    for first in range(0, len(unit.ordinals), ADDRESSES):
        some = unit.ordinals[first : first + ADDRESSES]
        for address, columns in zip(
            selection.version.address(some, unit.fields), selection.rows(some), strict=True
        ):
            sizes = {name: place.nbytes for name, place in address.fields.items()}
            if member and columns:
                sizes[member] = len(metadata_json(columns))
            members = places(address.key, sizes, at)
            at = end_of(members, at)
            yield address.key, members
