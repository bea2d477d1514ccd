"""The lines of the README and of the tour are typed in as they stand, and their links and test names are real."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "README.md").read_text()
GUARANTEES = (ROOT / "docs" / "guarantees.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/code-tour.md",
    "docs/compare.md",
    "docs/concepts.md",
    "docs/cookbook.md",
    "docs/guarantees.md",
    "docs/index.md",
    "docs/install.md",
    "docs/tour.md",
    "docs/training.md",
    "docs/troubleshooting.md",
    "docs/limits.md",
    "docs/upgrading.md",
)


BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```$", re.M | re.S)
"""A block of a page: its language, its name, its text."""


def shell_output(kind: str, name: str, code: str, folder: Path, interactive: bool = False) -> str:
    """Return what a block prints in a new shell with this environment activated, and nothing else on its path.

    interactive: at Python's own prompt, line by line.
    """
    if kind == "python" and not interactive:
        (folder / name).write_text(code)
    command = code if kind == "sh" else f"python {'-i -q' if interactive else name}"
    text = f"source '{Path(sys.executable).parent / 'activate'}'\n{command}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={"PATH": os.defpath, "HOME": str(folder)},
        input=code if interactive else "",
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (name, done.stdout, done.stderr)
    assert not re.search(r"^\w*Error\b", done.stderr, re.M), done.stderr
    return done.stdout


CHANGES = ("damage", "takedown")
"""Blocks of the shell that write, and so may differ the second time."""


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as GitHub and mkdocs name them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("interactive", [False, True], ids=["saved", "at the prompt"])
def test_readme_blocks_run_in_order_and_twice(tmp_path: Path, interactive: bool) -> None:
    blocks = BLOCK.findall(TEXT)
    assert [name for _, name, _ in blocks] == ["write.py", "", "read.py", "", "items.py", ""]
    for (kind, name, code), (_, _, printed) in zip(blocks[::2], blocks[1::2], strict=True):
        for _ in range(1 if interactive else 2):
            assert shell_output(kind, name, code, tmp_path, interactive) == printed


def test_readme_installs_what_its_blocks_need() -> None:
    """`where()` needs polars, and a batch of tensors torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    install = re.search(r"pip install -e '\.\[(.*)\]'", TEXT)
    assert install is not None
    named = {re.split(r"\W", need)[0] for extra in install[1].split(",") for need in extras[extra]}
    assert {"torch", "polars", "pillow"} <= named
    assert "source .venv/bin/activate" in TEXT
    assert project["name"] in TEXT


def test_tour_runs_as_it_stands_and_twice(tmp_path: Path) -> None:
    """Every block in order, each in a shell of its own; a block of text behind one is all that it prints."""
    blocks = BLOCK.findall(TOUR)
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
    again: dict[str, str] = {}
    name = ""
    for kind, called, code in blocks:
        if kind == "text":
            assert printed[name] == again.get(name, code) == code, name
            continue
        name = called
        printed[name] = shell_output(kind, name, code, tmp_path)
        if kind == "python" or name in CHANGES:
            again[name] = shell_output(kind, name, code, tmp_path)
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


def test_commands_of_the_tour_are_verbs_of_the_command_line() -> None:
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
