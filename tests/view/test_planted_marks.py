"""Faults planted in a training: the record of a step, or of a slot, marks each on its own samples, and no others."""

from itertools import count

import numpy as np
import pytest

import loader
from penstock.view.inspect.shown_batch import show_batch
from penstock.view.inspect.slot_record import restoration_marks, slot_record, slot_values
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.replays.replayed_values import itself
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training
from tests.view.conftest import LABELS, train
from tests.view.recipes import plain

FACTS = {"tokens.npy": {"vocabulary": 10, "special": {"2": "<eos>"}}}


def draw_values(number, *shape):
    """Values uint8 that no other number has."""
    return np.random.default_rng(number).integers(1, 250, shape, np.uint8)


def sound(number, level=0.5):
    return (level * np.sin(0.3 * np.arange(1000) + number)).astype(np.float32)


def fields(number):
    """A sample without a fault."""
    return {
        "cls": number % len(LABELS),
        "txt": f"photo {number}",
        "picture.npy": draw_values(number, 8, 8, 3),
        "clip.npy": draw_values(number, 8, 8, 8, 3),
        "sound.npy": sound(number),
        "state.npy": draw_values(number, 20).astype(np.float32),
        "tokens.npy": np.array([3, 4, 2]),
        "labels.npy": np.array([-100, number % 9, 2]),
    }


ONE_VALUE = {
    "infinite": {"state.npy": np.array([1.0, np.inf, 2.0], np.float32)},
    "out_of_range": {"cls": len(LABELS)},
    "no_target": {"labels.npy": np.full(3, -100)},
    "empty": {"txt": " \n"},
    "silent": {"sound.npy": sound(0, level=1e-4)},
    "frozen": {
        "clip.npy": np.concatenate(
            [draw_values(90, 3, 8, 8, 3), draw_values(91, 1, 8, 8, 3).repeat(5, axis=0)]
        )
    },
    "saturated": {"picture.npy": np.where(np.arange(192).reshape(8, 8, 3) < 8, 7, 255).astype(np.uint8)},
    "clipped": {"sound.npy": np.clip(sound(1, level=2.0), -1, 1)},
    "not_scaled": {"sound.npy": sound(2, level=12_000.0)},
    "no_end": {"tokens.npy": np.array([3, 4, 5])},
    "replaced_letters": {"txt": "caf\ufffd"},
    "hidden_letters": {"txt": "invoice\u202egpj.exe"},
}
"""Mark -> the fields of its sample, in place of sound ones."""

SHARED = draw_values(80, 8, 8, 3)
SEVERAL = {
    "equal_values": [({"picture.npy": SHARED}, {}), ({"picture.npy": SHARED.copy()}, {})],
    "same_raw": [({}, {"raw_uri": "s3://raw/a", "raw_sha256": "ab" * 32})] * 2,
    "same_subject": [({}, {"subject": "person 7"})] * 2,
    "other_split": [({}, {"split": "test"})],
}
"""Mark -> changed fields and provenance of each of its samples."""


@pytest.fixture(scope="module")
def planted_marks(tmp_path_factory):
    """Each mark of a step that holds every sample once, with the keys of the samples that it names."""
    samples = {
        **{mark: [(changed, {})] for mark, changed in ONE_VALUE.items()},
        **SEVERAL,
        "none": [({}, {"subject": f"person {i}", "raw_sha256": f"{i:064x}"}) for i in range(2)],
    }
    with loader.Root(tmp_path_factory.mktemp("marks") / "root") as root:
        numbers = count()
        with root.write("planted", producer={"labels": LABELS}, facts=FACTS) as writer:
            for mark, ones in samples.items():
                for i, (changed, source) in enumerate(ones):
                    own = {**fields(next(numbers)), **changed}
                    writer.add(f"{mark}/{i}", own, source={"split": "train", **source})
        view = root.open("planted@1").select(*fields(0))
        train(root, loader.plan({"planted": view}, seed=1, global_batch=next(numbers)), "run", plain, steps=1)
        training, replayers = Training(root, "run"), Replayers(plain=Replays(root))
        batch, trouble = step_values(training, replayers, 0, 0, 1, show_batch)
        record = step_record(training, batch, None, trouble)
        replayers.close()
    keys = {row.slot: row.key for row in record.slots}
    return [(mark.name, sorted(keys[slot] for slot in mark.slots)) for mark in record.marks]


