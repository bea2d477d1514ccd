"""WebDataset tars of made-up samples, as many as a benchmark needs in seconds: headers and bytes by numpy."""

from pathlib import Path
from typing import Any

import numpy as np

from penstock.progress import progress

BLOCK = 512
DIGITS = 9
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def make(folder: Path, samples: int, per_tar: int, fields: dict[str, int]) -> Path:
    """Write tars of samples whose fields have so many bytes, and return the folder. Nothing is done where it is there.

    fields: field -> bytes of each. Keys are numbers of nine digits.
    """
    if folder.exists():
        return folder
    making = folder.with_name(f"{folder.name}.making")
    making.mkdir(parents=True, exist_ok=True)
    starts = range(0, samples, per_tar)
    for number, first in enumerate(progress(starts, f"tars of {folder.name}", total=len(starts))):
        some = np.arange(first, min(first + per_tar, samples))
        with open(making / f"{number:05d}.tar", "wb") as file:
            file.write(_members(some, fields).data)
            file.write(bytes(2 * BLOCK))
    making.rename(folder)
    return folder


def _members(numbers: np.ndarray[Any, np.dtype[np.int64]], fields: dict[str, int]) -> Bytes:
    """uint8 [samples, bytes of a sample]: header and content of each field."""
    rng = np.random.default_rng(int(numbers[0]))
    columns = []
    for name, nbytes in fields.items():
        member = np.zeros((len(numbers), BLOCK + -(-nbytes // BLOCK) * BLOCK), np.uint8)
        member[:, :BLOCK] = _headers(numbers, name, nbytes)
        member[:, BLOCK : BLOCK + nbytes] = np.frombuffer(rng.bytes(len(numbers) * nbytes), np.uint8).reshape(
            len(numbers), nbytes
        )
        columns.append(member)
    return np.concatenate(columns, axis=1)


def _headers(numbers: np.ndarray[Any, np.dtype[np.int64]], field: str, nbytes: int) -> Bytes:
    """uint8 [samples, 512]: headers of ustar."""
    one = bytearray(BLOCK)
    one[DIGITS : DIGITS + 1 + len(field)] = f".{field}".encode()
    for at, text in (
        (100, b"0000644"),
        (108, b"0000000"),
        (116, b"0000000"),
        (136, b"14000000000"),
        (156, b"0"),
    ):
        one[at : at + len(text)] = text
    one[124:136] = f"{nbytes:011o}\0".encode()
    one[148:156] = b" " * 8
    one[257:265] = b"ustar\x0000"
    rows = np.tile(np.frombuffer(bytes(one), np.uint8), (len(numbers), 1))
    rows[:, :DIGITS] = _digits(numbers, DIGITS, 10)
    rows[:, 148:154] = _digits(rows.sum(axis=1, dtype=np.int64), 6, 8)
    rows[:, 154] = 0
    return rows


def _digits(numbers: np.ndarray[Any, np.dtype[np.int64]], n: int, base: int) -> Bytes:
    """uint8 [numbers, n]: ASCII digits, the highest first."""
    powers = base ** np.arange(n - 1, -1, -1)
    return (numbers[:, None] // powers % base + ord("0")).astype(np.uint8)
