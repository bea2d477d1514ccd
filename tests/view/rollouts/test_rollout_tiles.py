"""Tiles of rollouts in a version's grid: environment, reward and length in place of field names."""

from penstock.view.inspect import rollout_tiles
from tests.view.conftest import write_photos
from tests.view.filtered_pages import read_page
from tests.view.rollouts.rig import HOSTILE, LONG, write_rollouts
from tests.view.test_web import Served


def test_rollout_has_its_environment_reward_and_length(root):
    version = write_rollouts(root)
    lines = {row.key: row.line for row in read_page(version).rows}
    assert lines["0/1/0"] == f"</script><img src=x onerror=alert(1)>, reward 0, {LONG:,} tokens"
    assert lines["1/0/3"] == "</script><img src=x onerror=alert(1)>, reward 1, 41 tokens"
    ordered = read_page(version, sort="-n_tokens").rows
    assert [row.line for row in ordered] == [lines[row.key] for row in ordered]


def test_lines_are_read_for_rollouts_only(root, monkeypatch):
    version = write_photos(root)
    monkeypatch.setattr(rollout_tiles, "columns_of_rows", None)
    assert {row.line for row in read_page(version).rows} == {""}


def test_tile_is_text(root, tmp_path):
    write_rollouts(root)
    with Served(tmp_path / "root", recipe=None) as served:
        page = served.get("/v/rl/1").text
    assert HOSTILE not in page
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;, reward" in page
    assert "advantages.npy, " not in page
