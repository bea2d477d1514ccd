"""L3 with buckets: the bucket whose turn a step is, and the stream of its batch.

There are two mixtures. The outer one deals the plan's steps to buckets, as if each step were a batch of one slot. Each
bucket's inner one deals the slots of the bucket's own steps to the sources' views of that bucket.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from ..errors import InvalidPlan
from .mixture import Stream, chain_segments, stream_slots
from .weights import MAX_TOTAL_WEIGHT, integer_weights

MAX_BUCKETS = 4096  # each gets at least 1 of 65536 steps: more buckets would make their shares too coarse

WeightSchedule = Sequence[tuple[int, Mapping[str, int]]]
"""(start step, integer weights by source) pairs, ascending, the first at step 0."""

Sizes = Mapping[str, Mapping[str, int]]
"""Label -> source -> samples (> 0)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    bucket: str | None
    """Bucket label, or None."""
    stream: Stream
    """Stream that the batch is drawn from."""
    step: int
    """Number of this bucket's earlier steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interleaving:
    """A plan's buckets, their turns, and their mixtures."""

    by: str
    """Expression that assigns samples, for messages."""
    edges: tuple[str, ...] | None
    """Edges of the buckets, for messages; None if values are labels."""
    turns: Stream
    """Mixture that deals the plan's steps to bucket labels."""
    batches: tuple[Mapping[str, int], ...]
    """Label -> slots per batch, per segment of the turns."""
    streams: Mapping[str, Stream]
    """Label, ascending -> mixture of its sources (`bucket_source`)."""

    def turn(self, step: int) -> Turn:
        segment = self.turns.current_segment(step)
        # In the turns, a step is a batch of one slot: its source is a bucket, its position one of the bucket's steps.
        # int64 [1] each
        label_index, own_step = stream_slots(
            segment,
            self.turns.names,
            step,
            global_batch=1,
        )
        label = self.turns.names[int(label_index[0])]
        return Turn(
            bucket=label,
            stream=self.streams[label],
            step=int(own_step[0]),
        )

    def used_before(self, step: int) -> dict[str, int]:
        """Return a source's bucket (`bucket_source`) -> its samples before a step, zeros left out."""
        used: dict[str, int] = {}
        own_steps = self.turns.used_before(step)
        for label, own in own_steps.items():
            used |= self.streams[label].used_before(own)
        return used

    def to_json(self) -> dict[str, object]:
        edges = None
        if self.edges is not None:
            edges = list(self.edges)
        return {
            "by": self.by,
            "edges": edges,
            **self.turns_json(self.streams),
        }

    def turns_json(
        self,
        labels: Collection[str],
        before: int | None = None,
    ) -> dict[str, object]:
        """Return as JSON the turns, and these buckets' batch sizes with their changes.

        before: include only segments that start before this step; None includes all.
        """
        first_sizes: dict[str, int] = {}
        for label in self.streams:
            if label in labels:
                first_sizes[label] = self.batches[0][label]

        turns = []
        ramp = []
        former_sizes = first_sizes.copy()  # in the segment before the one at hand
        for segment, sizes in zip(self.turns.segments, self.batches, strict=True):
            if before is not None and segment.start_step >= before:
                continue
            turns.append(segment.to_json())
            changes = {}
            for label, former_size in former_sizes.items():
                if sizes[label] != former_size:
                    changes[label] = sizes[label]
            if changes:
                entry = {
                    "start_step": segment.start_step,
                    "batch": changes,
                }
                ramp.append(entry)
                former_sizes |= changes
        out: dict[str, object] = {
            "batch": first_sizes,
            "turns": turns,
        }
        if ramp:
            out["ramp"] = ramp
        return out


def bucket_source(source: str, label: str) -> str:
    """Return the name of a source's view of one bucket, in keys and in a plan's sources: `photos/b3`."""
    return f"{source}/{label}"


