"""Fill a node's share of a cluster's cache before a training needs it. Each node reads the pages that it owns."""

from collections.abc import Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import numpy as np

import loader
from loader.cache.cached_ranges import Content
from loader.cache.page_cache import Absence, Grant, count_nothing
from loader.cache.pages import page_name
from loader.cache.peers.peer_cache import PeerCache
from loader.dataset.reading.places import Lookup
from loader.dataset.reading.sample_places import Int64s
from loader.dataset.shards.index import IndexPlace
from loader.run.ahead.next_reads import Extents, extent_pages
from loader.run.ahead.remote_reads import ShardContents
from loader.storage import ByteRange, RangeReader
from loader.storage.threads import DaemonPool

from ..progress import progress

THREADS = 16
"""Pages in flight: 0.8 GB/s at 20 ms of latency and pages of 1 MiB."""
WAIT_S = 5.0
"""Longest wait for a page that another process is fetching."""
BLOCK_SAMPLES = 2**16
"""Samples whose places are looked up together."""


class FillReport(NamedTuple):
    """A node's pages of a version."""

    version: str
    pages: int
    """Pages of the version on this node."""
    nbytes: int
    """Their bytes."""
    fetched: int
    """Pages among them that were read now."""
    elsewhere: int
    """Pages that other nodes own."""
    refused: int
    """Pages of this node that it has no room for."""


class _Outcome(Enum):
    """The end of a page."""

    PRESENT = "it was on this node"
    FETCHED = "it was read"
    REFUSED = "there is no room for it"


class _Page(NamedTuple):
    """A page of an object of a version."""

    path: str
    content: Content
    """Bytes and SHA-256 of the whole object, by which its pages are named."""
    number: int
    """Number of the page in the object, from 0."""
    is_of_index: bool = False
    """True for an index, which is read from the root's store and not as a shard."""


def fill_pages(version: "loader.Version", spec: "loader.NodeCache", where: str | None) -> FillReport:
    """Read the pages that this node owns and does not have, in the order of the objects.

    where: SQL over the columns of the samples; only pages with bytes of these samples are read. None reads all.

    Raises: InvalidRuntime; FieldNotFound and InvalidPredicate for a wrong `where`; StoreError.
    """
    contents = ShardContents(version)
    # A fill reads the objects of all groups.
    cache = PeerCache(spec, count_nothing, lambda: [contents.objects(version.manifest["groups"])])
    try:
        selected = _pages(
            version,
            contents,
            spec.page_bytes,
            where,
        )
        pages = list(selected)
        own: list[_Page] = []
        for page in pages:
            name = _name(page, spec.page_bytes)
            if cache.is_own(name):
                own.append(page)
        fetch = partial(_fetch, version, cache)
        with DaemonPool(THREADS, "penstock-fill") as pool:
            running = pool.map(fetch, own)
            bar = progress(
                running,
                "pages",
                total=len(own),
            )
            outcomes = list(bar)
    finally:
        cache.close()
    nbytes = 0
    for page, outcome in zip(own, outcomes, strict=True):
        if outcome is not _Outcome.REFUSED:
            nbytes += _span(page, spec.page_bytes).nbytes
    refused = outcomes.count(_Outcome.REFUSED)
    return FillReport(
        version=version.name,
        pages=len(own) - refused,
        nbytes=nbytes,
        fetched=outcomes.count(_Outcome.FETCHED),
        elsewhere=len(pages) - len(own),
        refused=refused,
    )


def _fetch(version: "loader.Version", cache: PeerCache, page: _Page) -> _Outcome:
    """Read a page unless it is on this node."""
    span = _span(page, cache.page_bytes)
    name = _name(page, cache.page_bytes)
    answer = cache.local.read(
        name,
        (),
        # A claim keeps other processes of this node from reading the page too.
        claim=span.nbytes,
        wait_s=WAIT_S,
    )
    if isinstance(answer, Absence):
        return _Outcome.REFUSED
    if not isinstance(answer, Grant):
        return _Outcome.PRESENT
    try:
        store: RangeReader = version.shard_store
        if page.is_of_index:
            store = version.store
        (blob,) = store.get_ranges(page.path, [span])
        cache.local.put(name, answer.nonce, blob.data)
    finally:
        # Also after an error, else others wait for the claim's whole time.
        cache.local.release(name, answer.nonce)
    return _Outcome.FETCHED


