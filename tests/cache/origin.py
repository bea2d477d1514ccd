"""An origin of objects as functions of their name, in a store that notes every range it is asked for."""

import hashlib
import os
import random

from loader.cache.cached_ranges import Content
from loader.cache.object_sets import ObjectSet
from loader.cache.page_cache import Grant
from loader.storage import ByteRange, open_store


def body(key, nbytes):
    """The bytes of an object."""
    return random.Random(f"{key} {nbytes}").randbytes(nbytes)


class Origin:
    """A real store whose ranges are counted; `log`: a file that several processes append to."""

    def __init__(self, store, sizes, log=None, before=lambda: None):
        self.inner, self.sizes, self.log, self.before = store, sizes, log, before
        self.asked = []

    @property
    def url(self):
        return self.inner.url

    def content(self, key):
        """What the version's shards table would say of an object."""
        if key not in self.sizes:
            return None
        data = body(key, self.sizes[key])
        return Content(hashlib.sha256(data).hexdigest(), len(data))

    def sets(self):
        """What a loader of all objects reads."""
        return [ObjectSet.of(self.content(key) for key in self.sizes)]

    def get_range(self, key, offset, nbytes, etag=None):
        self._note(key, offset, nbytes)
        return self.inner.get_range(key, offset, nbytes, etag)

    def get_ranges(self, key, spans, *, etag=None, **limits):
        for offset, nbytes in spans:
            self._note(key, offset, nbytes)
        return self.inner.get_ranges(key, spans, etag=etag, **limits)

    def _note(self, key, offset, nbytes):
        self.before()
        self.asked.append((key, offset, nbytes))
        if self.log is not None:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(descriptor, f"{key} {offset} {nbytes}\n".encode())
            os.close(descriptor)


def make_origin(folder, sizes):
    """Create a folder with the objects; return it as an origin."""
    folder.mkdir()
    for key, nbytes in sizes.items():
        (folder / key).write_bytes(body(key, nbytes))
    return Origin(open_store(str(folder)), sizes)


def read_objects(store, sizes):
    """Read all objects in small ranges, and compare every byte."""
    for key, nbytes in sizes.items():
        truth = body(key, nbytes)
        spans = [ByteRange(low, min(1000, nbytes - low)) for low in range(0, nbytes, 1000)]
        blobs = store.get_ranges(key, spans)
        for span, blob in zip(spans, blobs, strict=True):
            assert blob.data == truth[span.offset : span.offset + span.nbytes]


def keep(store, key, spans, page_bytes):
    """Fetch and keep the pages of these spans that nobody else does."""
    ends = [(low // page_bytes, (low + n - 1) // page_bytes) for low, n in spans if n]
    for number in sorted({number for first, last in ends for number in range(first, last + 1)}):
        answer = store.claim(key, number)
        if isinstance(answer, Grant):
            store.keep(key, number, answer.nonce)


def put(cache, name, data):
    """Claim and store a page; whether the cache took it."""
    answer = cache.read(name, (), claim=len(data))
    if not isinstance(answer, Grant):
        return False
    cache.put(name, answer.nonce, data)
    return True
