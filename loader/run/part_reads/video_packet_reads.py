"""Read videos by packets: first the packet tables, then only the packets that the chosen frames need.

This requires a field `<field>.packets` in the version, a table without `whole_because`, and the decoder `loader.video`.
Other videos are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, pairwise

import numpy as np

from ...dataset.reading.sample_places import Map
from ...dataset.reading.verified_bucket_reads import FieldPart, OnCorrupt, PartsOfField, raise_corrupt
from ...dataset.shards.address import UNKNOWN_CRC, FieldAddress, SampleAddress, crc_text
from ...dataset.versions.version import Version, View
from ...errors import Corrupt, DecodeFailed
from ...modalities import Decoder
from ...modalities.video.packet_table import SUFFIX, PacketTable, StreamFacts, read_packets
from ...modalities.video.request import Choice, VideoDecoder, choose, is_run
from ...modalities.video.timeline import Timeline
from ..recipe.video_clips import BareClip, WholeChoice
from ..recipe.video_groups import Group, with_tables

GAP_BYTES = 2**16
"""Bytes between two packets of a part of a table from which they are read apart."""

FieldRng = Callable[[int, str], "np.random.Generator"]
"""(sample number in the list, field) -> generator for the field's decoder."""


PartlyRead = dict[str, bytes | BareClip]
"""Field -> its bytes, or a clip to decode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """Functions that read a version's bytes."""

    fields: Callable[[Sequence[SampleAddress], OnCorrupt], list[dict[str, bytes]]]
    """Reads whole fields: (samples, handler for corrupt ones) -> field -> bytes, for each sample."""
    parts: Callable[[Sequence[PartsOfField], OnCorrupt], list[list[bytes | memoryview]]]
    """Reads parts of fields: (items, handler for corrupt ones) -> the parts of each item."""
    run: Map = map
    """`map`, or a thread pool's."""


def read_samples(
    view: View,
    groups: Sequence[Group],
    decoders: Mapping[str, Decoder],
    addresses: Sequence[SampleAddress],
    rng_of: FieldRng,
    readers: Readers,
) -> list[PartlyRead | Corrupt]:
    """Return field -> bytes, or a clip to decode, for each sample; or its error if it is corrupt.

    Costs two rounds of requests: tables and other fields, then packets and videos that must be read whole.
    """
    bad: dict[int, Corrupt] = {}  # sample number -> its error
    groups = with_tables(view, groups)
    if not groups:
        plain: list[PartlyRead] = [dict(fields) for fields in readers.fields(addresses, bad.setdefault)]
        return [bad.get(i, sample) for i, sample in enumerate(plain)]

    # First round: tables and other fields.
    names = [field + SUFFIX for group in groups for field in group]
    tables = table_places(view.version, names, addresses, readers.run)
    ready_groups: list[list[Group]] = []  # per sample, the groups whose videos all have tables
    first: list[SampleAddress] = []
    for address, table in zip(addresses, tables, strict=True):
        ready = [group for group in groups if _has_tables(group, table)]
        ready_groups.append(ready)
        first.append(_first_round(address, table, ready))
    samples: list[PartlyRead] = [dict(fields) for fields in readers.fields(first, bad.setdefault)]

    clips, whole = _plan_clips(addresses, first, samples, ready_groups, decoders, rng_of, bad)

    # Second round: packets, and videos that must be read whole.
    if whole:
        _read_whole(whole, samples, bad, readers)
    clips = [clip for clip in clips if clip.sample not in bad]

    def on_corrupt_clip(number: int, error: Corrupt) -> None:
        bad.setdefault(clips[number].sample, error)

    bare_clips = read_clips(clips, readers, on_corrupt_clip)
    for clip, bare in zip(clips, bare_clips, strict=True):
        samples[clip.sample][clip.field] = bare

    out: list[PartlyRead | Corrupt] = []
    for i, address in enumerate(addresses):
        sample = samples[i]
        in_order = {name: sample[name] for name in address.fields if name in sample}
        out.append(bad.get(i, in_order))
    return out


