"""Norms of windows: exact statistics of what they deliver, and the transform that applies them."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from ..dataset.statistics.norm import GroupedNorm, Norm, norm_bytes, parse_norm
from ..dataset.versions.earlier_versions import earlier_versions
from ..dataset.versions.version import View
from ..dataset.versions.window_counts import find_stored_windows
from ..errors import (
    AlreadyExists,
    FieldMismatch,
    Forbidden,
    InvalidPlan,
    ObjectNotFound,
    PenstockError,
    StoreError,
)
from ..modalities.array import is_array
from ..order.random.plan_hash import content_hash
from ..order.sources.window_view import WindowView
from .norm_reads import Totals, Transform, add_norms, add_windows, episode_groups

logger = logging.getLogger(__name__)


@overload
def norm(
    windows: WindowView, fields: Sequence[str], *, by: None = None, transform: Transform | None = None
) -> Norm: ...


@overload
def norm(
    windows: WindowView, fields: Sequence[str], *, by: str, transform: Transform | None = None
) -> GroupedNorm: ...


def norm(
    windows: WindowView,
    fields: Sequence[str],
    *,
    by: str | None = None,
    transform: Transform | None = None,
) -> Norm | GroupedNorm:
    """Return the statistics of array fields over all values of all windows, without padding.

    Mean and deviation are the float64 nearest to the true ones, in any order and grouping of the values; quantiles have
    their exact rank. The root stores them once, under `norms/`. If it has an earlier version's statistics with the
    same clocks, and no episode was removed, only new episodes are read.

    Args:
        windows: Windows that the training reads.
        fields: Array fields of the windows, or of the transform's result.
        by: Column of the samples table, such as "robot": a norm for each of its values, in one pass. `normalise` takes
            each window's; `windows(columns=("robot",))` hands the value out.
        transform: Function of a window's arrays (field -> [k, ...], and `<field>.is_pad`), such as one that makes
            actions relative. It has an attribute `version`, a text that changes with its result, and belongs to the
            norm: `normalise` applies it first.

    Raises: InvalidPlan; Corrupt for an unreadable episode; FieldMismatch for values of several widths.
    """
    if not isinstance(windows, WindowView) or not isinstance(windows.episodes, View):
        kind = type(windows).__name__
        message = f"norm({kind}): loader.windows(...) of a version is needed"
        raise InvalidPlan(message, what="windows", given=kind, accepted="loader.windows(...) of a version")
    arrays = [field for field in windows.layout.at if is_array(field)]
    is_list = bool(fields) and not isinstance(fields, str)
    if not is_list or not all(isinstance(field, str) for field in fields):
        message = f"norm: fields = {fields!r}; a list of fields is needed, of the arrays {arrays}"
        raise InvalidPlan(message, what="fields", given=fields, accepted=arrays)
    if unknown := [field for field in fields if transform is None and field not in arrays]:
        message = f"norm names {unknown[0]!r}; the arrays of the windows are {arrays}"
        raise InvalidPlan(message, what="fields", given=unknown[0], accepted=arrays)
    if by is not None and by not in windows.layout.columns:
        message = (
            f"norm(by={by!r}): the windows hand out the columns {list(windows.layout.columns)}; name it in "
            f"windows(columns=({by!r},)), so that each window has its value"
        )
        raise InvalidPlan(message, what="by", given=by, accepted=list(windows.layout.columns))
    question = _Question(tuple(dict.fromkeys(fields)), transform, _transform_name(transform), by)
    stored = question.stored(windows)
    if stored is None:
        stored = _compute_norm(windows, question)
        store = windows.episodes.version.store
        try:
            store.put_if_absent(stored.path, norm_bytes(stored))
        except AlreadyExists:
            pass  # equal values have one norm
        except Forbidden:
            logger.warning("the root is read-only here: %s was not saved", stored.path)
        except StoreError as error:
            logger.warning("%s was not saved (%s)", stored.path, error)
    if isinstance(stored, GroupedNorm):
        with_function = {value: replace(one, function=transform) for value, one in stored.norms.items()}
        return replace(stored, norms=with_function)
    return replace(stored, function=transform)


def _transform_name(transform: Transform | None) -> str:
    """Return what stands for a transform in the path of a norm: module, name and version; "" without one."""
    if transform is None:
        return ""
    version = getattr(transform, "version", None)
    if not isinstance(version, str) or not version:
        raise InvalidPlan(
            f"norm(transform={transform!r}): it needs an attribute `version`, a text that changes with its result",
            what="transform",
            given=transform,
            accepted="an attribute `version`",
        )
    kind: Any = type(transform)  # an object of a class with `__call__`
    if hasattr(transform, "__qualname__"):
        kind = transform
    return f"{kind.__module__}.{kind.__qualname__}@{version}"


class _Question(NamedTuple):
    """The arguments of `norm` that decide its result, apart from the windows."""

    fields: tuple[str, ...]
    transform: Transform | None
    transform_name: str
    """Name and version of the transform; "" without one."""
    by: str | None

    def path(self, windows: WindowView) -> str:
        """Return the path of the norm: a hash of everything that decides its values."""
        question = {
            "windows": windows.id,
            "layout": windows.layout.to_json(),
            # Any order of the fields has the same statistics.
            "fields": sorted(self.fields),
            "transform": self.transform_name,
            # Absent without groups: norms that were stored before `by` existed keep their names.
            **({} if self.by is None else {"by": self.by}),
        }
        # `content_hash` puts a kind before the hash; a norm's kind is in its folder.
        digest = content_hash("m", question).removeprefix("m-")
        return f"norms/{digest}.parquet"

    def stored(self, windows: WindowView) -> Norm | GroupedNorm | None:
        """Return the norm of these windows if the root has it. Raises: StoreError."""
        assert isinstance(windows.episodes, View)  # `norm` refuses others
        store = windows.episodes.version.store
        path = self.path(windows)
        try:
            return parse_norm(store.get(path).data, path, f"{store.url}/{path}")
        except ObjectNotFound:
            return None


def _compute_norm(windows: WindowView, question: _Question) -> Norm | GroupedNorm:
    """Return the norm, from the stored one of an earlier version and the windows that are new since, if possible."""
    fields = question.fields
    totals = Totals()
    new: WindowView | None = windows  # windows to read; None if an earlier norm has them all
    for before, norm_before in _earlier_norms(windows, question):
        try:
            delta = windows.since(before)
        except InvalidPlan:
            continue  # other rows or clocks of the same episodes
        # An earlier norm can only be added to: extremes and quantiles cannot forget an episode.
        if len(delta.removed):
            continue
        if question.by is None or _has_same_groups(windows, before, question.by):
            if isinstance(norm_before, GroupedNorm):
                earlier = norm_before.norms
            else:
                earlier = {"": norm_before}
            for value, of_value in earlier.items():
                add_norms(totals, value, of_value.fields)
            new = None
            if isinstance(delta.view, WindowView):
                new = delta.view
            break
    if new is not None:
        add_windows(totals, new, fields, question.transform, question.by)
    if not totals:
        raise InvalidPlan("norm: there are no windows")
    assert isinstance(windows.episodes, View)  # `norm` refuses others
    norms = {
        value: Norm(
            fields={field: own[field].norm() for field in fields},
            transform=question.transform_name,
            version=windows.episodes.version.id,
            path=question.path(windows),
        )
        for value, own in sorted(totals.items())
    }
    if question.by is None:
        return norms[""]
    return GroupedNorm(by=question.by, norms=norms)


def _has_same_groups(windows: WindowView, before: WindowView, by: str) -> bool:
    """Return whether the earlier view's episodes still have their groups. A later version may have corrected labels.

    windows: has all episodes of `before`, then the new ones.
    """
    groups_before = episode_groups(before, by)
    groups = episode_groups(windows, by)
    return groups[: len(groups_before)] == groups_before


def _earlier_norms(
    windows: WindowView, question: _Question
) -> Iterator[tuple[WindowView, Norm | GroupedNorm]]:
    """Yield the same windows over earlier versions, with their stored norm, the newest version first."""
    assert isinstance(windows.episodes, View)  # `norm` refuses others
    view = windows.episodes
    for version in earlier_versions(view.version, "norms/"):
        try:
            before = find_stored_windows(view.of_version(version), windows.layout)
            if before is None:
                norm_before = None
            else:
                norm_before = question.stored(before)
        # An earlier norm only saves reads: without it, more episodes are read.
        except PenstockError as error:
            logger.debug("the norm of %s is not used: %s", version.name, error)
            continue
        if before is not None and norm_before is not None:
            yield before, norm_before


class Normaliser:
    """A transform that applies a norm's transform, and then scales its fields. Picklable if the transform is."""

    norm: Norm | GroupedNorm
    mode: Literal["std", "minmax", "quantile"]
    """Scale of the values."""

    def __init__(self, norm: Norm | GroupedNorm, mode: Literal["std", "minmax", "quantile"]) -> None:
        self.norm = norm
        self.mode = mode
        if isinstance(norm, GroupedNorm):
            norms = list(norm.norms.values())
        else:
            norms = [norm]
        self._function = norms[0].function
        if empty := [field for one in norms for field, own in one.fields.items() if own.sums and not own.n]:
            raise FieldMismatch(
                f"normalise: all values of {empty[0]!r} were padding in the norm {norm.path}; compare its clock with "
                "the anchor's, or leave the field out",
                what=empty[0],
                where=norm.path,
                given=0,
                accepted="at least 1 value without padding",
            )
        # (id of the norm, field) -> scale. `self.norm` keeps the norms alive, so that no id is used again.
        self._scales = {
            (id(one), field): own.scale(mode) for one in norms for field, own in one.fields.items()
        }

    def __repr__(self) -> str:
        return f"Normaliser({self.norm.path}, mode={self.mode!r})"

    def __reduce__(self) -> Any:
        # Scales are keyed by identity, so another process makes its own.
        return Normaliser, (self.norm, self.mode)

    def __call__(self, sample: Mapping[str, Any], rng: Any = None) -> dict[str, Any]:
        """Return the sample with float32 fields. Raises: FieldMismatch for a missing field, or other widths."""
        if self._function is None:
            out = dict(sample)
        else:
            out = dict(self._function(dict(sample)))
        norm = self.norm
        if isinstance(norm, GroupedNorm):
            if norm.by not in sample:
                raise FieldMismatch(
                    f"normalise: the sample has no {norm.by!r}, by which the norm {norm.path} was made; name it in "
                    f"windows(columns=({norm.by!r},))",
                    what=norm.by,
                    where=norm.path,
                    given=list(sample),
                    accepted="a column of the windows",
                )
            norm = norm[sample[norm.by]]
        for field in norm.fields:
            if field not in out:
                raise FieldMismatch(
                    f"normalise: the sample has no {field!r}, which the norm {self.norm.path} has",
                    what=field,
                    where=self.norm.path,
                    given=list(out),
                    accepted=list(norm.fields),
                )
            out[field] = self._scale(norm, field, out[field], _normalise)
        return out

    def inverse(self, field: str, values: NDArray[Any], value: object = None) -> NDArray[np.float32]:
        """Return values [..., *shape] in the units of the norm's transform, for inference.

        value: value of the norm's column, such as a robot. Raises: FieldMismatch.
        """
        if isinstance(self.norm, GroupedNorm):
            norm = self.norm[value]
        else:
            norm = self.norm
        return self._scale(norm, field, values, _restore)

    def _scale(
        self, norm: Norm, field: str, values: Any, how: Callable[..., NDArray[np.float64]]
    ) -> NDArray[np.float32]:
        """Return values [..., *shape] after `how(values, offset, factor)`: `_normalise` or `_restore`."""
        own = norm[field]
        array = np.asarray(values)
        width = len(own.shape)
        if array.shape[array.ndim - width :] != own.shape:
            raise FieldMismatch(
                f"normalise: {field!r} is {list(array.shape)}, the norm's values are {list(own.shape)}",
                what=field,
                given=list(array.shape),
                accepted=list(own.shape),
            )
        offset, factor = self._scales[id(norm), field]
        # In float64: a small deviation from a large mean would vanish in float32.
        return how(array.astype(np.float64), offset, factor).astype(np.float32)


