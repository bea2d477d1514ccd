"""Choose among near samples by one rule, the same in every process and search order.

Samples are visited from best to worst; one near a better sample that stays is a copy of the nearest such sample. Better
means, in this order: more source pixels, more bytes per pixel and second, sharper, published, landed earlier, smaller
key. The first three are rounded to a quarter octave for pixels, half an octave otherwise, so 1 % more bytes is not
better.

A new sample supersedes a worse published one unless the published one is pinned: under `mark` or `first`, or if a near
new sample has another split. So no training sample becomes a validation sample.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .hamming import Int64s
from .near_pairs import (
    EMBEDDING,
    MIRROR,
    Embeddings,
    ImageHashes,
    NearPairs,
    find,
    index_images,
    merge_pairs,
    near_embeddings,
    table_image_hashes,
)
from .policy import NearDuplicates

if TYPE_CHECKING:
    import polars as pl


Float64s = np.ndarray[Any, np.dtype[np.float64]]

COLUMNS = (
    "width_px",
    "height_px",
    "source_width_px",
    "source_height_px",
    "source_nbytes",
    "source_duration_s",
    "sharpness_laplacian_var",
)
"""Compared columns of the samples table; null if missing."""

_BETTER = (("has more pixels", ".0f"), ("has more bytes per pixel", ".3g"), ("is sharper", ".3g"))
_STEPS_PER_OCTAVE = (4, 2, 2)
_UNKNOWN = -(1 << 20)
"""Class of an unknown measure: below every known one."""


def quality_measures(table: "pl.DataFrame") -> Float64s:
    """Return float64 [n, 3]: source pixels, bytes per pixel (and second), sharpness; NaN if unknown."""

    def column(name: str) -> Float64s:
        values: Float64s = table[name].cast(float).fill_null(float("nan")).to_numpy()
        return values

    source = column("source_width_px") * column("source_height_px")
    # float64 [n]: without a source, the sample's own pixels.
    pixels = np.where(np.isnan(source), column("width_px") * column("height_px"), source)
    # An image has no duration.
    seconds = np.nan_to_num(column("source_duration_s"), nan=1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        nbytes = column("source_nbytes") / (pixels * np.where(seconds > 0, seconds, 1.0))
    return np.stack([pixels, nbytes, column("sharpness_laplacian_var")], axis=1)


def quality_classes(values: Float64s) -> Int64s:
    """Return int64 [n, 3]: the class of each measure; larger is better."""
    with np.errstate(divide="ignore", invalid="ignore"):
        # float64 [n, 3]: -inf for 0, NaN if unknown.
        steps = np.rint(np.log2(values) * _STEPS_PER_OCTAVE)
    levels: Int64s = np.where(np.isfinite(steps), steps, _UNKNOWN).astype(np.int64)
    return levels


def quality_reason(better: Float64s, worse: Float64s) -> str:
    """Return how one row of `quality_measures` is better than another; "" if their classes are equal."""
    levels = zip(quality_classes(better), quality_classes(worse), strict=True)
    for measure, (level, worse_level) in enumerate(levels):
        if level != worse_level:
            words, digits = _BETTER[measure]
            known = ""
            if not np.isnan(worse[measure]):
                known = f" against {worse[measure]:{digits}}"
            return f"{words}: {better[measure]:{digits}}{known}"
    return ""


BLOCK = 1024
"""Samples per block: at most 32 MiB."""

_BY = ("phash", "phash_mirrored", "embedding")
MINHASH = "minhash"
"""`dup_by` of a document's copy."""
FIRST_IN_ORDER = "the other comes first in landing order"
"""Why an original of the same batch stays. Samples of one raw object land together: their keys decide."""

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Strings = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """n samples that may have near-duplicates."""

    keys: Strings
    """Str [n]: sample keys."""
    splits: Strings
    """Str [n]: split of each sample."""
    objects: Strings
    """Str [n]: raw object of each sample."""
    pictures: ImageHashes
    """Image hashes of the samples."""
    measured: Float64s
    """Float64 [n, 3]: see `quality_measures`."""
    embeddings: Embeddings | None = None
    """None if not compared."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Int64s) -> "Candidates":
        """Return these samples."""
        return Candidates(
            keys=self.keys[rows],
            splits=self.splits[rows],
            objects=self.objects[rows],
            pictures=self.pictures.take(rows),
            measured=self.measured[rows],
            embeddings=self.embeddings.take(rows) if self.embeddings else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateOf:
    """Original of a copy, and why the original stays."""

    of: str
    """Key of the sample that stays."""
    by: str
    """phash, phash_mirrored, embedding or minhash."""
    distance: float
    """Differing bits, of 64; or 1 - cosine; or share of a signature's values that differ."""
    why: str
    """Why the original stays."""

    @property
    def reason(self) -> str:
        """Reason as stored in refusals."""
        if self.by == _BY[EMBEDDING]:
            near = f"cosine {1 - self.distance:.4f}"
        elif self.by == MINHASH:
            near = f"similarity {1 - self.distance:.2f}"
        else:
            near = f"distance {self.distance:.0f}{' mirrored' if self.by == _BY[MIRROR] else ''}"
        return f"near_duplicate of {self.of} ({near}, {self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Decisions on near-duplicates."""

    copies: dict[str, DuplicateOf]
    """Key of a new copy -> its original."""
    superseded: dict[int, DuplicateOf]
    """Row of a published sample -> superseding sample."""


