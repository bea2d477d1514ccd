"""Texts of tokens: by the training's own tokenizers, in the recipe's process."""

import numpy as np
import pytest
import torch

import loader
from loader.errors import InvalidRuntime, TransformFailed
from penstock.view.inspect.shown_batch import show_batch
from penstock.view.inspect.slot_record import slot_record, slot_values
from penstock.view.inspect.step_record import step_record, step_values
from penstock.view.replays.recipe_process import RecipeProcess
from penstock.view.replays.replayed_values import StepPart, itself, token_texts
from penstock.view.replays.replays import Replayers, Replays
from penstock.view.replays.training import Training
from penstock.view.shown_values import show_sample
from tests.refusals import refusal
from tests.view.conftest import train
from tests.view.recipes import plain

RECIPE = """
WORDS = ["<s>", "The", " cat", "\\n"]

def recipe():
    return {}

def tokenizers():
    return {"tokens.npy": lambda ids: "".join(WORDS[one] for one in ids)}
"""


@pytest.mark.parametrize("make", [np.asarray, torch.tensor])
def test_each_token_has_its_text(make) -> None:
    class Tokenizer:
        def decode(self, ids):
            return "".join("abc"[one] for one in ids)

    samples = [{"t": make([0, 1, 1])}, {"t": make([2, 7])}, {"jpg": np.zeros(3)}, {"t": np.zeros(2)}]
    assert token_texts({"t": Tokenizer(), "none": Tokenizer()}, samples) == {
        "t": {0: "a", 1: "b", 2: "c"},  # 7 is none of its own
        "none": {},
    }


@pytest.fixture
def text_replayers(root, tmp_path):
    """text_replayers(text): the training on tokens, and the replayers of a recipe with this text."""
    with root.write("docs") as writer:
        for i in range(4):
            writer.add(f"d/{i}", {"tokens.npy": np.array([0, 1, 2, 3, 99], np.int32)})
    train(
        root,
        loader.plan({"docs": root.open("docs@1").select("tokens.npy")}, seed=1, global_batch=2),
        "text",
        plain,
    )
    opened = []

    def ask(text):
        (tmp_path / "lm.py").write_text(text)
        replayers = Replayers(
            plain=Replays(root), recipe=RecipeProcess(root, f"{tmp_path}/lm.py:recipe", limit_s=60)
        )
        opened.append(replayers)
        return Training(root, "text"), replayers

    yield ask
    for one in opened:
        one.close()


def test_step_and_a_slot_show_text(text_replayers) -> None:
    training, replayers = text_replayers(RECIPE)
    shown, trouble = step_values(training, replayers, 1, 0, 1, show_batch)
    record = step_record(training, shown, None, trouble)
    texts = ["<s>", "The", "␣cat", "⏎", ""]
    assert [[box.text for box in row.shown[0].boxes] for row in record.slots] == [texts] * 2
    assert record.slots[0].shown[0].lines[-1] == "<s>|The|␣cat|⏎|99"
    slot, trouble = slot_values(training, replayers, 1, 0, itself)
    functions = replayers.recipe.functions(training.setting(1, recipe=True))
    row = slot_record(training, slot, trouble, functions=functions).fields[0]
    assert [box.text for box in row.decoded.boxes] == [box.text for box in row.transformed.boxes] == texts


@pytest.mark.parametrize(
    ("text", "error", "given"),
    [
        (
            "def recipe(): return {}\ndef tokenizers(): return 7",
            InvalidRuntime,
            "int",
        ),
        (
            "def recipe(): return {}\ndef tokenizers(): 1 / 0",
            TransformFailed,
            "ZeroDivisionError: division by zero",
        ),
    ],
)
def test_tokenizers_that_are_none_are_said(text_replayers, text, error, given) -> None:
    training, replayers = text_replayers(text)
    with refusal(error, what="tokenizers()", given=given):
        replayers.recipe.part(training.setting(0, recipe=True), StepPart(0, 0, 1), itself)


def test_without_tokenizers_numbers_are_shown(text_replayers) -> None:
    training, replayers = text_replayers("def recipe(): return {}")
    shown, trouble = step_values(training, replayers, 0, 0, 1, show_batch)
    assert trouble == ""
    assert step_record(training, shown, None).slots[0].shown[0].lines[-1] == "0|1|2|3|99"


def test_without_tokenizers_the_page_names_the_one_that_is_needed(root) -> None:
    told = {"tokens.npy": {"tokenizer": "words.json", "tokenizer_sha256": "ab" * 32}}
    with root.write("named", facts=told) as writer:
        writer.add("d/0", {"tokens.npy": np.array([0, 1], np.int32)})
    version = root.open("named@1")
    sample = {"tokens.npy": np.array([0, 1], np.int32)}
    needed = f"by words.json, SHA-256 {'ab' * 32}: add tokenizers() beside the recipe to show their text"
    assert needed in show_sample(sample, version)[0].lines
    assert needed not in show_sample(sample, version, {"tokens.npy": {0: "a", 1: "b"}})[0].lines
