"""Decoders that a thread keeps for the clips to come.

Opening and freeing a decoder takes 0.17 ms of the 6 ms of a clip, all under the interpreter's lock. A kept decoder was
told the same and has seen the same preamble. So after a flush it equals a new one (`preamble`).
"""

from __future__ import annotations

import threading

from .demux import Codec

MAX_DECODERS = 4
"""Decoders that a thread keeps."""
MAX_PX = 2**20
"""Pixels of the kept decoders, one picture of each. A decoder holds up to 20 of 1.5 bytes a pixel: 32 MB a thread."""

Use = tuple[object, ...]
"""Settings and preamble of a decoder."""


class DecoderCache(threading.local):
    """Least-recently-used cache of the current thread's decoders, which ends with the thread."""

    def __init__(self) -> None:
        self._decoders: dict[Use, tuple[Codec, int]] = {}

    def take(self, use: Use) -> Codec | None:
        """Return a decoder for this use, or None. The cache forgets it: a decoder that fails is not given back."""
        found = self._decoders.pop(use, None)
        return found and found[0]

    def give_back(self, use: Use, decoder: Codec, px: int) -> None:
        """Keep a decoder that decoded its clip without a fault. px: pixels of one picture."""
        self._decoders[use] = decoder, px
        while len(self._decoders) > MAX_DECODERS or sum(size for _, size in self._decoders.values()) > MAX_PX:
            del self._decoders[next(iter(self._decoders))]
