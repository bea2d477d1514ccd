"""The rest of an epoch of MosaicML streaming; the library itself is asked in tests/oracles/test_streaming_order.py."""

import json
import re

import numpy as np
import pytest

import loader
from loader.errors import EmptyView, InvalidRuntime
from penstock.formats.streaming_order import epoch_rest, ordinals_of_numbers
from tests.refusals import refusal

EPOCH = np.array([[4, 1], [0, 4], [2, -1], [-1, -1]])


def test_rest_has_whole_steps_and_a_short_last_one():
    assert epoch_rest(EPOCH, 0).tolist() == [4, 1, 0, 4, 2]
    assert epoch_rest(EPOCH, 2).tolist() == [2]
    with refusal(EmptyView, what="--step", given=3, accepted="0 to 2"):
        epoch_rest(EPOCH, 3)


def test_short_step_in_the_middle_is_refused():
    epoch = np.array([[4, 1], [0, -1], [2, 3]])
    with refusal(InvalidRuntime, what="step 1", given=1, accepted=2):
        epoch_rest(epoch, 0)
    assert epoch_rest(epoch, 2).tolist() == [2, 3]


@pytest.fixture
def root(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("docs") as writer:
        for number in range(12):
            writer.add(str(number), {"txt": str(number)})
    return root


def test_numbers_are_keys_and_may_come_again(root):
    version = root.open("docs")
    found = ordinals_of_numbers(version, np.array([10, 3, 10, 0]), "s3://b/mds/train")
    assert version.keys(found) == ["10", "3", "10", "0"]
    root.exclude("docs", ["3"], reason="bad")
    with refusal(InvalidRuntime, what="excluded samples", where="docs@2", given=1):
        ordinals_of_numbers(root.open("docs"), np.array([10, 3]), "s3://b/mds")


def test_numbers_of_a_split_are_behind_its_folder(tmp_path):
    root = loader.Root(tmp_path / "root")
    with root.write("docs") as writer:
        for key in ("train/0", "train/1", "val/0", "en/train/0", "v1%2E2/0", "other"):
            writer.add(key, {"txt": key})
    version = root.open("docs")
    for url, number, key in (
        ("s3://b/mds/train", 1, "train/1"),
        ("/mds/en/train/", 0, "en/train/0"),
        ("s3://b/v1.2", 0, "v1%2E2/0"),
    ):
        assert version.keys(ordinals_of_numbers(version, np.array([number]), url)) == [key]
    with refusal(
        InvalidRuntime,
        what="keys",
        where="docs@1",
        given="s3://b/mds",
        accepted="en/train/, train/, v1%2E2/, val/",
    ):
        ordinals_of_numbers(version, np.array([0]), "s3://b/mds")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "has no mosaicml-streaming, .* --python"),
        (("--python", "/nowhere/python"), "--python /nowhere/python: .*name an interpreter"),
        (("--ranks", "0"), "--ranks 0: a number above 0 is needed"),
        (("--option", "epoch_size"), "--option 'epoch_size': NAME=VALUE is needed"),
        (("--state", "index.json"), "--state .* is not a state of a StreamingDataset; needed: epoch"),
    ],
)
def test_bad_options_are_named(root, tmp_path, cli, options, words, monkeypatch):
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": []}))
    monkeypatch.chdir(tmp_path)
    answer = cli("order-of", "mds", "docs", str(tmp_path), "--batch-size", "2", *options, root=root.url)
    assert answer.code != 0
    assert re.search(words, " ".join(answer.err.split()))
