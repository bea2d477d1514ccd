"""penstock's part of `transfers`: a folder to a prefix of a bucket, or back, with a hash of every file.

python -m benchmarks.stores.carry up ENDPOINT FOLDER PREFIX AT_ONCE sha256
python -m benchmarks.stores.carry down ENDPOINT PREFIX FOLDER AT_ONCE crc32c
"""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from loader.storage import ObjectInfo, Store, open_store
from loader.storage.files import download, upload
from penstock.upkeep.copying.items import KINDS

from .servers import BUCKET


def up(store: Store, folder: Path, at_once: int, hash: str = "sha256") -> dict[str, str]:
    """name -> hash of what was sent."""

    def one(path: Path) -> tuple[str, str]:
        digest = KINDS[hash]()
        upload(store, path, path.name, seen=digest.update)
        return path.name, digest.hexdigest()

    with ThreadPoolExecutor(at_once) as threads:
        return dict(threads.map(one, sorted(folder.iterdir())))


def down(store: Store, folder: Path, at_once: int, hash: str = "sha256") -> dict[str, str]:
    """name -> hash of what came."""

    def one(info: ObjectInfo) -> tuple[str, str]:
        digest = KINDS[hash]()
        download(store, info.key, folder / info.key, info=info, seen=digest.update)
        return info.key, digest.hexdigest()

    with ThreadPoolExecutor(at_once) as threads:
        return dict(threads.map(one, store.list("")))


def main() -> int:
    way, endpoint, source, target, at_once, hash = sys.argv[1:]
    prefix, folder = (target, Path(source)) if way == "up" else (source, Path(target))
    store = open_store(f"s3://{BUCKET}/{prefix}", {"endpoint_url": endpoint})
    found = (up if way == "up" else down)(store, folder, int(at_once), hash)
    store.close()
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())
