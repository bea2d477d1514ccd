"""Re-read samples that a training run reported as corrupt, in a worker: checksums and a complete decode."""

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
from loader.storage.disk.scratch import scratch_folder
from penstock.compute.pool import Compute, Outcome
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
"""Last word of a field -> type of video whose every frame the audit decodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingTask:
    """A sample to read."""

    store: RangeReader
    """Store that has the fields, pickled without secrets."""
    address: SampleAddress
    """Address of the fields."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Verdict on one sample."""

    verdict: Verdict
    """Verdict on the sample."""
    code: str = ""
    """"checksum", "decode", "crashed" or "timeout"; "" unless corrupt."""
    reason: str = ""
    """Why the sample is corrupt, or ""."""
    part: str = ""
    """Id of the sample's part; "" if gone."""
    row: int = -1
    """Row in the part; -1 if gone."""


def read_again(reading: ReadingTask) -> Judgement:
    """Read every field, twice if its checksum is wrong, and decode it completely.

    Raises: StoreError; errors that do not depend on the bytes, such as MemoryError.
    """
    at = reading.address

    def judgement(verdict: Verdict, code: str = "", reason: object = "") -> Judgement:
        words = " ".join(str(reason).split())[:500]
        return Judgement(
            verdict=verdict,
            code=code,
            reason=words,
            part=at.part,
            row=at.row,
        )

    try:
        (data,) = read_fields(reading.store, [at])
        fields = {name: bytes(value) for name, value in data.items() if value is not None}
        # A fixed generator: random decoders take the same crop at each judgement.
        decode_sample(fields, at, decoders(list(fields), True), lambda _: np.random.default_rng(0))
        for name, value in fields.items():
            # Decoders read only the frames that a training asks for, so damage between them needs a whole decode.
            if mime := VIDEOS.get(last_word(name)):
                _decode_whole(value, mime)
    # Before Corrupt: DecodeFailed is one.
    except DecodeFailed as error:
        return judgement("corrupt", "decode", error)
    except Corrupt as error:
        return judgement("corrupt", "checksum", error)
    except Unusable as error:
        if error.outcome == "rejected":  # other outcomes are not damage: unwanted, or no decoder here
            return judgement("corrupt", "decode", f"{error.code}: {error.reason}")
    return judgement("sound")


def _decode_whole(data: bytes, mime: str) -> None:
    with scratch_folder("judge") as scratch:
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
) -> dict[str, Judgement]:
    """Return key -> verdict on the sample in this version. claims: key -> fields that the training run read.

    "gone" means no longer live. A sample that kills its worker or times out is read once more.

    Raises: StoreError if a sample could not be read.
    """
    addresses = _addresses(version, claims)
    readings = {
        key: ReadingTask(store=version.placed or version.store, address=at) for key, at in addresses.items()
    }
    judgements: dict[str, Judgement] = {
        key: Judgement(verdict="gone") for key in claims if key not in readings
    }
    # A worker may die of its neighbour or of little memory. Only a second death counts.
    for last in (False, True):
        work = [key for key in readings if key not in judgements]
        outcomes = compute.map(
            read_again,
            [readings[key] for key in work],
            timeout_s=timeout_s,
            variables=store_variables(version.placed or version.store),
        )
        for key, outcome in zip(work, outcomes, strict=True):
            at = addresses[key]
            if outcome.value is not None:
                judgements[key] = outcome.value
            elif last:
                judgements[key] = _crash_judgement(at, outcome)
    return judgements


def _crash_judgement(at: SampleAddress, outcome: Outcome[Judgement]) -> Judgement:
    error = outcome.error
    if error is None or error.code not in ("crashed", "timeout"):
        summary = "no result"
        if error:
            summary = error.summary
        raise StoreError(
            f"{at.describe()} could not be judged: {summary}; run this again",
            what="judgement",
            where=at.describe(),
            given=summary,
        )
    return Judgement(
        verdict="corrupt",
        code=error.code,
        reason=error.summary[:500],
        part=at.part,
        row=at.row,
    )


def _addresses(version: loader.Version, claims: Mapping[str, Sequence[str]]) -> dict[str, SampleAddress]:
    """Return key -> address of each claimed sample that is live. claims: as in `judge`."""
    if not claims:
        return {}
    parts = version.parts
    fields = frozenset(version.fields)
    by_fields: dict[
        tuple[str, ...], list[tuple[str, int]]
    ] = {}  # fields to read -> (key, ordinal) of samples
    for part, members in live_rows(version, frozenset(claims)).items():
        position = parts.position(part)
        # int64 [rows of the part]: live rows before each row, for rows that are live themselves.
        live_before = np.cumsum(parts.live_members(position)) - 1
        for row, key in members.items():
            claimed = sorted(fields.intersection(claims[key]))
            fields_of_part = tuple(
                field for field in claimed if parts.has_group(version.group_of(field))[position]
            )
            ordinal = int(parts.first_ordinal[position] + live_before[row])
            # `address` takes one list of fields for all its samples, hence a call per list.
            by_fields.setdefault(fields_of_part, []).append((key, ordinal))
    out: dict[str, SampleAddress] = {}
    for fields_of_part, samples in by_fields.items():
        ordinals = np.array([ordinal for _, ordinal in samples], np.int64)
        keys = [key for key, _ in samples]
        out |= dict(zip(keys, version.address(ordinals, fields_of_part), strict=True))
    return out
