"""The index of a checkpoint: where each tensor piece is stored. Does not need torch.

    {"index": 1, "block_bytes": 1048576,
     "tensors": {name: {"dtype": "F32", "sizes": [768, 768],
                        "pieces": [[part, offset, nbytes, offsets, sizes, crc32c], ...]}},
     "values": {name: [part, offset, nbytes, crc32c]},
     "paths": {name: ["optimizer", "state", ...]}}

part: index into the marker's list of parts. paths: the keys that lead to each name in the nested state.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loader.dataset.log.entries import DAMAGED
from loader.errors import Corrupt, InvalidField
from loader.json_text import parse_json_object

from .marker import StoredObject
from .parts import BLOCK_BYTES, ITEM_BYTES, StoredPiece

FORMAT = 1


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
    """Location of what is no tensor."""
    paths: Mapping[str, tuple[str | int, ...]]
    """Name -> keys that lead to it."""

    def parts(self) -> list[StoredObject]:
        """By name."""
        pieces = (piece for tensor in self.tensors.values() for piece in tensor.pieces)
        return sorted({piece.part for piece in (*pieces, *self.values.values())})


def encode(index: Index) -> bytes:
    """Return JSON. Raises: InvalidField for keys that are neither strings nor integers."""
    numbers = {part: number for number, part in enumerate(index.parts())}
    for name, path in index.paths.items():
        if not all(isinstance(word, str | int) for word in path):
            raise InvalidField(f"{name}: the keys of a nested state are texts or whole numbers, got {path!r}")
    body = {
        "index": FORMAT,
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


def decode(data: bytes, parts: Sequence[StoredObject], where: str) -> Index:
    """Parse JSON. Raises: Corrupt."""
    try:
        body = parse_json_object(data)
        if body["index"] != FORMAT or body["block_bytes"] != BLOCK_BYTES:
            raise ValueError(f"index {body['index']} with blocks of {body['block_bytes']} bytes")
        return Index(
            tensors={name: _tensor(one, parts) for name, one in body["tensors"].items()},
            values={
                name: _placed(parts, part, offset, nbytes, (), (nbytes,), sums)
                for name, (part, offset, nbytes, sums) in body["values"].items()
            },
            paths={name: tuple(path) for name, path in body["paths"].items()},
        )
    except (*DAMAGED, IndexError) as error:
        raise Corrupt(f"{where} is not an index that this penstock reads ({error!r})") from error


def _tensor(body: Mapping[str, Any], parts: Sequence[StoredObject]) -> Tensor:
    if body["dtype"] not in ITEM_BYTES:
        raise ValueError(f"elements of type {body['dtype']!r}")
    pieces = tuple(_placed(parts, *one) for one in body["pieces"])
    return Tensor(dtype=body["dtype"], sizes=tuple(body["sizes"]), pieces=pieces)


def _placed(
    parts: Sequence[StoredObject],
    part: int,
    offset: int,
    nbytes: int,
    offsets: Sequence[int],
    sizes: Sequence[int],
    sums: Sequence[int],
) -> StoredPiece:
    return StoredPiece(
        part=parts[part],
        offset=offset,
        nbytes=nbytes,
        offsets=tuple(offsets),
        sizes=tuple(sizes),
        crc32c=tuple(sums),
    )
