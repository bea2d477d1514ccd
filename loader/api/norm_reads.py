"""Read the values that windows deliver, and add up their statistics; no video is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..dataset.norms.norm import FieldNorm
from ..dataset.norms.quantiles import DIMS_MAX
from ..dataset.norms.sums import WEIGHT_MAX
from ..dataset.norms.totals import FieldTotals
from ..dataset.reading.verified_bucket_reads import read_fields, read_parts
from ..dataset.shards.address import SampleAddress
from ..dataset.versions.view import View
from ..errors import Corrupt, FieldMismatch, InvalidPlan
from ..modalities.array import is_array
from ..order.random.keyed_permutation import I64
from ..order.sources.window_layout import IS_PAD
from ..order.sources.window_view import WindowView
from ..run.recipe.decode import decoders
from ..run.recipe.episode_clocks import values_at
from ..run.recipe.episode_columns import column_values
from ..run.recipe.video_packet_reads import Readers
from ..run.recipe.window_reads import WindowReads
from ..run.recipe.windowed_episodes import WindowedEpisode

TOGETHER, TOGETHER_BYTES = 64, 64 * 2**20
"""Episodes, and bytes of them, that are read together."""
PLACES = 2**20
"""Most values of a field, of several windows of an episode, that are picked together: about 32 MiB."""
WAITING = 2**24
"""Most values of all groups that wait to be added up: 128 MiB."""
Transform = Callable[[dict[str, Any]], Mapping[str, Any]]
Values = tuple[NDArray[Any], NDArray[np.int64] | None]
"""Rows of values, and how often each counts; None: once."""
Totals = dict[str, dict[str, FieldTotals]]
"""Value of the column that groups episodes, "" without one -> field -> its statistics."""


def add_windows(
    totals: Totals, windows: WindowView, fields: Sequence[str], transform: Transform | None, by: str | None
) -> None:
    """Add the values of all windows, without padding. Raises: Corrupt; FieldMismatch; InvalidPlan for a null."""
    arrays = [field for field in windows.layout.at if is_array(field)]
    read = arrays if transform is not None else list(fields)
    groups, waiting = None if by is None else groups_of(windows, by), 0
    for number, episode, reads, rows in _episodes(windows, read):
        own = totals.setdefault("" if groups is None else groups[number], {})
        if transform is None:
            each = {field: _rows_of(reads, episode, field, rows) for field in fields}
        else:
            each = _transformed(reads, episode, read, rows, transform, fields)
        for field, (values, weights) in each.items():
            shape = tuple(values.shape[1:])
            total = own.setdefault(field, FieldTotals(shape))
            if total.shape != shape:
                raise FieldMismatch(
                    f"norm: {field!r}: values of the shapes {list(total.shape)} and {list(shape)} have no common norm"
                )
            total.add(*_floats(field, values, weights))
            waiting += values.size
        if waiting >= WAITING:
            waiting = 0
            for of_field in totals.values():
                for total in of_field.values():
                    total.add_up()


def add_norms(totals: Totals, group: str, norms: Mapping[str, FieldNorm]) -> None:
    """Add the values behind norms of fields."""
    own = totals.setdefault(group, {})
    for field, norm in norms.items():
        own.setdefault(field, FieldTotals(norm.shape)).add_norm(norm)


def groups_of(windows: WindowView, by: str) -> list[str]:
    """Return the column's value of each episode, as text. Raises: InvalidPlan for a null."""
    assert isinstance(windows.episodes, View)
    view = windows.episodes
    ordinals = view.version_ordinals(np.arange(len(view), dtype=np.int64))
    values = column_values(view.version, [by])[by].gather(ordinals).to_list()
    if missing := [number for number, value in enumerate(values) if value is None]:
        keys = view.keys(ordinals[missing[:3]])
        raise InvalidPlan(
            f"norm(by={by!r}): {len(missing)} episodes, such as {', '.join(map(repr, keys))}, have no value there: "
            f'leave them out with where("{by} IS NOT NULL")'
        )
    return [str(value) for value in values]


