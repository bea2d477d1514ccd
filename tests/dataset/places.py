"""Where roots lie that are killed again and again: a disk, and an S3 server that kills (servers/killing.py).

Each kill wants a copy of what was prepared: of a folder its files are copied, of the server the process is forked.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import loader
from loader.storage import open_store
from loader.storage.store import TEMPORARY

KEYS = {"key": "AKIAPLANTEDKEY", "secret": "PLANTEDsecretPLANTED"}
SERVER = Path(__file__).resolve().parent.parent / "servers" / "killing.py"


class Place:
    """options: those of its stores, None on a disk."""

    options = None

    def url(self, name):
        raise NotImplementedError

    def root(self, name="root"):
        return loader.Root(self.url(name), options=self.options)

    def store(self, name="root"):
        return open_store(self.url(name), self.options)


class Disk(Place):
    name = "a disk"

    def __init__(self, folder):
        self.folder = Path(folder)

    def url(self, name="root"):
        return str(self.folder / name)

    @contextmanager
    def copy(self):
        """The place once more, for as long."""
        with tempfile.TemporaryDirectory(dir=self.folder.parent) as folder:
            passing = shutil.ignore_patterns(f"{TEMPORARY}*")  # of a writer's threads, which end after it
            shutil.copytree(self.folder, Path(folder) / "copy", ignore=passing)
            yield Disk(Path(folder) / "copy")


class S3(Place):
    name = "S3"

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.options = {**KEYS, "endpoint_url": endpoint}

    def url(self, name="root"):
        return f"s3://bucket/{name}"

    def ask(self, path, method="GET"):
        with urllib.request.urlopen(urllib.request.Request(f"{self.endpoint}{path}", method=method)) as said:
            return said.read().decode()

    @contextmanager
    def copy(self):
        """The place once more, for as long."""
        pid, port = self.ask("/-/fork").split()
        try:
            yield S3(f"http://127.0.0.1:{port}")
        finally:
            os.kill(int(pid), signal.SIGKILL)


@contextmanager
def disk():
    """An empty one."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "first").mkdir()
        yield Disk(Path(folder) / "first")


@contextmanager
def s3():
    """An empty one."""
    command = [sys.executable, "-P", str(SERVER)]  # -P: there is a http.py beside it
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        place = S3(f"http://127.0.0.1:{running.stdout.readline().strip()}")
        place.ask("/bucket", "PUT")
        yield place
        running.stdin.close()
