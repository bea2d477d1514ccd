"""penstock's part of `transfers`: a folder to a prefix of a bucket, or back, with the SHA-256 of every file.

python -m benchmarks.stores.carry up ENDPOINT FOLDER PREFIX AT_ONCE
python -m benchmarks.stores.carry down ENDPOINT PREFIX FOLDER AT_ONCE
"""

import hashlib
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loader.storage import ObjectInfo, Store, open_store

from .servers import BUCKET

PIECE_BYTES = 2 * 2**20
"""What arrives is hashed and written while a cache of the processor holds it: 16 MiB cost half as much again."""


def up(store: Store, folder: Path, at_once: int) -> dict[str, str]:
    """name -> SHA-256 of what was sent."""

    def one(path: Path) -> tuple[str, str]:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        store.put(path.name, data)
        return path.name, digest

    with ThreadPoolExecutor(at_once) as threads:
        return dict(threads.map(one, sorted(folder.iterdir())))


def down(store: Store, folder: Path, at_once: int) -> dict[str, str]:
    """name -> SHA-256 of what came: bounded ranges of one object each, hashed and written as they come."""

    def one(info: ObjectInfo) -> tuple[str, str]:
        digest = hashlib.sha256()
        with (folder / info.key).open("wb", buffering=0) as file:
            for offset in range(0, info.nbytes, PIECE_BYTES):
                nbytes = min(PIECE_BYTES, info.nbytes - offset)
                data = store.get_range(info.key, offset, nbytes, info.etag).data
                digest.update(data)
                file.write(data)
        return info.key, digest.hexdigest()

    with ThreadPoolExecutor(at_once) as threads:
        return dict(threads.map(one, store.list("")))


def main() -> int:
    way, endpoint, source, target, at_once = sys.argv[1:]
    prefix, folder = (target, Path(source)) if way == "up" else (source, Path(target))
    store = open_store(f"s3://{BUCKET}/{prefix}", {"endpoint_url": endpoint})
    found = (up if way == "up" else down)(store, folder, int(at_once))
    store.close()
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
