"""Open a dataset in another format as a version, with its index in a cache folder."""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any

from loader.dataset.root import Root
from loader.dataset.versions.version import Version
from loader.storage import open_store

from .reading.sample import NO_METADATA
from .registration.register import register

FOLDER = "~/.cache/penstock/foreign"
_NAME_DIGITS = 12


def open_foreign(
    format: str,
    url: str | PathLike[str],
    *,
    name: str | None = None,
    options: Mapping[str, Any] | None = None,
    without: Sequence[str] = (),
    key: str | None = None,
    fields: Mapping[str, str] = NO_METADATA,
    allow_missing: bool = False,
    folder: str | PathLike[str] = FOLDER,
) -> Version:
    """Return the newest version of the dataset at a URL; register it first if necessary. The data stays in place.

    Every machine gets the same version. Each call lists the dataset; new or changed objects make a new version.
    Processes on one machine wait for each other.

    format: a format of `penstock register`, such as "webdataset" or "mds".
    name: dataset name, which determines version id and sample order. None derives it from format, URL and options; set
    it if the URL may change.
    options, without, key, fields, allow_missing: as for `register`.
    folder: for the index; you may delete it.

    Raises: the errors of `register`; OSError if `folder` is not writable.
    """
    if name is None:
        # The store's own URL, so that two spellings are one dataset.
        inputs = [open_store(fspath(url), options).url, sorted(set(without)), key, dict(fields)]
        name = f"{format}-{hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:_NAME_DIGITS]}"
    base = Path(folder).expanduser()
    base.mkdir(parents=True, exist_ok=True)
    # A second process waits, and then finds the first one's version.
    with _alone(base / "register.lock"):
        done = register(
            Root(base / "root"),
            format,
            url,
            name,
            options=options,
            without=without,
            key=key,
            fields=fields,
            allow_missing=allow_missing,
        )
    return done.version


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    # The kernel ends the lock with the process, even after a kill.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
