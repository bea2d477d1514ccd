"""Parts: safetensors files of tensor pieces, and of other values as U8 arrays of torch.save bytes.

A piece of a tensor that several ranks save, or that exceeds a part, is called `name[first:last,...]`. Wide elements
come first, so that every piece is aligned. Each piece's location is in the checkpoint's index:

    {"index": 1, "block_bytes": 1048576,
     "tensors": {name: {"dtype": "F32", "sizes": [768, 768],
                        "pieces": [[part, offset, nbytes, offsets, sizes, crc32c], ...]}},
     "values": {name: [part, offset, nbytes, crc32c]},
     "paths": {name: ["optimizer", "state", ...]}}

part: index into the marker's list of parts. paths: the keys that lead to each name in the nested state.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from loader.dataset.log.entries import DAMAGED
from loader.dataset.shards.shard import crc32c
from loader.errors import Corrupt, InvalidField
from loader.json_text import parse_json_object

from .marker import StoredObject

PART_BYTES = 64 * 2**20
"""Largest part, in bytes, unless one value is larger."""

REQUEST_BYTES = 16 * 2**20
"""Bytes that a rank reads of a part by one request."""

BLOCK_BYTES = 2**20
"""Bytes per checksum of a piece, to verify partial reads."""

ITEM_BYTES = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E4M3FNUZ", "F8_E5M2", "F8_E5M2FNUZ"), 1),
}
"""Element type -> bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPiece:
    """A box of a tensor; or a value, with empty `within` and `offsets`."""

    item: Any
    """Torch's `WriteItem`."""
    label: str
    """Name in the file."""
    dtype: str
    """As safetensors names it."""
    within: tuple[int, ...]
    """Box's start in the item's tensor, in elements."""
    offsets: tuple[int, ...]
    """Box's start in the whole tensor, in elements."""
    sizes: tuple[int, ...]
    """Shape."""
    nbytes: int
    """Size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPiece:
    """A piece's location."""

    part: StoredObject
    """Part with the piece."""
    offset: int
    """In the part, in bytes."""
    nbytes: int
    """Size in bytes."""
    offsets: tuple[int, ...]
    """Start in the whole tensor, in elements; () for a value."""
    sizes: tuple[int, ...]
    """Shape."""
    crc32c: tuple[int, ...]
    """CRC-32C per block."""


def pack_parts(pieces: Iterable[TensorPiece], part_bytes: int) -> Iterator[list[TensorPiece]]:
    """Yield parts' pieces in order: as many as fit, with distinct names."""
    part: list[TensorPiece] = []
    labels: set[str] = set()
    held = 0
    for piece in pieces:
        # safetensors' names are keys of one JSON object, so a part has each once.
        if part and (held + piece.nbytes > part_bytes or piece.label in labels):
            yield _wide_first(part)
            part = []
            labels = set()
            held = 0
        part.append(piece)
        labels.add(piece.label)
        held += piece.nbytes
    if part:
        yield _wide_first(part)


def header(pieces: Sequence[TensorPiece]) -> bytes:
    """Return the safetensors header of pieces without gaps."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt", "written_by": "penstock checkpoints 1"}}
    end = 0
    for piece in pieces:
        begin = end
        end = end + piece.nbytes
        entries[piece.label] = {"dtype": piece.dtype, "shape": piece.sizes, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    # safetensors aligns its data to 8 bytes; spaces may follow the JSON.
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def seal_part(
    name: str, pieces: Sequence[TensorPiece], contents: Sequence[memoryview]
) -> tuple[memoryview, list[StoredPiece]]:
    """Return a part's bytes, read-only, and pieces' locations."""
    begins = header(pieces)
    # numpy requests large pages. With small pages, allocating 64 MiB takes as much CPU time as hashing it.
    whole = np.empty(len(begins) + sum(map(len, contents)), np.uint8)
    offset = 0
    for content in (memoryview(begins), *contents):
        whole[offset : offset + len(content)] = np.frombuffer(content, np.uint8)
        offset += len(content)
    data = whole.data.toreadonly()
    part = StoredObject(name=name, nbytes=len(data), sha256=hashlib.sha256(data).hexdigest())
    sums = [checksums(content) for content in contents]
    return data, place_pieces(part, len(begins), pieces, sums)


def place_pieces(
    part: StoredObject,
    offset: int,
    pieces: Sequence[TensorPiece],
    sums: Sequence[tuple[int, ...]],
) -> list[StoredPiece]:
    """Return the locations of a part's pieces. offset: of the first one, in bytes. sums: `checksums` of each."""
    placed = []
    for piece, piece_sums in zip(pieces, sums, strict=True):
        stored = StoredPiece(
            part=part,
            offset=offset,
            nbytes=piece.nbytes,
            offsets=piece.offsets,
            sizes=piece.sizes,
            crc32c=piece_sums,
        )
        placed.append(stored)
        offset += piece.nbytes
    return placed


def checksums(data: memoryview) -> tuple[int, ...]:
    """Return each block's CRC-32C."""
    return tuple(crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))


def _wide_first(part: list[TensorPiece]) -> list[TensorPiece]:
    """Return pieces by element width, the widest first: each then begins at a multiple of its width."""
    return sorted(part, key=lambda piece: -ITEM_BYTES[piece.dtype])


Sizes = tuple[int, ...]


