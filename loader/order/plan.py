"""The plan: everything that changes data, frozen under one hash; each batch is a pure function of the step.

plan = make_plan({"photos": view, "web": source(other, weight=3)}, seed=7, global_batch=1024)
plan.slots(step)        # the global batch of a step, in canonical order
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..errors import InvalidPlan
from .bucket_sources import bucket_labels, bucketed_segments, interleave_parts, split_sources
from .content import PlanContent
from .mixture import FILL, chain_segments
from .planned_source import MixtureSource, PlannedSource, plan_source, source
from .random.plan_hash import plan_json, whole
from .slots import Slots, Stacked
from .sources.bucket import BucketBy, bucket, size_ramp
from .sources.growth import origins
from .sources.packing import PackBy, PackedView, Packing
from .sources.quarantine import Quarantine, QuarantineKeys, QuarantineList, listed_samples, quarantine_of
from .sources.views import OrderView, synthetic
from .state import check_state, state_at
from .substitutes import planned_slots, planned_stack
from .weights import GlobalBatch, Weight, cut_at, in_force, integer_weights, ramp_of

if TYPE_CHECKING:
    from .occurrences import Occurrence, Substituted


__all__ = ["MixtureSource", "OrderView", "Plan", "PlannedSource", "make_plan", "source", "synthetic"]

Schedule = Sequence[tuple[int, Mapping[str, Weight]]]


class PlanStore(Protocol):
    def put_if_absent(self, key: str, data: bytes) -> None: ...


class PlanRoot(Protocol):
    """Attributes of a root that saving a plan needs."""

    @property
    def store(self) -> PlanStore: ...

    def create_if_empty(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan(PlanContent):
    """A frozen plan; picklable if its views are. Plans with equal hashes are equal."""

    def __repr__(self) -> str:
        names = list(dict.fromkeys(source.source for source in self.sources.values()))
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        facts = [f"{self.hash[:14]}", f"seed={self.seed}", f"global_batch={self.global_batch}"]
        if self.buckets is not None:
            facts.append(f"{len(self.streams)} buckets")
        return f"Plan({', '.join(facts)}, sources {', '.join(names[:8])}{more})"

    def __eq__(self, other: object) -> bool:
        return self.hash == other.hash if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hash)

    def slots(self, step: int) -> Slots:
        """Return the slots of a step in canonical order, with substitutes for quarantined samples.

        Raises InvalidRuntime for an invalid step; InvalidPlan if all substitutes of a slot are quarantined.
        """
        return planned_slots(self, step)

    def stack(self, steps: Sequence[int], rank: int, world_size: int) -> Stacked:
        """Return one rank's part of the slots of ascending steps. Computes only that part.

        Raises: as `slots`; InvalidRuntime if there are more ranks than slots.
        """
        return planned_stack(self, steps, rank, world_size)

    def batch_ids(self, step: int) -> list[tuple[str, str]]:
        """Return (source name, sample key) of each slot, in canonical order; ("", "") at padding."""
        slots = self.slots(step)
        ids: list[tuple[str, str]] = [("", "")] * len(slots)
        for index, (name, planned) in enumerate(self.sources.items()):
            slots_of_source = ((slots.source == index) & slots.valid).nonzero()[0]
            if len(slots_of_source):
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
        return state_at(self, step)

    def check_state(self, state: object) -> int:
        """Return the step to continue from. Raises PlanMismatch, naming the fields of the past that differ."""
        return check_state(self, state)

    def save(self, root: PlanRoot) -> str:
        """Store the plan's canonical JSON as `plans/<hash>.json` unless that exists; return the hash."""
        root.create_if_empty()
        root.store.put_if_absent(f"plans/{self.hash}.json", plan_json(self.to_json()))
        return self.hash

    def batch_size(self, step: int) -> int:
        turn = self.turn(self.checked_step(step))
        return turn.stream.batch_in(turn.stream.segment_at(turn.step))

    def bucket(self, step: int) -> str | None:
        """Return the bucket label of a step's batch; None in a plan without buckets."""
        return self.turn(self.checked_step(step)).bucket

    def grow(self, views: Mapping[str, Any], step: int, *, bucket_by: BucketBy | str | None = None) -> "Plan":
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
        from .grow import grown_content  # not needed to start a training run, like those below

        asked = bucket(bucket_by) if isinstance(bucket_by, str) else bucket_by
        return replace(self, **grown_content(self, views, step, asked))

    def quarantined(self, samples: QuarantineKeys, step: int) -> "Plan":
        """Return this plan with no slot holding these samples from a step on. Earlier steps do not change.

        samples: source name -> keys of samples in the source's version in force at the step.

        Costs a search for the keys in the views. Raises InvalidPlan if a source is unknown, or a key has no live sample
        in that version.
        """

        return replace(self, quarantine=more_quarantine(self, samples, step))

    def facts(self, *, world_size: int = 1, steps_per_s: float = 1.0) -> dict[str, Any]:
        """Return the plan's expected sizes and rates, without reading."""
        from .describe import plan_facts

        return plan_facts(self, world_size=world_size, steps_per_s=steps_per_s)

    def describe(self, *, world_size: int = 1, steps_per_s: float = 1.0) -> str:
        """Return the numbers of `facts` as text.

        world_size: data-parallel ranks. steps_per_s: optimizer steps per second; requests and bytes per second follow
        from it.
        """
        from .describe import describe

        return describe(self.facts(world_size=world_size, steps_per_s=steps_per_s))


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
) -> Plan:
    """Freeze a plan. Arguments are as for `loader.plan`, with the order's views.

    Raises InvalidPlan, EmptyView (a source without samples), BatchTooLarge (N < global_batch).
    """
    ramp = ramp_of(global_batch)
    if not isinstance(views, Mapping) or not views:
        raise InvalidPlan(f"views = {views!r}: a mapping of at least one source name to its view is needed")
    packing = None
    if pack is not None:
        views, packing = pack_sources(views, pack, bucket_by)
    planned = {name: plan_source(name, view) for name, view in views.items()}
    planned = {name: planned[name] for name in sorted(planned)}
    weights = {name: view.weight if isinstance(view, MixtureSource) else 1 for name, view in views.items()}
    starts = segment_starts(weights, schedule or [])
    content: dict[str, Any] = {
        "seed": whole("seed", seed, 0, 2**64 - 1),
        "global_batch": ramp[0][1],
        "boundary": boundary,
        "allow_repeats": allow_repeats,
        "pack": packing,
        "quarantine": quarantine_of(quarantine, {name: source.view for name, source in planned.items()}),
    }
    if bucket_by is None:
        mixed, slots = cut_at(starts, dict(ramp)), cut_at(ramp, dict(starts))
        segments = chain_segments(mixed, list(planned), ramp[0][1], dict(slots))
        return Plan(sources=planned, segments=segments, **content)
    asked = bucket(bucket_by) if isinstance(bucket_by, str) else bucket_by
    if not isinstance(asked, BucketBy):
        raise InvalidPlan(f"bucket_by = {bucket_by!r}: loader.bucket(...) or an SQL expression is needed")
    parts = split_sources(views, asked)
    sizes = size_ramp(asked, bucket_labels(parts.values(), asked.by), ramp)
    mixed = cut_at(starts, (*dict(ramp), *dict(sizes)))
    batches = [in_force(sizes, start) for start, _ in mixed]
    return Plan(
        sources=parts,
        segments=bucketed_segments(mixed, cut_at(ramp, dict(mixed))),
        buckets=interleave_parts(asked.by, asked.edges, parts, mixed, batches),
        **content,
    )


