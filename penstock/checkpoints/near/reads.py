"""Read the parts of a near step, each from this node's disk or from another node that has it.

A part counts if its SHA-256 is the marker's: any holder of the cache's token may have written it. It is read whole, so
a rank holds as many parts in memory as it reads at a time (`ranks.AT_ONCE`).
"""

import hashlib
import logging
import os
from collections.abc import Sequence

from loader.cache.peers.near_client import NearClient, NearFault
from loader.cache.peers.near_files import NearFiles, part_key
from loader.errors import CorruptCheckpoint, StoreError
from loader.storage import Blob, ByteRange

from ..marker import Checkpoint, StoredObject
from .choice import Holders

_log = logging.getLogger(__name__)


class WrongCopy(OSError):
    """A copy that has other bytes than were written."""


class NearReads:
    """The objects of one near step, as the store that `CheckpointReader` reads parts from. Thread-safe.

    own: name of this node among the holders. Raises: CorruptCheckpoint if no copy of an object has its bytes.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        holders: Holders,
        own: str,
        folder: str,
        client: NearClient,
    ) -> None:
        self._checkpoint = checkpoint
        self._holders = holders
        self._own = own
        self._folder = folder
        self._files = NearFiles(folder)
        self._client = client
        self._silent: set[str] = set()
        self._objects = {checkpoint.key(stored): stored for stored in checkpoint.objects}

    @property
    def url(self) -> str:
        return self._folder

    def get_range(self, key: str, offset: int, nbytes: int, etag: str | None = None) -> Blob:
        """Raise CorruptCheckpoint: the caller got wrong bytes in a part that has its SHA-256."""
        stored = self._objects[key]
        raise self._damage(stored, "its blocks have other checksums than the index")

    def get_ranges(
        self,
        key: str,
        spans: Sequence[ByteRange],
        *,
        etag: str | None = None,
        **limits: object,
    ) -> list[Blob]:
        """Return the ranges of an object whose bytes are the marker's."""
        stored = self._objects[key]
        data = memoryview(self.read(stored))
        blobs = []
        for span in spans:
            cut = data[span.offset : span.offset + span.nbytes]
            # A copy of the cut: a view would keep the whole part in memory.
            blobs.append(Blob(bytes(cut), stored.sha256))
        return blobs

    def read(self, stored: StoredObject) -> bytes:
        """Return an object's bytes from the first copy that is right, this node's first.

        Raises: CorruptCheckpoint if there is none.
        """
        problems = []
        for node in self._order(stored):
            try:
                return self._copy(stored, node)
            except WrongCopy as error:
                problems.append(str(error))
                _log.warning(
                    "near step %d of run %s: %s; another copy is read. Check the node's disk and memory",
                    self._checkpoint.step,
                    self._checkpoint.run,
                    error,
                )
            except (OSError, StoreError) as error:
                # The others first, from now on: each attempt may take seconds.
                self._silent.add(node)
                problems.append(f"{node}: {error}")
        raise self._damage(stored, "; ".join(problems) or "no node has it")

    def _order(self, stored: StoredObject) -> list[str]:
        """Return the nodes to ask: this one, then the others, each reader beginning with another one."""
        others = [node for node in self._holders[stored.name] if node != self._own]
        # Else all readers would ask the same one of two holders.
        if others:
            digest = hashlib.blake2b(f"{stored.name} {self._own}".encode(), digest_size=4).digest()
            first = int.from_bytes(digest, "big") % len(others)
            others = others[first:] + others[:first]
        others.sort(key=lambda node: node in self._silent)
        if self._own in self._holders[stored.name]:
            return [self._own, *others]
        return others

    def _copy(self, stored: StoredObject, node: str) -> bytes:
        """Return one node's copy. Raises: WrongCopy; NearFault; OSError; StoreError."""
        # From the disk, also if this node's server is down.
        if node == self._own:
            data = self._own_copy(stored)
        elif not stored.nbytes:
            data = b""
        else:
            data = self._client.read(
                node,
                self._checkpoint.run,
                self._checkpoint.step,
                stored.name,
                0,
                stored.nbytes,
            )
        if hashlib.sha256(data).hexdigest() != stored.sha256:
            raise WrongCopy(f"{stored.name} on {node} has other bytes than were written")
        return data

    def _own_copy(self, stored: StoredObject) -> bytes:
        """Return the bytes of a part on this node. Raises: NearFault if it has none."""
        key = part_key(self._checkpoint.run, self._checkpoint.step, stored.name)
        opened = self._files.open(key)
        if opened is None:
            raise NearFault(f"{stored.name} is missing")
        descriptor, _ = opened
        with open(descriptor, "rb") as file:
            # The kernel then reads further ahead; the part is read once, front to back.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            return file.read(stored.nbytes)

    def _damage(self, stored: StoredObject, problem: str) -> CorruptCheckpoint:
        step = self._checkpoint.step
        run = self._checkpoint.run
        return CorruptCheckpoint(
            f"near step {step} of run {run!r} is damaged: {stored.name}: {problem}",
            run=run,
            step=step,
            name=stored.name,
            problem=f"{stored.name}: {problem}",
        )
