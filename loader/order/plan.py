"""The plan: everything that changes data, frozen under one hash; each batch is a pure function of the step.

plan = make_plan({"photos": view, "web": source(other, weight=3)}, seed=7, global_batch=1024)
plan.slots(step)        # the global batch of a step, in canonical order
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InvalidPlan
from .bucket_sources import bucket_labels, bucket_segments, interleave_parts, split_sources
from .content import PlanContent
from .mixture import FILL, chain_segments
from .planned_source import MixtureSource, PlannedSource, mixture_source, plan_source, source
from .random.plan_hash import int_in_range, plan_json
from .slots import Slots, Stacked
from .sources.bucket import BucketBy, bucket, size_ramp
from .sources.packing import PackBy
from .sources.quarantine import QuarantineKeys, build_quarantine
from .sources.views import OrderView, synthetic
from .state import check_state, step_state
from .substitutes import usable_slots, usable_stack
from .weights import (
    GlobalBatch,
    Schedule,
    Weight,
    in_force,
    integer_schedule,
    parse_ramp,
    split_schedule,
)

if TYPE_CHECKING:
    from .occurrences import Occurrence, Substituted


__all__ = ["MixtureSource", "OrderView", "Plan", "PlannedSource", "make_plan", "source", "synthetic"]


class PlanStore(Protocol):
    def put_if_absent(self, key: str, data: bytes) -> None: ...


class PlanRoot(Protocol):
    """Attributes of a root that saving a plan needs."""

    @property
    def store(self) -> PlanStore: ...

    def create_if_empty(self) -> None: ...

    def save_start(self, plan: str, body: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(PlanContent):
    """A frozen plan; picklable if its views are. Plans with equal hashes are equal."""

    def __repr__(self) -> str:
        facts = [
            self.hash[:14],
            f"seed={self.seed}",
            f"global_batch={self.global_batch}",
        ]
        if self.buckets is not None:
            facts.append(f"{len(self.streams)} buckets")
        # A grown or bucketed source has several entries, but one name.
        names = list(dict.fromkeys(source.source for source in self.sources.values()))
        sources = ", ".join(names[:8])
        if len(names) > 8:
            sources += f" and {len(names) - 8} more"
        return f"Plan({', '.join(facts)}, sources {sources})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def slots(self, step: int) -> Slots:
        """Return the slots of a step in canonical order, with substitutes for quarantined samples.

        Raises InvalidRuntime for an invalid step; InvalidPlan if all substitutes of a slot are quarantined.
        """
        return usable_slots(self, step)

    def stack(
        self,
        steps: Sequence[int],
        rank: int,
        world_size: int,
    ) -> Stacked:
        """Return one rank's part of the slots of ascending steps. Computes only that part.

        Raises: as `slots`; InvalidRuntime if there are more ranks than slots.
        """
        return usable_stack(self, steps, rank, world_size)

    def batch_ids(self, step: int) -> list[tuple[str, str]]:
        """Return (source name, sample key) of each slot, in canonical order; ("", "") at padding."""
        slots = self.slots(step)
        ids: list[tuple[str, str]] = [("", "")] * len(slots)
        for index, (name, planned) in enumerate(self.sources.items()):
            is_of_source = (slots.source == index) & slots.valid
            slots_of_source = np.flatnonzero(is_of_source)
            if not len(slots_of_source):
                continue
            keys = planned.view.keys(slots.ordinal[slots_of_source])
            for slot, sample_key in zip(slots_of_source.tolist(), keys, strict=True):
                ids[slot] = (name, sample_key)
        return ids

    def steps_of(
        self,
        source: str,
        key: str,
        *,
        before: int,
        ordinal: int | None = None,
        substitutions: "Iterable[Substituted]" = (),
    ) -> "list[Occurrence]":
        """Return the slots that held a source's sample in steps 0 ... before - 1, in order of step.

        Each is (step, slot, epoch, attempt); attempt is above 0 if the sample was a substitute.

        ordinal: the sample's ordinal in its version, if known. Saves reading all of its keys.
        substitutions: entries from `loader.read_ledger(root, plan)`. Without them, a corrupt sample is listed in place
        of its substitute.

        Costs the version's keys, and about two milliseconds per epoch for any N and B = 1024. Raises: InvalidRuntime if
        the source or key is unknown.
        """
        from .occurrences import occurrences  # not needed to start a training run

        return occurrences(self, source, key, before, ordinal, substitutions)

    def state(self, step: int) -> dict[str, Any]:
        """Return the state to save once batch step - 1 was delivered: a few hundred bytes of JSON."""
        return step_state(self, step)

    def check_state(self, state: object) -> int:
        """Return the step to continue from. Raises PlanMismatch, naming the fields of the past that differ."""
        return check_state(self, state)

    def save(self, root: PlanRoot) -> str:
        """Store the plan's canonical JSON as `plans/<hash>.json` unless that exists; return the hash.

        Also stores, beside it, what spares `open_plan` a round of requests.
        """
        self.save_content(root)
        root.save_start(self.hash, self.to_json())
        return self.hash

    def save_content(self, root: PlanRoot) -> str:
        """Do the same as `save` with one request, for a plan that rarely starts a training."""
        root.create_if_empty()
        # All ranks save the same bytes: the first one's stay.
        data = plan_json(self.to_json())
        root.store.put_if_absent(f"plans/{self.hash}.json", data)
        return self.hash

    def batch_size(self, step: int) -> int:
        step = self.checked_step(step)
        turn = self.turn(step)
        segment = turn.stream.current_segment(turn.step)
        return turn.stream.segment_batch(segment)

    def bucket(self, step: int) -> str | None:
        """Return the bucket label of a step's batch; None in a plan without buckets."""
        step = self.checked_step(step)
        return self.turn(step).bucket

    def grow(
        self,
        views: Mapping[str, Any],
        step: int,
        *,
        bucket_by: BucketBy | str | None = None,
    ) -> "Plan":
        """Return this plan with later versions of sources from a step on. Earlier steps do not change.

        The rest of the source's epoch is mixed with the new samples in proportion, so that both end together; later
        epochs contain all samples. From `step` on, no slot holds a sample that the later version lacks, and the
        buckets' shares follow the new sizes. Each bucket grows by itself.

        Args:
            views: Source name -> view of a later version, with the predicate and fields of the previous one. A bare
                version takes them from the previous view; `source(view, chunk=, lanes=)` is accepted too.
            step: First step under the later versions.
            bucket_by: Buckets used to create the plan; needed if the new version has buckets that the plan lacks.

        Raises InvalidPlan if a version does not continue the previous one, or the plan has packing or padding;
        EmptyView; BatchTooLarge.
        """
        from .grow import grow_content  # not needed to start a training run, like those below

        changes = grow_content(
            self,
            views,
            step,
            parse_bucket_by(bucket_by),
        )
        return replace(self, **changes)

    def quarantined(
        self,
        samples: QuarantineKeys,
        step: int,
    ) -> "Plan":
        """Return this plan with no slot holding these samples from a step on. Earlier steps do not change.

        samples: source name -> keys of samples in the source's version in force at the step.

        Costs a search for the keys in the views. Raises InvalidPlan if a source is unknown, or a key has no live sample
        in that version.
        """
        from .add_quarantine import add_quarantine

        quarantine = add_quarantine(self, samples, step)
        return replace(self, quarantine=quarantine)

    def facts(
        self,
        *,
        world_size: int = 1,
        steps_per_s: float = 1.0,
    ) -> dict[str, Any]:
        """Return the plan's expected sizes and rates, without reading."""
        from .plan_facts import plan_facts

        return plan_facts(self, world_size=world_size, steps_per_s=steps_per_s)

    def describe(
        self,
        *,
        world_size: int = 1,
        steps_per_s: float = 1.0,
    ) -> str:
        """Return the numbers of `facts` as text.

        world_size: data-parallel ranks. steps_per_s: optimizer steps per second; requests and bytes per second follow
        from it.
        """
        from .describe import describe

        facts = self.facts(
            world_size=world_size,
            steps_per_s=steps_per_s,
        )
        return describe(facts)


