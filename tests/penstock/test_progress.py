"""The bar on a terminal: it ends at 100 %, tells the time left, and is nowhere else."""

import io
import re
from types import SimpleNamespace

import pytest

import loader
from loader.storage import open_store
from penstock import progress as module
from penstock.progress import progress
from penstock.upkeep.copying.items import Pace
from penstock.upkeep.copying.journal import Journal
from penstock.upkeep.migrate.mirror_update import migrate
from tests.mortal_store import Killed
from tests.proxy_stores import ObservedStore


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self):
        return True

    @property
    def shown(self):
        """(share in per cent, seconds left) of each time that the bar was drawn."""
        found = re.findall(r"\[([#-]{30})\] +(\d+)% +(\d+) s left", self.getvalue())
        assert all(abs(bar.count("#") - int(share) * 30 / 100) < 1.2 for bar, share, _ in found)
        return [(int(share), int(left)) for _, share, left in found]


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=found))
    return found


@pytest.fixture
def passes(monkeypatch):
    """passes(seconds): the bar's clock goes on."""
    now = [1000.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def passes(seconds):
        now[0] += seconds

    return passes


def test_it_ends_at_100_and_tells_the_time_left(terminal, passes):
    for _ in progress("abcd", "work"):
        passes(10)
    assert terminal.shown == [(25, 30), (50, 20), (75, 10), (100, 0)]
    assert terminal.getvalue().startswith("\rwork [")
    assert terminal.getvalue().endswith(" \r"), "and is wiped off"


@pytest.mark.parametrize("total", [300, lambda: 300])
def test_items_that_are_not_alike(terminal, passes, total):
    for nbytes in progress(iter([30, 120, 0, 150]), "work", lambda nbytes: nbytes, total):
        passes(nbytes)
    assert terminal.shown == [(10, 270), (50, 150), (100, 0)], "what takes no time is not drawn again"


def test_more_than_was_said_and_nothing_at_all(terminal, passes):
    assert list(progress([5, 5, 5], "work", lambda n: n, 10)) == [5, 5, 5]
    assert [share for share, _ in terminal.shown] == [50, 100, 100]
    assert list(progress([], "nothing")) == []
    assert list(progress(iter([0]), "nothing", lambda n: n, lambda: 0)) == [0]
    assert terminal.shown[-1] == (100, 0)


def test_it_is_quiet_where_nobody_looks(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=file))

    def total():
        pytest.fail("nobody watches, so nobody asks")

    assert list(progress(iter("abc"), "work", total=total)) == ["a", "b", "c"]
    assert file.getvalue() == ""


def test_migration_that_is_resumed_ends_at_100(tmp_path, monkeypatch, terminal):
    monkeypatch.setattr("penstock.upkeep.copying.journal.LINES", 5)
    root = loader.Root(str(tmp_path / "primary"))
    with root.write("d", part_samples=5) as writer:
        for i in range(50):
            writer.add(f"k{i}", {"bin": bytes(1000)})
    place, objects = open_store(str(tmp_path / "mirror")), iter(range(18))

    def die_at_the_18th(verb, key):
        if verb == "put_if_absent" and key.startswith("data/") and next(objects, None) is None:
            raise Killed

    with pytest.raises(Killed):
        migrate(root, ObservedStore(place, die_at_the_18th), Pace(), at_once=1)
    with Journal(place) as journal:
        assert 10 <= len(journal) <= 18
    terminal.truncate(terminal.seek(0))
    with monkeypatch.context() as patch:  # each object is drawn
        ticks = iter(range(1000, 10_000))
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
        assert not migrate(root, place, Pace(), at_once=1).failures
    shares = [share for share, _ in terminal.shown]
    assert shares == sorted(shares)
    assert shares[0] < 50
    assert terminal.shown[-1] == (100, 0)


def test_migration_tells_nothing_where_nobody_looks(tmp_path, capsys):
    root = loader.Root(str(tmp_path / "primary"))
    with root.write("d") as writer:
        writer.add("k", {"cls": 1})
    assert not migrate(root, open_store(str(tmp_path / "mirror")), Pace()).failures
    assert capsys.readouterr() == ("", "")
