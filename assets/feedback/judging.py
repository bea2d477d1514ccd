"""Samples that a training called corrupt, read again by a worker of the pipeline.

A node with bad memory, a decoder of somebody's own, or a proxy that broke an answer, make a sample look corrupt that is
sound. So nobody's word is taken. Its bytes are read from the store, held against their checksums, and decoded whole, in
a process that may die of it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

import loader
from loader.dataset.reading.verified_bucket_reads import read_fields
from loader.dataset.shards.address import SampleAddress
from loader.dataset.versions.samples_table import live_rows
from loader.errors import Corrupt, DecodeFailed, StoreError
from loader.modalities.fields import last_word
from loader.run.recipe.decode import decode_sample, decoders
from loader.storage import RangeReader
from loader.storage.disk.scratch import held_folder
from penstock.compute.pool import Compute, Outcome, Progress
from penstock.compute.pool.environment import store_variables

from ..media.audit import audit
from ..media.unit import Unusable

Verdict = Literal["corrupt", "sound", "gone"]
VIDEOS: Mapping[str, str] = {
    "mp4": "video/mp4",
    "mov": "video/quicktime",
    "webm": "video/webm",
    "mkv": "video/x-matroska",
}
"""Last word of a field -> type; a decoder reads some frames of these, the audit all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTask:
    """A sample to read."""

    store: RangeReader
    """Store of its fields; pickled without secrets."""
    address: SampleAddress
    """Place of its fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdict on a sample."""

    verdict: Verdict
    """"corrupt", "sound" or "gone"."""
    code: str = ""
    """"checksum": the bytes are not those written; "decode": they are, and do not decode; "crashed" or "timeout":
    their decoder did, twice; "" unless it is corrupt."""
    reason: str = ""
    """Reason in words; "" unless it is corrupt."""
    part: str = ""
    """Id of the part that it lay in; "" for a sample that is gone."""
    row: int = -1
    """Row in the part; -1 for a sample that is gone."""


def read_again(reading: ReadingTask) -> Judgement:
    """Read every field, twice where its checksum is wrong, and decode it whole.

    Raises: StoreError; errors that say nothing about the bytes, such as MemoryError.
    """
    at = reading.address

    def found(verdict: Verdict, code: str = "", reason: object = "") -> Judgement:
        said = " ".join(str(reason).split())[:500]
        return Judgement(verdict=verdict, code=code, reason=said, part=at.part, row=at.row)

    try:
        (data,) = read_fields(reading.store, [at])
        fields = {name: bytes(value) for name, value in data.items() if value is not None}
        decode_sample(fields, at, decoders(list(fields), True), lambda _: np.random.default_rng(0))
        for name, value in fields.items():
            if mime := VIDEOS.get(last_word(name)):
                _decode_whole(value, mime)
    except DecodeFailed as error:
        return found("corrupt", "decode", error)
    except Corrupt as error:
        return found("corrupt", "checksum", error)
    except Unusable as error:
        if error.outcome == "rejected":  # others are sound: not wanted, or without a decoder here
            return found("corrupt", "decode", f"{error.code}: {error.reason}")
    return found("sound")


def _decode_whole(data: bytes, mime: str) -> None:
    """Decode a video to its end. Raises: Unusable."""
    with held_folder("judge") as scratch:
        path = os.path.join(scratch, "video")
        with open(path, "wb") as file:
            file.write(data)
        audit(path, mime)


def judge(
    version: loader.Version,
    claims: Mapping[str, Sequence[str]],
    compute: Compute,
    *,
    timeout_s: float,
    progress: Progress | None = None,
) -> dict[str, Judgement]:
    """Return key -> verdict on the sample in this version. claims: key -> the fields that the training read.

    Only fields that the version has are read; a sample that is not live in it any more is gone. One that kills its
    worker, or takes too long, is read once more before it is believed. Costs the key column of the version, and the
    samples.

    Raises: StoreError for a sample that could not be read, which says nothing about it.
    """
    addresses = _addresses(version, claims)
    readings = {
        key: ReadingTask(store=version.placed or version.store, address=at) for key, at in addresses.items()
    }
    made: dict[str, Judgement] = {key: Judgement(verdict="gone") for key in claims if key not in readings}
    for last in (False, True):
        work = [key for key in readings if key not in made]
        outcomes = compute.map(
            read_again,
            [readings[key] for key in work],
            timeout_s=timeout_s,
            progress=progress,
            variables=store_variables(version.placed or version.store),
        )
        for key, outcome in zip(work, outcomes, strict=True):
            at = addresses[key]
            if outcome.value is not None:
                made[key] = outcome.value
            elif last:
                made[key] = _died(at, outcome)
    return made


def _died(at: SampleAddress, outcome: Outcome[Judgement]) -> Judgement:
    """Return the verdict on a sample that killed its worker. Raises: StoreError for faults of machine or store."""
    error = outcome.error
    if error is None or error.code not in ("crashed", "timeout"):
        said = error.summary if error else "no result"
        raise StoreError(f"{at.describe()} could not be judged: {said}; run this again")
    return Judgement(verdict="corrupt", code=error.code, reason=error.summary[:500], part=at.part, row=at.row)


def _addresses(version: loader.Version, claims: Mapping[str, Sequence[str]]) -> dict[str, SampleAddress]:
    """Return key -> place of its fields, of live samples. A field that the sample's part lacks is left out."""
    parts, fields = version.parts, frozenset(version.fields)
    found: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for part, members in live_rows(version, frozenset(claims)).items() if claims else ():
        position = parts.position(part)
        live_before = np.cumsum(parts.live_members(position)) - 1
        for row, key in members.items():
            named = sorted(set(claims[key]) & fields)
            held = tuple(one for one in named if parts.has_group(version.group_of(one))[position])
            ordinal = int(parts.first_ordinal[position] + live_before[row])
            found.setdefault(held, []).append((key, ordinal))
    out: dict[str, SampleAddress] = {}
    for held, samples in found.items():
        ordinals = np.array([ordinal for _, ordinal in samples], np.int64)
        keys = [key for key, _ in samples]
        out |= dict(zip(keys, version.address(ordinals, held), strict=True))
    return out
