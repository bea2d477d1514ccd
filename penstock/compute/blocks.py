"""Blocks: runs of units that a runner computes together, the same ones on a laptop and on 500 nodes."""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from .plain import to_frame, to_json
from .pool import Outcome
from .work import Work

U = TypeVar("U")
R = TypeVar("R")
MAX_UNITS = 256
MAX_COST_S = 120.0
"""Most estimated seconds in a block; a costlier unit gets its own block."""
MAX_NBYTES = 256 * 2**20
"""Most estimated output bytes in a block; a larger unit gets its own block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockOutcomes(Generic[R]):
    """A finished block."""

    number: int
    """Number of the block in its job."""
    first: int
    """Number of the block's first unit in the job."""
    outcomes: list[Outcome[R]]
    """Outcomes, in unit order."""
    part: Any = None
    """Result of the work's `finish`, or None."""


def cut_blocks(work: Work[U, Any], units: Iterable[U]) -> Iterator[list[U]]:
    """Yield the units in blocks, in order. Memory: one block."""
    block: list[U] = []
    seconds, written = 0.0, 0
    for unit in units:
        cost_s, nbytes = work.cost_s(unit), work.nbytes(unit)
        full = len(block) == MAX_UNITS or seconds + cost_s > MAX_COST_S or written + nbytes > MAX_NBYTES
        if block and full:
            yield block
            block, seconds, written = [], 0.0, 0
        block.append(unit)
        seconds, written = seconds + cost_s, written + nbytes
    if block:
        yield block


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitsFile:
    """A file of units: one frame per block, one line per unit."""

    sha256: str
    """SHA-256 hex of the file."""
    blocks: list[tuple[int, int, int]]
    """Per block: number of units, offset of its frame, and bytes."""
    frames: list[str]
    """SHA-256 hex of each block's frame."""


def write_units(work: Work[U, Any], units: Iterable[U], path: Path) -> UnitsFile:
    """Write units to a file. Memory: one block."""
    sha256 = hashlib.sha256()
    blocks, frames, offset = [], [], 0
    with path.open("wb") as file:
        for block in cut_blocks(work, units):
            frame = to_frame(map(to_json, block))
            sha256.update(frame)
            file.write(frame)
            blocks.append((len(block), offset, len(frame)))
            frames.append(hashlib.sha256(frame).hexdigest())
            offset += len(frame)
    return UnitsFile(sha256=sha256.hexdigest(), blocks=blocks, frames=frames)
