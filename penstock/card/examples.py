"""Example samples of every kind, limited in number and size."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from loader import Version
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.errors import Corrupt, DecodeFailed
from loader.modalities.video.packet_table import SUFFIX
from loader.modalities.video.request import is_run
from loader.storage import RangeReader

from ..progress import progress
from ..text import clean
from ..units import length
from .classes import media_field, part_fields
from .pictures import EncodedImage, field_image
from .scan import SampleScan
from .tally import KindScan
from .value import Example

MAX_FIELD_BYTES = 32 * 2**20
"""Largest field read for an image, in bytes."""
MAX_CAPTION = 280
"""Longest caption, in characters."""
MAX_KINDS = 8
"""Most kinds with examples, largest first."""
_CAPTIONS = ("caption.txt", "text.txt", "title.txt")
_SHOWN = ("label", "language", "licence", "raw_key")


def examples(version: Version, scanned: SampleScan) -> tuple[Example, ...]:
    """Return each kind's examples: those with the smallest key hashes, so that every version shows the same samples.

    Each costs one index row group and one range read.

    Raises: StoreError; MissingDependency.
    """
    chosen = [
        (name, kind, row)
        for name, kind in list(scanned.kinds.items())[:MAX_KINDS]
        for row in _example_rows(kind, scanned)
    ]
    return tuple(
        _example(version, name, kind, scanned.layouts.place(row), scanned.facts[row])
        for name, kind, row in progress(chosen, "examples")
    )


def _example_rows(kind: KindScan, scanned: SampleScan) -> list[int]:
    """Return the rows with the smallest key hashes, of different raw objects if possible."""
    # `best` has negative hashes: the greatest comes first.
    ordered = [row for _, row, _ in sorted(kind.best, reverse=True)]
    first_rows: dict[str, int] = {}  # raw object -> its first row; a row without one counts as its own
    for row in ordered:
        raw_object = str(scanned.facts[row].get("raw_key") or row)
        first_rows.setdefault(raw_object, row)
    different = list(first_rows.values())
    rest = [row for row in ordered if row not in different]
    return [*different, *rest][: scanned.n_examples]


def _example(
    version: Version, name: str, kind: KindScan, place: tuple[int, int], column_values: dict[str, Any]
) -> Example:
    fields = part_fields(version, place[0])
    return build_example(
        version.shard_store,
        name,
        kind.modality,
        fields,
        partial(sample_address, version, place),
        column_values,
    )


def build_example(
    store: RangeReader,
    name: str,
    modality: str,
    fields: Collection[str],
    find: Callable[[Sequence[str]], SampleAddress],
    column_values: Mapping[str, Any],
) -> Example:
    """Return a sample with its image. find: field names -> their address.

    Raises: StoreError; MissingDependency.
    """
    media = media_field(frozenset(fields), modality)
    caption = next((field for field in _CAPTIONS if field in fields and field != media), None)
    picture = EncodedImage(data=b"", media_type="", width_px=0, height_px=0, alt="")
    text = ""
    trouble = ""
    try:
        packets = None
        if media and is_run(media) and f"{media}{SUFFIX}" in fields:
            packets = f"{media}{SUFFIX}"
        address = find([field for field in (media, packets, caption) if field])
        read = _read(store, address)
        if caption in read:
            text = read[caption].decode("utf-8", "replace")
        if media in read and modality == "text":
            text = read[media][: 8 * MAX_CAPTION].decode("utf-8", "replace")
        elif media in read:
            picture = field_image(modality, media, read[media], read[packets] if packets else None)
        elif media is not None:
            trouble = f"{media} has {address.fields[media].nbytes} bytes: too large to be drawn here"
    except (DecodeFailed, Corrupt) as error:
        # One damaged sample must not fail the whole card.
        trouble = clean(error, 200)
    return Example(
        key=str(column_values.get("key", "")),
        kind=name,
        modality=modality,
        split=str(column_values.get("split") or ""),
        facts=_column_values(column_values),
        caption=clean(text, MAX_CAPTION),
        picture=picture.data,
        media_type=picture.media_type,
        width_px=picture.width_px,
        height_px=picture.height_px,
        alt=picture.alt,
        trouble=trouble,
    )


def sample_address(version: Version, place: tuple[int, int], fields: Sequence[str]) -> SampleAddress:
    """Return a live sample's address. place: (part's position in the version, row in the part)."""
    part, row = place
    ordinal = int(version.parts.first_ordinal[part]) + int(version.parts.live_members(part)[:row].sum())
    return version.address(np.array([ordinal]), fields)[0]


def _read(store: RangeReader, address: SampleAddress) -> dict[str, bytes]:
    small = {name: at for name, at in address.fields.items() if at.nbytes <= MAX_FIELD_BYTES}
    if not small:
        return {}
    (sample,) = read_fields(store, [replace(address, fields=small)])
    return sample


def _column_values(row: Mapping[str, Any]) -> dict[str, str]:
    facts = {}
    if row.get("width_px") and row.get("height_px"):
        facts["size"] = f"{row['width_px']} x {row['height_px']} px"
    if isinstance(row.get("duration_s"), float | int):
        facts["length"] = length(row["duration_s"])
    if row.get("n_chars"):
        facts["length"] = f"{row['n_chars']:,} characters"
    facts |= {name: clean(row[name], 80) for name in _SHOWN if row.get(name)}
    return facts