def make_plan(
    views: Mapping[str, OrderView | MixtureSource],
    *,
    seed: int,
    global_batch: GlobalBatch,
    bucket_by: BucketBy | str | None = None,
    pack: PackBy | None = None,
    schedule: Schedule | None = None,
    quarantine: QuarantineKeys | Sequence[tuple[int, QuarantineKeys]] | None = None,
    boundary: str = FILL,
    allow_repeats: bool = False,
    first_step: int = 0,
) -> Plan:
    """Freeze a plan. Arguments are as for `loader.plan`, with the order's views.

    Raises InvalidPlan, EmptyView (a source without samples), BatchTooLarge (N < global_batch).
    """
    ramp = parse_ramp(global_batch)
    if not isinstance(views, Mapping) or not views:
        message = f"views = {views!r}: a mapping of at least one source name to its view is needed"
        raise InvalidPlan(message, what="views", given=views)
    packing = None
    if pack is not None:
        from .packed_sources import pack_sources  # most plans pack nothing

        views, packing = pack_sources(views, pack, bucket_by)

    sources: dict[str, PlannedSource] = {}
    weights: dict[str, Weight] = {}
    for name, view in views.items():
        sources[name] = plan_source(name, view)
        weights[name] = mixture_source(view).weight
    # By name: the order of the user's mapping must not change the plan.
    sources = dict(sorted(sources.items()))
    weight_schedule = integer_schedule(weights, schedule or [])
    planned_views = {name: source.view for name, source in sources.items()}
    # Everything but the sources and their mixture, which depend on buckets.
    content: dict[str, Any] = {
        "seed": int_in_range("seed", seed, 0, 2**64 - 1),
        "global_batch": ramp[0][1],
        "boundary": boundary,
        "allow_repeats": allow_repeats,
        "first_step": first_step,
        "pack": packing,
        "quarantine": build_quarantine(quarantine, planned_views),
    }
    if bucket_by is None:
        return _plan_without_buckets(sources, weight_schedule, ramp, content)
    by = parse_bucket_by(bucket_by)
    if not isinstance(by, BucketBy):
        message = f"bucket_by = {bucket_by!r}: loader.bucket(...) or an SQL expression is needed"
        raise InvalidPlan(message, what="bucket_by", given=bucket_by)
    return _plan_with_buckets(views, by, weight_schedule, ramp, content)


