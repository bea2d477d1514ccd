"""Pages whose files a server keeps open."""

import os

import pytest

from loader.cache.peers import open_pages
from loader.cache.peers.served_cache import ServedCache
from loader.cache.spec import NodeCache

PAGE = 4096
NAMES = [f"{number:040x}" for number in range(4)]


@pytest.fixture
def cache(tmp_path):
    spec = NodeCache(path=tmp_path / "cache", limit_bytes=100 * PAGE, page_bytes=PAGE)
    cache = ServedCache(spec, lambda *_: None)
    for name in NAMES:
        grant = cache.read(name, (), claim=PAGE)
        assert cache.put(name, grant.nonce, name.encode() * 100)
    yield cache
    cache.close()


def path(cache, name):
    return os.path.join(cache._folder, "pages", name[-2:], name)


def open_files(folder):
    """Return the files below a folder that this process has open, without its loaders' signs."""
    files = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except FileNotFoundError:
            continue  # the descriptor of the list itself
        if target.startswith(str(folder)) and "/loaders/" not in target:
            files.append(target)
    return files


def test_page_stays_open(cache):
    first = cache.open_page(NAMES[0])
    assert cache.open_page(NAMES[0]) is first


def test_deleted_page_is_not_sent(cache):
    cache.open_page(NAMES[0])
    os.unlink(path(cache, NAMES[0]))  # a takedown, or another process that makes room
    assert cache.open_page(NAMES[0]) is None


def test_page_that_changed_is_checked_again(cache):
    cache.open_page(NAMES[0])
    with open(path(cache, NAMES[0]), "r+b") as file:
        file.seek(100)
        file.write(b"\0")
    assert cache.open_page(NAMES[0]) is None


def test_replaced_page_is_opened_anew(cache):
    first = cache.open_page(NAMES[0])
    cache.discard(NAMES[0])
    grant = cache.read(NAMES[0], (), claim=PAGE)
    cache.put(NAMES[0], grant.nonce, b"other bytes")
    second = cache.open_page(NAMES[0])
    assert second.nbytes == len(b"other bytes")
    assert second.identity != first.identity


def test_open_files_are_bounded_and_a_page_in_use_stays_open(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(open_pages, "OPEN_PAGES", 2)
    monkeypatch.setattr(cache, "_open_pages", open_pages.OpenPages())
    in_use = cache.open_page(NAMES[0])
    for name in NAMES[1:]:
        cache.open_page(name)
    assert sorted(open_files(tmp_path)) == sorted(path(cache, name) for name in (NAMES[0], *NAMES[2:]))
    assert os.pread(in_use.descriptor, 40, 16) == NAMES[0].encode()
    del in_use
    assert len(open_files(tmp_path)) == 2


def test_files_of_deleted_pages_are_closed_by_the_beat(cache, tmp_path):
    for name in NAMES:
        cache.open_page(name)
        os.unlink(path(cache, name))
    cache.beat()
    assert open_files(tmp_path) == []