def _name(page: _Page, page_bytes: int) -> str:
    return page_name(page.content.sha256, page_bytes, page.number)


def _span(page: _Page, page_bytes: int) -> ByteRange:
    """Return the bytes of a page in its object: the last page may be shorter."""
    start = page.number * page_bytes
    nbytes = min(page_bytes, page.content.nbytes - start)
    return ByteRange(start, nbytes)


def _pages(
    version: "loader.Version",
    contents: ShardContents,
    page_bytes: int,
    where: str | None,
) -> Iterator[_Page]:
    """Yield the pages of a version, or those with samples that a predicate selects: indexes, then shards in order."""
    if where is not None:
        yield from _choose_pages(version, contents, page_bytes, where)
        return
    parts = np.arange(len(version.parts))
    yield from _index_pages(version, contents, page_bytes, parts)
    for group in version.manifest["groups"]:
        for path, _, nbytes in version.parts.shard_contents(group):
            n_pages = -(-nbytes // page_bytes)  # rounded up
            yield from _object_pages(contents, path, range(n_pages))


def _choose_pages(
    version: "loader.Version",
    contents: ShardContents,
    page_bytes: int,
    where: str,
) -> Iterator[_Page]:
    """Yield the pages that hold samples of a predicate, indexes first."""
    chosen = version.where(where)
    ordinals = chosen.version_ordinals(np.arange(len(chosen)))  # [n]: of the version
    part, _ = version.parts.locate(ordinals)  # [n]: the part of each sample
    # np.unique: many samples lie in one part.
    yield from _index_pages(version, contents, page_bytes, np.unique(part))
    for group, body in version.manifest["groups"].items():
        has_group = version.parts.has_group(group)[part]
        lookup = Lookup([version], sorted(body["field_nbytes"]))
        numbers = _numbers_by_path(lookup, ordinals[has_group], page_bytes)
        for path in sorted(numbers):
            yield from _object_pages(contents, path, sorted(numbers[path]))


def _index_pages(
    version: "loader.Version",
    contents: ShardContents,
    page_bytes: int,
    parts: Int64s,
) -> Iterator[_Page]:
    """Yield the pages of the indexes of some parts, which a start reads before any sample."""
    for group in version.manifest["groups"]:
        has_group = version.parts.has_group(group)[parts]
        for part in parts[has_group].tolist():
            row = version.parts.shard(group, part)
            place = IndexPlace.of(row)
            content = contents.index_content(place)
            if content is None:
                continue
            n_pages = -(-content.nbytes // page_bytes)  # rounded up
            for number in range(n_pages):
                yield _Page(place.path, content, number, is_of_index=True)


def _numbers_by_path(lookup: Lookup, ordinals: Int64s, page_bytes: int) -> dict[str, set[int]]:
    """Return shard path -> numbers of the pages that hold bytes of the samples."""
    numbers: dict[str, set[int]] = {}
    # Block by block: places of all samples of a large version do not fit into memory.
    for start in range(0, len(ordinals), BLOCK_SAMPLES):
        block = ordinals[start : start + BLOCK_SAMPLES]
        number_of_version = np.zeros(len(block), np.int64)
        places = lookup.places(number_of_version, block)
        for field in places.fields.values():
            for shard, rows in field.by_shard():
                extents = Extents(
                    field.offset[rows],
                    field.nbytes[rows],
                )
                of_shard = numbers.setdefault(shard.path, set())
                of_shard.update(extent_pages(extents, page_bytes))
    return numbers


def _object_pages(contents: ShardContents, path: str, numbers: Sequence[int]) -> Iterator[_Page]:
    """Yield these pages of a shard."""
    content = contents(path)
    if content is None:
        return  # it holds redacted samples: its pages are never kept
    for number in numbers:
        yield _Page(path, content, number)
