"""Read the values that windows deliver, and add up their statistics; no video is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..dataset.reading.verified_bucket_reads import read_fields, read_parts
from ..dataset.shards.address import SampleAddress
from ..dataset.statistics.exact_statistics import DIMS_MAX, WEIGHT_MAX, as_floats
from ..dataset.statistics.norm import FieldNorm, FieldTotals
from ..dataset.versions.version import View
from ..dataset.versions.view_columns import column_values
from ..errors import Corrupt, FieldMismatch, InvalidPlan
from ..modalities.array import is_array
from ..order.random.keyed_permutation import I64
from ..order.sources.window_layout import IS_PAD
from ..order.sources.window_view import WindowView
from ..run.part_reads.build_windows import WindowReads
from ..run.part_reads.episode_cache import WindowedEpisode
from ..run.part_reads.episode_clocks import Picked
from ..run.part_reads.video_packet_reads import Readers
from ..run.recipe.decode import decoders
from ..storage.threads import DaemonPool

TOGETHER = 64
"""Episodes that are read together."""
TOGETHER_BYTES = 16 * 2**20
"""Bytes of them, or of a block of one."""
PLACES = 2**20
"""Most values of a field that are picked together: about 32 MiB."""
WAITING = 2**24
"""Most values of all groups that wait to be added up: 128 MiB."""
LARGEST_WHOLE = 2**53
"""Largest whole number up to which float64 holds each one exactly."""
T = TypeVar("T")
Transform = Callable[[dict[str, Any]], Mapping[str, Any]]
Values = tuple[NDArray[Any], NDArray[np.int64] | None]
"""Rows of values, and how often each counts; None: once."""
Totals = dict[str, dict[str, FieldTotals]]
"""Value of the column that groups episodes, "" without one -> field -> its statistics."""


def add_windows(
    totals: Totals,
    windows: WindowView,
    fields: Sequence[str],
    transform: Transform | None,
    by: str | None,
) -> None:
    """Add the values of all windows, without padding. Raises: Corrupt; FieldMismatch; InvalidPlan for a null."""
    arrays = [field for field in windows.layout.at if is_array(field)]
    read = list(fields)
    if transform is not None:
        read = arrays
    groups = None
    if by is not None:
        groups = episode_groups(windows, by)
    waiting = 0  # values that were added since the last flush
    for batch in _windows(windows, read):
        group = ""
        if groups is not None:
            group = groups[batch.number]
        own = totals.setdefault(group, {})
        if transform is None:
            each = batch.with_blocks(partial(_rows_of_fields, batch, fields))
        else:
            each = _transform_windows(batch, read, transform, fields)
        for field, (values, weights) in each.items():
            shape = tuple(values.shape[1:])
            total = own.setdefault(field, FieldTotals(shape))
            if total.shape != shape:
                raise FieldMismatch(
                    f"norm: {field!r}: values of the shapes {list(total.shape)} and {list(shape)} have no common norm",
                    what=field,
                    given=list(shape),
                    accepted=list(total.shape),
                )
            total.add(*_floats(field, values, weights))
            waiting += values.size
        if waiting >= WAITING:
            waiting = 0
            for of_field in totals.values():
                for total in of_field.values():
                    total.flush()


def add_norms(totals: Totals, group: str, norms: Mapping[str, FieldNorm]) -> None:
    """Add the statistics of a stored norm to a group."""
    own = totals.setdefault(group, {})
    for field, norm in norms.items():
        own.setdefault(field, FieldTotals(norm.shape)).add_norm(norm)


def episode_groups(windows: WindowView, by: str) -> list[str]:
    """Return each episode's value in the column `by`, as text: the key of its group in a stored norm is text.

    Raises: InvalidPlan for an episode without a value.
    """
    assert isinstance(windows.episodes, View)  # `norm` refuses others
    view = windows.episodes
    ordinals = view.version_ordinals(np.arange(len(view), dtype=np.int64))
    column = column_values(view.version, [by])[by]
    values = column.gather(ordinals).to_list()
    missing = [number for number, value in enumerate(values) if value is None]
    if missing:
        keys = view.keys(ordinals[missing[:3]])
        examples = ", ".join(map(repr, keys))
        raise InvalidPlan(
            f"norm(by={by!r}): {len(missing)} episodes, such as {examples}, have no value there: "
            f'leave them out with where("{by} IS NOT NULL")',
            what="by",
            where=f"episode {keys[0]!r}",
            given=by,
            accepted="a value for each episode",
        )
    return [str(value) for value in values]


class _Windows(NamedTuple):
    """Windows of one episode that are added together."""

    number: int
    """Number of the episode in the view."""
    address: SampleAddress
    episode: WindowedEpisode
    rows: I64
    """int64 [windows]: the anchor's rows."""
    reads: WindowReads
    readers: Readers

    def with_blocks(self, call: Callable[[], dict[str, T]]) -> dict[str, T]:
        """Return `call()`, with the blocks that it needs."""
        return self.reads.with_blocks(call, self.readers)

    def pick(self, field: str) -> Picked:
        """Return which rows of the field's stream the windows have, [windows, k]."""
        return self.reads.pick(field, self.episode, self.rows[:, None])

    def values(self, field: str, picked: Picked) -> NDArray[Any]:
        """Return the values of these rows, [windows, k, ...]."""
        return self.reads.values(field, self.episode.streams[field], picked, self.address)