def segment_starts(weights: Mapping[str, Weight], schedule: Schedule) -> list[tuple[int, dict[str, int]]]:
    """Return (start step, integer weights) for every segment, the first at step 0.

    weights: all sources' weights, in force from step 0 unless the schedule has an entry there.
    """
    starts: list[tuple[int, dict[str, int]]] = []
    for entry in schedule:
        try:
            start, mixture = entry
            unknown = sorted(set(mixture) - set(weights))
        except (TypeError, ValueError):
            raise InvalidPlan(
                f"schedule entry {entry!r}: (step, {{source name: weight}}) is needed"
            ) from None
        low = starts[-1][0] + 1 if starts else 0
        start = whole(f"schedule entry {len(starts)}: step", start, low, 2**53)
        if unknown:
            raise InvalidPlan(f"schedule at step {start} names {unknown}; the sources are {sorted(weights)}")
        starts.append((start, integer_weights(mixture)))
    if not starts or starts[0][0] > 0:
        starts.insert(0, (0, integer_weights(weights)))
    return starts


def pack_sources(
    views: Mapping[str, OrderView | MixtureSource], asked: object, bucket_by: object
) -> tuple[dict[str, OrderView | MixtureSource], Packing]:
    if not isinstance(asked, PackBy):
        raise InvalidPlan(f"pack = {asked!r}: loader.pack('tokens.npy', length=2048) is needed")
    if bucket_by is not None:
        raise InvalidPlan("pack= with bucket_by=: packed sequences are of one length; leave bucket_by out")
    packed: dict[str, OrderView | MixtureSource] = {}
    kinds: dict[str, Packing] = {}
    for name, view_or_source in views.items():
        requested = (
            view_or_source if isinstance(view_or_source, MixtureSource) else MixtureSource(view_or_source)
        )
        if not hasattr(requested.view, "packed"):
            raise InvalidPlan(f"source {name!r} is a {type(requested.view).__name__}, which cannot be packed")
        try:
            view: PackedView = requested.view.packed(asked)
        except InvalidPlan as error:
            raise InvalidPlan(f"source {name!r}: {error}") from None
        packed[name], kinds[name] = replace(requested, view=view), view.packing
    first = next(iter(kinds.values()))
    for number, (field, _, _) in enumerate(first.layout):
        dtypes = {name: source.layout[number][2] for name, source in kinds.items()}
        if len(set(dtypes.values())) > 1:
            raise InvalidPlan(
                f"pack: {field!r} has the dtypes {dtypes}; a batch has one: store the field of all sources alike"
            )
    return packed, first


def more_quarantine(plan: PlanContent, lists: Any, step: int) -> Quarantine:
    step = whole("quarantined: step", step, 0, 2**53)
    if not isinstance(lists, Mapping):
        raise InvalidPlan(f"quarantined({lists!r}): {{source name: [sample keys]}} is needed")
    views = {}
    for name in {planned.source for planned in plan.sources.values()}:
        in_force = plan.views_at(name, step)  # all buckets come from one version, which has the keys of all
        views[name] = max(in_force, key=lambda source: source.shape.n).view
    more: list[QuarantineList] = []
    for name, keys in lists.items():
        samples = listed_samples(name, [keys], views)
        growths = plan.growths_of(name)
        number = sum(growth.step <= step for growth in growths)
        came, there = origins(growths, number, np.array([ordinal for ordinal, _ in samples], np.int64))
        named = list(zip(came.tolist(), there.tolist(), samples, strict=True))
        for growth in sorted(set(came.tolist())):
            samples = tuple((ordinal, key) for at, ordinal, (_, key) in named if at == growth)
            more.append(QuarantineList(start_step=step, source=name, samples=samples, growth=growth))
    return plan.quarantine.with_more(more)
