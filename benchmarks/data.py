"""The samples that every contestant serves: made once, kept as one file, and known again by their checksums.

A folder per kind holds `records.bin` (all records, one after another), `offsets.npy` (int64 [n + 1]) and, per form of
delivery, `stored.npy` or `decoded.npy` (uint64 [n]): the checksum of what a contestant must hand out for each sample.
"""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

SIDE_PX, QUALITY = 256, 90
LATENT = ((4, 64, 64), np.float16)
CAPTION_TOKENS, TOKENS = 77, 2048
GROUPS = 20
"""Shuffle quality is how many twentieths of the data set a batch has samples of: thousands, of 20,000 samples."""


@dataclass(frozen=True)
class Data:
    """Samples of one kind: "images" (JPEG), "clips" (MP4), "latents" (float16 [4, 64, 64], int32 [77]), "tokens"
    (uint16 [2048])."""

    kind: str
    folder: Path

    @cached_property
    def offsets(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.load(self.folder / "offsets.npy")

    @property
    def path(self) -> Path:
        return self.folder / "records.bin"

    @cached_property
    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        return np.memmap(self.path, np.uint8, "r")

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> bytes:
        return self.bytes[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def arrays(self, i: int) -> tuple[np.ndarray[Any, Any], ...]:
        return arrays(self.kind, self[i])

    @property
    def mean_bytes(self) -> float:
        return float(self.offsets[-1] / len(self))

    def samples(self, form: str) -> dict[int, int]:
        """Checksum of what is delivered ("stored" or "decoded") -> sample."""
        return {int(one): i for i, one in enumerate(np.load(self.folder / f"{form}.npy"))}


def arrays(kind: str, record: bytes) -> tuple[np.ndarray[Any, Any], ...]:
    """The arrays that a record of latents or tokens is."""
    if kind == "tokens":
        return (np.frombuffer(record, np.uint16),)
    shape, dtype = LATENT
    size = int(np.prod(shape)) * 2
    return np.frombuffer(record[:size], dtype).reshape(shape), np.frombuffer(record[size:], np.int32)


def make(kind: str, folder: Path, n: int) -> Data:
    """The same samples for the same n."""
    folder.mkdir(parents=True)
    sums: dict[str, list[int]] = {}
    ends = [0]
    with (folder / "records.bin").open("wb") as out:
        for record, delivered in MAKERS[kind](n):
            ends.append(ends[-1] + out.write(record))
            for form, value in delivered.items():
                sums.setdefault(form, []).append(checksum(value))
    for form, values in sums.items():
        if len(set(values)) < n:
            raise ValueError(
                f"two of the {n} {kind} look alike; their checksums must differ to tell them apart"
            )
        np.save(folder / f"{form}.npy", np.array(values, np.uint64))
    np.save(folder / "offsets.npy", np.array(ends, np.int64))
    return Data(kind, folder)


def images(n: int, side_px: int = SIDE_PX) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Photo-like pictures: noise at four scales, about 16 kB at 256 px and 100 kB at 768 px.

    128 of them, each copy with a corner of its own.
    """
    import simplejpeg
    from PIL import Image

    rng = np.random.default_rng(0)

    def picture() -> np.ndarray[Any, np.dtype[np.uint8]]:
        light = np.zeros((side_px, side_px, 3), np.float32)
        for cells, weight in ((4, 90), (16, 50), (64, 25), (side_px, 6)):
            coarse = (rng.random((cells, cells, 3)) * 255).astype(np.uint8)
            grown = Image.fromarray(coarse).resize((side_px, side_px), Image.Resampling.BICUBIC)
            light += np.asarray(grown, np.float32) * weight / 171
        return light.clip(0, 255).astype(np.uint8)

    pictures = [picture() for _ in range(min(n, 128))]
    for i in range(n):
        one = pictures[i % len(pictures)]
        one[:32, :32] = np.repeat(np.repeat(rng.integers(0, 256, (4, 4, 3)), 8, 0), 8, 1)
        jpeg = simplejpeg.encode_jpeg(one, quality=QUALITY, colorsubsampling="420")
        yield jpeg, {"stored": jpeg, "decoded": simplejpeg.decode_jpeg(jpeg).tobytes()}


def latents(n: int) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    rng, (shape, dtype) = np.random.default_rng(0), LATENT
    for _ in range(n):
        latent = rng.standard_normal(shape, np.float32).astype(dtype)
        record = latent.tobytes() + rng.integers(0, 49408, CAPTION_TOKENS).astype(np.int32).tobytes()
        yield record, {"stored": record}


def clips(n: int) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    from .clips import encoded

    for clip in map(encoded, range(n)):
        yield clip, {"stored": clip}


def tokens(n: int) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    rng = np.random.default_rng(0)
    for _ in range(n):
        record = rng.integers(0, 50257, TOKENS).astype(np.uint16).tobytes()
        yield record, {"stored": record}


MAKERS = {"images": images, "clips": clips, "latents": latents, "tokens": tokens}


def checksum(data: bytes) -> int:
    """64 bits, CRC-32 and Adler-32: of 1e5 samples two have the same 32 more often than not."""
    return zlib.crc32(data) << 32 | zlib.adler32(data)


def checksums(batch: Sequence[Any]) -> list[int]:
    """That of each sample of a batch: a list of buffers, an array or tensor, or a tuple of those side by side."""
    if not isinstance(batch, tuple):
        return [checksum(_bytes(one)) for one in batch]
    return [checksum(b"".join(map(_bytes, fields))) for fields in zip(*batch, strict=True)]


def _bytes(one: Any) -> bytes:
    return bytes(one) if isinstance(one, bytes | memoryview) else np.ascontiguousarray(one).tobytes()
