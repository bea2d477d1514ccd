"""Model weights: a `.safetensors` file (never a pickle), or the folder of a saved model; a local path or a URL."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from loader.errors import InvalidWeights, ObjectNotFound
from loader.storage import ObjectInfo, Store, open_store
from loader.storage.disk.scratch import scratch_folder
from loader.storage.files import download

SUFFIXES = (".safetensors", ".json", ".txt", ".model", ".jinja")
"""Suffixes of the folder's files that are read."""

_CHUNK_BYTES = 4 << 20

# (store, file, size, change token) -> SHA-256: each file is hashed once per process.
_known: dict[tuple[str, str, int, str], str] = {}


def weights_sha256(url: str) -> str:
    r"""Return the SHA-256 in hex of a file, or of a folder's `sha256sum` lines sorted by name.

        ls | grep -E "\.(safetensors|json|txt|model|jinja)$" | LC_ALL=C sort | xargs sha256sum | sha256sum

    Cached per process by size and change token. Raises: InvalidWeights; StoreError.
    """
    store, files, single = _files(url)
    sums = {file.key: _file_sha256(store, file) for file in files}
    return _join_sums(sums, single)


@contextmanager
def local_weights(url: str, sha256: str) -> Iterator[Path]:
    """Yield a local path to the verified weights, for a URL a temporary copy; local ones are verified again.

    Raises: InvalidWeights; StoreError.
    """
    if "://" not in url or url.startswith("file://"):
        store, files, single = _files(url)
        path = Path(store.url.removeprefix("file://"))
        _check_sum(url, sha256, weights_sha256(url))
        yield path / files[0].key if single else path
        # Again: the files may have changed while they were loaded.
        _check_sum(url, sha256, weights_sha256(url))
        return
    with scratch_folder("weights") as folder:
        store, files, single = _files(url)
        sums = {}
        for file in files:
            digest = hashlib.sha256()
            download(store, file.key, Path(folder, file.key), info=file, seen=digest.update)
            sums[file.key] = digest.hexdigest()
        _check_sum(url, sha256, _join_sums(sums, single))
        yield Path(folder, files[0].key) if single else Path(folder)


def weights_store(url: str) -> Store | None:
    """Return the store that a URL addresses; None for a local path."""
    if "://" not in url or url.startswith("file://"):
        return None
    return open_store(url.rpartition("/")[0] if url.endswith(".safetensors") else url)


def _files(url: str) -> tuple[Store, list[ObjectInfo], bool]:
    """Return (store, files sorted by name, whether the URL names a single file)."""
    if not url:
        raise InvalidWeights(
            "weights='': give the path or URL of a .safetensors file, or of a folder with one",
            what="weights",
            given=url,
        )
    single = url.endswith(".safetensors")
    if not single:
        store = open_store(url)
        files = [info for info in store.list() if "/" not in info.key and info.key.endswith(SUFFIXES)]
        if not any(info.key.endswith(".safetensors") for info in files):
            raise InvalidWeights(
                f"no .safetensors file in the folder {url}; save the model as safetensors "
                "(save_pretrained does): pickled weights (.bin, .pt, .ckpt) are never loaded",
                what=".safetensors",
                where=url,
            )
        return store, sorted(files, key=lambda info: info.key), False
    folder, slash, name = url.rpartition("/")
    store = open_store(folder + slash if slash else ".")
    try:
        return store, [store.head(name)], True
    except ObjectNotFound as error:
        raise InvalidWeights(
            f"no weights at {url}: there is no such file", what="weights", where=url
        ) from error


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


def _join_sums(sums: Mapping[str, str], single: bool) -> str:
    if single:
        return next(iter(sums.values()))
    lines = "".join(f"{sums[name]}  {name}\n" for name in sorted(sums))
    return hashlib.sha256(lines.encode()).hexdigest()


def _check_sum(url: str, stated: str, actual: str) -> None:
    if actual != stated:
        raise InvalidWeights(
            f"{url} holds other weights: their sha256 is {actual}, not {stated}. Restore the right ones, "
            "or state the new sha256 (features of the old ones are then computed again)",
            what="sha256",
            where=url,
            given=actual,
            accepted=stated,
        )


def error_text(error: Exception) -> str:
    """Return an error on one line of at most 300 characters; torch lists every missing tensor."""
    return " ".join(str(error).split())[:300]
