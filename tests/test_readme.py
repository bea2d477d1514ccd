"""The lines of the README and of the tour are typed in as they stand, and their links and test names are real."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/guarantees.md",
    "docs/tour.md",
    "docs/limits.md",
    "docs/upgrading.md",
)


def written(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What the lines print, run in the folder."""
    return subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_the_lines_print_what_the_readme_says(tmp_path: Path) -> None:
    code = dict(re.findall(r"```python (\w+)\n(.*?)```", TEXT, re.S))
    shown = re.findall(r"```text\n(.*?)```", TEXT, re.S)
    assert list(code) == ["read", "write"]
    assert TEXT.count("```python") == 2
    assert len(shown) == 1
    for name, printed in (("write", ""), ("read", shown[0])):
        run = written(code[name], tmp_path)
        assert (run.returncode, run.stdout) == (0, printed), run.stderr


def test_the_tour_runs_as_it_stands(tmp_path: Path) -> None:
    """Every block in order, each a process of its own; a block of text behind one is all that it prints."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, arguments in (("python", ""), ("penstock", "-m penstock")):
        (bin_ / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (bin_ / name).chmod(0o755)
    environment = os.environ | {"PATH": f"{bin_}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    environment.pop("PENSTOCK_ROOT", None)
    blocks = re.findall(r"^```(\w+) ?(\S*)\n(.*?)^```$", TOUR, re.M | re.S)
    assert [name for kind, name, _ in blocks if kind == "python"] == [
        "publish.py",
        "train.py",
        "change.py",
        "plan.py",
    ]
    assert [name for kind, name, _ in blocks if kind == "sh"] == [
        "commands",
        "difference",
        "explain",
        "damage",
        "takedown",
    ]
    printed = {"": ""}
    name = ""
    for kind, called, code in blocks:
        if kind == "text":
            assert printed[name] == code, name
            continue
        name = called
        if kind == "python":
            (tmp_path / name).write_text(code)
        command = [sys.executable, name] if kind == "python" else ["bash", "-euo", "pipefail", "-c", code]
        run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, (name, run.stdout, run.stderr)
        printed[name] = run.stdout
    assert (tmp_path / "card.html").stat().st_size
    assert "limited by" in printed["commands"]
    assert "+thumbs (thumb.npy)" in printed["difference"]
    assert re.search(r"raw_uri +s3://camera/\w+\.jpg\n", printed["explain"])
    problems, exit_status, sound = printed["damage"].partition("exit status 1\n")
    assert exit_status
    assert re.search(r"photos@2/\S+ media\[\d+:\d+\] sample 'white' field 'jpg'", problems)
    assert "nothing wrong" in sound
    assert "left at its source" in printed["takedown"]
    assert "incomplete" in printed["takedown"]
    assert "exit status 1" in printed["takedown"]
    assert "photos@3" in printed["takedown"].splitlines()[-1]
    assert (tmp_path / "proof.json").stat().st_size


def test_the_commands_of_the_tour_are_verbs_of_the_command_line() -> None:
    (block,) = re.findall(r"^```sh commands\n(.*?)^```$", TOUR, re.M | re.S)
    assert len(re.findall(r"^penstock ", block, re.M)) == 6


def test_every_guarantee_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| ([A-Z].*) \| (.*) \|$", GUARANTEES, re.M)
    assert len(rows) >= 48
    assert len({text for text, _ in rows}) == len(rows)
    assert f"All {len(rows)} guarantees" in TEXT
    for text, tests in rows:
        named = re.findall(r"`(tests/[\w/]+(?:\.py|/))`", tests)
        assert named, text
        assert tests == ", ".join(f"`{path}`" for path in named), text
        for path in named:
            files = sorted((ROOT / path).glob("**/test_*.py")) if path.endswith("/") else [ROOT / path]
            assert files, path
            assert any(re.search(r"^ *def test_", file.read_text(), re.M) for file in files), path


@pytest.mark.parametrize("page", PAGES)
def test_what_the_page_names_is_there(page: str) -> None:
    text, folder = (ROOT / page).read_text(), (ROOT / page).parent
    missing = {path for path in re.findall(r"`(tests/[\w/]+(?:\.py|/))`", text) if not (ROOT / path).exists()}
    for link in re.findall(r"\]\(((?!http)[^)]+)\)", text):
        path, _, anchor = link.partition("#")
        target = (folder / path) if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.add(link)
    assert not missing


def test_every_make_target_of_the_readme_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z]+)", TEXT + TOUR)):
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_the_readmes_speed_is_that_of_the_benchmarks_page() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    table = page.partition("## Images: 256 px JPEG, decoded, batches of 64\n")[2].partition("\n## ")[0]
    (ours,) = re.findall(r"^\| penstock, 2 worker processes \| ([\d,]+) ", table, re.M)
    (times,) = re.findall(
        r"^\| torch DataLoader, 2 workers \|.*\| ([\d.]+) \([\d.-]+\) \| [\d.]+ \|", table, re.M
    )
    assert f"{ours} samples/s" in TEXT
    assert f"{times} times torch's DataLoader" in TEXT
    assert "`python -m benchmarks --rounds 3`" in TEXT
    assert "`python -m benchmarks --rounds 3`" in page
