"""A process that serves a folder as the S3 bucket "bucket", until it is killed. Run: FOLDER [PORT]

It says its port on a line of its own.
"""

import os
import secrets
import signal
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path

from tests.servers.http import HttpServer
from tests.servers.s3 import SmallS3


class FolderObjects(MutableMapping[str, bytes]):
    """The files of a folder by their paths, each written at once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, key: str) -> bytes:
        try:
            return (self._folder / key).read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            raise KeyError(key) from None

    def __setitem__(self, key: str, data: bytes) -> None:
        path = self._folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.parent / f".new-{secrets.token_hex(8)}"
        new.write_bytes(data)
        os.replace(new, path)

    def __delitem__(self, key: str) -> None:
        (self._folder / key).unlink(missing_ok=True)

    def __iter__(self) -> Iterator[str]:
        files = (path for path in self._folder.rglob("*") if path.is_file())
        return (str(path.relative_to(self._folder)) for path in files if not path.name.startswith(".new-"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


if __name__ == "__main__":
    bucket = SmallS3()
    bucket.objects, bucket.page_keys = FolderObjects(Path(sys.argv[1])), 1000
    print(HttpServer(bucket, port=int(sys.argv[2]) if len(sys.argv) > 2 else 0).port, flush=True)
    signal.pause()
