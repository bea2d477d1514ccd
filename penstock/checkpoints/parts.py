"""A part: one safetensors file with pieces of tensors, and values as bytes.

Any safetensors reader opens it; the pieces of a tensor that was saved by several ranks, or that is longer than a
part, are called `name[first:last,...]`. Values that are no tensors are arrays of U8 and hold what torch.save made of
them. Pieces with wide elements come first, so that each begins at a multiple of its element.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from loader.dataset.shards.shard import crc32c

from .marker import Stored

PART_BYTES = 64 * 2**20
"""Most bytes of a part, unless one value is larger: a single PUT, and the memory of a thread."""

BLOCK_BYTES = 2**20
"""Bytes that each checksum is of, counted from where a piece begins: a partial read is verified by them."""

ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"), 1),
}
"""safetensors' names of the types of elements, and their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of a tensor that is to be stored, or a value. A value has no `within` and no `offsets`."""

    item: Any
    """The write item that it is part of."""
    label: str
    """Its name in the file."""
    dtype: str
    """safetensors' name of its type of elements."""
    within: tuple[int, ...]
    """Its beginning in the tensor that the item gives, in elements along each axis."""
    offsets: tuple[int, ...]
    """Its beginning in the whole tensor, in elements along each axis."""
    sizes: tuple[int, ...]
    """Its shape."""
    nbytes: int
    """Its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """The place of a piece that was stored."""

    part: Stored
    """The part that has it."""
    offset: int
    """Its first byte in the part."""
    nbytes: int
    """Its bytes."""
    offsets: tuple[int, ...]
    """Its beginning in the whole tensor, in elements along each axis; () for a value."""
    sizes: tuple[int, ...]
    """Its shape."""
    crc32c: tuple[int, ...]
    """The CRC-32C of each BLOCK_BYTES of it."""


def packed(pieces: Iterable[Piece], part_bytes: int) -> Iterator[list[Piece]]:
    """Yield the pieces of one part each, in the order given: as many as fit, and no two with one name."""
    part: list[Piece] = []
    labels: set[str] = set()
    held = 0
    for piece in pieces:
        if part and (held + piece.nbytes > part_bytes or piece.label in labels):
            yield _wide_first(part)
            part, labels, held = [], set(), 0
        part.append(piece)
        labels.add(piece.label)
        held += piece.nbytes
    if part:
        yield _wide_first(part)


def header(pieces: Sequence[Piece]) -> bytes:
    """Return the beginning of a safetensors file; the bytes of the pieces follow it without gaps."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "written_by": "penstock checkpoints 1"}}
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.nbytes
        entries[piece.label] = {"dtype": piece.dtype, "shape": piece.sizes, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def sealed(
    name: str, pieces: Sequence[Piece], contents: Sequence[memoryview]
) -> tuple[memoryview, list[Placed]]:
    """Return a part's bytes, read-only, and where each piece lies in them. Time and memory: the part's bytes."""
    begins = header(pieces)
    # numpy asks for large pages: of 64 MiB, small ones cost as much processor time as their SHA-256.
    whole = np.empty(len(begins) + sum(map(len, contents)), np.uint8)
    offset = 0
    for content in (memoryview(begins), *contents):
        whole[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
        offset += len(content)
    data = whole.data.toreadonly()
    part = Stored(name=name, nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    placed, offset = [], len(begins)
    for piece in pieces:
        sums = checksums(data[offset : offset + piece.nbytes])
        placed.append(
            Placed(
                part=part,
                offset=offset,
                nbytes=piece.nbytes,
                offsets=piece.offsets,
                sizes=piece.sizes,
                crc32c=sums,
            )
        )
        offset += piece.nbytes
    return data, placed


def checksums(data: memoryview) -> tuple[int, ...]:
    """Return the CRC-32C of each block."""
    return tuple(crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))


def _wide_first(part: list[Piece]) -> list[Piece]:
    return sorted(part, key=lambda piece: -ITEM_BYTES[piece.dtype])


Sizes = tuple[int, ...]


def cut(sizes: Sequence[int], most: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Yield (offsets, sizes) of boxes that fill an array, each one run of at most `most` elements, in their order.

    An array without elements has none. Every piece of it is an array that other tools can read by itself.
    """
    whole, total = tuple(sizes), prod(sizes)
    if not total:
        return
    if total <= most or not any(size > 1 for size in whole):
        yield (0,) * len(whole), whole
        return
    axis = next(axis for axis, size in enumerate(whole) if size > 1)
    rest = whole[axis + 1 :]
    rows = max(1, most // prod(rest))
    for start in range(0, whole[axis], rows):
        slab = (*whole[:axis], min(rows, whole[axis] - start), *rest)
        for offsets, inner in cut(slab, most):
            yield (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :]), inner


def strides(sizes: Sequence[int]) -> Sizes:
    """Return the number of elements between neighbours along each axis."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def extent(sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Return (first, count) of the shortest run of an array's elements that holds a box of it, which is not empty."""
    steps = strides(sizes)
    first = sum(offset * step for offset, step in zip(offsets, steps, strict=True))
    last = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
    return first, last + 1


def named(name: str, offsets: Sequence[int], sizes: Sequence[int], whole: Sequence[int]) -> str:
    """Return a piece's name in its file: the tensor's, and the piece's place in it: `wte.weight[0:64,0:768]`."""
    if tuple(sizes) == tuple(whole):
        return name
    return f"{name}[{','.join(f'{low}:{low + size}' for low, size in zip(offsets, sizes, strict=True))}]"
