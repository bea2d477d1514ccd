"""L0, the order's input: a view is N live samples with names, without bytes."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ...errors import EmptyView, InvalidPlan
from ...keywords import check_whole_number, is_whole_number
from ..random.keyed_permutation import I64, encode_field
from ..random.lanes import MAX_SAMPLES
from ..random.plan_hash import content_hash


class OrderView(Protocol):
    """A dataset version, or a part of one, numbered 0..N-1."""

    @property
    def id(self) -> str:
        """Content hash of version and predicate ('w-<hex>')."""

    @property
    def identity(self) -> str:
        """The version's id ('v-<hex>'). With a version ordinal it names a sample permanently, in any view."""

    def __len__(self) -> int:
        """Return N, the number of live samples."""

    @property
    def mean_sample_bytes(self) -> int:
        """Mean bytes of a sample's selected fields, >= 0; 0 for a view without bytes."""

    def spec(self) -> dict[str, Any]:
        """Return JSON without floats, from which the view can be reopened."""

    def version_ordinals(self, x: I64) -> I64:
        """Return the version ordinals (int64) of view ordinals (int64)."""

    def keys(self, version_ordinals: I64) -> list[str]:
        """Return the sample keys at version ordinals (int64)."""

    def ordinals(self, keys: Sequence[str]) -> I64:
        """Return the version ordinals (int64) of keys; -1 for a key without a live sample."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Delta:
    view: OrderView | None
    """Samples that the later version adds, or None."""
    first: int
    """First version ordinal of the added samples."""
    removed: I64
    """int64, ascending: ordinals of the earlier version that are no longer live."""


def view_growth(
    source: str,
    view: OrderView,
    old: OrderView,
    *,
    compare: bool = True,
) -> Delta:
    """Return the samples that a view adds to an earlier view of the same source, and those it removes.

    compare: True also checks that both views select the same of their common samples. Raises InvalidPlan unless `view`
    continues `old`.
    """
    if not hasattr(view, "since") or type(view) is not type(old):
        raise InvalidPlan(
            f"source {source!r} reads a {type(old).__name__}, which a {type(view).__name__} does not go on from",
            what="view",
            where=f"source {source!r}",
            given=type(view).__name__,
            accepted=type(old).__name__,
        )
    try:
        delta: Delta = view.since(old, compare=compare)
    except InvalidPlan as error:
        raise error.with_message(f"source {source!r}: {error}", where=f"source {source!r}") from None
    return delta


@dataclass(frozen=True, slots=True)
class SyntheticView:
    """A view without bytes: for planning, tests and measurements at any scale."""

    n_samples: int
    """Number of samples, before `first` is applied."""
    name: str = "synthetic"
    """Part of the view's id."""
    buckets: tuple[tuple[str, int], ...] = ()
    """(label, samples) pairs that `split` returns, or empty."""
    first: int = 0
    """First ordinal; earlier samples are left out."""

    @property
    def id(self) -> str:
        name = encode_field("synthetic") + encode_field(self.name) + encode_field(self.n_samples)
        if self.first:
            name += encode_field(self.first)
        digest = hashlib.sha256(name).hexdigest()
        return f"w-{digest}"

    @property
    def identity(self) -> str:
        return f"synthetic-{self.name}-{self.n_samples}"

    def __len__(self) -> int:
        return self.n_samples - self.first

    @property
    def mean_sample_bytes(self) -> int:
        return 0

    def spec(self) -> dict[str, Any]:
        body: dict[str, Any] = {
            "kind": "synthetic",
            "name": self.name,
            "n": self.n_samples,
        }
        if self.first:
            body["first"] = self.first
        return body

    def since(self, old: "SyntheticView", *, compare: bool = True) -> Delta:
        are_whole_views = self.first == 0 and old.first == 0
        if self.name != old.name or self.n_samples < old.n_samples or not are_whole_views:
            raise InvalidPlan(
                f"synthetic view {self.name!r} of {self.n_samples} does not go on from {old.name!r} of "
                f"{old.n_samples}: the same name and at least as many samples are needed",
                what="view",
                given=[self.name, self.n_samples],
                accepted=[old.name, old.n_samples],
            )
        new_samples: SyntheticView | None = None
        if self.n_samples > old.n_samples:
            new_samples = SyntheticView(
                self.n_samples,
                self.name,
                first=old.n_samples,
            )
        return Delta(
            view=new_samples,
            first=old.n_samples,
            removed=np.zeros(0, np.int64),
        )

    def split(self, by: str, edges: Sequence[str] | None) -> "dict[str, SyntheticView]":
        """Return label -> a view named `<name>/<label>`. Raises: InvalidPlan if the view has no buckets."""
        if not self.buckets:
            raise InvalidPlan(
                f"synthetic view {self.name!r} has no buckets: loader.synthetic(n, buckets={{label: samples, ...}})",
                what="buckets",
                given=self.name,
                accepted="loader.synthetic(n, buckets=)",
            )
        views = {}
        for label, n in self.buckets:
            views[label] = SyntheticView(n, f"{self.name}/{label}")
        return views

    def version_ordinals(self, x: I64) -> I64:
        return np.asarray(x, dtype=np.int64) + self.first

    def keys(self, version_ordinals: I64) -> list[str]:
        return [f"{ordinal:012d}" for ordinal in version_ordinals.tolist()]

    def ordinals(self, keys: Sequence[str]) -> I64:
        ordinals = np.full(len(keys), -1, np.int64)
        for number, key in enumerate(keys):
            if not key.isdecimal():
                continue
            ordinal = int(key)
            is_canonical = key == f"{ordinal:012d}"  # "7" and other digits than ASCII name no sample
            if is_canonical and ordinal < self.n_samples:
                ordinals[number] = ordinal
        return ordinals


