"""Values of every kind, hostile ones among them."""

import datetime

import ml_dtypes
import numpy as np
import torch

RNG = np.random.default_rng(7)
HOSTILE_TEXT = "a\x1b]52;c;eA==\x07b\u202edcba\u2066\x9b31m<script>alert(1)</script>\r\nnext\ud800"
"""A terminal's escapes, turns of the writing direction, markup, half a surrogate pair."""


def photo(height=20, width=30, channels=3):
    """Noise, uint8 [H, W, C]."""
    return np.random.default_rng(1).integers(0, 256, (height, width, channels), np.uint8)


def some_nan(*shape):
    out = np.random.default_rng(2).random(shape, np.float32)
    out.flat[0] = np.nan
    return out


class Strange:
    """An object of a transform's author."""

    def __repr__(self):
        raise RuntimeError("nobody may call it")

    def __len__(self):
        raise RuntimeError("nobody may call it")

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("nobody may call it")


def objects():
    out = np.empty(2, object)
    out[0], out[1] = HOSTILE_TEXT, {1}
    return out


VALUES = {
    "photo": photo(),
    "photo, channels first": photo().transpose(2, 0, 1),
    "photo, flipped": photo()[:, ::-1],
    "gray": photo(channels=1),
    "gray of rank 2": photo()[:, :, 0],
    "with alpha": photo(channels=4),
    "mask": photo()[:, :, 0] > 128,
    "normalised": RNG.standard_normal((3, 16, 16), np.float32),
    "half": RNG.random((16, 16, 3)).astype(np.float16),
    "with NaN": some_nan(3, 16, 16),
    "all NaN": np.full((16, 16, 3), np.nan, np.float32),
    "infinite": np.full((16, 16, 1), np.inf),
    "far apart": np.array([-1.7e308, 1.7e308] * 384).reshape(16, 16, 3),
    "bfloat16": RNG.random((3, 16, 16)).astype(ml_dtypes.bfloat16),
    "float8": RNG.random((4, 5)).astype(ml_dtypes.float8_e4m3fn),
    "torch": torch.from_numpy(photo()),
    "torch bfloat16": torch.rand(3, 16, 16, dtype=torch.bfloat16, requires_grad=True),
    "torch expanded": torch.zeros(1, dtype=torch.bfloat16).expand(10**12),
    "torch meta": torch.empty(3, 16, 16, device="meta"),
    "torch sparse": torch.eye(4).to_sparse(),
    "torch complex": torch.tensor([1 + 2j]).conj(),
    "complex": np.ones((4, 4), np.complex64),
    "clip": np.random.default_rng(5).integers(0, 256, (5, 16, 24, 3), np.uint8),
    "clip of floats": torch.randn(3, 5, 16, 24),
    "clip with NaN": some_nan(2, 1, 16, 16),
    "clip without frames": np.zeros((0, 16, 16, 3), np.uint8),
    "empty": np.zeros((0, 16, 3), np.uint8),
    "empty floats": np.zeros((3, 0, 16), np.float32),
    "rank 0": np.float32(1.5),
    "rank 1": np.arange(1000),
    "rank 2": RNG.standard_normal((80, 3000)),
    "rank 3": RNG.standard_normal((12, 6, 50)),
    "rank 5": np.ones((2, 2, 2, 2, 2)),
    "big endian": np.arange(12, dtype=">i4").reshape(3, 4),
    "largest": np.array([[2**63 - 1, -(2**63)]], np.int64),
    "unsigned": np.array([[2**64 - 1, 0]], np.uint64),
    "thin": np.zeros((1, 100_000), np.float32),
    "objects": objects(),
    "structured": np.zeros(3, [("x" * 200, "f4"), ("b", "i8")]),
    "dates": np.array(["2024-01-01"], "M8[D]"),
    "strings": np.array([HOSTILE_TEXT]),
    "text": "A cat\n\tsits.",
    "no text": "",
    "hostile text": HOSTILE_TEXT,
    "10 MB of text": "x" * 10_000_000,
    "10 MB of lines": "\n" * 10_000_000,
    "bytes": b"\x00\x01\xffabc" * 20,
    "no bytes": b"",
    "bytearray": bytearray(b"abc"),
    "memory": memoryview(np.zeros((4, 4), np.int32))[::2],
    "number": 3,
    "float": float("nan"),
    "large number": 10**5000,
    "truth": True,
    "none": None,
    "list": [1, "a", None, [HOSTILE_TEXT]],
    "dict": {HOSTILE_TEXT: {"b": [1, 2]}},
    "set": {1, 2},
    "date": datetime.date(2024, 1, 1),
    "object": Strange(),
    "class": Strange,
}

HUGE = {
    "repeated clip": np.broadcast_to(np.uint8(7), (10**6, 3, 500, 500)),
    "large photo": np.broadcast_to(photo(1, 1), (900, 1200, 3)),
    "repeated beyond memory": np.broadcast_to(np.uint8(7), (100_000, 100_000, 3)),
    "repeated floats": np.broadcast_to(np.float32(0.5), (3, 50_000, 50_000)),
}
