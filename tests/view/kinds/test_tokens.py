"""Tokens: a box each, with what other fields say of them; documents of a packed sequence apart."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from penstock.view.kinds import Facts, find_kind
from penstock.view.kinds.tokens import PACKED, TOKENS

WORDS = {3: "The", 4: " cat", 5: "\n\tsat", 6: "\x1b[31m"}
FACTS = Facts(
    field="tokens.npy",
    vocabulary=10,
    special={0: "<pad>", 1: "<bos>", 2: "<eos>"},
    decode=lambda ids: "".join(WORDS.get(one, "?") for one in ids),
)
IDS = np.array([1, 3, 4, 5, 2], np.int32)


def sibling_facts(facts=FACTS, **fields):
    return replace(facts, sample=fields)


def pack_sequence(segments, ids=IDS):
    """(ids, facts) of a packed sequence, as the loader lays it out."""
    return ids, replace(FACTS, sample={"tokens.npy": ids, "tokens.npy.segment_ids": np.array(segments)})


def test_special_tokens_have_names_and_blanks_are_visible() -> None:
    shown = TOKENS.boxes(IDS, FACTS)
    assert [(one.id, one.text, one.special) for one in shown] == [
        (1, "<bos>", True),
        (3, "The", False),
        (4, "␣cat", False),
        (5, "⏎⇥sat", False),
        (2, "<eos>", True),
    ]
    assert TOKENS.lines(IDS, FACTS)[-1] == "<bos>|The|␣cat|⏎⇥sat|<eos>"
    assert {one.segment for one in shown} == {None}


def test_without_a_tokenizer_numbers_are_shown() -> None:
    assert TOKENS.lines(IDS, Facts(field="input_ids")) == ("5 tokens, int32 [5]", "1|3|4|5|2")


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, lambda ids: torch.from_numpy(ids)[None]])
def test_any_library_holds_tokens(make) -> None:
    assert find_kind(make(IDS), FACTS) is TOKENS
    assert TOKENS.boxes(make(IDS), FACTS) == TOKENS.boxes(IDS, FACTS)


@pytest.mark.parametrize("field", ["segment_ids", "tokens.npy.segment_ids", "position_ids", "jpg"])
def test_what_lies_beside_tokens_is_no_sequence_of_them(field) -> None:
    assert find_kind(IDS, Facts(field=field)).name == "array"


def test_loss_mask_and_values_per_token() -> None:
    facts = sibling_facts(
        **{
            "tokens.npy.loss_mask": np.array([0, 1, 1, 0, 1], bool),
            "advantage": torch.arange(5) / 2,
            "jpg": np.ones(9),
        }
    )
    shown = TOKENS.boxes(IDS, facts)
    assert [one.masked for one in shown] == [True, False, False, True, False]
    assert [one.values for one in shown] == [{"advantage": at / 2} for at in range(5)]
    assert "3 of them are targets of the loss" in TOKENS.lines(IDS, facts)


def test_target_of_minus_100_is_masked() -> None:
    ids = np.array([-100, -100, 4])
    facts = Facts(field="labels", vocabulary=10)
    assert [one.masked for one in TOKENS.boxes(ids, facts)] == [True, True, False]
    assert TOKENS.marks(ids, facts) == ()


def test_documents_are_apart() -> None:
    ids, facts = pack_sequence([1, 1, 2, 2, 0])
    assert find_kind(ids, facts) is PACKED
    assert [one.segment for one in PACKED.boxes(ids, facts)] == [1, 1, 2, 2, 0]
    assert PACKED.lines(ids, facts) == (
        "5 tokens, int32 [5]",
        "document 1, 2 tokens",
        "<bos>|The",
        "document 2, 2 tokens",
        "␣cat|⏎⇥sat",
        "no document, 1 tokens",
        "<eos>",
    )


def test_token_writes_no_escape() -> None:
    (box,) = TOKENS.boxes(np.array([6]), FACTS)
    assert box.text == r"\x1b[31m"


def test_long_sequence_is_bounded() -> None:
    ids = np.full(100_000, 3)
    assert len(TOKENS.boxes(ids, FACTS)) == 2**14
    lines = TOKENS.lines(ids, FACTS)
    assert (len(lines), lines[-1]) == (201, "… 100,000 tokens in all")


PLANTED = {
    "an id above": (np.array([1, 10, 2]), FACTS, "out_of_vocabulary"),
    "an id below": (np.array([1, -1, 2]), FACTS, "out_of_vocabulary"),
    "no target": (IDS, sibling_facts(loss_mask=np.zeros(5, bool)), "no_target"),
    "all targets ignored": (np.full(4, -100), replace(FACTS, field="labels"), "no_target"),
    "cut off": (IDS[:-1], FACTS, "no_end"),
    "cut off, padded": (np.array([1, 3, 0, 0]), FACTS, "no_end"),
    "a document cut off": (*pack_sequence([1, 1, 1, 2, 2]), "no_end"),
    "no tokens": (IDS[:0], FACTS, "empty"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_marked(name) -> None:
    ids, facts, mark = PLANTED[name]
    assert [one.name for one in TOKENS.marks(ids, facts)] == [mark]


CLEAN = {
    "a sentence": (IDS, FACTS),
    "padded": (np.array([1, 3, 2, 0, 0]), FACTS),
    "some targets": (IDS, sibling_facts(loss_mask=np.array([0, 0, 0, 0, 1]))),
    "documents that end": pack_sequence([1, 1, 2, 2, 0], np.array([3, 2, 4, 2, 0])),
    "no end among the special tokens": (IDS[:-1], replace(FACTS, special={1: "<bos>"})),
}


@pytest.mark.parametrize("name", CLEAN)
def test_sound_sequence_has_no_mark(name) -> None:
    assert TOKENS.marks(*CLEAN[name]) == ()


def test_document_without_an_end_is_named() -> None:
    ids, facts = pack_sequence([1, 1, 2, 2, 2])
    (found,) = TOKENS.marks(ids, facts)
    assert found.text == "document 1 does not end with <eos>"


@pytest.mark.parametrize(("field", "mask"), [("tokens.npy", "mask.npy"), ("q.tokens.npy", "q.mask.npy")])
def test_mask_of_a_rollout_encloses_what_is_not_sampled(field, mask) -> None:
    facts = replace(sibling_facts(**{mask: np.array([0, 0, 1, 1, 0], bool)}), field=field)
    assert [one.masked for one in TOKENS.boxes(IDS, facts)] == [True, True, False, False, True]
    assert TOKENS.lines(IDS, facts) == (
        "5 tokens, int32 [5]",
        "2 of them are targets of the loss",
        "«» enclose the others",
        "«<bos>|The»|␣cat|⏎⇥sat|«<eos>»",
    )
    other = replace(sibling_facts(**{f"other.{mask}": np.zeros(5, bool)}), field=field)
    assert TOKENS.lines(IDS, other) == ("5 tokens, int32 [5]", "<bos>|The|␣cat|⏎⇥sat|<eos>")


def test_loss_mask_and_mask_both_hide_tokens() -> None:
    both = {"tokens.npy.loss_mask": np.array([0, 1, 1, 1, 1]), "mask.npy": np.array([1, 1, 0, 1, 1])}
    assert [one.masked for one in TOKENS.boxes(IDS, sibling_facts(**both))] == [
        True,
        False,
        True,
        False,
        False,
    ]
