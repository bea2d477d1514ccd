"""Sizes of caches: whole numbers within limits."""

import numpy as np
import pytest

from loader.cache.spec import PAGE_BYTES, PAGE_BYTES_MAX, PAGES_MIN, NodeCache, PageMemory
from loader.errors import InvalidRuntime
from tests.refusals import refusal


@pytest.mark.parametrize("value", [4095, PAGE_BYTES_MAX + 1, True, 4096.0, "4096"])
def test_page_bytes_outside_limits_are_refused(tmp_path, value):
    with refusal(InvalidRuntime, what="page_bytes", given=value):
        PageMemory(page_bytes=value)
    with refusal(InvalidRuntime, what="page_bytes", given=value):
        NodeCache(path=tmp_path, page_bytes=value)


@pytest.mark.parametrize("value", [-1, 2**63 + 1, True, 1e9])
def test_limit_bytes_outside_limits_are_refused(tmp_path, value):
    with refusal(InvalidRuntime, what="limit_bytes", given=value):
        PageMemory(limit_bytes=value)
    with refusal(InvalidRuntime, what="limit_bytes", given=value):
        NodeCache(path=tmp_path, limit_bytes=value)


def test_node_cache_smaller_than_its_least_pages_is_refused(tmp_path):
    limit = PAGES_MIN * PAGE_BYTES
    with refusal(InvalidRuntime, what="limit_bytes", given=limit - 1):
        NodeCache(path=tmp_path, limit_bytes=limit - 1)
    assert NodeCache(path=tmp_path, limit_bytes=limit).limit_bytes == limit


def test_integers_of_numpy_become_ints(tmp_path):
    memory = PageMemory(limit_bytes=np.int64(2**30), page_bytes=np.int32(8192))
    node = NodeCache(path=tmp_path, limit_bytes=np.int64(2**30), page_bytes=np.uint16(8192))
    for spec in (memory, node):
        assert type(spec.limit_bytes) is int
        assert type(spec.page_bytes) is int
    assert memory == PageMemory(limit_bytes=2**30, page_bytes=8192)