def contiguous_boxes(sizes: Sequence[int], most: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Yield (offsets, sizes) of an array's contiguous boxes, of at most `most` elements, in order."""
    whole = tuple(sizes)
    total = prod(sizes)
    if not total:
        return
    is_one_element = total == 1  # it cannot be cut, even if it is above `most`
    if total <= most or is_one_element:
        yield (0,) * len(whole), whole
        return
    # Boxes along the first axis longer than 1 are contiguous in memory.
    axis = next(axis for axis, size in enumerate(whole) if size > 1)
    rest = whole[axis + 1 :]
    # A single row that exceeds `most` is divided along the next axis, by the recursion.
    rows = max(1, most // prod(rest))
    for start in range(0, whole[axis], rows):
        n_rows = min(rows, whole[axis] - start)
        slab = (*whole[:axis], n_rows, *rest)
        for offsets_in_slab, box_sizes in contiguous_boxes(slab, most):
            offset = start + offsets_in_slab[axis]
            offsets = (*offsets_in_slab[:axis], offset, *offsets_in_slab[axis + 1 :])
            yield offsets, box_sizes


def strides(sizes: Sequence[int]) -> Sizes:
    """Return strides in elements."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def extent(sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Return (first, count) of the shortest range of elements that contains a non-empty box."""
    steps = strides(sizes)
    first = sum(offset * step for offset, step in zip(offsets, steps, strict=True))
    # Index of the box's last element, counted from its first.
    last = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
    return first, last + 1


def piece_name(name: str, offsets: Sequence[int], sizes: Sequence[int], whole: Sequence[int]) -> str:
    """Return a name such as `wte.weight[0:64,0:768]`."""
    if tuple(sizes) == tuple(whole):
        return name
    return f"{name}[{','.join(f'{low}:{low + size}' for low, size in zip(offsets, sizes, strict=True))}]"


INDEX_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A stored tensor."""

    dtype: str
    """As safetensors names it."""
    sizes: tuple[int, ...]
    """Whole tensor's shape."""
    pieces: tuple[StoredPiece, ...]
    """In any order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A checkpoint's content."""

    tensors: Mapping[str, Tensor]
    """Name -> tensor."""
    values: Mapping[str, StoredPiece]
    """Name -> location of another value."""
    paths: Mapping[str, tuple[str | int, ...]]
    """Name -> keys that lead to it."""

    def parts(self) -> list[StoredObject]:
        """Return parts by name."""
        pieces = (piece for tensor in self.tensors.values() for piece in tensor.pieces)
        return sorted({piece.part for piece in (*pieces, *self.values.values())})


def encode_index(index: Index) -> bytes:
    """Return JSON. Raises: InvalidField for keys that are neither strings nor integers."""
    # Numbers instead of names: a large state has many pieces, and the marker has the names.
    numbers = {part: number for number, part in enumerate(index.parts())}
    for name, path in index.paths.items():
        if not all(isinstance(word, str | int) for word in path):
            raise InvalidField(f"{name}: the keys of a nested state are texts or whole numbers, got {path!r}")
    body = {
        "index": INDEX_FORMAT,
        "block_bytes": BLOCK_BYTES,
        "tensors": {
            name: {
                "dtype": tensor.dtype,
                "sizes": tensor.sizes,
                "pieces": [
                    [numbers[one.part], one.offset, one.nbytes, one.offsets, one.sizes, one.crc32c]
                    for one in tensor.pieces
                ],
            }
            for name, tensor in index.tensors.items()
        },
        "values": {
            name: [numbers[one.part], one.offset, one.nbytes, one.crc32c]
            for name, one in index.values.items()
        },
        "paths": index.paths,
    }
    return json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_index(data: bytes, parts: Sequence[StoredObject], where: str) -> Index:
    """Parse JSON. Raises: Corrupt."""
    try:
        body = parse_json_object(data)
        if body["index"] != INDEX_FORMAT or body["block_bytes"] != BLOCK_BYTES:
            raise ValueError(f"index {body['index']} with blocks of {body['block_bytes']} bytes")
        return Index(
            tensors={name: _tensor(one, parts) for name, one in body["tensors"].items()},
            values={
                name: _place_piece(parts, part, offset, nbytes, (), (nbytes,), sums)
                for name, (part, offset, nbytes, sums) in body["values"].items()
            },
            paths={name: tuple(path) for name, path in body["paths"].items()},
        )
    except (*DAMAGED, IndexError) as error:
        raise Corrupt(f"{where} is not an index that this penstock reads ({error!r})") from error


def _tensor(body: Mapping[str, Any], parts: Sequence[StoredObject]) -> Tensor:
    if body["dtype"] not in ITEM_BYTES:
        raise ValueError(f"elements of type {body['dtype']!r}")
    pieces = tuple(_place_piece(parts, *one) for one in body["pieces"])
    return Tensor(dtype=body["dtype"], sizes=tuple(body["sizes"]), pieces=pieces)


def _place_piece(
    parts: Sequence[StoredObject],
    part: int,
    offset: int,
    nbytes: int,
    offsets: Sequence[int],
    sizes: Sequence[int],
    sums: Sequence[int],
) -> StoredPiece:
    """Return a tensor's piece by its row in the index. part: number of the object that holds it."""
    return StoredPiece(
        part=parts[part],
        offset=offset,
        nbytes=nbytes,
        offsets=tuple(offsets),
        sizes=tuple(sizes),
        crc32c=tuple(sums),
    )
