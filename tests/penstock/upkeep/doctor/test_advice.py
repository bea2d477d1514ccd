"""What is recommended follows from what was measured."""

import ast
import textwrap

import pytest

from penstock.upkeep.doctor.advice import advise
from penstock.upkeep.doctor.speed import Speed, cells, table


def speed(nbytes, concurrency, rate, median_s=0.001, verb="read"):
    return Speed(
        verb=verb,
        nbytes=nbytes,
        concurrency=concurrency,
        n_requests=10,
        requests_per_second=rate,
        bytes_per_second=rate * nbytes,
        median_s=median_s,
        p99_s=2 * median_s,
        cpu_s_per_gib=1.0,
    )


SMALL, LARGE = 2**16, 2**24


@pytest.mark.parametrize(
    ("rates", "wanted"),
    [
        ({1: 100, 4: 390, 16: 1500, 64: 1550}, 32),  # as many as are read ahead
        ({1: 100, 4: 400, 16: 1600, 64: 5000}, 128),
        ({1: 100, 4: 95, 16: 90, 64: 80}, 32),
    ],
)
def test_as_many_at_once_as_reach_nearly_the_best_rate(rates, wanted):
    speeds = [speed(SMALL, at_once, rate) for at_once, rate in rates.items()]
    found = advise(speeds, local=False)
    assert found.options == {"max_concurrency": wanted}


@pytest.mark.parametrize(("throttled", "wanted"), [(64, 32), (16, 8), (1, 1)])
def test_a_store_that_throttles_is_asked_by_half_as_many(throttled, wanted):
    speeds = [
        speed(SMALL, at_once, 100 * at_once, 0.01) for at_once in (1, 4, 16, 64) if at_once <= throttled
    ]
    found = advise(speeds, local=False, throttled=throttled)
    assert found.options == {"max_concurrency": wanted}
    assert not any("twice as many" in reason or "more add" in reason for reason in found.reasons)


def test_options_that_were_given_stay_in_what_is_pasted():
    given = {"endpoint_url": "http://h", "max_concurrency": 7}
    found = advise([speed(SMALL, 1, 50)], local=False, given=given)
    assert found.options == {"endpoint_url": "http://h", "max_concurrency": 32}
    shown = "  root = loader.Root('s3://b', options={'endpoint_url': 'http://h', 'max_concurrency': 32})"
    assert shown in found.to_lines("s3://b")


def test_what_is_pasted_opens_it_also_where_it_is_long():
    given = {"endpoint_url": f"https://{'long.' * 20}example", "region": "eu-west-1"}
    lines = advise([speed(SMALL, 1, 50)], local=False, given=given).to_lines("s3://b/p")
    pasted = lines[1 : next(at for at, line in enumerate(lines) if "loader.Loader" in line)]
    (called,) = ast.parse(textwrap.dedent("\n".join(pasted))).body
    (keyword,) = called.value.keywords
    assert ast.literal_eval(keyword.value) == {**given, "max_concurrency": 32}


@pytest.mark.parametrize(("median_s", "cached"), [(0.0005, False), (0.02, True)])
def test_a_long_way_is_worth_a_cache(median_s, cached):
    found = advise([speed(SMALL, 1, 50, median_s), speed(SMALL, 16, 60, 1.0)], local=False)
    assert ("cache" in found.loader) == cached


def test_the_smallest_read_that_reaches_half_of_the_best_bandwidth():
    speeds = [speed(SMALL, 1, 1000), speed(2**20, 1, 900), speed(LARGE, 1, 100)]
    assert advise(speeds, local=False).read_bytes == 2**20


def test_a_folder_needs_no_options():
    found = advise([speed(SMALL, 1, 50_000)], local=True)
    assert (found.options, found.loader) == ({}, {"workers": "auto"})


def test_nothing_is_advised_without_reads():
    assert advise([], local=False) is None
    assert advise([speed(SMALL, 1, 10, verb="write")], local=False) is None


def test_no_cell_holds_more_than_its_share_of_memory():
    found = list(cells())
    assert len(found) == len(set(found))
    assert max(cell.nbytes * cell.concurrency for cell in found) <= 256 * 2**20


def test_the_table_is_aligned():
    lines = list(table([speed(SMALL, 1, 12_345), speed(LARGE, 64, 1.5, 2.0)]))
    assert len({len(line) for line in lines}) == 1
