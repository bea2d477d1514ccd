"""Facts of a field, as its version's writers told them."""

import numpy as np
import pytest

from penstock.view.shown_values import field_facts, show_value


@pytest.fixture
def token_version(root):
    """token_version(facts): a version of tokens whose writer told these facts."""

    def publish(facts):
        with root.write("tokens", facts={"tokens.npy": facts}) as writer:
            writer.add("a", {"tokens.npy": np.array([5, 9, 2], np.int32)})
        return root.open("tokens@latest")

    return publish


def test_facts_of_tokens_are_read(token_version) -> None:
    version = token_version({"vocabulary": 8, "special": {"2": "<eos>"}, "tokenizer": "mine"})
    value = np.array([5, 9, 2])
    one = show_value("tokens.npy", value, field_facts({"tokens.npy": value}, "tokens.npy", version))
    assert [box.text for box in one.boxes] == ["", "", "<eos>"]
    assert [mark.name for mark in one.marks] == ["out_of_vocabulary"]


def test_facts_of_another_type_are_ignored(token_version) -> None:
    version = token_version({"vocabulary": "many", "special": ["<eos>"], "rate": [16_000]})
    facts = field_facts({}, "tokens.npy", version)
    assert (facts.vocabulary, facts.special, facts.rate) == (None, {}, None)


def test_names_of_other_values_than_tokens_are_ignored(token_version) -> None:
    version = token_version({"special": {"eos": "<eos>", "-1": "<none>", "9" * 40: "<far>", "2": "<two>"}})
    assert field_facts({}, "tokens.npy", version).special == {2: "<two>"}


def test_rate_of_a_sound_is_read(root) -> None:
    with root.write("sounds", facts={"wave.npy": {"rate": 8000}}) as writer:
        writer.add("a", {"wave.npy": np.zeros((1, 4000), np.float32)})
    value = np.ones((1, 4000), np.float32)
    facts = field_facts({"wave.npy": value}, "wave.npy", root.open("sounds@latest"))
    assert show_value("wave.npy", value, facts).lines[0] == "1 channel, 0.5 s at 8,000 Hz"