def match_rows(
    samples: Candidates,
    rows: Int64s,
    others: Candidates,
    policy: NearDuplicates,
) -> NearPairs:
    """Return near pairs (position in `rows`, row of `others`) of the same kind and different raw objects."""
    pictures = samples.pictures.take(rows)
    images = index_images(others.pictures, policy.max_distance)
    searches = [find(images, pictures, mirrored=policy.mirrored)]
    if policy.embedding and samples.embeddings and others.embeddings:
        own_embeddings = samples.embeddings.take(rows)
        searches.append(near_embeddings(own_embeddings, others.embeddings, policy.embedding.min_cosine))
    pairs = merge_pairs(*searches)
    # Each [pairs]. Embeddings do not depend on the kind, so it is compared here.
    kind = pictures.kind[pairs.query]
    is_compared = kind >= 0  # -1: neither photo nor clip
    is_same_kind = kind == others.pictures.kind[pairs.row]
    object_of_query = samples.objects[rows][pairs.query]
    is_same_object: Bools = object_of_query == others.objects[pairs.row]
    return pairs.take(is_compared & is_same_kind & ~is_same_object)


def settle(
    new: Candidates,
    published: Candidates,
    among: NearPairs,
    policy: NearDuplicates,
) -> Settled:
    """Decide which new samples stay and which published samples they supersede.

    new: in landing order. among: sorted near pairs (row of `new`, row of `published`). O(n log n + near pairs).
    """
    course = _Course(new, published, among, policy)
    # int64 [n + 1]: where each new sample's pairs begin in `among`.
    starts = np.searchsorted(among.query, np.arange(len(new) + 1))
    for first in range(0, len(new), BLOCK):
        block = course.order[first : first + BLOCK]
        # int64 [m]: samples that stay so far, and the block itself.
        rows = np.concatenate([np.flatnonzero(course.stays), block])
        pairs = match_rows(new, block, new.take(rows), policy)
        # int64 [block + 1]: where each sample's pairs begin in `pairs`.
        bounds = np.searchsorted(pairs.query, np.arange(len(block) + 1))
        for position, sample in enumerate(block.tolist()):
            near_new = pairs.take(slice(bounds[position], bounds[position + 1]))
            near_published = among.take(slice(starts[sample], starts[sample + 1]))
            course.decide(sample, near_new, rows[near_new.row], near_published)
    return Settled(copies=course.copies, superseded=course.superseded)


class _Course:
    """State of `settle`. order: rows of `new`, best first; stays: bool [n]."""

    def __init__(
        self,
        new: Candidates,
        published: Candidates,
        among: NearPairs,
        policy: NearDuplicates,
    ) -> None:
        self._new = new
        self._published = published
        self._by_quality = policy.keep == "better"
        self._classes = quality_classes(new.measured)
        self._published_classes = quality_classes(published.measured)
        sort_keys = [np.arange(len(new))]
        if self._by_quality:
            # lexsort: the last key counts most, so the first class goes last.
            sort_keys += [-level for level in self._classes.T[::-1]]
        self.order: Int64s = np.lexsort(sort_keys)
        # int64 [n]: place of each row in `order`.
        self._rank = np.argsort(self.order)
        # True if no new sample may supersede a published one.
        self._never = not self._by_quality or policy.action == "mark"
        self._pinned: Bools = np.full(len(published), self._never)
        has_other_split = new.splits[among.query] != published.splits[among.row]  # [pairs]
        self._pinned[among.row[has_other_split]] = True
        self.stays: Bools = np.zeros(len(new), bool)
        self.copies: dict[str, DuplicateOf] = {}
        self.superseded: dict[int, DuplicateOf] = {}

    def decide(
        self,
        sample: int,
        near_new: NearPairs,
        rows: Int64s,
        near_published: NearPairs,
    ) -> None:
        """Decide on a sample after all better ones. rows: int64 [pairs], rows of `new` of the pairs in `near_new`."""
        # (match type, distance, 1 if new, rank, row): the smallest is the original.
        nearest: list[tuple[int, float, int, int, int]] = []
        new_pairs = zip(near_new.by.tolist(), near_new.distance.tolist(), rows.tolist(), strict=True)
        for by, distance, other in new_pairs:
            if self.stays[other]:
                nearest.append((by, distance, 1, int(self._rank[other]), other))
        worse = []  # published samples that this one supersedes if it stays
        published_pairs = zip(
            near_published.by.tolist(),
            near_published.distance.tolist(),
            near_published.row.tolist(),
            strict=True,
        )
        for by, distance, other in published_pairs:
            if other in self.superseded:
                continue
            if self._pinned[other] or tuple(self._published_classes[other]) >= tuple(self._classes[sample]):
                nearest.append((by, distance, 0, other, other))
            else:
                worse.append((by, distance, other))
        key = str(self._new.keys[sample])
        if nearest:
            by, distance, is_new, _, other = min(nearest)
            if is_new:
                originals = self._new
                why = self._why(sample, other)
            else:
                originals = self._published
                why = self._why_published(sample, other)
            self.copies[key] = DuplicateOf(
                of=str(originals.keys[other]),
                by=_BY[by],
                distance=distance,
                why=why,
            )
            return
        self.stays[sample] = True
        for by, distance, other in worse:
            reason = quality_reason(self._new.measured[sample], self._published.measured[other])
            self.superseded[other] = DuplicateOf(
                of=key,
                by=_BY[by],
                distance=distance,
                why=f"the other {reason}",
            )

    def _why(self, sample: int, other: int) -> str:
        """Return why `sample` is a copy of the new sample `other`, for `DuplicateOf.why`."""
        better = ""
        if self._by_quality:
            better = quality_reason(self._new.measured[other], self._new.measured[sample])
        if better:
            return f"the other {better}"
        return FIRST_IN_ORDER

    def _why_published(self, sample: int, other: int) -> str:
        """Return why `sample` is a copy of the published sample `other`, for `DuplicateOf.why`."""
        better = quality_reason(self._published.measured[other], self._new.measured[sample])
        if self._by_quality and self._published_classes[other].tolist() > self._classes[sample].tolist():
            return f"the other {better}"
        split = str(self._published.splits[other])
        kept = ""
        if self._pinned[other] and not self._never:
            kept = f" as {split}, which it stays"
        return f"the other was published before{kept}"