def interleave(
    by: str,
    edges: tuple[str, ...] | None,
    sizes: Sequence[Sizes],
    weight_schedule: WeightSchedule,
    batches: Sequence[Mapping[str, int]],
) -> Interleaving:
    """Return the buckets' turns and the mixture inside each bucket.

    weight_schedule: an entry for each segment.
    sizes: label -> source -> samples, for each segment.
    batches: label -> slots per batch, for each segment.
    """
    distinct_labels: set[str] = set()
    for segment_sizes in sizes:
        distinct_labels.update(segment_sizes)
    labels = tuple(sorted(distinct_labels))

    # The outer mixture: its sources are the buckets, and its samples their steps.
    shares = []
    for (start, weights), segment_sizes, batch in zip(weight_schedule, sizes, batches, strict=True):
        segment_shares = turn_shares(weights, segment_sizes, batch)
        shares.append((start, segment_shares))
    turns = Stream(
        names=labels,
        batch=1,
        segments=chain_segments(shares, labels, 1),
    )

    # The inner mixtures.
    streams = {}
    for label in labels:
        label_sizes = [segment_sizes.get(label, {}) for segment_sizes in sizes]
        label_batches = [batch[label] for batch in batches]
        streams[label] = _bucket_stream(
            label,
            label_sizes,
            weight_schedule,
            turns,
            label_batches,
        )
    return Interleaving(
        by=by,
        edges=edges,
        turns=turns,
        batches=tuple(batches),
        streams=streams,
    )


def turn_shares(
    weights: Mapping[str, int],
    sizes: Sizes,
    batch: Mapping[str, int],
) -> dict[str, int]:
    """Return label -> its share of the steps, as integers whose sum is at most 65536.

    A source proceeds through its buckets evenly. So bucket b gets `sum over sources of weight * n(source, b) /
    n(source)` of the slots; divided by `batch[b]`, that is its share of the steps. Shares that need a larger sum are
    rounded up, so no bucket is left out.
    """
    totals = dict.fromkeys(weights, 0)  # source -> its samples in all buckets
    for samples in sizes.values():
        for source, n in samples.items():
            if source in weights:
                totals[source] += n

    shares: dict[str, Fraction] = {}  # of the steps, up to a common factor
    for label, samples in sizes.items():
        slots = Fraction(0)
        for source, n in samples.items():
            if source in weights:
                product = weights[source] * n
                slots += Fraction(product, totals[source])
        if slots:
            shares[label] = slots / batch[label]

    denominators = [share.denominator for share in shares.values()]
    scale = lcm(*denominators)
    exact = {}
    for label, share in shares.items():
        exact[label] = int(share * scale)  # a whole number
    try:
        return integer_weights(exact)
    except InvalidPlan:  # their sum is too large for one table
        total = sum(exact.values())
        room = MAX_TOTAL_WEIGHT - len(exact)  # rounding up adds less than 1 to each share
        coarse = {}
        for label, number in exact.items():
            coarse[label] = -(-number * room // total)
        return integer_weights(coarse)


def _bucket_stream(
    label: str,
    sizes: Sequence[Mapping[str, int]],
    weight_schedule: WeightSchedule,
    turns: Stream,
    batches: Sequence[int],
) -> Stream:
    """Return the mixture inside a bucket, with one segment per plan segment in which its sources have a weight.

    sizes: source -> samples in this bucket, for each plan segment. batches: slots of its batches, for each.
    """
    # Steps of these schedules are the bucket's own.
    names: set[str] = set()
    own_weights: list[tuple[int, dict[str, int]]] = []  # (start step, weights)
    own_batches: list[tuple[int, int]] = []  # (start step, slots)
    for number, turn_segment in enumerate(turns.segments):
        _, weights = weight_schedule[number]
        samples = sizes[number]
        batch = batches[number]
        view_weights: dict[str, int] = {}  # of the sources that have samples here
        for source in samples:
            name = bucket_source(source, label)
            names.add(name)
            if source in weights:
                view_weights[name] = weights[source]
        if view_weights:
            start = turn_segment.base.get(label, 0)  # the bucket's steps before this segment
            own_weights.append((start, integer_weights(view_weights)))
            own_batches.append((start, batch))
    if not own_weights:  # its sources are in the plan with weight 0
        own_weights.append((0, {}))
        own_batches.append((0, batches[0]))

    sorted_names = tuple(sorted(names))
    _, first_batch = own_batches[0]
    segments = chain_segments(
        own_weights,
        sorted_names,
        first_batch,
        dict(own_batches),
    )
    return Stream(
        names=sorted_names,
        batch=first_batch,
        segments=segments,
    )