@pytest.mark.parametrize("name", [*ONE_VALUE, *SEVERAL])
def test_step_marks_the_planted_samples_alone(planted_marks, name) -> None:
    planted = [f"{name}/{i}" for i in range(len(SEVERAL.get(name, " ")))]
    assert [keys for mark, keys in planted_marks if mark == name] == [planted]


def test_step_has_no_other_mark(planted_marks) -> None:
    assert sorted(name for name, _ in planted_marks) == sorted([*ONE_VALUE, *SEVERAL])


BEGIN, END, FIRST = 1, 2, 3


class Bytes:
    """A tokenizer with a token per byte, of which a letter may have several."""

    all_special_ids = (BEGIN,)

    def decode(self, ids):
        return bytes(one - FIRST for one in ids).decode("utf-8", "replace")


def encode_tokens(text, n=None):
    return np.array([BEGIN, *(FIRST + one for one in text.encode()[:n]), END], np.int32)


TEXT = " The café sat\n"
RESTORED = {
    "whole": encode_tokens(TEXT),
    "padded": np.append(encode_tokens(TEXT), [0, 0]),
    "without its last blank": encode_tokens(TEXT.strip()),
    "cut off": encode_tokens(TEXT, 7),
    "cut off within a letter": encode_tokens(TEXT, 9),
    "cut off after a blank": encode_tokens(TEXT, 1),
    "of its other text": encode_tokens("A cat"),
    "refused by the tokenizer": np.array([FIRST + 256], np.int32),
}
LOST = {
    "lower case": encode_tokens(TEXT.lower()),
    "a letter less": encode_tokens(TEXT.replace("c", "")),
    "a blank more": encode_tokens(TEXT.replace(" ", "  ")),
    "more at its end": encode_tokens(TEXT + "down"),
    "special tokens alone": np.array([BEGIN, END], np.int32),
}


def test_slot_marks_tokens_that_do_not_give_their_text_back(root) -> None:
    told = {"special": {"0": "<pad>", "2": "<eos>"}, "text_fields": ["txt", "caption.txt", "none.txt"]}
    with root.write("texts", facts={"tokens.npy": told}) as writer:
        for name, ids in {**RESTORED, **LOST}.items():
            writer.add(name, {"tokens.npy": ids, "txt": TEXT, "caption.txt": "A cat"})
    tokens, n = root.open("texts@1").select("tokens.npy"), len(RESTORED) + len(LOST)
    train(root, loader.plan({"texts": tokens}, seed=1, global_batch=n), "run", plain, steps=1)
    with_text = Replays(root, tokenizers={"tokens.npy": Bytes()})
    training, replayers = Training(root, "run"), Replayers(plain=Replays(root), recipe=with_text)
    records = [slot_record(training, *slot_values(training, replayers, 0, at, itself)) for at in range(n)]
    replayers.close()
    marked = {one.key: mark for one in records for mark in one.marks if mark.name != "no_end"}
    assert marked.keys() == LOST.keys()
    assert {mark.field for mark in marked.values()} == {"tokens.npy"}
    assert "from character 0 “the café sat” for “The café sat”" in marked["lower case"].text


def test_slot_says_that_the_text_of_its_tokens_cannot_be_read(root, tmp_path) -> None:
    with root.write("texts", facts={"tokens.npy": {"text_fields": ["txt"]}}) as writer:
        writer.add("k", {"tokens.npy": encode_tokens(TEXT), "txt": TEXT})
    version = root.open("texts@1")
    (address,) = version.address(np.array([0]), ["txt"])
    path = tmp_path / "root" / address.fields["txt"].path
    path.write_bytes(path.read_bytes().replace(TEXT.encode(), TEXT.upper().encode()))
    (mark,) = restoration_marks(version, 0, {"tokens.npy": TEXT}, 4)
    assert (mark.name, mark.slots, mark.field) == ("unreadable", (4,), "tokens.npy")
    assert "txt" in mark.text


@pytest.mark.parametrize("repeats", [True, False])
def test_slot_says_that_the_transform_is_no_function_of_its_sample(root, plan, repeats) -> None:
    train(root, plan, "run", plain, steps=1)
    calls = count()

    def number_samples(sample, rng):
        return {"n": 0 if repeats else next(calls)}

    replayers = Replayers(plain=Replays(root), recipe=Replays(root, {"transform": number_samples}))
    training = Training(root, "run")
    record = slot_record(training, *slot_values(training, replayers, 0, 2, itself))
    replayers.close()
    found = [(mark.name, mark.slots) for mark in record.marks]
    assert found == ([] if repeats else [("not_a_function", (2,))])
