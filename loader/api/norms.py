"""Norms of windows: exact statistics of what they deliver, and the transform that applies them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..dataset.norms.norm import FieldNorm, Norm, norm_bytes, parse_norm
from ..dataset.norms.quantiles import DIMS_MAX, ValueCounts
from ..dataset.norms.sums import WEIGHT_MAX, exact_sums
from ..dataset.reading.verified_bucket_reads import read_fields, read_parts
from ..dataset.versions.view import View
from ..errors import AlreadyExists, Corrupt, FieldMismatch, Forbidden, InvalidPlan, ObjectNotFound, StoreError
from ..modalities.array import is_array
from ..order.random.plan_hash import content_hash
from ..order.sources.window_layout import IS_PAD
from ..order.sources.window_view import WindowView
from ..run.recipe.decode import decoders
from ..run.recipe.episode_clocks import values_at
from ..run.recipe.video_packet_reads import Readers
from ..run.recipe.window_reads import WindowReads
from ..run.recipe.windowed_episodes import WindowedEpisode

logger = logging.getLogger(__name__)
TOGETHER = 64
"""Episodes that are read together."""
Transform = Callable[[dict[str, Any]], Mapping[str, Any]]
Values = tuple[NDArray[Any], NDArray[np.int64] | None]
"""Rows of values, and how often each counts; None: once."""


def norm(windows: WindowView, fields: Sequence[str], *, transform: Transform | None = None) -> Norm:
    """Return the statistics of array fields over all values of all windows, without padding.

    Mean and deviation are the float64 nearest to the true ones, in any order and grouping of the values; quantiles have
    their exact rank. The root stores them once, under `norms/`.

    Args:
        windows: Windows that the training reads.
        fields: Array fields of the windows, or of the transform's result.
        transform: Function of a window's arrays (field -> [k, ...], and `<field>.is_pad`), such as one that makes
            actions relative. It has an attribute `version`, a text that changes with its result, and belongs to the
            norm: `normalise` applies it first.

    Raises: InvalidPlan; Corrupt for an unreadable episode; FieldMismatch for values of several widths.
    """
    if not isinstance(windows, WindowView) or not isinstance(windows.episodes, View):
        raise InvalidPlan(f"norm({type(windows).__name__}): loader.windows(...) of a version is needed")
    name = ""
    if transform is not None:
        version = getattr(transform, "version", None)
        if not isinstance(version, str) or not version:
            raise InvalidPlan(
                f"norm(transform={transform!r}): it needs an attribute `version`, a text that changes with its result"
            )
        kind = transform if hasattr(transform, "__qualname__") else type(transform)
        name = f"{kind.__module__}.{kind.__qualname__}@{version}"
    arrays = [field for field in windows.layout.at if is_array(field)]
    if unknown := [field for field in fields if transform is None and field not in arrays]:
        raise InvalidPlan(f"norm names {unknown[0]!r}; the arrays of the windows are {arrays}")
    question = {
        "windows": windows.id,
        "layout": windows.layout.to_json(),
        "fields": sorted(fields),
        "transform": name,
    }
    path = f"norms/{content_hash('m', question).removeprefix('m-')}.parquet"
    store = windows.episodes.version.store
    try:
        stored = parse_norm(store.get(path).data, path, f"{store.url}/{path}")
    except ObjectNotFound:
        stored = _computed(
            windows, arrays if transform is not None else list(fields), fields, transform, name, path
        )
        try:
            store.put_if_absent(path, norm_bytes(stored))
        except AlreadyExists:
            pass  # equal values have one norm
        except Forbidden:
            logger.warning("the root is read-only here: %s was not saved", path)
        except StoreError as error:
            logger.warning("%s was not saved (%s)", path, error)
    return replace(stored, function=transform)


def _computed(
    windows: WindowView,
    read: Sequence[str],
    fields: Sequence[str],
    transform: Transform | None,
    name: str,
    path: str,
) -> Norm:
    out: dict[str, FieldNorm] = {}
    for episode, reads, rows in _episodes(windows, read):
        if transform is None:
            each = {field: _rows_of(reads, episode, field, rows) for field in fields}
        else:
            each = _transformed(reads, episode, read, rows, transform, fields)
        for field, (values, weights) in each.items():
            part = _field_norm(field, values, weights)
            try:
                out[field] = out[field] + part if field in out else part
            except FieldMismatch as error:
                raise FieldMismatch(f"norm: {field!r}: {error}") from None
    if not out:
        raise InvalidPlan("norm: there are no windows")
    assert isinstance(windows.episodes, View)
    version = windows.episodes.version.id
    return Norm(fields={field: out[field] for field in fields}, transform=name, version=version, path=path)


def _episodes(
    windows: WindowView, read: Sequence[str]
) -> Iterator[tuple[WindowedEpisode, WindowReads, NDArray[np.int64]]]:
    """Yield every episode that has windows, and their rows (int64). Reads no video."""
    assert isinstance(windows.episodes, View)
    view, layout = windows.episodes.select(*read), windows.layout
    kept = {field: offsets for field, offsets in layout.at.items() if field in read or field == layout.anchor}
    reads = WindowReads(
        WindowView(view, replace(layout, at=kept), windows.first), decoders(view.fields, True), whole=True
    )
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
        n_episodes = len(
            windows.episodes
        )  # `view` may have more: with where_present, of parts without a video
        for first in range(0, n_episodes, TOGETHER):
            numbers = np.arange(first, min(first + TOGETHER, n_episodes))
            addresses = version.address(windows.episodes.version_ordinals(numbers), view.fields, pool.map)
            episodes = reads.episodes(addresses, readers)
            for number, address in zip(numbers.tolist(), addresses, strict=True):
                episode = episodes[address.ordinal]
                if isinstance(episode, Corrupt):
                    raise episode
                own = np.arange(windows.first[number], windows.first[number + 1])
                reads.check_count(episode, len(own), address)
                if len(own):
                    yield episode, reads, windows.rows(own)


def _rows_of(reads: WindowReads, episode: WindowedEpisode, field: str, rows: NDArray[np.int64]) -> Values:
    picked, stream = reads.pick(field, episode, rows[:, None]), episode.streams[field]
    if picked.share is not None and picked.share.any():
        return values_at(stream, picked)[~picked.is_pad], None
    rows_read, often = np.unique(picked.number[~picked.is_pad], return_counts=True)
    return stream[rows_read], often


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


def _field_norm(field: str, values: NDArray[Any], weights: NDArray[np.int64] | None) -> FieldNorm:
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
    shape = tuple(values.shape[1:])
    return FieldNorm(
        shape=shape, sums=tuple(exact_sums(floats, weights)), counts=ValueCounts.of(floats, weights)
    )


class Normaliser:
    """A transform that applies a norm's transform, and then scales its fields. Picklable if the transform is."""

    norm: Norm
    """The norm."""
    mode: Literal["std", "minmax", "quantile"]
    """Scale of the values."""

    def __init__(self, norm: Norm, mode: Literal["std", "minmax", "quantile"]) -> None:
        self.norm, self.mode = norm, mode
        self._scales = {field: own.scale(mode) for field, own in norm.fields.items()}

    def __repr__(self) -> str:
        return f"Normaliser({self.norm.path}, mode={self.mode!r})"

    def __call__(self, sample: Mapping[str, Any], rng: Any = None) -> dict[str, Any]:
        """Return the sample with float32 fields. Raises: FieldMismatch for a missing field, or other widths."""
        out = dict(sample) if self.norm.function is None else dict(self.norm.function(dict(sample)))
        for field in self.norm.fields:
            if field not in out:
                raise FieldMismatch(
                    f"normalise: the sample has no {field!r}, which the norm {self.norm.path} has"
                )
            out[field] = self._scaled(field, out[field], _normalised)
        return out

    def inverse(self, field: str, values: NDArray[Any]) -> NDArray[np.float32]:
        """Return values [..., *shape] in the units of the norm's transform, for inference."""
        return self._scaled(field, values, _restored)

    def _scaled(
        self, field: str, values: Any, how: Callable[..., NDArray[np.float64]]
    ) -> NDArray[np.float32]:
        own, array = self.norm[field], np.asarray(values)
        width = len(own.shape)
        if array.shape[array.ndim - width :] != own.shape:
            raise FieldMismatch(
                f"normalise: {field!r} is {list(array.shape)}, the norm's values are {list(own.shape)}"
            )
        offset, factor = self._scales[field]
        return how(array.astype(np.float64), offset, factor).astype(np.float32)


def _normalised(values: NDArray[np.float64], offset: Any, factor: Any) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = (values - offset) * factor
    return scaled


def _restored(values: NDArray[np.float64], offset: Any, factor: Any) -> NDArray[np.float64]:
    restored: NDArray[np.float64] = np.where(
        factor == 0, offset, values / np.where(factor == 0, 1, factor) + offset
    )
    return restored


def normalise(norm: Norm, mode: Literal["std", "minmax", "quantile"] = "std") -> Normaliser:
    """Return a transform for `Loader(plan, transform=normalise(norm))`, with `inverse` for inference.

    mode: "std" gives (x - mean) / std; "minmax" -1 to 1 from the least to the greatest value; "quantile" the same from
        q01 to q99. Where all values of a dimension are equal, 0.

    Raises: InvalidPlan for another mode.
    """
    if mode not in ("std", "minmax", "quantile"):
        raise InvalidPlan(f"normalise(mode={mode!r}); accepted: 'std', 'minmax', 'quantile'")
    return Normaliser(norm, mode)
