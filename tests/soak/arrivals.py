"""What lands: photos that are all different, broken ones, copies, overwritten and vanished ones."""

import io
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image


class Place:
    """A landing place, and what was ever put there: content by key, as it lies there now."""

    def __init__(self, folder: Path, random: Random) -> None:
        self._folder, self._random, self._number = folder, random, 0
        self.there: dict[str, bytes] = {}
        self.photos: set[bytes] = set()

    def arrive(self) -> str:
        """One to twelve new photos."""
        for _ in range(self._random.randint(1, 12)):
            self._put(self._name("jpg"), self._photo())
        return "photos landed"

    def arrive_broken(self) -> str:
        """A torn photo, or bytes of no format."""
        data = self._random.choice([self._photo()[:400], self._random.randbytes(2000)])
        self.photos.discard(data)
        self._put(self._name("jpg"), data)
        return "a broken object landed"

    def arrive_again(self) -> str:
        """The same bytes under another name."""
        if not self.there:
            return "nothing to copy"
        self._put(self._name("jpg"), self._random.choice(list(self.there.values())))
        return "a copy landed"

    def overwrite(self) -> str:
        """Another photo under a name that is there."""
        if not self.there:
            return "nothing to overwrite"
        self._put(self._random.choice(list(self.there)), self._photo())
        return "an object was overwritten"

    def vanish(self) -> str:
        """An object is deleted, discovered or not."""
        if not self.there:
            return "nothing to delete"
        name = self._random.choice(list(self.there))
        del self.there[name]
        (self._folder / name).unlink()
        return "an object vanished"

    def _name(self, ending: str) -> str:
        self._number += 1
        return f"{self._number:06d}.{ending}"

    def _photo(self) -> bytes:
        rng = np.random.default_rng(self._random.getrandbits(64))
        sink = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8)).save(sink, "JPEG")
        self.photos.add(sink.getvalue())
        return sink.getvalue()

    def _put(self, name: str, data: bytes) -> None:
        """Whole or not at all, as stores have it."""
        hidden = self._folder / f".{name}"
        hidden.write_bytes(data)
        hidden.rename(self._folder / name)
        self.there[name] = data
