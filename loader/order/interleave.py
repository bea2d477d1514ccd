"""L3 with buckets: the bucket whose turn a step is, and the stream of its batch.

There are two mixtures. The outer one deals the plan's steps to buckets, as if each step were a batch of one slot. Each
bucket's inner one deals the slots of the bucket's own steps to the sources' views of that bucket.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from ..errors import InvalidPlan
from .mixture import MixtureSegment, Stream, chain_segments, stream_slots
from .weights import MAX_TOTAL_WEIGHT, integer_weights

MAX_BUCKETS = 4096  # each gets at least 1 of 65536 steps: more buckets would make their shares too coarse

Starts = Sequence[tuple[int, Mapping[str, int]]]

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
        index, own = stream_slots(self.turns.segment_at(step), self.turns.names, step, 1)
        label = self.turns.names[int(index[0])]
        return Turn(bucket=label, stream=self.streams[label], step=int(own[0]))

    def used_before(self, step: int) -> dict[str, int]:
        """Return a source's bucket (`bucket_source`) -> its samples before a step, zeros left out."""
        used: dict[str, int] = {}
        for label, own in self.turns.used_before(step).items():
            used |= self.streams[label].used_before(own)
        return used

    def to_json(self) -> dict[str, object]:
        return {
            "by": self.by,
            "edges": None if self.edges is None else list(self.edges),
            **self.dealt_json(self.streams),
        }

    def dealt_json(self, labels: Collection[str], before: int | None = None) -> dict[str, object]:
        """Return as JSON the turns, and these buckets' batch sizes with their changes.

        before: include only segments that start before this step; None includes all.
        """
        begun = [
            (segment, batch)
            for segment, batch in zip(self.turns.segments, self.batches, strict=True)
            if before is None or segment.start_step < before
        ]
        batch = {label: self.batches[0][label] for label in self.streams if label in labels}
        out: dict[str, object] = {"batch": batch, "turns": [segment.to_json() for segment, _ in begun]}
        ramp, now = [], batch
        for segment, sizes in begun:
            changed = {label: sizes[label] for label in now if sizes[label] != now[label]}
            if changed:
                ramp.append({"start_step": segment.start_step, "batch": changed})
                now = now | changed
        return {**out, "ramp": ramp} if ramp else out


def bucket_source(source: str, label: str) -> str:
    """Return the name of a source's view of one bucket, in keys and in a plan's sources: `photos/b3`."""
    return f"{source}/{label}"


def interleave(
    by: str,
    edges: tuple[str, ...] | None,
    sizes: Sequence[Sizes],
    starts: Starts,
    batches: Sequence[Mapping[str, int]],
) -> Interleaving:
    """Return the buckets' turns and the mixture inside each bucket.

    starts: (start step, integer weights by source) for each segment, the first at step 0.
    sizes: label -> source -> samples, for each segment.
    batches: label -> slots per batch, for each segment.
    """
    labels = tuple(sorted({label for held in sizes for label in held}))
    dealt = [
        (start, turn_shares(weights, held, batch))
        for (start, weights), held, batch in zip(starts, sizes, batches, strict=True)
    ]
    turns = Stream(names=labels, batch=1, segments=chain_segments(dealt, labels, 1))
    return Interleaving(
        by=by,
        edges=edges,
        turns=turns,
        batches=tuple(batches),
        streams={
            label: _stream(
                label, [held.get(label, {}) for held in sizes], starts, turns, [one[label] for one in batches]
            )
            for label in labels
        },
    )


def turn_shares(weights: Mapping[str, int], sizes: Sizes, batch: Mapping[str, int]) -> dict[str, int]:
    """Return label -> its share of the steps, as integers whose sum is at most 65536.

    A source proceeds through its buckets evenly. Bucket b gets `sum over sources of weight * n(source, b) / n(source)`
    slots, divided by `batch[b]`. Shares that need a larger sum are rounded up, so no bucket is left out.
    """
    totals = {source: sum(sizes[label].get(source, 0) for label in sizes) for source in weights}
    exact = {
        label: sum(
            (
                Fraction(weights[source] * n, totals[source])
                for source, n in held.items()
                if source in weights
            ),
            start=Fraction(0),
        )
        / batch[label]
        for label, held in sizes.items()
    }
    exact = {label: share for label, share in exact.items() if share}
    scale = lcm(*(share.denominator for share in exact.values()))
    total = sum(exact.values()) * scale
    whole = {label: int(share * scale) for label, share in exact.items()}
    try:
        return integer_weights(whole)
    except InvalidPlan:  # the ratio is too fine for one table
        room = MAX_TOTAL_WEIGHT - len(whole)
        return integer_weights({label: int(-(-share * room // total)) for label, share in whole.items()})


def _stream(
    label: str, sizes: Sequence[Mapping[str, int]], starts: Starts, turns: Stream, batches: Sequence[int]
) -> Stream:
    """Return the mixture inside a bucket, with one segment per plan segment in which its sources have a weight."""
    names = tuple(sorted({bucket_source(source, label) for held in sizes for source in held}))
    own: list[tuple[int, dict[str, int]]] = []
    slots: list[tuple[int, int]] = []
    for turn, (_, weights), held, batch in zip(turns.segments, starts, sizes, batches, strict=True):
        mixed = {bucket_source(source, label): weights[source] for source in held if source in weights}
        if mixed:
            own.append((turn.base.get(label, 0), integer_weights(mixed)))
            slots.append((turn.base.get(label, 0), batch))
    if not own:  # its sources are in the plan with weight 0
        own, slots = [(0, {})], [(0, batches[0])]
    first = slots[0][1]
    segments: tuple[MixtureSegment, ...] = chain_segments(own, names, first, dict(slots))
    return Stream(names=names, batch=first, segments=segments)
