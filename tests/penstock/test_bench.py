"""`penstock bench`: what it prints, that its numbers fit together, and that it names what limits."""

import re
import threading
from pathlib import Path

import numpy as np
import pytest

import loader
from loader.native import KIND
from loader.run.batch.batch import MAKING
from loader.run.metrics import LIMITS
from penstock.bench import ADVICE, bench
from tests.proxy_stores import ProxyStore

SHORT = ("--batch", "6", "--seconds", "0.05")


def test_the_table(cli, sample_root):
    root, _ = sample_root
    run = cli("bench", "d@4", *SHORT, "--workers", "2", root=root)
    assert (run.code, run.err) == (0, "")
    head, _, titles, *rows = run.out.splitlines()
    assert head == "d@4: cls, x.npy of 13 samples, shuffled batches of 6", "'emb.npy' is there for some only"
    assert titles.split() == ["ms/batch", "samples/s", "MB/s", "share"]
    names = [row[:12].strip() for row in rows[: rows.index("")]]
    assert names == ["plan", "address", "fetch", "verify", "decode", "collate", "one thread", "2 workers"]
    assert all(re.fullmatch(r".{12} +[\d,.]+ +[\d,]+ +[\d,]+( +.* %)?", row) for row in rows[: len(names)]), (
        rows
    )
    assert rows[len(names) + 1] == f"samples on disk are read by: {KIND}"
    limit = rows[len(names) + 2].removeprefix("limited by: ")
    assert limit in ADVICE  # whatever took longest on a busy machine
    assert rows[-1] == f"  {ADVICE[limit]}"


def test_json(cli, sample_root):
    root, _ = sample_root
    body = cli("bench", "d@4", *SHORT, "--fields", "cls", "--workers", "1", "--json", root=root).json
    assert (body["version"], body["fields"], body["batch"], body["workers"]) == ("d@4", ["cls"], 6, 1)
    assert body["n_samples"] == 13
    assert body["stages"].keys() == MAKING.keys() - {"transform"}
    assert sum(rate["seconds"] for rate in body["stages"].values()) <= body["alone"]["seconds"]
    for rate in (body["alone"], body["together"], *body["stages"].values()):
        assert rate["samples_per_second"] == pytest.approx(6 / rate["seconds"])
        per_sample = rate["bytes_per_second"] / rate["samples_per_second"]
        assert 1 <= per_sample <= 2, "a class number has one digit or two"


def test_one_thread_is_enough(cli, sample_root):
    root, _ = sample_root
    out = cli("bench", "d@4", *SHORT, "--workers", "0", root=root).out
    assert "one thread" in out
    assert "workers  " not in out


def test_as_a_process(penstock, sample_root):
    root, _ = sample_root
    run = penstock("bench", "d@4", *SHORT, root=root)
    assert (run.code, run.err) == (0, ""), "no bar where there is no terminal"
    assert "limited by: " in run.out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("d@9",), "VersionNotFound"),
        (("d@4", "--fields", "nope"), "FieldNotFound"),
        (("d@4", "--batch", "0"), "InvalidPlan"),
        (("d@4", "--seconds", "0"), "InvalidRuntime"),
        (("d@4", "--seconds", "nan"), "InvalidRuntime"),
        (("d@4", "--workers", "-1"), "InvalidRuntime"),
    ],
)
def test_mistakes_are_status_2(cli, sample_root, arguments, error):
    run = cli("bench", *arguments, root=sample_root[0])
    assert (run.code, run.out) == (2, "")
    assert error in run.err


def test_damage_is_status_1_with_its_address(cli, own):
    version = loader.Root(own).open("d@1")
    at = version.address([3], ["cls"])[0].fields["cls"]
    path = Path(own) / at.path
    data = bytearray(path.read_bytes())
    data[at.offset] ^= 1
    path.write_bytes(data)
    every = str(len(version))
    run = cli("bench", "d@1", "--fields", "cls", "--seconds", "0.05", "--batch", every, root=own)
    assert run.code == 1
    assert at.path in run.err


def test_every_limit_has_its_advice():
    assert ADVICE.keys() == {*LIMITS.values(), "consumer", "copying", "peers"}


def test_copying_of_samples_in_the_page_cache_is_named(tmp_path):
    """They were written a moment ago: no store is waited for, so its remedies would not help."""
    root = loader.Root(tmp_path / "root")
    with root.write("d") as writer:
        for i in range(64):
            writer.add(f"k{i}", {"latent.npy": np.full((4, 128, 128), i, np.float32)})
    result = bench(root.open("d"), ["latent.npy"], batch=16, seconds=0.1, workers=1)
    assert max(result.stages, key=lambda stage: result.stages[stage].seconds) == "fetch"
    assert result.limited_by == "copying"
    assert result.advice == [ADVICE["copying"]], "no other store, and no more workers"


def test_slow_store_is_named(tmp_path):
    """Every range of a real root takes 5 ms more."""
    waiting = threading.Event()

    def slow(store, key, spans, **options):
        waiting.wait(0.005)
        return store.get_ranges(key, spans, **options)

    root = loader.Root(tmp_path / "root")
    with root.write("d", part_samples=8) as writer:
        for i in range(32):
            writer.add(f"k{i}", {"cls": i})
    root.store = ProxyStore(root.store, get_ranges=slow)
    found = bench(root.open("d"), ["cls"], batch=8, seconds=0.1, workers=1)
    assert found.limited_by == "store"
    assert found.advice[-1] == ADVICE["store"]
    assert max(found.stages, key=lambda stage: found.stages[stage].seconds) == "fetch"
