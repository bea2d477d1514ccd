"""Near documents through Dagster's jobs: the page of the asset names the original of each copy."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loader
from assets.dedup.policy import NearDuplicates, TextMatch
from assets.gate_settings import Gate
from assets.spec import DatasetSpec, Feature

SPEC = DatasetSpec(
    name="demo",
    features=(Feature(name="minhash"),),
    near_duplicates=NearDuplicates(text=TextMatch()),
    gate=Gate(suite=()),
)


def article(seed: int, end: str = "") -> str:
    draw = random.Random(seed)
    words = [f"word{draw.randrange(10**6)}" for _ in range(200)]
    return " ".join([*words, end])


def test_asset_page_names_the_original_of_a_copy(
    run: Callable[..., Any], arrive: Callable[[Path], str], root: loader.Root, tmp_path: Path
) -> None:
    place = tmp_path / "texts"
    place.mkdir()
    (place / "a.txt").write_text(article(1))
    (place / "b.txt").write_text(article(2))
    assert run("ingest", SPEC, arrive(place), place).success
    assert run("release", SPEC, place=place).success
    table = root.open("demo@1").samples().collect()
    (original,) = table.filter(table["raw_key"] == "a.txt")["key"]

    (place / "c.txt").write_text(article(1, "and an end"))
    (place / "d.txt").write_text(article(3))
    result = run("ingest", SPEC, arrive(place), place)
    assert result.success
    (event,) = result.asset_materializations_for_node("demo__samples")
    metadata = event.metadata
    assert metadata["near_duplicates"].value == 1
    shown = metadata["left_out_by_reason"].value.replace("\\", "")
    assert f"near_duplicate of {original} (similarity 0.9" in shown
    assert run("release", SPEC, place=place).success
    keys = set(root.open("demo@2").samples().collect()["raw_key"])
    assert keys == {"a.txt", "b.txt", "d.txt"}
