"""L2, L3: list all slots of one or several steps in stream order, each with its source, epoch and position.

`slots.py` turns the positions into samples.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .content import PlanContent
from .mixture import MASK, MixtureSegment, Stream, mask_positions, stream_slots
from .planned_source import PlannedSource
from .random.keyed_permutation import I64


class StreamSlots(NamedTuple):
    """All slots of several steps, in stream order: step after step, not yet sorted by lane."""

    source: I64
    """int64 [m]: index into plan.source_names."""
    position: I64
    """int64 [m]: i_k in the source's endless stream."""
    epoch: I64
    """int64 [m]."""
    position_in_epoch: I64
    """int64 [m]: N or more at padding."""
    batches: list[int]
    """Slots of each step; they sum to m."""


class SegmentSteps(NamedTuple):
    """Consecutive steps of a stream within one of its segments."""

    stream: Stream
    """The plan's only stream, or a bucket's."""
    segment: MixtureSegment
    """Weights in force at all of these steps."""
    first_step: int
    """Number of the first step among the stream's own steps."""
    n_steps: int
    """1 or more."""

    @property
    def batch(self) -> int:
        return self.stream.segment_batch(self.segment)


def slots_in_stream_order(plan: PlanContent, steps: Sequence[int]) -> StreamSlots:
    """Return all slots of one or more steps, which ascend. Raises InvalidRuntime for an invalid step."""
    stretches = _segment_steps(plan, steps)
    batches: list[int] = []
    for stretch in stretches:
        batches += [stretch.batch] * stretch.n_steps
    if plan.boundary == MASK:
        return _pad_epochs(plan, steps, batches)

    if len(stretches) == 1:  # the usual case, without a copy
        stream, position = _mix_slots(plan, stretches[0])
    else:
        streams = []
        positions = []
        for stretch in stretches:
            part_stream, part_position = _mix_slots(plan, stretch)
            streams.append(part_stream)
            positions.append(part_position)
        stream = np.concatenate(streams)
        position = np.concatenate(positions)

    source, epoch, position_in_epoch = epoch_positions(plan, stream, position)
    return StreamSlots(
        source=source,
        position=position,
        epoch=epoch,
        position_in_epoch=position_in_epoch,
        batches=batches,
    )


def _segment_steps(
    plan: PlanContent,
    steps: Sequence[int],
) -> list[SegmentSteps]:
    """Return one or more ascending steps as stretches, in order: consecutive steps in one segment of one stream."""
    first_step = steps[0]
    last_step = steps[-1]
    plan.checked_step(first_step)  # raises; the steps ascend, so those between need no check
    plan.checked_step(last_step)
    if plan.buckets is None:
        stream = plan.turn(first_step).stream
        segment = stream.current_segment(first_step)
        is_one_segment = segment is stream.current_segment(last_step)
        n_steps = last_step - first_step + 1
        is_gapless = n_steps == len(steps)
        if is_one_segment and is_gapless:  # the usual case, without a loop over the steps
            stretch = SegmentSteps(stream, segment, first_step, n_steps)
            return [stretch]
        stream_steps = [(stream, step) for step in steps]  # a single stream counts steps as the plan does
    else:
        turns = [plan.turn(step) for step in steps]
        stream_steps = [(turn.stream, turn.step) for turn in turns]  # each bucket counts its own steps

    stretches: list[SegmentSteps] = []
    for stream, step in stream_steps:
        segment = stream.current_segment(step)
        if stretches:
            last = stretches[-1]
            is_same_segment = last.stream is stream and last.segment is segment
            next_step = last.first_step + last.n_steps
            if is_same_segment and step == next_step:
                n_steps = last.n_steps + 1
                stretches[-1] = last._replace(n_steps=n_steps)
                continue
        stretch = SegmentSteps(
            stream,
            segment,
            first_step=step,
            n_steps=1,
        )
        stretches.append(stretch)
    return stretches


def _mix_slots(plan: PlanContent, stretch: SegmentSteps) -> tuple[I64, I64]:
    """Return (source as index into `plan.source_names`, i_k) of each slot of these steps, int64 [m] each."""
    stream_names = stretch.stream.names
    source, position = stream_slots(
        stretch.segment,
        stream_names,
        stretch.first_step,
        stretch.batch,
        stretch.n_steps,
    )
    names = plan.source_names
    if stream_names == names:
        return source, position
    # The stream is a bucket's, or has the first views of sources that grow: its indices are not the plan's.
    numbers = [names.index(name) for name in stream_names]
    number_in_plan = np.array(numbers, np.int64)  # [names of the stream]
    source_in_plan = number_in_plan[source]
    return source_in_plan, position


def _pad_epochs(
    plan: PlanContent,
    steps: Sequence[int],
    batches: list[int],
) -> StreamSlots:
    """Return the slots of steps under "mask", where the last batch of an epoch is filled with padding."""
    only_source = next(iter(plan.sources.values()))  # "mask" accepts a single source
    n = only_source.shape.n
    epochs = []
    positions_in_epoch = []
    for batch, step in zip(batches, steps, strict=True):
        own_step = step - plan.first_step
        step_epoch, step_positions = mask_positions(n, batch, own_step)
        epochs.append(np.full(batch, step_epoch, np.int64))
        positions_in_epoch.append(step_positions)
    epoch = np.concatenate(epochs)
    position_in_epoch = np.concatenate(positions_in_epoch)
    return StreamSlots(
        source=np.zeros(len(epoch), np.int64),
        position=epoch * n + position_in_epoch,
        epoch=epoch,
        position_in_epoch=position_in_epoch,
        batches=batches,
    )


def epoch_positions(
    plan: PlanContent,
    stream: I64,
    position: I64,
) -> tuple[I64, I64, I64]:
    """Return (source, epoch, position in the epoch) of stream positions, int64 [m] each.

    stream: int64 [m], index of the stream's first view in `plan.source_names`. The returned source is the index of the
    view at the position: another one if the source grew.
    """
    # As if no source grew: each stream is its first view, in epochs.
    planned = list(plan.sources.values())
    n = epoch_lengths(planned)[stream]  # [m]: samples in an epoch of each slot's source
    source = stream.copy()
    epoch = position // n
    position_in_epoch = position - epoch * n  # `position % n` would divide a second time
    if not plan.grown_streams:
        return source, epoch, position_in_epoch

    # Correct the slots of each stream that grows.
    n_slots = np.bincount(stream)  # [streams]
    streams_with_slots = np.flatnonzero(n_slots)
    for stream_index in streams_with_slots.tolist():
        name = plan.source_names[stream_index]
        grown = plan.grown_streams.get(name)
        if grown is None:
            continue
        rows = np.flatnonzero(stream == stream_index)  # [r]: this stream's slots
        at = grown.view_positions(position[rows])
        epoch[rows] = at.epoch
        position_in_epoch[rows] = at.position_in_epoch
        # The source is the view: find its index once per view, not once per slot.
        slot_views = zip(at.stage.tolist(), at.is_delta.tolist(), strict=True)  # [r]
        for growth, is_delta in set(slot_views):
            is_view = (at.stage == growth) & (at.is_delta == is_delta)
            view_key = (name, growth, is_delta)
            source[rows[is_view]] = plan.view_index[view_key]
    return source, epoch, position_in_epoch


def epoch_lengths(planned: Sequence[PlannedSource]) -> I64:
    lengths = [source.shape.n for source in planned]
    return np.array(lengths, np.int64)
