"""Checkpoints that stay in a cluster: the files of a node's near folder, which is a root beside its cache's pages.

    near/checkpoints/<run>/parts/<step>/<16 hex>-<k>.safetensors
    near/checkpoints/<run>/parts/<step>/<16 hex>-index.json
    near/checkpoints/<run>/steps/<step>.json                          marker, the last one

`penstock.checkpoints.marker` has the same names. A file is written under another name, synced, and renamed, so
that a name stands for a whole file.
"""

import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from ...errors import ObjectNotFound
from ...native import crc32c
from ...storage import open_store
from ...storage.disk.folder_files import NewFile
from ...storage.disk.store import LocalStore
from ..spec import NodeCache

FOLDER = "near"
FILE_BYTES = 128 * 2**20
"""Most bytes of a part or an index. `Checkpoints` writes parts of 64 MiB and a header."""
MARKER_BYTES = 16 * 2**20
"""Most bytes of a marker: 100,000 parts."""
MARKERS = 16
"""Newest markers of a run that a list has."""
SPARE_BYTES = 64 * 2**20
"""Bytes of the disk that no part takes."""

RUN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
STEP = r"[0-9]{12}"
PART = r"[0-9a-f]{16}-(?:[0-9]{5,9}\.safetensors|index\.json)"
_PART_KEY = re.compile(rf"checkpoints/({RUN})/parts/({STEP})/({PART})")
_STEP_KEY = re.compile(rf"checkpoints/({RUN})/parts/({STEP})/")
_MARKER_KEY = re.compile(rf"checkpoints/({RUN})/steps/({STEP})\.json")


class NearFile(NamedTuple):
    """A part or an index in a near folder."""

    step: int
    """Completed steps."""
    name: str
    """Under `parts/<step>/`."""
    nbytes: int
    """Size of the file."""


class NearStep(NamedTuple):
    """One step in a near folder."""

    step: int
    """Completed steps."""
    has_marker: bool
    nbytes: int
    """Bytes of its parts and index."""


class NearRun(NamedTuple):
    """The files of one run in a near folder."""

    markers: dict[int, bytes]
    """Step -> bytes of its marker, of the MARKERS newest; as they were written, or not."""
    files: list[NearFile]


class WrongFile(ValueError):
    """The bytes of a file differ from what its writer announced."""


def near_folder(spec: NodeCache) -> str:
    """Return the folder of a node's near checkpoints."""
    path = os.fspath(spec.path)
    return os.path.join(path, FOLDER)


def part_key(run: str, step: int, name: str) -> str:
    return f"checkpoints/{run}/parts/{step:012d}/{name}"


def marker_key(run: str, step: int) -> str:
    return f"checkpoints/{run}/steps/{step:012d}.json"


