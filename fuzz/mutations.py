"""Ways to damage a file, as functions of its bytes, a random generator and another file's bytes."""

import random
import re
from collections.abc import Callable, Mapping

Mutation = Callable[[bytearray, random.Random, bytes], bytearray]
"""(file's bytes, generator, another file's bytes) -> damaged bytes; the first argument may be changed in place."""

_HEAD_BYTES = 1024
_EXTREMES = (0, 1, 2, 7, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_FOURCC = re.compile(rb"[A-Za-z][A-Za-z0-9 ]{2}[A-Za-z0-9 ]")


def flip_bits(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Flip one bit, or up to 256 bits, anywhere."""
    for _ in range(int(2 ** rng.uniform(0, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return data


def flip_head(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Flip a few bits in the first or last KiB, where headers are."""
    room = min(_HEAD_BYTES, len(data))
    start = 0 if rng.random() < 0.7 else len(data) - room
    for _ in range(rng.randint(1, 6)):
        data[start + rng.randrange(room)] ^= 1 << rng.randrange(8)
    return data


def truncate(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Cut the file off anywhere; sometimes nearly nothing remains, or nearly everything."""
    length = rng.choice(
        [rng.randrange(len(data)), rng.randrange(min(64, len(data))), len(data) - rng.randint(1, 16)]
    )
    return data[: max(0, length)]


def behead(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Remove the beginning."""
    return data[rng.randrange(len(data)) :]


def overwrite(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Overwrite a run with zeros, ones, noise or another file."""
    start = rng.randrange(len(data))
    length = min(len(data) - start, int(2 ** rng.uniform(0, 12)))
    fill = rng.choice(["zeros", "ones", "noise", "other"])
    if fill == "other" and other:
        place = rng.randrange(len(other))
        piece = other[place : place + length]
    else:
        piece = {"ones": b"\xff" * length, "noise": rng.randbytes(length)}.get(fill, bytes(length))
    data[start : start + len(piece)] = piece
    return data


def splice(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Join the beginning of one file and the end of another."""
    return data[: rng.randrange(len(data))] + other[rng.randrange(len(other) + 1) :]


def insert(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Insert noise, or a piece of the file itself."""
    place, length = rng.randrange(len(data)), int(2 ** rng.uniform(0, 10))
    start = rng.randrange(len(data))
    piece = data[start : start + length] if rng.random() < 0.5 else rng.randbytes(length)
    return data[:place] + piece + data[place:]


def delete(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Remove a piece from the middle."""
    place, length = rng.randrange(len(data)), int(2 ** rng.uniform(0, 10))
    del data[place : place + length]
    return data


def swap(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Swap two blocks."""
    block = min(len(data) // 2, int(2 ** rng.uniform(2, 11)))
    low, high = sorted(rng.randrange(len(data) - block + 1) for _ in range(2))
    if high - low >= block:
        data[low : low + block], data[high : high + block] = (
            data[high : high + block],
            data[low : low + block],
        )
    return data


def append(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Append noise, zeros, or another file."""
    return data + rng.choice([rng.randbytes(rng.randint(1, 4096)), bytes(rng.randint(1, 4096)), other])


def lie_about_length(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Write an extreme number next to a four-letter tag: before it (mp4) or after it (RIFF, PNG)."""
    tags = [match.start() for match in _FOURCC.finditer(data[: 64 * 1024])]
    for _ in range(rng.randint(1, 2)):
        place = rng.choice(tags) if tags else rng.randrange(len(data))
        place += rng.choice([-4, 4, 8])
        if 0 <= place <= len(data) - 4:
            _put_number(data, place, 4, rng)
    return data


def lie_anywhere(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Write extreme numbers of 1, 2, 4 or 8 bytes anywhere, mostly near the beginning."""
    for _ in range(rng.randint(1, 4)):
        size = rng.choice([1, 2, 4, 8])
        if len(data) >= size:
            room = len(data) - size + 1
            place = rng.randrange(min(room, _HEAD_BYTES)) if rng.random() < 0.7 else rng.randrange(room)
            _put_number(data, place, size, rng)
    return data


def untouched(data: bytearray, rng: random.Random, other: bytes) -> bytearray:
    """Return the file intact, to be given a wrong name. Its results are compared with the damaged files'."""
    return data


def _put_number(data: bytearray, place: int, size: int, rng: random.Random) -> None:
    order = rng.choice(["big", "little"])
    known = int.from_bytes(data[place : place + size], order)  # type: ignore[arg-type]
    near = known + rng.choice([-1, 1, -8, 8, known, 1 << 16])
    value = rng.choice([*_EXTREMES, near, rng.getrandbits(8 * size)])
    data[place : place + size] = (value % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]


MUTATIONS: Mapping[str, Mutation] = {
    "flip_bits": flip_bits,
    "flip_head": flip_head,
    "truncate": truncate,
    "behead": behead,
    "overwrite": overwrite,
    "splice": splice,
    "insert": insert,
    "delete": delete,
    "swap": swap,
    "append": append,
    "lie_about_length": lie_about_length,
    "lie_anywhere": lie_anywhere,
    "untouched": untouched,
}
_TWICE = 0.25  # share of cases that are damaged in two ways


def damaged(data: bytes, rng: random.Random, other: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the damaged bytes, and the names of the mutations."""
    names = [rng.choice(list(MUTATIONS))]
    if rng.random() < _TWICE:
        names.append(rng.choice(list(MUTATIONS)))
    result = bytearray(data)
    for name in names:
        if result:
            result = MUTATIONS[name](result, rng, other)
    return bytes(result), tuple(names)