def _plan_without_buckets(
    sources: Mapping[str, PlannedSource],
    weight_schedule: Sequence[tuple[int, dict[str, int]]],
    ramp: Sequence[tuple[int, int]],
    content: Mapping[str, Any],
) -> Plan:
    """Return a plan whose segments begin where the weights or the batch size change.

    weight_schedule: (start step, weights). ramp: (start step, batch size). content: the plan's other fields.
    """
    # A segment has one weight per source and one batch size: each schedule gets an entry at the other's starts.
    ramp_steps = [start for start, _ in ramp]
    segment_weights = split_schedule(weight_schedule, ramp_steps)
    segment_steps = [start for start, _ in segment_weights]
    segment_batches = split_schedule(ramp, segment_steps)
    segments = chain_segments(
        segment_weights,
        list(sources),
        content["global_batch"],
        dict(segment_batches),
    )
    return Plan(
        sources=sources,
        segments=segments,
        **content,
    )


def _plan_with_buckets(
    views: Mapping[str, OrderView | MixtureSource],
    by: BucketBy,
    weight_schedule: Sequence[tuple[int, dict[str, int]]],
    ramp: Sequence[tuple[int, int]],
    content: Mapping[str, Any],
) -> Plan:
    """Return a plan with buckets. views: the sources, not split.

    weight_schedule: (start step, weights). ramp: (start step, batch size). content: the plan's other fields.
    """
    parts = split_sources(views, by)
    labels = bucket_labels(parts.values(), by.by)
    size_schedule = size_ramp(by, labels, ramp)

    # A segment begins where weights, the batch, or the size of any bucket's batches change.
    ramp_steps = [start for start, _ in ramp]
    size_steps = [start for start, _ in size_schedule]
    segment_weights = split_schedule(weight_schedule, (*ramp_steps, *size_steps))
    segment_steps = [start for start, _ in segment_weights]
    segment_batches = split_schedule(ramp, segment_steps)
    segment_sizes = [in_force(size_schedule, start) for start in segment_steps]
    buckets = interleave_parts(
        by.by,
        by.edges,
        parts,
        segment_weights,
        segment_sizes,
    )
    return Plan(
        sources=parts,
        segments=bucket_segments(segment_weights, segment_batches),
        buckets=buckets,
        **content,
    )


def parse_bucket_by(bucket_by: BucketBy | str | None) -> BucketBy | None:
    """Return the buckets, by an SQL expression if there is only that."""
    if isinstance(bucket_by, str):
        return bucket(bucket_by)
    return bucket_by