def synthetic(
    n_samples: int,
    name: str = "synthetic",
    buckets: Mapping[str, int] | None = None,
) -> SyntheticView:
    """Return a view of n_samples samples without bytes, whose keys are '000000000000' and so on.

    buckets: label -> samples, n_samples in total, for plans with any `bucket_by`. Raises EmptyView if n_samples is 0,
    InvalidPlan for anything else that is not a whole number up to 2^53.
    """
    _check_size("n_samples", n_samples, name)
    if not buckets:
        return SyntheticView(n_samples, name)

    for label, n in buckets.items():
        _check_size(f"bucket {label!r}", n, name)
    total = sum(buckets.values())
    if total != n_samples:
        raise InvalidPlan(
            f"the buckets have {total} samples, n_samples is {n_samples}",
            what="n_samples",
            given=n_samples,
            accepted=total,
        )
    return SyntheticView(n_samples, name, tuple(buckets.items()))


def _check_size(
    argument: str,
    n: object,
    name: str,
) -> None:
    if is_whole_number(n, 0, 0):
        raise EmptyView(
            f"synthetic view {name!r} has no samples ({argument} = 0); at least 1 is needed",
            what=argument,
            where=f"synthetic view {name!r}",
            given=0,
            accepted="at least 1",
        )
    check_whole_number(
        argument,
        n,
        1,
        MAX_SAMPLES,
        InvalidPlan,
    )


class ListedView:
    """The entries of a list, numbered by (version ordinal, position in the list); immutable.

    listed: the samples' view.
    first_epoch: int64 [N], entry at each position of the list, and so of the first epoch.
    places: int64 [N], position of each entry in the list.
    list_sha256: hash of the list's ordinals as little-endian int64.
    """

    def __init__(self, view: OrderView, ordinals: I64) -> None:
        by_ordinal = np.argsort(ordinals, kind="stable")  # repeats stay in the order of the list
        self.listed = view
        self.places = by_ordinal.astype(np.int64, copy=False)
        self._ordinals = ordinals[self.places]  # [N], ascending
        self.first_epoch = np.empty_like(self.places)
        self.first_epoch[self.places] = np.arange(len(ordinals))  # the inverse of `places`
        self.list_sha256 = list_sha256(ordinals)

    def __reduce__(self) -> Any:
        return ListedView, (self.listed, self.in_order)

    def __repr__(self) -> str:
        return f"ListedView({self.listed!r}, {len(self)} listed)"

    def __len__(self) -> int:
        return len(self.places)

    @property
    def in_order(self) -> I64:
        return self._ordinals[self.first_epoch]

    def packed(self, request: Any) -> Any:
        """Return the packed sequences of the listed documents, in the order of the list: see `loader.pack`.

        Raises: InvalidPlan.
        """
        pack = getattr(self.listed, "packed", None)
        if pack is None:
            kind = type(self.listed).__name__
            text = f"a list of a {kind} cannot be packed; list documents of a version"
            raise InvalidPlan(text, what="list", given=kind)
        return pack(request, self)

    @property
    def id(self) -> str:
        content = {"list": self.list_sha256, "view": self.listed.id}
        return content_hash("w", content)

    @property
    def identity(self) -> str:
        return self.listed.identity

    @property
    def mean_sample_bytes(self) -> int:
        return self.listed.mean_sample_bytes

    def spec(self) -> dict[str, Any]:
        return {
            "kind": "listed",
            "view": self.listed.spec(),
            "list": self.list_sha256,
        }

    def version_ordinals(self, x: I64) -> I64:
        """Return the version ordinals (int64) of entries (int64); they ascend, with repeats."""
        return self._ordinals[x]

    def keys(self, version_ordinals: I64) -> list[str]:
        return self.listed.keys(version_ordinals)

    def ordinals(self, keys: Any) -> I64:
        """Return the version ordinals (int64) of sample keys, listed or not; -1 for unknown keys."""
        return self.listed.ordinals(keys)


def list_sha256(ordinals: I64) -> str:
    little_endian = np.ascontiguousarray(ordinals, dtype="<i8")
    return hashlib.sha256(little_endian.tobytes()).hexdigest()


def check_list(value: Any) -> I64:
    """Return a list as int64 [N], a copy. Raises: EmptyView if it is empty; InvalidPlan for any other invalid value."""
    if not isinstance(value, np.ndarray):
        value = list(value)
    array = np.asarray(value)
    if array.size == 0:
        raise EmptyView(
            "listed: the list is empty; name the version ordinals of one sample at least",
            what="listed",
            given=0,
            accepted="at least 1 version ordinal",
        )
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidPlan(
            f"listed: the list is {array.dtype} {list(array.shape)}; version ordinals are needed, whole numbers in one "
            "dimension, such as view.ordinals(keys) gives",
            what="listed",
            given=[str(array.dtype), *array.shape],
            accepted="whole numbers in one dimension",
        )
    is_outside = (array < 0) | (array >= MAX_SAMPLES)
    outside = np.flatnonzero(is_outside)
    if len(outside):
        place = int(outside[0])
        raise InvalidPlan(
            f"listed: place {place} has {array[place]}, as {len(outside)} of {len(array)} have such; -1 is a key that "
            "no live sample of the version has: leave it out, or list samples of the version that has it",
            what="listed",
            where=f"place {place}",
            given=int(array[place]),
            accepted="ordinals of the version",
        )
    return array.astype(np.int64)
