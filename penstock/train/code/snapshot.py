"""A copy of a project's folder in the record, from which the ranks of a run start.

    trainings/<run>/code/<sha256>.tar.gz    named by its own SHA-256, which travels with the command of a rank

A rank runs `python -m penstock.train.code.snapshot RECORD RUN SHA256 COMMAND...`: it unpacks the copy into a private
folder of its node, once, and becomes the command there. A replaced copy has another SHA-256, and starts nothing.
"""

import gzip
import hashlib
import io
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from loader.dataset.log.marker import create_root_if_empty
from loader.dataset.root import Root
from loader.errors import AlreadyExists, Corrupt, InvalidSpec
from loader.storage import Store

from ...compute.locked_processes import LockedProcesses
from ..launched import ORIGIN
from ..run_folder import RunFolder
from ..run_spec import RunSpec
from .code_files import MOST_FILES, list_paths

MOST_BYTES = 64 * 2**20
"""Most bytes of the files of a copy."""
MOST_PACKED_BYTES = 2 * MOST_BYTES
"""Larger copies are not read."""


def pack(root: Path) -> bytes:
    """Return the files of a folder that git does not ignore, as a gzipped tar. Raises: InvalidSpec."""
    packed = io.BytesIO()
    nbytes = 0
    with (
        # mtime=0, and sorted paths without times or owners: equal code gives equal bytes, hence one copy.
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as gzipped,
        tarfile.open(fileobj=gzipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for number, path in enumerate(sorted(list_paths(root))):
            file = _inside(root, path)
            if file is None:
                continue
            member = tarfile.TarInfo(path)
            member.size = file.stat().st_size
            is_program = os.access(file, os.X_OK)
            member.mode = 0o755 if is_program else 0o644
            nbytes += member.size
            if number >= MOST_FILES or nbytes > MOST_BYTES:
                raise InvalidSpec(
                    f"--snapshot: {root} has more than {MOST_FILES:,} files or {MOST_BYTES:,} bytes up to {path}; put "
                    "what is not code into .gitignore",
                    what="--snapshot",
                    where=root,
                    given=path,
                    accepted=[MOST_FILES, MOST_BYTES],
                )
            with file.open("rb") as data:
                archive.addfile(member, data)
    return packed.getvalue()


def _inside(root: Path, path: str) -> Path | None:
    """Return a regular file of a folder; None if it was deleted. Raises: InvalidSpec for anything else."""
    file = (root / path).resolve()
    if not file.exists():
        return None
    if not file.is_file() or not file.is_relative_to(root.resolve()):
        raise InvalidSpec(
            f"--snapshot: {path} is not a file of {root}, but a link, submodule or pipe; put it in .gitignore",
            what="--snapshot",
            where=root,
            given=path,
            accepted="a file of the folder",
        )
    return file


def put_snapshot(store: Store, run: str, data: bytes) -> str:
    """Store a copy, once; return its SHA-256."""
    sha256 = hashlib.sha256(data).hexdigest()
    create_root_if_empty(store)
    try:
        store.put_if_absent(_key(run, sha256), data)
    except AlreadyExists as error:
        raise Corrupt(
            f"{store.url}/{_key(run, sha256)} has other bytes: its SHA-256 differs from its name"
        ) from error
    return sha256


def _key(run: str, sha256: str) -> str:
    return f"trainings/{run}/code/{sha256}.tar.gz"


def with_code(spec: RunSpec, folder: Path | None, *, stored: bool) -> RunSpec:
    """Return a run that starts from a copy of a folder. folder: None to keep the copy that the run has, if any.

    stored: False to store nothing. Raises: InvalidSpec; Corrupt.
    """
    store = Root(spec.record).store
    if folder is None:
        earlier = RunFolder(store, spec.run).read_spec()
        if earlier is None or spec.snapshot:
            return spec
        return replace(spec, snapshot=earlier.snapshot)
    data = pack(folder)
    sha256 = hashlib.sha256(data).hexdigest()
    if stored:
        put_snapshot(store, spec.run, data)
    return replace(spec, snapshot=sha256)


def rank_command(spec: RunSpec, python: str) -> list[str]:
    """Return the command of a rank. python: interpreter on its node."""
    if not spec.snapshot:
        return [*spec.command]
    run = spec.env.get(ORIGIN, spec.run)  # a replay has the code of the run that it repeats
    words = [python, "-P", "-m", __name__, Root(spec.record).url, run, spec.snapshot]
    return [*words, *spec.command]


def unpack(store: Store, run: str, sha256: str) -> Path:
    """Return the folder of this node with a copy's files; unpack it first if it is not there. Raises: Corrupt."""
    folders = LockedProcesses("code")
    folders.check_folder()
    folder = folders.folder / sha256
    if folder.is_dir():
        return folder
    key = _key(run, sha256)
    # Any writer of `trainings/` may have replaced it by a huge one.
    nbytes = store.head(key).nbytes
    data = b""
    if nbytes <= MOST_PACKED_BYTES:
        data = store.get(key).data
    if hashlib.sha256(data).hexdigest() != sha256:
        raise Corrupt(
            f"{store.url}/{key} is not the code that was submitted: its SHA-256 differs; submit it again",
            what="SHA-256",
            where=f"{store.url}/{key}",
        )
    unfinished = Path(tempfile.mkdtemp(dir=folders.folder))
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
        # filter="data" refuses members that would lie outside of the folder.
        archive.extractall(unfinished, filter="data")
    try:
        # Renamed at the end: a rank sees all files or none.
        unfinished.rename(folder)
    except OSError:  # another rank was faster
        shutil.rmtree(unfinished)
    return folder


def main(words: Sequence[str]) -> None:
    """Become the command of a rank, in the folder of its code."""
    record, run, sha256, *command = words
    root = Root(record)
    folder = unpack(root.store, run, sha256)
    os.chdir(folder)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
