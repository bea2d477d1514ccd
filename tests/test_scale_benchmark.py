"""The machinery of `python -m benchmarks.scale`. No speed is asserted."""

import subprocess
import sys

from benchmarks.contest import ROOT
from tests.servers.patience import PATIENCE_S


def test_page_has_a_row_for_each_size_and_each_look(tmp_path):
    page = tmp_path / "page.md"
    small = (
        "--shards",
        "200",
        "--publishes",
        "20",
        "--rounds",
        "1",
        "--objects",
        "400",
        "--note",
        "A small one.",
    )
    command = [sys.executable, "-m", "benchmarks.scale", *small, "--out", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    text = page.read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert done.stdout.splitlines() == rows
    assert [row.split(" | ")[:2] for row in rows[:4]] == [
        ["| 200", "1"],
        ["| 2", "1"],
        ["| 20", "2"],
        ["| 200", "20"],
    ]
    assert [row.split(" | ")[1] for row in rows[4:]] == ["first plan", "plan", "sweep"] * 2
    assert [row.split(" | ")[-2:] for row in (rows[6], rows[9])] == [["202", "202 |"]] * 2, (
        "half, with two tables"
    )
    assert "A small one." in text