def _windows(windows: WindowView, read: Sequence[str]) -> Iterator[_Windows]:
    """Yield all windows, some of one episode at a time. read: fields to read."""
    assert isinstance(windows.episodes, View)  # `norm` refuses others
    view = windows.episodes.select(*read)
    layout = windows.layout
    # The anchor stays even if it is not read: its rows place the windows.
    at = {field: offsets for field, offsets in layout.at.items() if field in read or field == layout.anchor}
    own = WindowView(
        view,
        replace(layout, at=at, text=(), columns=()),
        windows.first,
        windows.kept,
        windows.table_sha256,
    )
    reads = WindowReads(
        own,
        decoders(view.fields, True),
        cache_bytes=(0, TOGETHER_BYTES),
        blocks_from=TOGETHER_BYTES,
        indexes=True,
    )
    version = view.version
    with DaemonPool(16, "penstock-norm") as pool:
        readers = Readers(
            fields=lambda addresses, on_corrupt: read_fields(
                version.shard_store, addresses, on_corrupt=on_corrupt, parallel_map=pool.map
            ),
            parts=lambda parts, on_corrupt: read_parts(
                version.shard_store, parts, on_corrupt=on_corrupt, parallel_map=pool.map
            ),
            run=pool.map,
        )
        with_windows = np.flatnonzero(np.diff(windows.first))  # numbers of the episodes that have a window
        for first in range(0, len(with_windows), TOGETHER):
            numbers = with_windows[first : first + TOGETHER]
            ordinals = windows.episodes.version_ordinals(numbers)
            addresses = version.address(ordinals, view.fields, pool.map)
            for group in _within_memory(addresses):
                episodes = reads.episodes(addresses[group], readers)
                for number, address in zip(numbers[group].tolist(), addresses[group], strict=True):
                    episode = episodes.pop(address.ordinal)
                    if isinstance(episode, Corrupt):
                        raise episode
                    counts = windows.counts(windows.first[[number]])
                    reads.check_count(episode, int(counts[0]), address)
                    for rows in _rows_together(own, number, episode):
                        yield _Windows(number, address, episode, rows, reads, readers)


