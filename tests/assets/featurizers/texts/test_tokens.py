"""Token ids: the text comes back from them, and odd text is not trouble."""

import socket
from typing import Any, NoReturn

import numpy as np
import pytest

from assets.featurizers import make
from assets.featurizers.texts import tekken
from assets.media.unit import Unusable
from loader.errors import InvalidSpec, MissingDependency
from tests.refusals import refusal

TEXTS = [
    "Hello, world!",
    "狗 und Füße, १२३, עברית\r\n\tend ",
    "🙂👩‍👩‍👧‍👦\ufeff\x00\u202e",
    "</s> <s> [INST] <unk> <|endoftext|>",
    "a" * 20_000,
    " " * 5_000 + "x",
]


def features(text: str) -> Any:
    return make("tokens")("text", {"txt": text.encode()})


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back(text: str) -> None:
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy

    made = features(text)
    ids = made.fields["tokens.npy"]
    assert (ids.dtype, ids.ndim) == (np.int32, 1)
    assert 1000 <= ids.min() <= ids.max() < 131_072  # no special token, whatever the text spells
    assert tekken.tokenizer().decode(ids.tolist(), SpecialTokenPolicy.IGNORE) == text
    assert made.columns == {"n_tokens": len(ids)}


def test_golden_ids() -> None:
    assert features("Hello, world!").fields["tokens.npy"].tolist() == [22177, 1044, 4304, 1033]


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a connection")

    tekken.tokenizer.cache_clear()
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert features("Hello").columns["n_tokens"] == 1


def test_captions_may_be_empty_or_missing() -> None:
    tokens = make("tokens", image="caption.txt", audio="transcript.txt")
    assert tokens.kinds == {"text", "image", "audio"}
    assert tokens.inputs["audio"] == ("transcript.txt",)
    said = tokens("audio", {"transcript.txt": b"Hello, world!"})
    empty, missing = tokens("image", {"caption.txt": b""}), tokens("image", {})
    assert said.columns == {"n_tokens": 4}
    assert empty.columns == {"n_tokens": 0}
    assert missing.columns == {"n_tokens": None}
    for made in (empty, missing):
        assert (made.fields["tokens.npy"].dtype, made.fields["tokens.npy"].shape) == (np.int32, (0,))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"x" * 101, "too_large"),
        (b"\xff\xfe", "undecodable"),
        (b"caf\xc3", "undecodable"),
        (b"\xed\xa0\x80", "undecodable"),  # a lone surrogate
    ],
)
def test_text_that_is_refused(data: bytes, code: str) -> None:
    with pytest.raises(Unusable) as refused:
        make("tokens", max_bytes=100)("text", {"txt": data})
    assert refused.value.code == code


def test_million_blanks_in_a_row_are_refused() -> None:
    with pytest.raises(Unusable) as refused:
        features(" " * 1_000_000)
    assert refused.value.code == "untokenizable"


def test_another_vocabulary_is_not_taken_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    tekken.tokenizer.cache_clear()
    monkeypatch.setattr(tekken, "SHA256", "0" * 64)
    with refusal(MissingDependency, what="tekken_240718.json", accepted="0" * 64):
        features("Hello")


@pytest.mark.parametrize(
    ("parameters", "what"),
    [({"max_bytes": 0}, "max_bytes"), ({"text": "jpg"}, "field"), ({"image": "caption.json"}, "field")],
)
def test_parameters_that_are_refused(parameters: dict[str, Any], what: str) -> None:
    (value,) = parameters.values()
    with refusal(InvalidSpec, what=what, given=value):
        make("tokens", **parameters)
