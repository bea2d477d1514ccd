"""Copy from S3 to S3: stream each object to the target as it arrives, and hash it on the way.

The last piece is sent only once all bytes are verified. Until then, the target has no object.
"""

from dataclasses import replace

from loader.errors import Forbidden, ObjectNotFound
from loader.storage import Store
from loader.storage.cloud.reads import ReadStore
from loader.storage.cloud.s3_puts import S3PutStore, is_md5
from loader.storage.sequential_read import LOOK_BYTES, SequentialRead
from loader.storage.shared.memory_budget import MemoryBudget
from loader.storage.stream import AHEAD, MAX_BYTES

from .items import HELD_BYTES, Copied, Digest, Item, Pace, check


class SendOn:
    """Copies items by streaming them, where possible. Thread-safe."""

    def __init__(self, source: Store, target: Store, pace: Pace, room: MemoryBudget, hash: str) -> None:
        self._source, self._target, self._pace, self._room, self._hash = source, target, pace, room, hash
        self._tries_unknown = True  # stream items without a listed ETag, until one's ETag is not an MD5

    def __call__(self, item: Item) -> Copied | Item:
        """Return the copy, or the item if it must be copied through memory instead.

        A returned item is unchanged, or has `replace` set. Raises: as `Transfer`.
        """
        target, nbytes, known = self._target, item.nbytes, item.etag or self._tries_unknown
        if item.was or not known or not isinstance(target, S3PutStore) or not nbytes:
            return item
        if not sends(self._source, target, item):
            return item
        # Taken all at once, so that the limit does not stall a stream.
        self._pace.take(requests=2, nbytes=nbytes)
        digest, is_there = self._sent(target, item, nbytes)
        if is_there is None:
            is_there = self._is_what_came(item.path, digest)
            item = replace(item, replace=True)
        if not is_there:
            return item
        return Copied(path=item.path, nbytes=nbytes, digest=digest, etag=item.etag, written=True)

    def _sent(self, target: S3PutStore, item: Item, nbytes: int) -> tuple[str, bool | None]:
        with self._room.memory(min(nbytes, LOOK_BYTES)) as lent:
            result = self._sent_by(lent.view, target, item, nbytes)
            lent.is_free = True
        return result

    def _sent_by(
        self, memory: memoryview, target: S3PutStore, item: Item, nbytes: int
    ) -> tuple[str, bool | None]:
        digest, etag, at, sending = Digest(item.digest, self._hash), item.etag or None, 0, None
        sequential = SequentialRead(self._source, item.path, nbytes, whole=True)
        try:
            while count := sequential.next_bytes(at):
                piece = memory[:count]
                etag = sequential.fill(at, piece, etag)
                digest.update(piece)
                at += count
                if sending is None:
                    self._tries_unknown = self._tries_unknown and (bool(item.etag) or is_md5(etag))
                    sending = target.send_twin(item.path, nbytes, etag, replace=item.replace)
                if at == nbytes:
                    check(self._source, item, nbytes, str(digest))
                if sending is None or not sending.send(piece):
                    break
            is_there = False if sending is None else target.finish_twin(sending, etag or "")
        finally:
            sequential.close()
            if sending is not None:
                sending.close()
        return str(digest), is_there

    def _is_what_came(self, path: str, digest: str) -> bool:
        target_digest = Digest(digest, self._hash)
        try:
            with self._room.for_bytes((AHEAD + 1) * MAX_BYTES), self._target.open_stream(path) as stream:
                while piece := stream.read(LOOK_BYTES):
                    target_digest.update(piece)
        except (ObjectNotFound, Forbidden):  # write access need not include read access
            return False
        return str(target_digest) == digest


def sends(source: Store, target: Store, item: Item) -> bool:
    """Return whether an object can be streamed from source to target."""
    if not (isinstance(target, S3PutStore) and isinstance(source, ReadStore)):
        return False
    return target.sends(item.etag) and source.follows and 0 < (item.nbytes or 0) <= HELD_BYTES
