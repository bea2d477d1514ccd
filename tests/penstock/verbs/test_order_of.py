"""What is left of an epoch that was begun elsewhere, as a list that a training reads."""

import json

import numpy as np
import pytest

import loader
from loader.errors import InvalidRuntime
from penstock.formats.streaming_order import key_ordinals
from tests.refusals import refusal


@pytest.fixture
def root(tmp_path):
    """Of 30 samples of two runs; their keys elsewhere are `a.<n>`, one of which two samples have."""
    root = loader.Root(str(tmp_path / "root"))
    for first in (0, 20):
        with root.write("photos", part_samples=7) as writer:
            for n in range(first, first + (20 if not first else 10)):
                there = f"a.{n if n != 29 else 28}"
                writer.add(f"k{n:02d}", {"txt": f"{n}"}, metadata={"n": n}, source={"source_key": there})
    return root


def write_keys_file(tmp_path, keys):
    path = tmp_path / "keys.txt"
    path.write_text("\n".join(keys) + "\n\n")
    return str(path)


def seen_order(cli, *arguments, root):
    return json.loads(cli("order-of", "seen", *arguments, "--json", root=root).out)


def version_keys(version, found):
    return [version.keys(np.array([one]))[0] for one in found.tolist()]


@pytest.mark.parametrize("by", ["key", "source_key"])
def test_epoch_ends_with_every_sample_once(root, tmp_path, cli, by):
    names = {f"k{n:02d}": f"k{n:02d}" if by == "key" else f"a.{n}" for n in range(30)}
    seen = [f"k{n:02d}" for n in (0, 21, 7, 13, 2)]
    file = write_keys_file(tmp_path, [names[key] for key in seen])
    told = seen_order(cli, "photos", "--seen", file, "--by", by, root=root.url)
    assert (told["samples"], told["of"], told["seen"], told["seen_excluded"]) == (25, 30, 5, 0)
    view = loader.listed(root.open("photos"), told["list"])
    assert view.id == told["view"]
    plan = loader.plan({"photos": view}, seed=1, global_batch=6, boundary="mask")
    plan.save(root)
    with loader.Loader(loader.open_plan(root, plan.hash), epochs=1, workers=0) as batches:
        read = [one[1] for batch in batches for one in batch.ids if one is not None]
    assert sorted(read + seen) == sorted(names)
    assert version_keys(root.open("photos"), view.in_order) != sorted(
        version_keys(root.open("photos"), view.in_order)
    )


def test_excluded_samples_and_predicates(root, tmp_path, cli):
    root.exclude("photos@latest", ["k03"], reason="bad")
    file = write_keys_file(tmp_path, ["k03", "k05"])
    told = seen_order(cli, "photos", "--seen", file, "--where", "n < 10", root=root.url)
    assert (told["samples"], told["of"], told["seen_excluded"]) == (8, 9, 1)
    found = loader.listed(root.open("photos"), told["list"])
    assert sorted(version_keys(root.open("photos"), found.in_order)) == [
        f"k{n:02d}" for n in range(10) if n not in (3, 5)
    ]
    done = write_keys_file(tmp_path, [f"k{n:02d}" for n in range(10)])
    answer = cli("order-of", "seen", "photos", "--seen", done, "--where", "n < 10", root=root.url)
    assert answer.code == 2
    assert "the epoch is over, plan the next one" in answer.err


@pytest.mark.parametrize(
    ("keys", "by", "fault"),
    [
        (["k01", "x", "k02", "y"], "key", {"what": "key", "where": "photos@2", "given": "x"}),
        (
            ["a.28"],
            "source_key",
            {"what": "samples of a source_key", "where": "photos@2", "given": "a.28"},
        ),
        (["k01", "k02", "k01"], "key", {"what": "repeated keys", "given": 1}),
    ],
)
def test_keys_that_name_no_one_sample_are_refused(root, keys, by, fault):
    with refusal(InvalidRuntime, **fault):
        key_ordinals(root.open("photos"), keys, by)


def test_ordinals_come_in_the_order_of_the_keys(root):
    version, keys = root.open("photos"), [f"k{n:02d}" for n in (29, 3, 14, 20, 0)]
    found = key_ordinals(version, keys)
    assert version_keys(version, found) == keys
    assert key_ordinals(version, [f"a.{n}" for n in (3, 14)], "source_key").tolist() == found[1:3].tolist()
    assert key_ordinals(version, []).tolist() == []