def _plan_clips(
    addresses: Sequence[SampleAddress],
    first: Sequence[SampleAddress],
    samples: Sequence[PartlyRead],
    ready_groups: Sequence[Sequence[Group]],
    decoders: Mapping[str, Decoder],
    rng_of: FieldRng,
    bad: dict[int, Corrupt],
) -> tuple[list[PlannedClip], dict[int, SampleAddress]]:
    """Return the clips whose packets are to be read, and sample number -> its videos that must be read whole.

    first, samples: addresses and values of the first round. bad: gets the errors, and its samples are left out.
    """
    clips: list[PlannedClip] = []
    whole: dict[int, SampleAddress] = {}  # sample number -> its videos that must be read whole
    for i, address in enumerate(addresses):
        if i in bad:
            continue
        for group in ready_groups[i]:
            try:
                chosen = _choose_clips(i, group, decoders, address, first[i], samples[i], rng_of)
            except DecodeFailed as error:
                bad[i] = error
                break
            clips.extend(chosen)
            if not chosen:
                places = {field: address.fields[field] for field in group}
                if i in whole:
                    places.update(whole[i].fields)
                whole[i] = replace(address, fields=places)
    return clips, whole


def _has_tables(group: Group, table: Mapping[str, FieldAddress]) -> bool:
    return all(field + SUFFIX in table for field in group)


def _read_whole(
    whole: Mapping[int, SampleAddress],
    samples: Sequence[PartlyRead],
    bad: dict[int, Corrupt],
    readers: Readers,
) -> None:
    """Read videos whole into their samples. whole: sample number -> its videos. bad: gets the errors."""
    numbers = list(whole)
    addresses = list(whole.values())

    def on_corrupt(number: int, error: Corrupt) -> None:
        bad.setdefault(numbers[number], error)

    videos = readers.fields(addresses, on_corrupt)
    for i, by_field in zip(numbers, videos, strict=True):
        samples[i].update(by_field)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedClip:
    """A clip whose packets are still to be read."""

    sample: int
    """Number of its sample."""
    address: SampleAddress
    """Address of the video's field."""
    field: str
    """Field name."""
    table: PacketTable
    """Packet table of the field."""
    timeline: Timeline
    """Timestamps of the video."""
    choice: Choice
    """Frames to decode."""
    of_whole: WholeChoice | None = None
    """As in `BareClip`."""


def table_places(
    version: Version,
    names: Sequence[str],
    addresses: Sequence[SampleAddress],
    run: Map,
) -> list[dict[str, FieldAddress]]:
    """Return packet field -> address, for each sample that has it. names: packet fields. run: as in `Readers`."""
    out: list[dict[str, FieldAddress]] = [{} for _ in addresses]
    ordinals = np.array([address.ordinal for address in addresses], np.int64)
    part, _ = version.parts.locate(ordinals)
    by_group: dict[str, list[str]] = {}
    for name in names:
        by_group.setdefault(version.group_of(name), []).append(name)
    for group, fields in by_group.items():
        has_group = version.parts.has_group(group)  # [parts]
        with_group = np.flatnonzero(has_group[part])  # numbers of samples
        if not len(with_group):
            continue
        table_addresses = version.address(ordinals[with_group], fields, run)
        for i, table_address in zip(with_group.tolist(), table_addresses, strict=True):
            out[i].update(table_address.fields)
    return out


def _first_round(
    address: SampleAddress, tables: Mapping[str, FieldAddress], ready: Sequence[Group]
) -> SampleAddress:
    """Return the fields to read first: each video that has a table is replaced by it."""
    later = [field for group in ready for field in group]
    fields = {name: place for name, place in address.fields.items() if name not in later}
    for field in later:
        name = field + SUFFIX
        fields[name] = tables[name]
    return replace(address, fields=fields)


def _choose_clips(
    sample: int,
    group: Group,
    decoders: Mapping[str, Decoder],
    address: SampleAddress,
    with_tables: SampleAddress,
    read: Mapping[str, bytes | BareClip],
    rng_of: FieldRng,
) -> list[PlannedClip]:
    """Return a clip for each video of a group; none if the videos must be read whole. Raises: DecodeFailed."""
    tables = {field: packet_table(read[field + SUFFIX], field, address, with_tables) for field in group}
    if any(table.facts.whole_because for table in tables.values()):
        return []
    video_decoders: dict[str, VideoDecoder] = {}
    for field in group:
        decoder = decoders[field]
        if isinstance(decoder, VideoDecoder):
            video_decoders[field] = decoder
    generators = {field: rng_of(sample, field) for field in group}
    try:
        timelines = {field: Timeline.of_table(table) for field, table in tables.items()}
        choices = choose(video_decoders, timelines, generators)
    except DecodeFailed as error:
        place = address.describe(group[0])
        raise error.with_message(f"{place}: {error}", what=error.what or group[0], where=place) from error
    clips: list[PlannedClip] = []
    for field in group:
        own_address = replace(address, fields={field: address.fields[field]})
        clip = PlannedClip(
            sample=sample,
            address=own_address,
            field=field,
            table=tables[field],
            timeline=timelines[field],
            choice=choices[field],
        )
        clips.append(clip)
    return clips