_TEXTS = ("key", "kind", "split", "phash", "phash_mirrored")


def schema() -> dict[str, Any]:
    """Return column -> polars type, for the compared columns of a samples table."""
    import polars as pl

    numbers = dict.fromkeys(COLUMNS, pl.Float64)
    return {
        "ordinal": pl.Int64,
        **dict.fromkeys(_TEXTS, pl.String),
        "phash_flat": pl.Boolean,
        "phash_flat_mask": pl.Int64,
        **numbers,
    }


def cast_columns(table: "pl.DataFrame | Mapping[str, Any]") -> "pl.DataFrame":
    """Return the table with every column of `schema`, cast to its type; missing columns are null."""
    import polars as pl

    if isinstance(table, pl.DataFrame):
        frame = table
    else:
        frame = pl.DataFrame(dict(table), strict=False)
    columns = []
    for name, kind in schema().items():
        if name in frame.columns:
            column = frame[name].cast(kind)
        else:
            column = pl.Series([None] * len(frame), dtype=kind)
        columns.append(column.alias(name))
    return pl.DataFrame(columns)


def compared_frame(rows: Sequence[Mapping[str, Any]]) -> "pl.DataFrame":
    """Return rows of a samples table as a frame of the compared columns; missing values are null."""
    if not rows:
        return cast_columns({})
    return cast_columns({name: [row.get(name) for row in rows] for name in schema()})


def table_candidates(
    table: "pl.DataFrame", objects: Sequence[str], embeddings: Embeddings | None = None
) -> Candidates:
    """Return a samples table's rows as candidates, in order. objects: raw object of each row."""
    splits, split = _split(table)
    return Candidates(
        keys=table["key"].to_numpy().astype(object),
        splits=splits[split],
        objects=np.array(objects, object),
        pictures=table_image_hashes(table),
        measured=quality_measures(table),
        embeddings=embeddings,
    )


def _split(table: "pl.DataFrame") -> tuple[Strings, Int64s]:
    """Return (sorted split names, index of each row's split); a row without a split has ""."""
    column = table["split"].fill_null("")
    names = column.unique().sort()
    numbers: Int64s = names.search_sorted(column).to_numpy().astype(np.int64)
    return names.to_numpy().astype(object), numbers


def best_of_groups(table: "pl.DataFrame", *, grouped: bool) -> tuple[Candidates, "pl.Series"]:
    """Return the best sample of each group, and each group's rows.

    grouped: True groups samples of equal hashes, form and split; False makes each sample a group of its own.
    """
    import polars as pl

    every = table_candidates(table, [""] * len(table))
    levels = quality_classes(every.measured)
    # int64 [n]: rows, the best first.
    order = np.lexsort((np.arange(len(every)), *(-level for level in levels.T[::-1])))
    ranked = pl.DataFrame(
        {
            "row": order,
            "form": every.pictures.form[order],
            "split": _split(table)[1][order],
            **{f"h{place}": hashes[order] for place, hashes in enumerate(every.pictures.hashes.T)},
        }
    ).filter(pl.col("form") >= 0)
    if grouped:
        by = ["form", "split", "h0", "h1", "h2"]
    else:
        by = ["row"]
    groups = ranked.group_by(by, maintain_order=True).agg(pl.col("row").alias("members"))
    first: Int64s = groups["members"].list.first().to_numpy().astype(np.int64)
    return every.take(first), groups["members"]
