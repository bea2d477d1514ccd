"""Small versions to load from, and a store that watches its requests and misbehaves as it is told."""

import importlib
import itertools
import os
import sys
from collections import Counter
from pathlib import Path

import pytest

import loader


@pytest.fixture(scope="session")
def properties(shared):
    """What must hold, as functions that raise AssertionError."""
    return shared("run/properties")


@pytest.fixture(scope="session")
def samples(shared):
    """The samples that the tests write, as functions of their number."""
    return shared("run/samples")


@pytest.fixture(scope="session")
def media(shared):
    """Encoders of small pictures, sounds and videos."""
    return shared("run/media")


@pytest.fixture(scope="module")
def in_workers():
    """The module of transforms that worker processes can import."""
    folder = str(Path(__file__).parent / "in_workers")
    sys.path.insert(0, folder)
    yield importlib.import_module("worker_transforms")
    sys.path.remove(folder)


@pytest.fixture(scope="session")
def families():
    """families(text) -> what Prometheus' own parser reads in it: name -> metric family."""
    from prometheus_client.parser import text_string_to_metric_families

    return lambda text: {one.name: one for one in text_string_to_metric_families(text)}


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch, tmp_path):
    """No test sees the launcher, or the credentials, of whoever runs it."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "SLURM_", "OMPI_", "PMI_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-such-file"))


_numbers = itertools.count()


@pytest.fixture
def memory_root():
    """An empty root in memory."""
    with loader.Root(f"memory://run-{next(_numbers)}") as root:
        yield root


@pytest.fixture(scope="session")
def versions(samples):
    """name -> version: three datasets of several parts, one of them grown and with samples excluded."""
    with loader.Root("memory://run-versions") as root:
        samples.write(root, "photos", range(31), part_samples=8)
        root.exclude("photos@latest", ["photos/003", "photos/017"], reason="blurred")
        samples.write(root, "photos", range(31, 45), part_samples=5)
        samples.write(root, "web", range(19), part_samples=7)
        samples.write(root, "text", range(60), part_samples=25, fields=("txt", "cls"))
        yield {name: root.open(f"{name}@latest") for name in ("photos", "web", "text")}


class WatchedStore:
    """A real store; counts what is asked of it, and lets `change(key, offset, data)` alter bytes on their way."""

    def __init__(self, store):
        self.inner = store
        self.requests, self.nbytes = Counter(), Counter()
        self.change = lambda key, offset, data: data

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def get(self, key):
        blob = self.inner.get(key)
        self._saw("get", key, [blob])
        return blob._replace(data=self.change(key, 0, blob.data))

    def get_range(self, key, offset, nbytes, etag=None):
        blob = self.inner.get_range(key, offset, nbytes, etag)
        self._saw("get_range", key, [blob])
        return blob._replace(data=self.change(key, offset, blob.data))

    def get_ranges(self, key, spans, *, etag=None, **limits):
        blobs = self.inner.get_ranges(key, spans, etag=etag, **limits)
        self._saw("get_ranges", key, blobs)
        return [
            blob._replace(data=self.change(key, span.offset, blob.data))
            for span, blob in zip(spans, blobs, strict=True)
        ]

    def _saw(self, verb, key, blobs):
        self.requests[verb, key] += 1
        self.nbytes[verb] += sum(len(blob.data) for blob in blobs)


@pytest.fixture(scope="session")
def watch_store():
    """watch_store(root) -> its store from now on, watched; versions opened afterwards read through it."""

    def watch(root):
        root.store = WatchedStore(root.store)
        return root.store

    return watch
