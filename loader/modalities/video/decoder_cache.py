"""Decoders that a thread keeps for the clips to come.

Opening and freeing a decoder takes 0.17 ms of the 6 ms of a clip, all under the interpreter's lock. A kept decoder was
told the same and has seen the same preamble. So after a flush it equals a new one (`preamble`).
"""

from __future__ import annotations

import threading

from .demux import Codec

KEPT = 4
"""Decoders that a thread keeps."""
KEPT_PX = 2**20
"""Pixels of one picture of each of them, together: about 20 pictures of 1.5 bytes a pixel, 32 MB a thread."""

Use = tuple[object, ...]
"""What a decoder was told and has seen."""


class DecoderCache(threading.local):
    """The decoders of the thread at hand, those used last at the end. They end with their thread."""

    def __init__(self) -> None:
        self._decoders: dict[Use, tuple[Codec, int]] = {}

    def take(self, use: Use) -> Codec | None:
        """Return a decoder for this use, and forget it: one that fails is not given back."""
        found = self._decoders.pop(use, None)
        return found and found[0]

    def give_back(self, use: Use, decoder: Codec, px: int) -> None:
        """Keep a decoder that decoded all it was given. px: of a picture."""
        self._decoders[use] = decoder, px
        while len(self._decoders) > KEPT or sum(size for _, size in self._decoders.values()) > KEPT_PX:
            del self._decoders[next(iter(self._decoders))]
