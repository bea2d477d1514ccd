"""Coalescing: which requests serve a set of ranges."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import InvalidStore
from loader.storage import ByteRange
from loader.storage.stream import plan_reads, slice_reads

DATA = bytes(range(256)) * 8
SPANS = st.lists(st.builds(ByteRange, st.integers(0, 1500), st.integers(0, 500)), max_size=12)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(spans=SPANS, max_gap=st.integers(0, 200), max_span=st.integers(1, 700))
def test_reads_serve_every_span(spans: list[ByteRange], max_gap: int, max_span: int):
    reads = plan_reads(spans, max_gap, max_span)
    data = [DATA[read.offset : read.offset + read.nbytes] for read in reads]
    assert slice_reads(spans, reads, data) == [DATA[o : o + n] for o, n in spans]
    assert all(0 < read.nbytes <= max_span for read in reads)
    assert all(a.offset + a.nbytes <= b.offset for a, b in pairwise(reads)), "ascending, no byte twice"


@settings(max_examples=300, derandomize=True, deadline=None)
@given(spans=SPANS, max_gap=st.integers(0, 200), max_span=st.integers(1, 700))
def test_only_gaps_are_read_beside_the_spans(spans: list[ByteRange], max_gap: int, max_span: int):
    wanted = {byte for o, n in spans for byte in range(o, o + n)}
    extra = 0
    for offset, nbytes in plan_reads(spans, max_gap, max_span):
        unwanted = [byte not in wanted for byte in range(offset, offset + nbytes)]
        assert not unwanted[0], "no read begins or ends in a gap"
        assert not unwanted[-1]
        run = 0
        for missing in unwanted:
            run = run + 1 if missing else 0
            extra = max(extra, run)
    assert extra <= max_gap


@pytest.mark.parametrize(
    ("spans", "max_gap", "max_span", "reads"),
    [
        ([], 10, 100, []),
        ([(5, 0)], 10, 100, []),
        ([(0, 10), (20, 10)], 10, 100, [(0, 30)]),
        ([(0, 10), (21, 10)], 10, 100, [(0, 10), (21, 10)]),
        ([(20, 10), (0, 10)], 10, 29, [(0, 10), (20, 10)]),
        ([(0, 250)], 0, 100, [(0, 100), (100, 100), (200, 50)]),
        ([(0, 80), (40, 80)], 0, 100, [(0, 80), (80, 40)]),
        ([(0, 50), (10, 5), (0, 50)], 0, 100, [(0, 50)]),
    ],
)
def test_plans(spans, max_gap: int, max_span: int, reads):
    assert plan_reads([ByteRange(*span) for span in spans], max_gap, max_span) == [
        ByteRange(*read) for read in reads
    ]


def test_span_that_is_a_read_is_not_copied():
    body = b"x" * 100
    assert slice_reads([ByteRange(7, 100)], [ByteRange(7, 100)], [body])[0] is body


@pytest.mark.parametrize(
    ("spans", "max_gap", "max_span"), [([(-1, 5)], 0, 1), ([(0, -5)], 0, 1), ([], -1, 1), ([], 0, 0)]
)
def test_nonsense_is_refused(spans, max_gap: int, max_span: int):
    with pytest.raises(InvalidStore):
        plan_reads([ByteRange(*span) for span in spans], max_gap, max_span)
