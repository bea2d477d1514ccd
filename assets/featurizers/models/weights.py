"""Weights of a model: one `.safetensors` file, or the folder that a model was saved to, local or behind a URL.

Only safetensors are read, and text beside them: a pickle runs whatever code its author put into it.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loader.errors import InvalidWeights, ObjectNotFound
from loader.storage import ObjectInfo, Store, open_store
from loader.storage.disk.scratch import held_folder
from loader.storage.files import download

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Files of a folder that are read, hashed and fetched: weights, configuration, vocabularies. Nothing else is."""

_CHUNK_BYTES = 4 << 20

_known: dict[tuple[str, str, int, str], str] = {}
"""(store, file, size, change token) -> SHA-256: a file is hashed once per process while it stays the same."""


def weights_sha256(url: str) -> str:
    r"""Return SHA-256 in hex: of a file; of a folder over the lines of `sha256sum` of its files, sorted by name.

        ls | grep -E "\.(safetensors|json|txt|model|jinja)$" | LC_ALL=C sort | xargs sha256sum | sha256sum

    Hashed once per process, and again when a size or change token (ETag; of a disk mtime and inode) is another.
    Raises: InvalidWeights; StoreError.
    """
    store, files, single = _found(url)
    sums = {file.key: _file_sha256(store, file) for file in files}
    return _joined(sums, single)


@contextmanager
def local_weights(url: str, sha256: str) -> Iterator[Path]:
    """Yield the weights as a verified path on this machine: in their place, or a temporary copy of a URL's.

    Local ones are looked at again at the end: the bytes read in between are the verified ones.

    Raises: InvalidWeights (also: these are other weights than `sha256`); StoreError.
    """
    if "://" not in url or url.startswith("file://"):
        store, files, single = _found(url)
        path = Path(store.url.removeprefix("file://"))
        _check_sum(url, sha256, weights_sha256(url))
        yield path / files[0].key if single else path
        _check_sum(url, sha256, weights_sha256(url))
        return
    with held_folder("weights") as folder:
        store, files, single = _found(url)
        sums = {}
        for file in files:
            digest = hashlib.sha256()
            download(store, file.key, Path(folder, file.key), info=file, seen=digest.update)
            sums[file.key] = digest.hexdigest()
        _check_sum(url, sha256, _joined(sums, single))
        yield Path(folder, files[0].key) if single else Path(folder)


def weights_store(url: str) -> Store | None:
    """Return the store of weights behind a URL; None for a path of this machine."""
    if "://" not in url or url.startswith("file://"):
        return None
    return open_store(url.rpartition("/")[0] if url.endswith(".safetensors") else url)


def _found(url: str) -> tuple[Store, list[ObjectInfo], bool]:
    """Return (store, files sorted by name, whether the URL names one file). Raises: InvalidWeights; StoreError."""
    if not url:
        raise InvalidWeights(
            "weights='': give the path or URL of a .safetensors file, or of a folder with one"
        )
    single = url.endswith(".safetensors")
    if not single:
        store = open_store(url)
        files = [info for info in store.list() if "/" not in info.key and info.key.endswith(SUFFIXES)]
        if not any(info.key.endswith(".safetensors") for info in files):
            raise InvalidWeights(
                f"no .safetensors file in the folder {url}; save the model as safetensors "
                "(save_pretrained does): pickled weights (.bin, .pt, .ckpt) are never loaded"
            )
        return store, sorted(files, key=lambda info: info.key), False
    folder, slash, name = url.rpartition("/")
    store = open_store(folder + slash if slash else ".")
    try:
        return store, [store.head(name)], True
    except ObjectNotFound as error:
        raise InvalidWeights(f"no weights at {url}: there is no such file") from error


def _file_sha256(store: Store, file: ObjectInfo) -> str:
    known = (store.url, file.key, file.nbytes, file.etag)
    if known not in _known:
        with store.open_stream(file.key) as source:
            _known[known] = _digest(source)
    return _known[known]


def _digest(source: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _joined(sums: Mapping[str, str], single: bool) -> str:
    if single:
        return next(iter(sums.values()))
    lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def _check_sum(url: str, stated: str, found: str) -> None:
    if found != stated:
        raise InvalidWeights(
            f"{url} holds other weights than stated: their sha256 is {found}, not {stated}. Put the right ones "
            "there, or state the new sha256 (everything computed with the old ones is then made again)"
        )


def said(error: Exception) -> str:
    """Return an error on one line, at most 300 letters: torch names every tensor that is missing."""
    return " ".join(str(error).split())[:300]
