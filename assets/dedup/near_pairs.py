"""Find near pairs of samples, by perceptual hashes or by embeddings.

A photo has one hash, a clip three: first, middle and last frame. Near samples have the same kind and the same flat
images, and each other image is near its counterpart.
"""

from collections.abc import Iterable
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
"""Most images per sample."""

_NOTHING = -1
"""Form and kind of a sample that cannot be compared."""
_ALL_FLAT = (1 << PLACES) - 1
_PREFERRED = (1, 0, 2)
"""Images are looked up middle first, since clips start and end with fades."""

HASH, MIRROR, EMBEDDING = range(3)
"""Match types, most reliable first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHashes:
    """Hashes of the images of n samples."""

    hashes: UInt64s
    """Uint64 [n, 3]: perceptual hashes, 0 where there is no image."""
    mirrored: UInt64s
    """Uint64 [n, 3]: hashes of the mirrored images."""
    form: Int64s
    """Int64 [n]: kind * 8 plus one bit per flat or missing image; -1 if nothing can be compared. Only equal
    forms are compared.
    """

    def __len__(self) -> int:
        return len(self.form)

    @property
    def kind(self) -> Int64s:
        """int64 [n]: index in `KINDS`; -1 if nothing can be compared."""
        return self.form >> PLACES

    def take(self, rows: Int64s) -> "ImageHashes":
        return ImageHashes(
            hashes=self.hashes[rows],
            mirrored=self.mirrored[rows],
            form=self.form[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearPairs:
    """Near pairs without repeats, sorted by query and row."""

    query: Int64s
    """Int64 [n]: row of the query sample."""
    row: Int64s
    """Int64 [n]: row of the matching sample."""
    by: Int64s
    """Int64 [n]: `HASH`, `MIRROR` or `EMBEDDING`."""
    distance: np.ndarray[Any, np.dtype[np.float64]]
    """Float64 [n]: differing bits, of 64, of the most different image; or 1 - cosine."""

    def __len__(self) -> int:
        return len(self.query)

    def take(self, which: slice | Int64s | np.ndarray[Any, np.dtype[np.bool_]]) -> "NearPairs":
        """Return these pairs."""
        return NearPairs(
            query=self.query[which],
            row=self.row[which],
            by=self.by[which],
            distance=self.distance[which],
        )

    def shifted(self, rows: int) -> "NearPairs":
        """Return the pairs with `rows` added to each row."""
        return replace(self, row=self.row + rows)


def no_matches() -> NearPairs:
    nothing = np.zeros(0, np.int64)
    return NearPairs(query=nothing, row=nothing, by=nothing, distance=np.zeros(0))


def merge_pairs(*pairs: NearPairs) -> NearPairs:
    """Return all pairs; if a pair occurs twice, its most reliable match is kept."""
    together = NearPairs(
        query=np.concatenate([one.query for one in pairs]),
        row=np.concatenate([one.row for one in pairs]),
        by=np.concatenate([one.by for one in pairs]),
        distance=np.concatenate([one.distance for one in pairs]),
    )
    # Among equal pairs, the most reliable match comes first, then the nearest.
    order = np.lexsort((together.distance, together.by, together.row, together.query))
    ordered = together.take(order)
    is_other_query = ordered.query[1:] != ordered.query[:-1]
    is_other_row = ordered.row[1:] != ordered.row[:-1]
    is_first = np.ones(len(order), bool)
    is_first[1:] = is_other_query | is_other_row
    return ordered.take(is_first)


def table_image_hashes(table: "pl.DataFrame") -> ImageHashes:
    """Return the image hashes of a samples table. Raises: FieldMismatch for an invalid phash."""
    kind = np.full(len(table), _NOTHING, np.int64)  # [n]
    for number, name in enumerate(KINDS):
        is_kind = (table["kind"] == name).fill_null(False)
        kind[is_kind.to_numpy()] = number
    hashes, n_pictures = _parse_hashes(table["phash"])
    mirrored, n_mirrored = _parse_hashes(table["phash_mirrored"])
    is_known = n_mirrored == n_pictures
    mirrored = np.where(is_known[:, None], mirrored, hashes)  # if unknown: adds no pairs
    mask = table["phash_flat_mask"].cast(int)
    # Tables of older featurizers have one flag for all images.
    whole = table["phash_flat"].fill_null(False).cast(int) * _ALL_FLAT
    flat = mask.fill_null(whole).to_numpy().astype(np.int64)  # [n]: a bit per flat image
    present = (1 << n_pictures) - 1
    flat |= _ALL_FLAT & ~present  # missing images
    form = kind * (_ALL_FLAT + 1) + flat
    form[(kind == _NOTHING) | (flat == _ALL_FLAT)] = _NOTHING
    return ImageHashes(hashes=hashes, mirrored=mirrored, form=form)


def _parse_hashes(column: "pl.Series") -> tuple[UInt64s, Int64s]:
    """Return (uint64 [n, 3], number of hashes) of '-'-joined groups of 16 hexadecimal digits."""
    text = column.cast(str).fill_null("")
    nbytes = text.str.len_bytes().to_numpy().astype(np.int64)
    n_pictures: Int64s = (nbytes + 1) // 17  # 16 digits and the '-' before the next hash
    odd = ~text.str.contains(r"^([0-9a-f]{16}(-[0-9a-f]{16}){0,2})?$")
    if odd.any():
        raise FieldMismatch(
            f"column {column.name!r} holds {text.filter(odd)[0]!r}; accepted: 1 to {PLACES} times 16 hexadecimal "
            "digits joined by '-', as the featurizer phash writes them",
            what=column.name,
            given=text.filter(odd)[0],
            accepted="hexadecimal digits joined by '-'",
        )
    hashes = np.zeros((len(text), PLACES), np.uint64)
    if not len(text):
        return hashes, n_pictures
    digits = text.str.replace_all("-", "").str.join("").item()
    has_hash = np.arange(PLACES) < n_pictures[:, None]  # [n, 3]
    hashes[has_hash] = np.frombuffer(bytes.fromhex(digits), ">u8")
    return hashes, n_pictures


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedForm:
    """Index of the samples with one form."""

    rows: Int64s
    """Int64 [n]: row of each indexed sample."""
    places: tuple[int, ...]
    """Images that are not flat; the first is looked up."""
    index: HashIndex
    """Index of the hashes of these images."""


def index_images(pictures: ImageHashes, max_distance: int) -> dict[int, IndexedForm]:
    """Return form -> index of its samples. Raises: ValueError beyond `MAX_DISTANCE`."""
    forms = {}
    comparable = pictures.form[pictures.form != _NOTHING]
    for form in np.unique(comparable).tolist():
        rows = np.flatnonzero(pictures.form == form)
        # Bit k of a form is 1 if image k is flat or missing.
        places = tuple(place for place in _PREFERRED if not form >> place & 1)
        index = hamming.build(pictures.hashes[rows][:, places], max_distance)
        forms[form] = IndexedForm(rows=rows, places=places, index=index)
    return forms


def find(forms: dict[int, IndexedForm], queries: ImageHashes, *, mirrored: bool) -> NearPairs:
    """Return every pair of a query and a near indexed sample. mirrored: also match mirrored queries."""
    pairs = [_find_near(forms, queries.form, queries.hashes, HASH)]
    if mirrored:
        pairs.append(_find_near(forms, queries.form, queries.mirrored, MIRROR))
    return merge_pairs(*pairs)


def _find_near(
    forms: dict[int, IndexedForm],
    query_forms: Int64s,
    hashes: UInt64s,
    by: int,
) -> NearPairs:
    """Return the pairs whose form is equal. query_forms: int64 [n]. hashes: uint64 [n, 3]. by: how they match."""
    pairs = [no_matches()]
    for form, indexed in forms.items():
        members = np.flatnonzero(query_forms == form)
        images = hashes[members][:, indexed.places]
        query, row, distance = hamming.near_rows(indexed.index, images)
        pairs.append(
            NearPairs(
                query=members[query],
                row=indexed.rows[row],
                by=np.full(len(query), by, np.int64),
                distance=distance.astype(np.float64),
            )
        )
    return merge_pairs(*pairs)


Float32s = np.ndarray[Any, np.dtype[np.float32]]

ROWS_AT_ONCE = 1024
"""Rows and columns of one block of cosines, 4 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """Unit vectors of n samples."""

    vectors: Float32s
    """Float32 [n, d]: rows of length 1, or zeros if a sample has no embedding; d is 0 if none has one."""

    def __len__(self) -> int:
        return len(self.vectors)

    def take(self, rows: Int64s) -> "Embeddings":
        return Embeddings(vectors=self.vectors[rows])