def _episodes(
    windows: WindowView, read: Sequence[str]
) -> Iterator[tuple[int, WindowedEpisode, WindowReads, I64]]:
    """Yield every episode that has windows: its number, its data, and their rows (int64), of a long one some."""
    assert isinstance(windows.episodes, View)
    view, layout = windows.episodes.select(*read), windows.layout
    at = {field: offsets for field, offsets in layout.at.items() if field in read or field == layout.anchor}
    reads = WindowReads(
        WindowView(
            view,
            replace(layout, at=at, text=(), columns=()),
            windows.first,
            windows.kept,
            windows.table_sha256,
        ),
        decoders(view.fields, True),
        whole=True,
    )
    together = max(1, PLACES // max((len(offsets.values) for offsets in at.values()), default=1))
    version = view.version
    with ThreadPoolExecutor(16, thread_name_prefix="penstock-norm") as pool:
        how: dict[str, Any] = {"run": pool.map}
        readers = Readers(
            fields=lambda addresses, on_corrupt: read_fields(
                version.shard_store, addresses, on_corrupt=on_corrupt, **how
            ),
            parts=lambda parts, on_corrupt: read_parts(
                version.shard_store, parts, on_corrupt=on_corrupt, **how
            ),
            run=pool.map,
        )
        with_windows = np.flatnonzero(np.diff(windows.first))
        for first in range(0, len(with_windows), TOGETHER):
            numbers = with_windows[first : first + TOGETHER]
            addresses = version.address(windows.episodes.version_ordinals(numbers), view.fields, pool.map)
            for group in _within_memory(addresses):
                episodes = reads.episodes(addresses[group], readers)
                for number, address in zip(numbers[group].tolist(), addresses[group], strict=True):
                    episode = episodes[address.ordinal]
                    if isinstance(episode, Corrupt):
                        raise episode
                    own = np.arange(windows.first[number], windows.first[number + 1])
                    reads.check_count(episode, int(windows.counts(own[:1])[0]), address)
                    for start in range(0, len(own), together):
                        yield number, episode, reads, windows.rows(own[start : start + together])


def _within_memory(addresses: Sequence[SampleAddress]) -> Iterator[slice]:
    """Yield runs of episodes of at most `TOGETHER_BYTES`, or one."""
    start, nbytes = 0, 0
    for stop, address in enumerate(addresses):
        own = sum(field.nbytes for field in address.fields.values())
        if stop > start and nbytes + own > TOGETHER_BYTES:
            yield slice(start, stop)
            start, nbytes = stop, 0
        nbytes += own
    yield slice(start, len(addresses))


def _rows_of(reads: WindowReads, episode: WindowedEpisode, field: str, rows: I64) -> Values:
    picked, stream = reads.pick(field, episode, rows[:, None]), episode.streams[field]
    if picked.share is not None and picked.share.any():
        return values_at(stream, picked)[~picked.is_pad], None
    numbers = picked.number[~picked.is_pad]
    first = int(numbers.min(initial=len(stream)))
    often = np.bincount(numbers - first).astype(np.int64, copy=False)
    if len(often) == len(stream) and (often == 1).all():
        return stream, None
    rows_read = np.flatnonzero(often)
    return stream[first + rows_read], often[rows_read]


def _transformed(
    reads: WindowReads,
    episode: WindowedEpisode,
    read: Sequence[str],
    rows: NDArray[np.int64],
    transform: Transform,
    fields: Sequence[str],
) -> dict[str, Values]:
    values: dict[str, list[NDArray[Any]]] = {field: [] for field in fields}
    picks = {field: reads.pick(field, episode, rows[:, None]) for field in read}
    values_of = {field: values_at(episode.streams[field], picked) for field, picked in picks.items()}
    for window in range(len(rows)):
        sample: dict[str, Any] = {field: value[window] for field, value in values_of.items()}
        sample |= {f"{field}.{IS_PAD}": picked.is_pad[window] for field, picked in picks.items()}
        result = dict(transform(sample))
        for field in fields:
            if field not in result:
                raise FieldMismatch(f"norm: the transform's result has {', '.join(result)}, not {field!r}")
            value = np.asarray(result[field])
            is_pad = result.get(f"{field}.{IS_PAD}", picks[field].is_pad[window] if field in picks else None)
            values[field].append(value if is_pad is None else value[~np.asarray(is_pad)])
    try:
        return {field: (np.concatenate(parts), None) for field, parts in values.items()}
    except ValueError as error:
        raise FieldMismatch(f"norm: the transform's results differ in shape: {error}") from None


def _floats(field: str, values: NDArray[Any], weights: I64 | None) -> tuple[NDArray[np.floating], I64 | None]:
    kind = values.dtype.kind
    if kind not in "biuf" or (kind in "iu" and values.size and int(np.abs(values).max()) > 2**53):
        raise FieldMismatch(
            f"norm: {field!r} holds {values.dtype}; floats, truth values or whole numbers are needed"
        )
    small = values.dtype.itemsize <= 2 or values.dtype == np.float32
    floats: NDArray[np.floating] = values.reshape(len(values), prod(values.shape[1:])).astype(
        np.float32 if small else np.float64, copy=False
    )
    if floats.shape[1] > DIMS_MAX:
        raise FieldMismatch(
            f"norm: {field!r} has {floats.shape[1]} dimensions; at most {DIMS_MAX} are counted"
        )
    if not np.isfinite(floats).all():
        raise FieldMismatch(
            f"norm: {field!r} holds values that are not finite; leave such episodes out with where()"
        )
    if weights is not None and len(weights) and int(weights.max()) > WEIGHT_MAX:
        floats, weights = np.repeat(floats, weights, axis=0), None
    return floats, weights
