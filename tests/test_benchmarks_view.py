"""The machinery of the viewer's benchmark: rows, addresses, the page. No speed is asserted."""

from pathlib import Path

import pytest

from benchmarks.maps import maps
from benchmarks.view import facet_rows, page
from benchmarks.view.browser import Viewer, percentile, pictures_of
from benchmarks.view.episode_rows import episode
from benchmarks.view.facet_rows import facets
from benchmarks.view.rows import Row
from benchmarks.view.slice_rows import slices
from benchmarks.view.world import LONG_RUN, RUN, Sizes, make


def test_row_says_whether_its_median_reaches_the_goal() -> None:
    assert str(Row(what="a", values=[1.0, 9.0, 2.0], unit="s", goal=2)) == "- a: 2.00 (1.00-9.00) s (≤ 2)"
    missed = Row(what="- a", values=[2.1], unit="s", goal=2)
    assert str(missed) == "  - a: **2.10 s** (≤ 2)"
    assert (missed.is_missed, missed.is_detail) == (True, True)
    slow = Row(what="a", values=[60.0, 59.0], unit="/s", goal=60, more_is_better=True, digits=0)
    assert str(slow) == "- a: **60 (59-60) /s** (≥ 60)"
    assert str(Row(what="- b", values=[3.0], unit="MiB", digits=0)) == "  - b: 3 MiB"


def test_pages_pictures_are_asked_for_where_the_page_is() -> None:
    html = '<img loading="lazy" alt="a" src="../../r/x/3/thumb/1/jpg?world=8&amp;rank=3"><img src="b.png"><p src="c">'
    assert pictures_of(html, "/r/x/3") == ["/r/x/3/thumb/1/jpg?world=8&rank=3", "/r/x/b.png"]


def test_episode_is_asked_for_as_its_page_does(tmp_path: Path) -> None:
    rows = list(episode(tmp_path, rounds=1, seconds=20))
    assert [row.is_detail for row in rows] == [True] * 6
    assert all(row.values and min(row.values) > 0 for row in rows)


def test_facets_are_clicked_as_their_page_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facet_rows, "IDLE_S", 0)
    rows = list(facets(tmp_path / "root", rounds=1, sizes=[300]))
    assert all(row.values and min(row.values) >= 0 for row in rows)
    assert [row.unit for row in rows] == ["ms", "ms", "kB", "kB", "kB", "ms", "ms", "MiB"]


def test_slices_are_saved_and_opened_by_the_benchmark(tmp_path: Path) -> None:
    rows = list(slices(tmp_path / "root", rounds=1, sizes=[300]))
    assert [row.unit for row in rows] == ["ms", "ms", "MiB"]
    assert all(row.values and min(row.values) >= 0 for row in rows)


def test_maps_are_measured() -> None:
    rows = list(maps(2_000, rounds=1, n_fitted=300))
    assert [row.unit for row in rows] == ["s", "s", "ms", "ms", "ms"]
    assert all(row.values and min(row.values) >= 0 for row in rows)


def test_percentile_is_one_of_the_values() -> None:
    values = [float(i) for i in range(100, 0, -1)]
    assert (percentile(values, 0.5), percentile(values, 0.95), percentile([7.0], 0.95)) == (51, 96, 7)


def test_page_names_its_command_and_has_a_detail_only_if_it_misses_its_goal() -> None:
    rows = [
        Row(what="a", values=[1.0], unit="s", goal=2),
        Row(what="- b", values=[1.0], unit="s", goal=2),
        Row(what="- c", values=[3.0], unit="s", goal=2),
    ]
    text = page.page_of(rows, "python -m benchmarks.view --rounds 1", "a machine", "Busy.")
    assert "Made by `python -m benchmarks.view --rounds 1` on a machine. Busy.\n" in text
    assert text.endswith("\n\n- a: 1.00 s (≤ 2)\n  - c: **3.00 s** (≤ 2)\n")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = Sizes(tiny=70, photos=30, large=2, batch=8, steps=2, long_steps=2_500)
    return make(tmp_path_factory.mktemp("world"), sizes)


def test_real_server_shows_every_page_that_is_measured(root: Path) -> None:
    with Viewer(str(root)) as viewer:
        assert viewer.look("/v/tiny/1").pictures == 24
        assert viewer.look("/v/tiny/1?from=60").pictures == 10
        assert viewer.look(f"/r/{RUN}/1", pictures=256).pictures == 8
        assert "2,500" in viewer.get(f"/r/{LONG_RUN}").decode()
        assert viewer.peak_mib()[0] > 10
        with pytest.raises(RuntimeError, match=r"/v/none/1: 404"):
            viewer.get("/v/none/1")


def test_root_is_made_once(root: Path) -> None:
    sizes = Sizes(tiny=70, photos=30, large=2, batch=8, steps=2, long_steps=2_500)
    before = sorted(path.stat().st_mtime_ns for path in root.rglob("*"))
    assert make(root.parent, sizes) == root
    assert sorted(path.stat().st_mtime_ns for path in root.rglob("*")) == before
