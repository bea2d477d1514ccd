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
    for place, (ours, theirs) in enumerate(zip(quality_classes(better), quality_classes(worse), strict=True)):
        if ours != theirs:
            words, digits = _BETTER[place]
            if np.isnan(worse[place]):
                known = ""
            else:
                known = f" against {worse[place]:{digits}}"
            return f"{words}: {better[place]:{digits}}{known}"
    return ""


BLOCK = 1024
"""Samples per block: at most 32 MiB."""

_BY = ("phash", "phash_mirrored", "embedding")
MINHASH = "minhash"
"""`dup_by` of a document's copy."""

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
    pairs_ = [find(index_images(others.pictures, policy.max_distance), pictures, mirrored=policy.mirrored)]
    if policy.embedding and samples.embeddings and others.embeddings:
        pairs_.append(
            near_embeddings(samples.embeddings.take(rows), others.embeddings, policy.embedding.min_cosine)
        )
    pairs = merge_pairs(*pairs_)
    kind = pictures.kind[pairs.query]
    other_kind = others.pictures.kind[pairs.row]
    same_object = samples.objects[rows][pairs.query] == others.objects[pairs.row]
    return pairs.take((kind == other_kind) & (kind >= 0) & ~same_object.astype(bool))


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
            here = pairs.take(slice(bounds[position], bounds[position + 1]))
            course.decide(sample, here, rows[here.row], among.take(slice(starts[sample], starts[sample + 1])))
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
        self._never = not self._by_quality or policy.action == "mark"
        self._pinned: Bools = np.full(len(published), self._never)
        self._pinned[among.row[new.splits[among.query] != published.splits[among.row]]] = True
        self.stays: Bools = np.zeros(len(new), bool)
        self.copies: dict[str, DuplicateOf] = {}
        self.superseded: dict[int, DuplicateOf] = {}

    def decide(
        self,
        sample: int,
        here: NearPairs,
        rows: Int64s,
        there: NearPairs,
    ) -> None:
        """Decide on a sample after all better ones. here, rows: near new samples; there: near published ones."""
        nearest: list[tuple[int, float, int, int, int]] = []
        for by, distance, other in zip(here.by.tolist(), here.distance.tolist(), rows.tolist(), strict=True):
            if self.stays[other]:
                nearest.append((by, distance, 1, int(self._rank[other]), other))
        worse = []
        for by, distance, other in zip(
            there.by.tolist(), there.distance.tolist(), there.row.tolist(), strict=True
        ):
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
                of = self._new
            else:
                of = self._published
            self.copies[key] = DuplicateOf(
                of=str(of.keys[other]),
                by=_BY[by],
                distance=distance,
                why=self._why(sample, other) if is_new else self._why_published(sample, other),
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
        better = ""
        if self._by_quality:
            better = quality_reason(self._new.measured[other], self._new.measured[sample])
        return f"the other {better or 'landed before'}"

    def _why_published(self, sample: int, other: int) -> str:
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
    columns = [
        (
            frame[name].cast(kind) if name in frame.columns else pl.Series([None] * len(frame), dtype=kind)
        ).alias(name)
        for name, kind in schema().items()
    ]
    return pl.DataFrame(columns)


def compared_frame(rows: Sequence[Mapping[str, Any]]) -> "pl.DataFrame":
    """Return rows of a samples table as a frame of the compared columns; missing values are null."""
    return cast_columns({name: [row.get(name) for row in rows] for name in schema()} if rows else {})


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


def best_of_groups(table: "pl.DataFrame", *, ungrouped: bool) -> tuple[Candidates, "pl.Series"]:
    """Return the best sample of each group, and each group's rows.

    A group has equal hashes, form and split; with `ungrouped`, each sample is a group of its own.
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
    if ungrouped:
        by = ["row"]
    else:
        by = ["form", "split", "h0", "h1", "h2"]
    groups = ranked.group_by(by, maintain_order=True).agg(pl.col("row").alias("members"))
    first: Int64s = groups["members"].list.first().to_numpy().astype(np.int64)
    return every.take(first), groups["members"]
