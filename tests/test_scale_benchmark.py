"""The machinery of `python -m benchmarks.scale`. No speed is asserted."""

from benchmarks.contest import ROOT
from tests.servers.processes import python


def run(*command: str) -> list[str]:
    return python("-m", *command, cwd=ROOT, check=True).stdout.splitlines()


def test_page_has_a_row_for_each_size(tmp_path):
    page = tmp_path / "page.md"
    small = ("--shards", "200", "--publishes", "20", "--rounds", "1", "--note", "A small one.")
    told = run("benchmarks.scale", *small, "--out", str(page))
    text = page.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert told == rows
    assert [row.split(" | ")[:2] for row in rows] == [["| 200", "1"], ["| 20", "2"], ["| 200", "20"]]
    assert "A small one." in text


def test_collector_has_a_row_for_each_look(tmp_path):
    for where in ((), ("--disk", str(tmp_path))):
        rows = run("benchmarks.collect", "400", *where)
        assert [row.split(" | ")[1] for row in rows] == ["first plan", "plan", "sweep"]
        assert rows[2].split(" | ")[-2:] == ["202", "202 |"], "half, with two tables"
