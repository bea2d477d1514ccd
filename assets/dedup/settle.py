"""The choice of near samples that stay: one rule, the same in every process, in any order of search.

Samples are gone through from the best to the worst (`quality`). A sample that is near to a better one that stays is a
copy of the nearest such. Every other sample stays.

- A copy is a copy of a sample that stays, directly. Along a chain of pictures, each near to the next, the first and the
  third are not near, and both stay.
- No two that stay are near, but for those of one raw object, which are never compared. Pieces of one video are what its
  policy asked for.
- An order decides, not a clustering: more samples do not move others between clusters.

Published samples stand in the same order, but are not compared with each other. A published sample that is worse than a
new one is superseded by it, unless it is pinned. All are pinned where copies are marked only, and where the first is
kept. A published sample is also pinned where a new one of another split lies near to it: training samples must not
become validation samples, or the other way round.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .embeddings import Embeddings, near_embeddings
from .hamming import Int64s
from .pictures import EMBEDDING, MIRROR, Matches, Pictures, file_pictures, find, merged
from .policy import NearDuplicates
from .quality import Float64s, classes, why

BLOCK = 1024
"""Samples that are settled together; at worst all pairs of a block are near, which takes 32 MiB."""

_BY = ("phash", "phash_mirrored", "embedding")

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Strings = np.ndarray[Any, np.dtype[np.object_]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """n samples that may be near to others."""

    keys: Strings
    """str [n]: key of the sample."""
    splits: Strings
    """str [n]: split of the sample."""
    objects: Strings
    """str [n]: raw object of the sample."""
    pictures: Pictures
    """Pictures of the samples."""
    measured: Float64s
    """float64 [n, 3], see `quality`."""
    embeddings: Embeddings | None = None
    """Embeddings; None where none are compared."""

    def __len__(self) -> int:
        return len(self.keys)

    def take(self, rows: Int64s) -> "Candidates":
        """Return some of the samples."""
        return Candidates(
            keys=self.keys[rows],
            splits=self.splits[rows],
            objects=self.objects[rows],
            pictures=self.pictures.take(rows),
            measured=self.measured[rows],
            embeddings=self.embeddings.take(rows) if self.embeddings else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Copy:
    """The sample that another is a copy of."""

    of: str
    """Key of the sample that it is a copy of."""
    by: str
    """phash, phash_mirrored or embedding."""
    distance: float
    """Bits of 64, or 1 - cosine."""
    why: str
    """Reason why the other stays."""

    @property
    def reason(self) -> str:
        """The reason as it stands in the accounts."""
        if self.by == _BY[EMBEDDING]:
            near = f"cosine {1 - self.distance:.4f}"
        else:
            near = f"distance {self.distance:.0f}{' mirrored' if self.by == _BY[MIRROR] else ''}"
        return f"near_duplicate of {self.of} ({near}, {self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """Near-duplicates as they were settled."""

    copies: dict[str, Copy]
    """Key of a new sample -> sample that it is a copy of."""
    superseded: dict[int, Copy]
    """Row of a published sample -> sample that supersedes it."""


def matches_between(one: Candidates, rows: Int64s, others: Candidates, policy: NearDuplicates) -> Matches:
    """Return pairs (position in `rows`, row of `others`) that are near, of one kind, and not of one raw object."""
    pictures = one.pictures.take(rows)
    found = [find(file_pictures(others.pictures, policy.max_distance), pictures, mirrored=policy.mirrored)]
    if policy.embedding and one.embeddings and others.embeddings:
        found.append(
            near_embeddings(one.embeddings.take(rows), others.embeddings, policy.embedding.min_cosine)
        )
    pairs = merged(*found)
    kind, other_kind = pictures.kind[pairs.query], others.pictures.kind[pairs.row]
    same_object = one.objects[rows][pairs.query] == others.objects[pairs.row]
    return pairs.take((kind == other_kind) & (kind >= 0) & ~same_object.astype(bool))


def settle(new: Candidates, published: Candidates, among: Matches, policy: NearDuplicates) -> Settled:
    """Decide which of the new samples stay, and which published ones they supersede.

    new: as they landed; among: near pairs (row of `new`, row of `published`), by row.

    O(n log n), and the near pairs of each sample with those that stay.
    """
    course = _Course(new, published, among, policy)
    starts = np.searchsorted(among.query, np.arange(len(new) + 1))
    for first in range(0, len(new), BLOCK):
        block = course.order[first : first + BLOCK]
        rows = np.concatenate([np.flatnonzero(course.stays), block])
        pairs = matches_between(new, block, new.take(rows), policy)
        bounds = np.searchsorted(pairs.query, np.arange(len(block) + 1))
        for position, sample in enumerate(block.tolist()):
            here = pairs.take(slice(bounds[position], bounds[position + 1]))
            course.decide(sample, here, rows[here.row], among.take(slice(starts[sample], starts[sample + 1])))
    return Settled(copies=course.copies, superseded=course.superseded)


class _Course:
    """Decisions so far. order: rows of `new`, the best first; stays: bool [n]."""

    def __init__(
        self, new: Candidates, published: Candidates, among: Matches, policy: NearDuplicates
    ) -> None:
        self._new, self._published = new, published
        self._by_quality = policy.keep == "better"
        self._classes, self._published_classes = classes(new.measured), classes(published.measured)
        levels = self._classes.T[::-1] if self._by_quality else ()
        self.order: Int64s = np.lexsort((np.arange(len(new)), *(-level for level in levels)))
        self._rank = np.argsort(self.order)
        self._never = not self._by_quality or policy.action == "mark"
        self._pinned: Bools = np.full(len(published), self._never)
        self._pinned[among.row[new.splits[among.query] != published.splits[among.row]]] = True
        self.stays: Bools = np.zeros(len(new), bool)
        self.copies: dict[str, Copy] = {}
        self.superseded: dict[int, Copy] = {}

    def decide(self, sample: int, here: Matches, rows: Int64s, there: Matches) -> None:
        """Decide whether a sample stays, after all better ones.

        here: near samples of the batch, which are `rows` of it; there: near published samples.
        """
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
            of = self._new if is_new else self._published
            self.copies[key] = Copy(
                of=str(of.keys[other]),
                by=_BY[by],
                distance=distance,
                why=self._why(sample, other) if is_new else self._why_published(sample, other),
            )
            return
        self.stays[sample] = True
        for by, distance, other in worse:
            reason = why(self._new.measured[sample], self._published.measured[other])
            self.superseded[other] = Copy(of=key, by=_BY[by], distance=distance, why=f"the other {reason}")

    def _why(self, sample: int, other: int) -> str:
        """Return why another sample of the batch stays, and not this one."""
        better = why(self._new.measured[other], self._new.measured[sample]) if self._by_quality else ""
        return f"the other {better or 'landed before'}"

    def _why_published(self, sample: int, other: int) -> str:
        better = why(self._published.measured[other], self._new.measured[sample])
        if self._by_quality and self._published_classes[other].tolist() > self._classes[sample].tolist():
            return f"the other {better}"
        split = str(self._published.splits[other])
        kept = f" as {split}, which it stays" if self._pinned[other] and not self._never else ""
        return f"the other was published before{kept}"
