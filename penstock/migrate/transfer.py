"""One object from store to store: hashed on the way, and visible in the target only if it is what it must be."""

import hashlib
import tempfile
from dataclasses import dataclass

from google_crc32c import extend

from loader.errors import AlreadyExists, Corrupt, ObjectNotFound
from loader.storage import Store

from .contents import Item
from .pace import Pace, Room

HELD_BYTES = 4 * 2**20
"""A larger object goes through a file on this machine: its bytes are known to be right before the target has any."""
UPLOAD_BYTES = 80 * 2**20
"""What reading and uploading one such file takes at most: four parts of 16 MiB in flight, and one being read."""
ROOM_BYTES = 2 * UPLOAD_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What was done about one item: sha256 "" where it was there already."""

    path: str
    nbytes: int
    sha256: str


class Transfer:
    """Copies items from one store to another; thread-safe. scratch: a folder for larger objects on their way."""

    def __init__(self, source: Store, target: Store, pace: Pace, scratch: str | None = None) -> None:
        self._source, self._target, self._pace, self._scratch = source, target, pace, scratch
        self._room = Room(ROOM_BYTES)

    def __call__(self, item: Item, *, look: bool = False) -> Copied:
        """look: whether it may be in the target already, which is then asked for its size.

        Raises: Corrupt, Changed for bytes other than the source's root says; ObjectNotFound; AlreadyExists where the
        target holds other bytes; what stores raise.
        """
        if look or item.look:
            self._pace.take(requests=1)
            try:
                found = self._target.head(item.path).nbytes
                if item.nbytes in (None, found):
                    return Copied(path=item.path, nbytes=found, sha256="")
            except ObjectNotFound:
                pass  # as it should be
        large = item.nbytes is not None and item.nbytes > HELD_BYTES
        with self._room.for_bytes(UPLOAD_BYTES if large else item.nbytes or HELD_BYTES):
            return self._through_a_file(item) if large else self._whole(item)

    def _whole(self, item: Item) -> Copied:
        self._pace.take(requests=2, nbytes=item.nbytes or 0)
        data = self._source.get(item.path).data
        sha256 = self._checked(item, len(data), hashlib.sha256(data).hexdigest(), int(extend(0, data)))
        self._target.put_if_absent(item.path, data)
        return Copied(path=item.path, nbytes=len(data), sha256=sha256)

    def _through_a_file(self, item: Item) -> Copied:
        digest, crc, nbytes = hashlib.sha256(), 0, 0
        with tempfile.NamedTemporaryFile(dir=self._scratch, prefix="penstock-migrate-") as file:
            self._pace.take(requests=2)
            with self._source.open_stream(item.path) as stream:
                while block := stream.read(HELD_BYTES):
                    self._pace.take(requests=1, nbytes=len(block))
                    digest.update(block)
                    crc = int(extend(crc, block))
                    nbytes += len(block)
                    file.write(block)
            file.flush()
            sha256 = self._checked(item, nbytes, digest.hexdigest(), crc)
            self._pace.take(requests=1)
            try:
                there = self._target.head(item.path).nbytes
            except ObjectNotFound:
                self._target.put_file(item.path, file.name)
            else:
                if there != nbytes:
                    raise AlreadyExists(
                        f"{self._target.url}/{item.path} has {there} bytes and the source's {nbytes}: somebody else "
                        "wrote there; move that object away, then run this again"
                    )
        return Copied(path=item.path, nbytes=nbytes, sha256=sha256)

    def _checked(self, item: Item, nbytes: int, sha256: str, crc32c: int) -> str:
        said = (item.nbytes, item.sha256, item.crc32c)
        found = (nbytes, sha256, crc32c)
        if any(known is not None and known != got for known, got in zip(said, found, strict=True)):
            raise Corrupt(
                f"{self._source.url}/{item.path}: {nbytes} bytes, sha256 {sha256}, CRC-32C {crc32c:08x}; the root says "
                f"{item.nbytes} bytes, sha256 {item.sha256}, CRC-32C {item.crc32c}. It was not copied: run penstock "
                "verify on the source, restore the object, then run this again"
            )
        return sha256
