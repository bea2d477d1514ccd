"""What a copy takes from the pace, whichever way it goes; and the limits of the command line."""

import hashlib
import itertools
from random import Random

import pytest

import loader
from loader.storage import open_store
from penstock.upkeep.copying import items as pace_module
from penstock.upkeep.copying.copy_one import Transfer
from penstock.upkeep.copying.items import Item, Pace
from penstock.upkeep.migrate import mirror_update as run_module
from penstock.upkeep.migrate import prefix_copy as prefix_module
from penstock.upkeep.migrate import promote as promote_module
from penstock.upkeep.migrate.prefix_copy import migrate_prefix

DATA = Random(4).randbytes(10_000)
SHA256 = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
_numbers = itertools.count()


class Counted(Pace):
    """A pace that no limit slows down, and that says what was taken."""

    requests = nbytes = 0

    def take(self, requests=0, nbytes=0):
        self.requests, self.nbytes = self.requests + requests, self.nbytes + nbytes


@pytest.fixture(params=["disk", "memory"])
def places(request, tmp_path):
    """Source and target."""
    if request.param == "disk":
        return open_store(str(tmp_path / "from")), open_store(str(tmp_path / "to"))
    return open_store(f"memory://pace-{next(_numbers)}"), open_store(f"memory://pace-{next(_numbers)}")


@pytest.fixture
def copy_cost(places, monkeypatch):
    """copy_cost(**item) -> (requests, bytes) of copying DATA; pieces are 4,000 bytes."""
    for name in ("PIECE_BYTES", "SMALL_PIECE_BYTES"):
        monkeypatch.setattr(f"penstock.upkeep.copying.copy_one.{name}", 4_000)
    monkeypatch.setattr("loader.storage.stream.MAX_BYTES", 4_000)

    def measure_copy(may_exist=False, **item):
        source, target = places
        source.put("k", DATA)
        pace = Counted()
        found = Transfer(source, target, pace)(Item(path="k", **item), may_exist=may_exist)
        assert target.get("k").data == DATA
        assert (found.digest, found.written) == ("", False) if may_exist else (SHA256, True)
        return pace.requests, pace.nbytes

    return measure_copy


def test_of_an_object_that_is_held(copy_cost):
    assert copy_cost(nbytes=len(DATA)) == (3 + 1, len(DATA)), "three pieces, and a put"


def test_of_an_object_that_goes_through_a_file(copy_cost, monkeypatch):
    monkeypatch.setattr("penstock.upkeep.copying.copy_one.HELD_BYTES", 5_000)
    monkeypatch.setattr("loader.storage.stream.FIRST_BYTES", 4_000)
    requests, nbytes = copy_cost(nbytes=len(DATA))
    assert requests >= 3 + 4, "three pieces; a look, and an upload in parts"
    assert nbytes == len(DATA)


def test_of_an_object_whose_size_nobody_says(copy_cost):
    assert copy_cost(nbytes=None) == (1 + 1, len(DATA))


def test_of_an_object_that_is_there(copy_cost):
    copy_cost(nbytes=len(DATA))
    assert copy_cost(nbytes=len(DATA), may_exist=True) == (1, 0)


def test_run_takes_each_byte_once(places):
    source, target = places
    for number in range(20):
        source.put(f"k{number}", bytes(100 * number))
    pace = Counted()
    report = migrate_prefix(source, target, pace, at_once=3)
    assert (pace.requests, pace.nbytes) == (2 * report.copied, report.nbytes) == (40, 19_000)
    migrate_prefix(source, target, pace)
    assert (pace.requests, pace.nbytes) == (40, 19_000), "nothing is copied again"


def test_copy_waits_for_its_rate_limit(places):
    """In its own time: nobody sleeps."""
    source, target = places
    for number in range(10):
        source.put(f"k{number}", bytes(1000))
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    pace = Pace(bytes_per_s=500, clock=lambda: now[0], sleep=sleep)
    assert migrate_prefix(source, target, pace, at_once=1).copied == 10
    assert now[0] == pytest.approx(10 * 1000 / 500)


# the command line


@pytest.fixture
def pace_calls(monkeypatch):
    """What limits the commands made a pace of, what was taken from it, and how many objects they copied at once."""
    found = {"pace": [], "at_once": []}

    class Seen(Counted):
        def __init__(self, *limits):
            super().__init__(*limits)
            found["pace"].append((self, *limits))

    def spy(module, name):
        real = getattr(module, name)

        def call(*args, **kwargs):
            found["at_once"].append(kwargs["at_once"])
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, call)

    monkeypatch.setattr(pace_module, "Pace", Seen)
    spy(run_module, "migrate")
    spy(prefix_module, "migrate_prefix")
    spy(promote_module, "promote")
    return found


@pytest.mark.parametrize("verb", ["run", "promote", "prefix"])
def test_limits_reach_the_pace(cli, pace_calls, verb, tmp_path):
    with loader.Root(str(tmp_path / "root")).write("d") as writer:
        writer.add("k", {"cls": 1})
    if verb == "promote":  # only a mirror is promoted; this one lags
        assert cli("migrate", "run", tmp_path / "target", root=tmp_path / "root").code == 0
        with loader.Root(str(tmp_path / "root")).write("d") as writer:
            writer.add("later", {"cls": 1})
        for calls in pace_calls.values():
            calls.clear()
    open_store(str(tmp_path / "plain")).put("k", DATA)
    what = ("run", "--from", tmp_path / "plain") if verb == "prefix" else (verb,)
    limits = ("--requests-per-s", "5e3", "--bytes-per-s", "1048576.5", "--at-once", "3")
    run = cli("migrate", *what, tmp_path / "target", *limits, root=tmp_path / "root")
    assert (run.code, run.err) == (0, "")
    ((pace, *said),) = pace_calls["pace"]
    assert said == [5000.0, 1048576.5]
    assert pace_calls["at_once"] == [3]
    assert pace.requests > 0
    assert pace.nbytes > 0


def test_without_limits_there_are_none(cli, pace_calls, tmp_path):
    open_store(str(tmp_path / "plain")).put("k", DATA)
    assert cli("migrate", "run", "--from", tmp_path / "plain", tmp_path / "target").code == 0
    assert [said[1:] for said in pace_calls["pace"]] == [(None, None)]
    assert pace_calls["at_once"] == [16]


@pytest.mark.parametrize("verb", ["run", "promote"])
@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (("--requests-per-s", "0"), "requests_per_s = 0: a number above 0 is needed, or leave it out"),
        (("--bytes-per-s", "-1"), "bytes_per_s = -1: a number above 0 is needed, or leave it out"),
        (("--bytes-per-s", "nan"), "bytes_per_s = nan: a number above 0 is needed, or leave it out"),
        (("--at-once", "0"), "--at-once 0: a number of objects above 0 is needed"),
        (("--requests-per-s", "many"), "argument --requests-per-s: invalid float value: 'many'"),
        (("--bytes-per-s", "10MiB"), "argument --bytes-per-s: invalid float value: '10MiB'"),
        (("--at-once", "2.5"), "argument --at-once: invalid int value: '2.5'"),
    ],
)
def test_limits_that_are_none_are_refused_before_anything_is_done(cli, tmp_path, verb, limits, words):
    with loader.Root(str(tmp_path / "root")).write("d") as writer:
        writer.add("k", {"cls": 1})
    run = cli("migrate", verb, tmp_path / "target", *limits, root=tmp_path / "root")
    assert run.code == 2
    assert words in run.err
    assert not list(open_store(str(tmp_path / "target")).list(""))