def stack_embeddings(vectors: Iterable[Float32s | None]) -> Embeddings:
    """Stack and normalize embeddings, each of shape [d] or None.

    Raises: FieldMismatch if d differs, or for NaN or infinity.
    """
    n_samples = 0
    rows: dict[int, Float32s] = {}
    for vector in vectors:
        if vector is not None and vector.size:
            rows[n_samples] = np.ravel(vector).astype(np.float32)
        n_samples += 1
    sizes = sorted({len(row) for row in rows.values()})
    if len(sizes) > 1:
        raise FieldMismatch(
            f"embeddings of {sizes} numbers; expected one size, from one model",
            what="embeddings",
            given=sizes,
            accepted="one size",
        )
    size = max(sizes, default=0)
    stacked = np.zeros((n_samples, size), np.float32)
    for position, row in rows.items():
        stacked[position] = row
    if not np.isfinite(stacked).all():
        raise FieldMismatch(
            "an embedding has NaN or infinity; compute it again", what="embedding", given="NaN or infinity"
        )
    length = np.linalg.norm(stacked, axis=1, keepdims=True)
    unit = np.zeros_like(stacked)
    np.divide(stacked, length, out=unit, where=length > 0)
    return Embeddings(vectors=unit)


def near_embeddings(queries: Embeddings, rows: Embeddings, min_cosine: float) -> NearPairs:
    """Return every pair with a cosine of at least `min_cosine`; its distance is 1 - cosine.

    O(b n d). Memory: one block and the pairs. Raises: FieldMismatch if d differs.
    """
    if not queries.vectors.size or not rows.vectors.size:
        return no_matches()
    query_size = queries.vectors.shape[1]
    row_size = rows.vectors.shape[1]
    if query_size != row_size:
        raise FieldMismatch(
            f"embeddings of {query_size} and {row_size} numbers cannot be compared: "
            "they come from different models. Recompute the published ones, or start another dataset",
            what="embeddings",
            given=query_size,
            accepted=row_size,
        )
    pairs = [no_matches()]
    for first in range(0, len(queries), ROWS_AT_ONCE):
        block = queries.vectors[first : first + ROWS_AT_ONCE]
        for other in range(0, len(rows), ROWS_AT_ONCE):
            other_block = rows.vectors[other : other + ROWS_AT_ONCE]
            cosine = block @ other_block.T  # [queries, rows] of the two blocks
            query, row = np.nonzero(cosine >= min_cosine)
            if not len(query):
                continue
            near_cosine = cosine[query, row].astype(np.float64)
            pairs.append(
                NearPairs(
                    query=first + query,
                    row=other + row,
                    by=np.full(len(query), EMBEDDING, np.int64),
                    distance=1.0 - near_cosine,
                )
            )
    return merge_pairs(*pairs)
