"""A document is taken down: no band of it is left, and its copy is a document of its own."""

import random
from typing import Any

from assets.dedup.band_segments import RECORD, list_segments
from assets.dedup.policy import NearDuplicates, TextMatch
from assets.gate_settings import Gate
from assets.spec import DatasetSpec, Feature
from loader.dataset.log.denies import Target
from penstock.upkeep.takedown.prove import prove
from penstock.upkeep.takedown.takedown_run import run_takedown

SPEC = DatasetSpec(
    name="texts",
    features=(Feature(name="minhash"),),
    near_duplicates=NearDuplicates(text=TextMatch()),
    gate=Gate(suite=()),
)


def article(seed: int, end: str = "") -> bytes:
    draw = random.Random(seed)
    words = [f"word{draw.randrange(10**6)}" for _ in range(200)]
    return " ".join([*words, end]).encode()


def unclean(root: Any, n: int) -> set[str]:
    """What a proof finds under `tables/`."""
    places = prove(root, n)["places"]
    return {place["path"] for place in places if not place["clean"] and "/bands/" in place.get("path", "")}


def test_takedown_deletes_the_bands_of_a_document(dataset: Any) -> None:
    root = dataset.root
    dataset.batch(SPEC, {"a.txt": article(1), "b.txt": article(2)})
    dataset.release(SPEC)
    dataset.batch(SPEC, {"c.txt": article(3)})  # which indexes the first version
    version = dataset.release(SPEC).version
    table = version.samples().collect()
    (key,) = table.filter(table["raw_key"] == "a.txt")["key"]
    (folder,) = list_segments(root.store, "texts")
    before = {info.key: bytes(root.store.get(info.key).data) for info in root.store.list(folder)}
    assert len(before) == 2

    n = root.log.deny([Target(kind="sample", dataset="texts", value=key)], "ticket 4", "privacy desk").n
    run_takedown(root, n, apply=True)
    assert list_segments(root.store, "texts") == {}
    assert unclean(root, n) == set()

    batch = dataset.batch(SPEC, {"again.txt": article(1, "again"), "d.txt": article(2, "again")})
    outcomes = {name: row["outcome"] for name, row in dataset.accounts(SPEC, batch).items()}
    assert outcomes == {"again.txt": "used", "d.txt": "dropped"}
    assert unclean(root, n) == set()
    # A batch that ran meanwhile writes what it read before.
    for path, data in before.items():
        root.store.put(path, data)
    assert unclean(root, n) == set(before)
    root.store.delete_many([folder + RECORD])
    assert unclean(root, n) == before.keys() - {folder + RECORD}
    run_takedown(root, n, apply=True)
    assert unclean(root, n) == set()
    assert len(list_segments(root.store, "texts")) == 1
