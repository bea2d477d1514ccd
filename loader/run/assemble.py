"""One step for one rank: plan, address, fetch, verify, decode, transform, collate. A pure function of the plan."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ..cache.spec import NodeCache
from ..dataset.address import SampleAddress
from ..dataset.read import Map, OnCorrupt, PartsOfField, read_fields, read_parts
from ..dataset.shard import crc32c
from ..dataset.view import View
from ..errors import Corrupt, DecodeFailed, InvalidRuntime
from ..modalities import Decoder
from ..order.assign import rank_slice
from ..order.digest import delivered_digest, slot_identities
from ..order.plan import Plan
from ..order.rng import field_rng_key, sample_rng_key
from ..order.slots import Slots
from ..order.substitutes import substitutes
from ..storage import RangeReader
from ..storage.traffic import counted
from .batch import Batch, fields_nbytes
from .collate import BatchRows, collate
from .decode import Decode, Transform, apply_transform, decode_sample, decoders
from .metrics import Metrics
from .node_reads import NodeReads
from .step_metrics import StepMetrics
from .substitution import Substitution, error_text, stage_of
from .video_reads import BareClip, Readers, groups_of, read_samples
from .world import World

Fetched = dict[str, bytes | BareClip] | Corrupt
"""Field -> what there is to decode, or why the sample cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a batch holds at a rank; none of it changes which samples are planned.

    position_limit: stream positions from here on are padding. substitute: whether corrupt samples are substituted.
    """

    plan: Plan
    world: World
    decode: Decode
    transform: Transform | None
    framework: str
    position_limit: int | None
    substitute: bool

    def __post_init__(self) -> None:
        rank_slice(self.plan.batch_range[0], self.world.rank, self.world.world_size)
        for name, source in self.plan.sources.items():
            if not isinstance(source.view, View):
                raise InvalidRuntime(
                    f"source {name!r} is a {type(source.view).__name__} without bytes; a Loader needs views of "
                    "versions (loader.synthetic is for planning only)"
                )


class Assembler:
    """Makes batches of one recipe; thread-safe. Keeps pinned ETags, nothing else; what it reads may lie in a cache."""

    def __init__(self, recipe: Recipe, metrics: Metrics, run: Map, cache: NodeCache | None = None) -> None:
        self.recipe, self._metrics, self._run = recipe, metrics, run
        self._views: list[View] = [
            source.view for source in recipe.plan.sources.values() if isinstance(source.view, View)
        ]
        wanted = dict.fromkeys(field for view in self._views for field in view.fields)
        self._decoders: Mapping[str, Decoder] = decoders(list(wanted), recipe.decode)
        self._videos = [groups_of(view, self._decoders) for view in self._views]
        self._pins: dict[str, str] = {}
        self._reads = NodeReads(cache, recipe.plan, self._views, metrics)

    def close(self) -> None:
        """Tell the cache's other users that this one is gone."""
        self._reads.close()

    def batch(self, step: int) -> Batch:
        """The rank's part of the global batch of a step. Raises: the leaves of `loader.errors` that reading,
        decoding and the transform raise, each with the sample's address; Corrupt where nothing may be, or nothing
        readable is, substituted."""
        seen = StepMetrics(step)
        try:
            with counted(seen.traffic):
                return self._made(step, seen)
        finally:
            self._metrics.add(seen)

    def _made(self, step: int, seen: StepMetrics) -> Batch:
        recipe, plan = self.recipe, self.recipe.plan
        with seen.timed("plan"):
            slots = plan.slots(step)  # and then what is delivered: a substitute is written into it
            mine = np.arange(len(slots))[rank_slice(len(slots), recipe.world.rank, recipe.world.world_size)]
            everyone = self._valid(slots)
            if not everyone.any():
                raise InvalidRuntime(
                    f"step = {step} lies after the last epoch of this Loader; seek further back"
                )
            valid = everyone[mine]
        real = mine[valid]
        shape_only = len(real) == 0  # a rank of padding alone still needs its batch's shapes
        with seen.timed("address"):
            addresses = self._addresses(slots, np.flatnonzero(everyone)[:1] if shape_only else real)
        data = self._fetch(slots, addresses, seen)
        with seen.timed("address"):
            self._reads.look_ahead(step, self._future)
        substitutions: list[Substitution] = []
        rows_of = BatchRows(len(mine))
        samples = self._samples(slots, addresses, data, rows_of, int(mine[0]), substitutions, seen)
        with seen.timed("collate"):
            rows: list[Mapping[str, Any] | None] = [samples.get(slot) for slot in mine.tolist()]
            like = next(iter(samples.values())) if shape_only else None
            fields, mask = collate(rows, recipe.framework, like=like)
        names = plan.source_names
        ids = [
            (names[slots.source[slot]], addresses[slot].key) if ok else None
            for slot, ok in zip(mine.tolist(), valid.tolist(), strict=True)
        ]
        digest = delivered_digest(
            step,
            real,
            slot_identities(plan, slots)[real],
            np.array([sample_crc(addresses[slot]) for slot in real.tolist()], np.int64),
        )
        nbytes = fields_nbytes(fields)
        seen.count("batches")
        seen.count("samples", len(real))
        seen.count("decoded_bytes", nbytes)
        for index, made in enumerate(np.bincount(slots.source[real], minlength=len(names)).tolist()):
            seen.samples[names[index]] = made
        weight = len(real) * recipe.world.world_size / len(slots)
        return Batch(
            step=step,
            ids=ids,
            mask=mask,
            weight=weight,
            digest=digest,
            fields=fields,
            nbytes=nbytes,
            bucket=plan.bucket(step),
            substitutions=[] if shape_only else substitutions,  # the slot is another rank's, which lists it
            stats=seen.stats(),
            slowest=seen.slowest,
        )

    def _valid(self, slots: Slots) -> np.ndarray[Any, np.dtype[np.bool_]]:
        limit = self.recipe.position_limit
        return slots.valid if limit is None else slots.valid & (slots.position < limit)

    def _future(self, step: int) -> list[SampleAddress]:
        """Where the rank's samples of a step lie; none after the last epoch."""
        slots = self.recipe.plan.slots(step)
        world = self.recipe.world
        mine = np.arange(len(slots))[rank_slice(len(slots), world.rank, world.world_size)]
        return list(self._addresses(slots, mine[self._valid(slots)[mine]]).values())

    def _addresses(
        self, slots: Slots, wanted: np.ndarray[Any, np.dtype[np.int64]]
    ) -> dict[int, SampleAddress]:
        out: dict[int, SampleAddress] = {}
        for index, view in enumerate(self._views):
            mine = wanted[slots.source[wanted] == index]
            if len(mine):
                found = view.version.address(slots.ordinal[mine], view.fields, self._run)
                out.update(zip(mine.tolist(), found, strict=True))
        return {slot: out[slot] for slot in wanted.tolist()}

    def _fetch(
        self, slots: Slots, addresses: Mapping[int, SampleAddress], seen: StepMetrics
    ) -> dict[int, Fetched]:
        with seen.timed_fetch():
            return self._read(slots, addresses, seen)

    def _read(
        self, slots: Slots, addresses: Mapping[int, SampleAddress], seen: StepMetrics
    ) -> dict[int, Fetched]:
        data: dict[int, Fetched] = {}
        for index, view in enumerate(self._views):
            mine = [slot for slot in addresses if slots.source[slot] == index]
            read = read_samples(
                view,
                self._videos[index],
                self._decoders,
                [addresses[slot] for slot in mine],
                lambda i, field, mine=mine: field_rng_key(*self._place(slots, mine[i]), field),  # type: ignore[misc]
                self._readers(self._reads[index], self.recipe.plan.source_names[index], seen),
            )
            data.update(zip(mine, read, strict=True))
        return data

    def _readers(self, store: RangeReader, source: str, seen: StepMetrics) -> Readers:
        """How to read from a store, and count what was read."""
        how: dict[str, Any] = {
            "pins": self._pins,
            "run": self._run,
            "on_refetch": partial(seen.count, "refetched"),
            "on_read": partial(seen.read, source),
        }

        def fields(addresses: Sequence[SampleAddress], on_corrupt: OnCorrupt) -> list[dict[str, bytes]]:
            read = read_fields(store, addresses, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for one in read for data in one.values()))
            return read

        def parts(wanted: Sequence[PartsOfField], on_corrupt: OnCorrupt) -> list[list[bytes | memoryview]]:
            read = read_parts(store, wanted, on_corrupt=on_corrupt, **how)
            seen.count("fetched_bytes", sum(len(data) for one in read for data in one))
            return read

        return Readers(fields=fields, parts=parts, run=self._run)

    def _samples(
        self,
        slots: Slots,
        addresses: dict[int, SampleAddress],
        data: dict[int, Fetched],
        rows: BatchRows,
        first: int,
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> dict[int, dict[str, Any]]:
        """slot -> decoded sample; arrays of the rank's own slots lie in the batch's memory. For a corrupt sample a
        substitute is decoded, and takes its place in `slots` and `addresses`."""
        out: dict[int, dict[str, Any]] = {}
        placing_s = 0.0
        for slot, address in list(addresses.items()):
            sample = self._sample_or_error(slots, slot, address, data.pop(slot), seen)
            if isinstance(sample, Corrupt):
                sample = self._substitute(slots, slot, addresses, sample, substitutions, seen)
            start = perf_counter()
            out[slot] = rows.take(slot - first, sample) if 0 <= slot - first < len(rows) else sample
            placing_s += perf_counter() - start
        seen.spent("collate", placing_s)
        return out

    def _sample_or_error(
        self, slots: Slots, slot: int, address: SampleAddress, fetched: Fetched, seen: StepMetrics
    ) -> dict[str, Any] | Corrupt:
        """The sample, or why it is corrupt. One that does not decode is read and decoded once more; one whose
        checksum is wrong was read twice already. Raises: TransformFailed; what reading raises of a store that does
        not answer."""
        found = self._decoded(slots, slot, address, fetched, seen)
        if isinstance(found, DecodeFailed):
            seen.count("refetched")
            again = self._fetch(slots, {slot: address}, seen)[slot]
            found = self._decoded(slots, slot, address, again, seen)
        return found

    def _decoded(
        self, slots: Slots, slot: int, address: SampleAddress, fetched: Fetched, seen: StepMetrics
    ) -> dict[str, Any] | Corrupt:
        if isinstance(fetched, Corrupt):
            return fetched
        try:
            return self._sample(slots, slot, address, fetched, seen)
        except Corrupt as error:
            return error

    def _substitute(
        self,
        slots: Slots,
        slot: int,
        addresses: dict[int, SampleAddress],
        error: Corrupt,
        substitutions: list[Substitution],
        seen: StepMetrics,
    ) -> dict[str, Any]:
        """The first sample that can stand in for a slot's. Raises: the slot's own error, where none can or none may."""
        if not self.recipe.substitute:
            raise error
        plan, source, position = self.recipe.plan, int(slots.source[slot]), int(slots.position[slot])
        why = error
        for attempt, view_ordinal, ordinal in substitutes(
            plan, seen.step, source, position, int(slots.attempt[slot])
        ):
            bad = addresses[slot]
            slots.attempt[slot], slots.view_ordinal[slot], slots.ordinal[slot] = (
                attempt,
                view_ordinal,
                ordinal,
            )
            with seen.timed("address"):
                addresses.update(self._addresses(slots, np.array([slot], np.int64)))
            substitutions.append(
                Substitution(
                    step=seen.step,
                    slot=slot,
                    source=plan.source_names[source],
                    epoch=int(slots.epoch[slot]),
                    position=position,
                    attempt=attempt,
                    stage=stage_of(why),
                    error=error_text(why),
                    address=bad,
                    substitute=addresses[slot].key,
                    substitute_ordinal=ordinal,
                )
            )
            fetched = self._fetch(slots, {slot: addresses[slot]}, seen)[slot]
            sample = self._sample_or_error(slots, slot, addresses[slot], fetched, seen)
            if not isinstance(sample, Corrupt):
                return sample
            why = sample
        error.add_note(f"all of its substitutes are corrupt too, the last: {why}")
        raise error

    def _sample(
        self,
        slots: Slots,
        slot: int,
        address: SampleAddress,
        data: Mapping[str, bytes | BareClip],
        seen: StepMetrics,
    ) -> dict[str, Any]:
        transform, place = self.recipe.transform, self._place(slots, slot)
        start = perf_counter()
        sample = decode_sample(data, address, self._decoders, lambda field: field_rng_key(*place, field))
        decoded = perf_counter()
        seen.sample("decode", decoded - start, place[1], address)
        if transform is None:
            return sample
        sample = apply_transform(transform, sample, address, sample_rng_key(*place))
        seen.sample("transform", perf_counter() - decoded, place[1], address)
        return sample

    def _place(self, slots: Slots, slot: int) -> tuple[int, str, int, int]:
        """What a sample's generators are keyed by: seed, source, epoch, version ordinal."""
        plan = self.recipe.plan
        source = plan.source_names[int(slots.source[slot])]
        return plan.seed, source, int(slots.epoch[slot]), int(slots.ordinal[slot])


def sample_crc(address: SampleAddress) -> int:
    """CRC-32C over (field name, CRC-32C of its bytes) of the fields read, by name; every one was verified."""
    parts = [
        name.encode() + struct.pack("<xI", place.crc32c) for name, place in sorted(address.fields.items())
    ]
    return crc32c(b"".join(parts))