def _rows_together(windows: WindowView, number: int, episode: WindowedEpisode) -> Iterator[I64]:
    """Yield the rows of an episode's windows, as many as take about `TOGETHER_BYTES`."""
    counts = {field: len(offsets.values) for field, offsets in windows.layout.at.items()}
    window_nbytes = 1  # of the field with the largest windows
    stream_nbytes = 0  # of the largest stream
    for field, stream in episode.streams.items():
        value_nbytes = stream.dtype.itemsize * prod(stream.shape[1:])
        window_nbytes = max(window_nbytes, value_nbytes * counts[field])
        stream_nbytes = max(stream_nbytes, value_nbytes * len(stream))
    most_values = max(counts.values(), default=1)
    together = min(PLACES // most_values, TOGETHER_BYTES // window_nbytes)
    together = max(1, together)
    # Windows that are far apart share no rows: a span of the episode bounds what they read.
    row_nbytes = max(1, stream_nbytes / episode.n_rows)
    span = max(1, int(TOGETHER_BYTES / row_nbytes))
    start, stop = windows.first[[number, number + 1]].tolist()
    while start < stop:
        end = min(start + together, stop)
        rows = windows.rows(np.arange(start, end))
        n_within = int(np.searchsorted(rows, rows[0] + span))
        rows = rows[: max(1, n_within)]
        yield rows
        start += len(rows)


def _within_memory(addresses: Sequence[SampleAddress]) -> Iterator[slice]:
    """Yield slices of the episodes, each of at most `TOGETHER_BYTES`, or of one larger episode."""
    start = 0
    nbytes = 0
    for stop, address in enumerate(addresses):
        own = sum(field.nbytes for field in address.fields.values())
        if stop > start and nbytes + own > TOGETHER_BYTES:
            yield slice(start, stop)
            start = stop
            nbytes = 0
        nbytes += own
    yield slice(start, len(addresses))


def _rows_of_fields(windows: _Windows, fields: Sequence[str]) -> dict[str, Values]:
    return {field: _field_rows(windows, field) for field in fields}


def _field_rows(windows: _Windows, field: str) -> Values:
    """Return the field's values in the windows, without padding: each row of its stream once, with its count."""
    picked = windows.pick(field)
    stream = windows.episode.streams[field]
    # Interpolated values are no rows of the stream.
    if picked.share is not None:
        return windows.values(field, picked)[~picked.is_pad], None
    numbers = picked.number[~picked.is_pad]
    first = int(numbers.min(initial=len(stream)))
    # [rows from `first`]: how many times the windows have each.
    counts = np.bincount(numbers - first).astype(np.int64, copy=False)
    is_whole = isinstance(stream, np.ndarray) and len(counts) == len(stream)
    if is_whole and (counts == 1).all():
        return stream, None  # the stream itself, without a copy
    rows_read = np.flatnonzero(counts)
    return stream[first + rows_read], counts[rows_read]


def _transform_windows(
    windows: _Windows, read: Sequence[str], transform: Transform, fields: Sequence[str]
) -> dict[str, Values]:
    """Return the fields of the transform's results over these windows, without padding. read: fields that it gets."""
    values: dict[str, list[NDArray[Any]]] = {field: [] for field in fields}

    def read_windows() -> dict[str, tuple[Picked, NDArray[Any]]]:
        # All picks before the first value: the blocks that they need are read at once.
        picks = {field: windows.pick(field) for field in read}
        return {field: (picked, windows.values(field, picked)) for field, picked in picks.items()}

    of_fields = windows.with_blocks(read_windows)
    for window in range(len(windows.rows)):
        sample: dict[str, Any] = {}
        for field, (_, field_values) in of_fields.items():
            sample[field] = field_values[window]
        for field, (pick, _) in of_fields.items():
            sample[f"{field}.{IS_PAD}"] = pick.is_pad[window]
        result = dict(transform(sample))
        for field in fields:
            if field not in result:
                raise FieldMismatch(
                    f"norm: the transform's result has {', '.join(result)}, not {field!r}",
                    what=field,
                    given=list(result),
                    accepted="a field of the transform's result",
                )
            value = np.asarray(result[field])
            # Padding is what the transform returns, else as in its argument; a field of its own has none.
            own_pad = None
            if field in of_fields:
                own_pad = of_fields[field][0].is_pad[window]
            is_pad = result.get(f"{field}.{IS_PAD}", own_pad)
            if is_pad is not None:
                value = value[~np.asarray(is_pad)]
            values[field].append(value)
    try:
        return {field: (np.concatenate(parts), None) for field, parts in values.items()}
    except ValueError as error:
        raise FieldMismatch(
            f"norm: the transform's results differ in shape: {error}",
            what="transform",
            given=str(error),
            accepted="results of one shape",
        ) from None


def _floats(field: str, values: NDArray[Any], weights: I64 | None) -> tuple[NDArray[np.floating], I64 | None]:
    """Return values as floats [rows, dims], and their weights. Raises: FieldMismatch for values with no exact float."""
    kind = values.dtype.kind
    if kind not in "biuf":
        raise FieldMismatch(
            f"norm: {field!r} holds {values.dtype}; floats, truth values or whole numbers are needed",
            what=field,
            given=values.dtype.str,
            accepted="floats, truth values or whole numbers",
        )
    if kind in "iu" and values.size:
        place = int(np.abs(values).argmax())
        largest = int(values.flat[place])  # in either direction
        if abs(largest) > LARGEST_WHOLE:
            raise FieldMismatch(
                f"norm: {field!r} holds {largest}; whole numbers from -2^53 to 2^53 are needed, since not every larger "
                "one is a float. Leave the field out, or subtract a base in a transform",
                what=field,
                given=largest,
                accepted="whole numbers from -2^53 to 2^53",
            )
    floats = as_floats(values)
    if floats.shape[1] > DIMS_MAX:
        raise FieldMismatch(
            f"norm: {field!r} has {floats.shape[1]} dimensions; at most {DIMS_MAX} are counted",
            what=field,
            given=floats.shape[1],
            accepted=f"up to {DIMS_MAX} dimensions",
        )
    is_finite = np.isfinite(floats).all(axis=0)  # [dims]
    if not is_finite.all():
        dimension = int(np.argmin(is_finite))
        raise FieldMismatch(
            f"norm: {field!r} holds values that are not finite in dimension {dimension}; leave such "
            "episodes out with where()",
            what=field,
            where=f"dimension {dimension}",
            accepted="finite values",
        )
    # Exact sums take no larger weight: repeat the rows instead.
    if weights is not None and len(weights) and int(weights.max()) > WEIGHT_MAX:
        floats = np.repeat(floats, weights, axis=0)
        weights = None
    return floats, weights
