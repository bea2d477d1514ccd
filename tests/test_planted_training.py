"""The training with planted faults: from a bad step to all samples like its worst, and to a training without them."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import loader

REPOSITORY = Path(__file__).parent.parent
COPIES = 20


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A folder as the demo's, with 48 photos of shapes and colours that differ."""
    rng = np.random.default_rng(5)
    for folder in ("things", "textures", "people", "plants"):
        place = tmp_path / "demo" / "raw" / "photos" / folder
        place.mkdir(parents=True)
        for number in range(12):
            coarse = rng.integers(0, 256, (4 + 3 * number, 5 + 2 * number, 3), np.uint8)
            Image.fromarray(coarse).resize((360, 288)).save(place / f"{folder}-{number}.png")
    (place.parent / "textures" / "textures-0.png").rename(place.parent / "textures" / "gravel.png")
    return tmp_path / "demo"


def run_planted(demo: Path, *more: str) -> None:
    command = [
        sys.executable,
        "-m",
        "examples.planted",
        "--demo",
        str(demo),
        "--into",
        str(demo / "planted"),
        *more,
    ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def penstock(demo: Path, *arguments: str, given: str = "") -> str:
    command = [sys.executable, "-m", "penstock", *arguments, "--root", str(demo / "planted" / "root")]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, input=given)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def raw_names(demo: Path, ref: str) -> dict[str, str]:
    """Key -> key of the raw object, of a version's samples."""
    with loader.Root(demo / "planted" / "root") as root:
        rows = root.open(ref).samples().select("key", "source_key").collect()
    return dict(rows.iter_rows())


def bad_step(demo: Path, copies: set[str]) -> tuple[str, str]:
    """Return the first step and slot whose loss is not finite and whose sample is one of the copies."""
    for step, slot in re.findall(
        r"step (\d+) slot (\d+)  loss nan", penstock(demo, "trail", "show", "planted")
    ):
        (explained,) = json.loads(penstock(demo, "explain", f"planted@{step}", "--slot", slot, "--json"))
        if explained["key"] in copies:
            return step, slot
    raise AssertionError("the trail shows no step with a copy")


@pytest.mark.server  # processes of Dagster
def test_copies_of_a_bad_sample_are_found_from_its_step_and_the_next_training_lacks_them(demo: Path) -> None:
    run_planted(demo, "--copies", str(COPIES))
    raw = raw_names(demo, "demo@1")
    copies = {key for key, name in raw.items() if "/closed-" in name}
    assert len(copies) == COPIES
    assert len(raw) > 60

    step, slot = bad_step(demo, copies)
    shown = penstock(demo, "search", "demo@1", "--like", f"planted@{step}", "--k", "60", "--json")
    found = [row["key"] for row in json.loads(shown)["found"]]
    assert set(found[:COPIES]) == copies

    keys = "\n".join(found[:COPIES])
    why = "the shutter was closed"
    penstock(
        demo, "slice", "save", "demo@1", "closed", "--from", "-", "--by", "ann", "--why", why, given=keys
    )
    penstock(demo, "exclude", "demo@1", "--slice", "closed", "--by", "ann", "--reason", why)
    run_planted(demo, "--train", "again")

    assert raw_names(demo, "demo@2").keys() == raw.keys() - copies
    trail = penstock(demo, "trail", "show", "again")
    assert "of demo@2" in trail
    (explained,) = json.loads(penstock(demo, "explain", f"planted@{step}", "--slot", slot, "--json"))
    assert explained["key"] in copies
    assert explained["excluded"] == {"version": "demo@2", "by": "ann", "reason": why, "slice": "demo/closed"}