def _normalise(values: NDArray[np.float64], offset: Any, factor: Any) -> NDArray[np.float64]:
    scaled: NDArray[np.float64] = (values - offset) * factor
    return scaled


def _restore(values: NDArray[np.float64], offset: Any, factor: Any) -> NDArray[np.float64]:
    # A dimension of equal values has factor 0, and its only value is the offset.
    # `where` computes both sides: divide these by 1.
    restored: NDArray[np.float64] = np.where(
        factor == 0, offset, values / np.where(factor == 0, 1, factor) + offset
    )
    return restored


def normalise(norm: Norm | GroupedNorm, mode: Literal["std", "minmax", "quantile"] = "std") -> Normaliser:
    """Return a transform for `Loader(plan, transform=normalise(norm))`, with `inverse` for inference.

    mode: "std" gives (x - mean) / std; "minmax" -1 to 1 from the least to the greatest value; "quantile" the same from
        q01 to q99. Dimensions of equal values become 0. If only q01 and q99 are equal, as of a gripper that rarely
        closes, "quantile" scales that dimension as "minmax" does, and logs its field and number.

    A norm by a column takes each sample's field of that name. A value that no episode had is `FieldMismatch`.

    Raises: InvalidPlan for another mode.
    """
    if mode not in ("std", "minmax", "quantile"):
        raise InvalidPlan(
            f"normalise(mode={mode!r}); accepted: 'std', 'minmax', 'quantile'",
            what="mode",
            given=mode,
            accepted=["std", "minmax", "quantile"],
        )
    normaliser = Normaliser(norm, mode)
    if mode == "quantile":
        _warn_of_narrow_dims(norm)
    return normaliser


def _warn_of_narrow_dims(norm: Norm | GroupedNorm) -> None:
    """Warn of dimensions whose quantiles are too close to scale by."""
    if isinstance(norm, GroupedNorm):
        by_value = norm.norms
    else:
        by_value = {"": norm}
    for value, own in by_value.items():
        group = ""
        if isinstance(norm, GroupedNorm):
            group = f" of {norm.by} {value!r}"
        for field, of_field in own.fields.items():
            if dims := of_field.narrow_dims:
                logger.warning(
                    "normalise: q01 and q99 of dimensions %s of %r%s are one value, within 2^-11 of it: these go from "
                    "their least to their greatest value",
                    dims,
                    field,
                    group,
                )