class NearFiles:
    """The near folder of one node. Thread-safe. Methods raise StoreError.

    folder: of the near checkpoints; created by the first write.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._store: LocalStore | None = None
        self._is_root = False

    def create(self) -> None:
        """Make the folder a root."""
        from ...dataset.log.marker import create_root_if_empty  # only for the first near checkpoint

        store = self._open()
        create_root_if_empty(store)
        self._is_root = True

    def open_new(self, key: str) -> NewFile:
        """Return a file that `finish` makes durable, in place of one of the same name. The caller closes it."""
        if not self._is_root:
            self.create()
        return self._open().open_new(key)

    def write(
        self,
        key: str,
        nbytes: int,
        checksum: int,
        pieces: Iterable[bytes | memoryview],
    ) -> None:
        """Write a file durably. Raises: WrongFile, and leaves nothing behind.

        checksum: CRC-32C of its bytes. A start checks the SHA-256, which takes 15 times as long.
        """
        received = 0
        crc = 0
        file = self.open_new(key)
        try:
            for piece in pieces:
                crc = crc32c(piece, crc)
                received += len(piece)
                view = memoryview(piece)
                file.write(view)
            if received != nbytes or crc != checksum:
                raise WrongFile(
                    f"{received:,} bytes came, and their CRC-32C is {crc:08x}; announced were {nbytes:,} and "
                    f"{checksum:08x}"
                )
            file.finish()
        finally:
            file.close()

    def open(self, key: str) -> tuple[int, int] | None:
        """Return the descriptor and the size of a file; None if it is missing. The caller closes it."""
        path = os.path.join(self._folder, key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            return None
        status = os.fstat(descriptor)
        nbytes = status.st_size
        return descriptor, nbytes

    def free_bytes(self) -> int:
        """Return the bytes that another file may take. Raises: OSError."""
        folder = self._folder
        # The first write creates it.
        if not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        disk = os.statvfs(folder)
        free_bytes = disk.f_bavail * disk.f_frsize
        return free_bytes - SPARE_BYTES

    def run(self, run: str) -> NearRun:
        """Return the files of a run, and its newest markers."""
        store = self._open()
        files: list[NearFile] = []
        for info in store.list(f"checkpoints/{run}/parts/"):
            match = _PART_KEY.fullmatch(info.key)
            if match is None:
                continue
            step = int(match[2])
            name = match[3]
            file = NearFile(step, name, info.nbytes)
            files.append(file)
        marked = sorted(self._run_numbers(run))
        markers: dict[int, bytes] = {}
        newest = marked[-MARKERS:]
        for step in newest:
            data = self._marker(run, step)
            if data is not None:
                markers[step] = data
        return NearRun(markers, files)

    def steps(self, run: str) -> list[NearStep]:
        """Return what there is of each step of a run, ascending. Counts unfinished files."""
        store = self._open()
        sizes: dict[int, int] = {}
        for info in store.list_with_unfinished(f"checkpoints/{run}/parts/"):
            match = _STEP_KEY.match(info.key)
            if match is None:
                continue
            step = int(match[2])
            others = sizes.get(step, 0)
            sizes[step] = others + info.nbytes
        marked = frozenset(self._run_numbers(run))
        steps: list[NearStep] = []
        for step in sorted(marked | sizes.keys()):
            has_marker = step in marked
            nbytes = sizes.get(step, 0)
            near_step = NearStep(step, has_marker, nbytes)
            steps.append(near_step)
        return steps

    def runs(self) -> list[str]:
        """Return the runs with a file, sorted."""
        names: set[str] = set()
        store = self._open()
        for info in store.list("checkpoints/"):
            match = _PART_KEY.fullmatch(info.key)
            if match is None:
                match = _MARKER_KEY.fullmatch(info.key)
            if match is not None:
                name = match[1]
                names.add(name)
        return sorted(names)

    def delete(self, run: str, step: int) -> int:
        """Delete a step, its marker first; return the bytes of its parts. Unfinished files go too."""
        store = self._open()
        # A marker without its parts would be a step that no start can load.
        marker = marker_key(run, step)
        store.delete_many([marker])
        parts = part_key(run, step, "")
        nbytes = 0
        keys: list[str] = []
        for info in store.list_with_unfinished(parts):
            nbytes += info.nbytes
            keys.append(info.key)
        store.delete_in_place(keys, parts)
        # Else each step would leave a folder behind.
        folder = os.path.join(self._folder, parts)
        with suppress(OSError):
            os.rmdir(folder)
        return nbytes

    def _open(self) -> LocalStore:
        with self._lock:
            if self._store is None:
                store = open_store(self._folder)
                assert isinstance(store, LocalStore)
                self._store = store
            return self._store

    def _run_numbers(self, run: str) -> Iterator[int]:
        store = self._open()
        for info in store.list(f"checkpoints/{run}/steps/"):
            match = _MARKER_KEY.fullmatch(info.key)
            if match is None or info.nbytes > MARKER_BYTES:
                continue
            yield int(match[2])

    def _marker(self, run: str, step: int) -> bytes | None:
        """Return a marker's bytes; None if it was deleted meanwhile."""
        key = marker_key(run, step)
        store = self._open()
        try:
            blob = store.get(key)
        except ObjectNotFound:
            return None
        return blob.data