def packet_table(
    data: bytes | BareClip, field: str, address: SampleAddress, with_tables: SampleAddress
) -> PacketTable:
    """Return a video's packet table. data: its stored bytes. Raises: DecodeFailed if it is damaged, or another's."""
    assert isinstance(data, bytes)
    try:
        table = read_packets(data)
    except DecodeFailed as error:
        place = with_tables.describe(field + SUFFIX)
        raise error.with_message(
            f"{place}: {error}", what=error.what or "packet table", where=place
        ) from error
    check_table_address(table.facts, field, address, with_tables)
    return table


def check_table_address(
    facts: StreamFacts, field: str, address: SampleAddress, with_tables: SampleAddress
) -> None:
    """Raise DecodeFailed unless a packet table is of the address's video."""
    place = address.fields[field]
    if facts.nbytes != place.nbytes or facts.crc32c != place.crc32c != UNKNOWN_CRC:
        raise DecodeFailed(
            f"{with_tables.describe(field + SUFFIX)} is the packet table of {facts.nbytes} bytes with CRC-32C "
            f"{facts.crc32c:08x}; {field!r} has {place.nbytes} with {crc_text(place.crc32c)}. Make the tables again "
            "from the videos (loader.modalities.video.packet_table.index_packets)",
            what=field + SUFFIX,
            where=with_tables.describe(field + SUFFIX),
            given=f"packets of {facts.nbytes} bytes, {facts.crc32c:08x}",
            accepted=f"{place.nbytes} bytes, {crc_text(place.crc32c)}",
        )


def read_clips(clips: Sequence[PlannedClip], readers: Readers, on_corrupt: OnCorrupt) -> list[BareClip]:
    """Return the clips with their packets, read together. on_corrupt: gets the number of a clip, and its error."""
    if not clips:
        return []
    clip_runs = [clip.timeline.runs(clip.choice.frames) for clip in clips]
    clip_packets: list[list[range]] = []  # packet numbers of each clip's runs
    requests: list[PartsOfField] = []
    for clip, runs in zip(clips, clip_runs, strict=True):
        packets = [range(run.first, run.stop) for run in runs]
        parts: list[list[FieldPart]] = []
        for numbers in packets:
            parts += _parts(clip, numbers)
        clip_packets.append(packets)
        requests.append(PartsOfField(clip.address, clip.field, parts))
    bare_clips: list[BareClip] = []
    clip_bodies = readers.parts(requests, on_corrupt)
    for clip, runs, packets, bodies in zip(clips, clip_runs, clip_packets, clip_bodies, strict=True):
        body_of_packet: dict[int, bytes | memoryview] = {}  # by number; empty for a corrupt clip
        if bodies:
            body_of_packet = dict(zip(chain(*packets), bodies, strict=True))
        bare = BareClip(
            table=clip.table,
            timeline=clip.timeline,
            choice=clip.choice,
            runs=runs,
            bodies=body_of_packet,
            whole=partial(_whole, clip, readers),
            is_run=is_run(clip.field),
            of_whole=clip.of_whole,
        )
        bare_clips.append(bare)
    return bare_clips


def _parts(clip: PlannedClip, numbers: range) -> list[list[FieldPart]]:
    """Return a run's packets, in lists that are each read by one range."""
    run = slice(numbers.start, numbers.stop)
    position = clip.table.pos[run]  # int64 [packets], as `size`: bytes of the video
    size = clip.table.size[run]
    crc32c = clip.table.crc32c[run]
    packets = zip(position.tolist(), size.tolist(), crc32c.tolist(), strict=True)
    parts = [FieldPart(*packet) for packet in packets]
    if clip.of_whole is None:
        return [parts]
    end = position + size
    gap = position[1:] - end[:-1]
    after_gap = np.flatnonzero(gap > GAP_BYTES) + 1
    bounds = [0, *after_gap.tolist(), len(parts)]
    return [parts[first:stop] for first, stop in pairwise(bounds)]


def _whole(clip: PlannedClip, readers: Readers) -> bytes:
    (sample,) = readers.fields([clip.address], raise_corrupt)
    return sample[clip.field]
