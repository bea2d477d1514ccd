"""A part: one safetensors file with pieces of tensors, and values as bytes.

Any safetensors reader opens it; the pieces of a tensor that was saved by several ranks, or that is longer than a
part, are called `name[first:last,...]`. Values that are no tensors are arrays of U8 and hold what torch.save made of
them. Pieces with wide elements come first, so that each begins at a multiple of its element.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
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
