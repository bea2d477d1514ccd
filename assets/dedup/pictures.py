"""The pictures of samples that are compared, and the search for near ones.

A photo has one hash, a clip three: of its first, middle and last frame. Two samples are near when they are of one kind,
the same of their pictures are flat, and each other picture is near to the one at its own place. A clip that begins
later by half its length is another clip. A sample of flat pictures only is near to nothing.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.errors import FieldMismatch

from . import hamming
from .hamming import HashIndex, Int64s, UInt64s
from .policy import KINDS

if TYPE_CHECKING:
    import polars as pl

PLACES = 3
"""Pictures that a sample may have."""

_NOTHING = -1
_ALL_FLAT = (1 << PLACES) - 1
_PREFERRED = (1, 0, 2)
"""Searched by the middle picture where it says something: a clip begins and ends in fades more often."""

HASH, MIRROR, EMBEDDING = range(3)
"""Means by which two samples were found near, the surest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Hashes of the pictures of n samples."""

    hashes: UInt64s
    """uint64 [n, 3]: perceptual hashes, 0 where there is no picture."""
    mirrored: UInt64s
    """uint64 [n, 3]: hashes of the pictures turned left to right."""
    form: Int64s
    """int64 [n]: kind * 8 + a bit for each picture that is flat or not there; -1 for a sample with nothing to compare.
    Samples of different forms are not compared."""

    def __len__(self) -> int:
        return len(self.form)

    @property
    def kind(self) -> Int64s:
        """int64 [n]: place in `KINDS`; -1 for a sample with nothing to compare."""
        return self.form >> PLACES

    def take(self, rows: Int64s) -> "Pictures":
        """Return the pictures of some samples."""
        return Pictures(hashes=self.hashes[rows], mirrored=self.mirrored[rows], form=self.form[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Near pairs, each once, by query and row."""

    query: Int64s
    """int64 [n]: row of the query."""
    row: Int64s
    """int64 [n]: row that is near to it."""
    by: Int64s
    """int64 [n]: `HASH`, `MIRROR` or `EMBEDDING`."""
    distance: np.ndarray[Any, np.dtype[np.float64]]
    """float64 [n]: bits of 64, of a clip at the picture that differs most; or 1 - cosine."""

    def __len__(self) -> int:
        return len(self.query)

    def take(self, which: slice | Int64s | np.ndarray[Any, np.dtype[np.bool_]]) -> "Matches":
        """Return some of the pairs."""
        return Matches(
            query=self.query[which], row=self.row[which], by=self.by[which], distance=self.distance[which]
        )

    def shifted(self, rows: int) -> "Matches":
        """Return the same pairs, with rows that begin at another number."""
        return replace(self, row=self.row + rows)


def no_matches() -> Matches:
    nothing = np.zeros(0, np.int64)
    return Matches(query=nothing, row=nothing, by=nothing, distance=np.zeros(0))


def merged(*found: Matches) -> Matches:
    """Return all pairs; a pair that was found twice has the surest of its means."""
    names = ("query", "row", "by", "distance")
    query, row, by, distance = (np.concatenate([getattr(one, name) for one in found]) for name in names)
    order = np.lexsort((distance, by, row, query))
    query, row = query[order], row[order]
    first = np.ones(len(order), bool)
    first[1:] = (query[1:] != query[:-1]) | (row[1:] != row[:-1])
    return Matches(query=query[first], row=row[first], by=by[order][first], distance=distance[order][first])


def pictures_of(table: "pl.DataFrame") -> Pictures:
    """Return the pictures of a samples table, by its columns of kind and perceptual hashes.

    Columns that an earlier version lacks are null. Raises: FieldMismatch for a phash that is not one.
    """
    kind = np.full(len(table), _NOTHING, np.int64)
    for number, name in enumerate(KINDS):
        kind[(table["kind"] == name).fill_null(False).to_numpy()] = number
    hashes, n_pictures = _parsed(table["phash"])
    mirrored, n_mirrored = _parsed(table["phash_mirrored"])
    mirrored = np.where((n_mirrored == n_pictures)[:, None], mirrored, hashes)  # not told: it adds nothing
    mask = table["phash_flat_mask"].cast(int)
    whole = table["phash_flat"].fill_null(False).cast(int) * _ALL_FLAT
    flat = mask.fill_null(whole).to_numpy().astype(np.int64)
    flat |= _ALL_FLAT & ~((1 << n_pictures) - 1)  # what is not there
    form = np.where((kind == _NOTHING) | (flat == _ALL_FLAT), _NOTHING, kind * (_ALL_FLAT + 1) + flat)
    return Pictures(hashes=hashes, mirrored=mirrored, form=form)


def _parsed(column: "pl.Series") -> tuple[UInt64s, Int64s]:
    """Return (uint64 [n, 3], number of hashes) of 16 hexadecimal digits each, joined by '-'; null is none."""
    text = column.cast(str).fill_null("")
    n_pictures = ((text.str.len_bytes().to_numpy().astype(np.int64) + 1) // 17).astype(np.int64)
    odd = ~text.str.contains(r"^([0-9a-f]{16}(-[0-9a-f]{16}){0,2})?$")
    if odd.any():
        raise FieldMismatch(
            f"column {column.name!r} holds {text.filter(odd)[0]!r}; accepted: 1 to {PLACES} times 16 hexadecimal "
            "digits joined by '-', as the featurizer phash writes them"
        )
    hashes = np.zeros((len(text), PLACES), np.uint64)
    digits = bytes.fromhex(text.str.replace_all("-", "").str.join("").item() if len(text) else "")
    hashes[np.arange(PLACES) < n_pictures[:, None]] = np.frombuffer(digits, ">u8")
    return hashes, n_pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """Samples of one form, ready to be searched."""

    rows: Int64s
    """int64 [n]: rows of the samples."""
    places: tuple[int, ...]
    """Places of the pictures that are not flat; the search looks up the first."""
    index: HashIndex
    """Index of the hashes at these places."""


def file_pictures(pictures: Pictures, max_distance: int) -> dict[int, Filed]:
    """Return form -> its samples, ready to be searched; costs and memory: see `hamming`. Raises: ValueError."""
    forms = {}
    for form in np.unique(pictures.form[pictures.form != _NOTHING]).tolist():
        rows = np.flatnonzero(pictures.form == form)
        places = tuple(place for place in _PREFERRED if not form >> place & 1)
        index = hamming.build(pictures.hashes[rows][:, places], max_distance)
        forms[form] = Filed(rows=rows, places=places, index=index)
    return forms


def find(forms: dict[int, Filed], queries: Pictures, *, mirrored: bool) -> Matches:
    """Return every filed sample that is near to a query; mirrored: to a query turned left to right as well."""
    found = [_find(forms, queries.form, queries.hashes, HASH)]
    if mirrored:
        found.append(_find(forms, queries.form, queries.mirrored, MIRROR))
    return merged(*found)


def _find(forms: dict[int, Filed], wanted: Int64s, hashes: UInt64s, by: int) -> Matches:
    found = [no_matches()]
    for form, filed in forms.items():
        mine = np.flatnonzero(wanted == form)
        query, row, distance = hamming.near(filed.index, hashes[mine][:, filed.places])
        found.append(
            Matches(
                query=mine[query],
                row=filed.rows[row],
                by=np.full(len(query), by, np.int64),
                distance=distance.astype(np.float64),
            )
        )
    return merged(*found)
