"""Tokens by a tokenizer's file: the library's own ids, in the smallest dtype, under names of their own."""

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assets.featurizers import make
from assets.featurizers.texts import tokenizer_file
from assets.media.unit import Unusable
from loader.errors import InvalidSpec
from tests.refusals import refusal


def tokens(text: str, **parameters: Any) -> Any:
    return make("tokens", **parameters)("text", {"txt": text.encode()})


TEXTS = ["what is 2 + 2?", "狗 cafe\u0301 🙂\r\n\t", "a <|im_end|> b </s> <unk>"]


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_json_file_are_the_librarys_and_special_tokens_stay_text(
    tokenizer_json: Path, parameters: dict[str, Any], text: str
) -> None:
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(tokenizer_json))
    reference.encode_special_tokens = True
    ids = tokens(text, **parameters).fields["tokens.npy"]
    assert ids.dtype == np.uint16
    assert ids.tolist() == reference.encode(text, add_special_tokens=False).ids
    assert ids.min() >= 3  # the special tokens are the first three
    assert reference.decode(ids.tolist()) == text


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_of_a_sentencepiece_file_are_the_librarys(sentencepiece_model: Path, text: str) -> None:
    import sentencepiece

    digest = hashlib.sha256(sentencepiece_model.read_bytes()).hexdigest()
    ids = tokens(text, tokenizer=str(sentencepiece_model), sha256=digest).fields["tokens.npy"]
    reference = sentencepiece.SentencePieceProcessor(model_file=str(sentencepiece_model))
    assert ids.tolist() == reference.encode(text)
    assert not {reference.bos_id(), reference.eos_id()} & set(ids.tolist())


def test_large_vocabulary_has_int32(parameters: dict[str, Any], tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    vocabulary = {f"w{number}": number for number in range(2**16 + 1)}
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tokens("w65536", tokenizer=str(path), sha256=digest).fields["tokens.npy"].dtype == np.int32


def test_id_is_appended_to_documents_and_counted(parameters: dict[str, Any]) -> None:
    plain = tokens("it is 4.", **parameters)
    ended = tokens("it is 4.", append=2, **parameters)
    assert ended.fields["tokens.npy"].tolist() == [*plain.fields["tokens.npy"].tolist(), 2]
    assert ended.columns == {"n_tokens": plain.columns["n_tokens"] + 1}


def test_other_field_gives_names_of_its_own(parameters: dict[str, Any]) -> None:
    featurizer = make("tokens", field="q.tokens.npy", **parameters)
    assert featurizer.name == "tokens_q"
    assert featurizer.outputs["text"] == ("q.tokens.npy",)
    assert featurizer.columns["text"] == ("q_n_tokens",)
    made = featurizer("text", {"txt": b"it is 4."})
    assert list(made.fields) == ["q.tokens.npy"]
    assert featurizer.facts["q.tokens.npy"]["tokenizer"] == "tokenizer.json"


def test_version_follows_the_file_and_the_ids_of_a_fixed_text(
    parameters: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = make("tokens", **parameters).version
    moved = tmp_path / "moved.json"
    moved.write_bytes(Path(parameters["tokenizer"]).read_bytes())
    assert make("tokens", **{**parameters, "tokenizer": str(moved)}).version == version
    assert make("tokens", append=2, **parameters).version != version

    tokenizer_file.probe_hash.cache_clear()
    encode = tokenizer_file.TokenizerFile.encode
    monkeypatch.setattr(tokenizer_file.TokenizerFile, "encode", lambda self, text: encode(self, text)[1:])
    assert make("tokens", **parameters).version != version  # another release of the library
    tokenizer_file.probe_hash.cache_clear()


def test_version_without_a_file_is_what_it_was() -> None:
    assert make("tokens").version == "2-bd8196ac"
    assert make("tokens", field="q.tokens.npy").version != "2-bd8196ac"


def test_files_that_are_refused_are_named(parameters: dict[str, Any], tmp_path: Path) -> None:
    def load_error(path: Path, what: str, digest: str | None = None) -> str:
        if digest is None:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        with refusal(InvalidSpec, what=what, where=path) as caught:
            _ = make("tokens", tokenizer=str(path), sha256=digest).version
        return str(caught.value)

    no_tokenizer = tmp_path / "no.json"
    no_tokenizer.write_text('{"model": 3}')
    load_error(no_tokenizer, "tokenizer.json")
    no_model = tmp_path / "no.model"
    no_model.write_bytes(b"\x00\x01 nothing")
    load_error(no_model, "sentencepiece model")
    assert "cannot be read: No such file" in load_error(tmp_path / "absent.json", "file", "0" * 64)
    load_error(tmp_path / "vocab.bpe", "tokenizer", "0" * 64)
    load_error(Path(parameters["tokenizer"]), "sha256", "0" * 64)


@pytest.mark.parametrize("suffix", [".json", ".model"])
def test_file_that_is_huge_or_no_file_is_refused_unread(tmp_path: Path, suffix: str) -> None:
    huge = tmp_path / f"huge{suffix}"
    with huge.open("wb") as file:
        file.truncate(tokenizer_file.MAX_FILE_BYTES + 9)  # holes: the disk holds none of it
    # A file that was read would be refused for one byte too many.
    with refusal(InvalidSpec, what="size", where=huge, given=2**28 + 9, accepted=2**28):
        _ = make("tokens", tokenizer=str(huge), sha256="0" * 64).version
    pipe = tmp_path / f"pipe{suffix}"
    os.mkfifo(pipe)
    with refusal(InvalidSpec, what="file", where=pipe, accepted="a regular file"):
        _ = make("tokens", tokenizer=str(pipe), sha256="0" * 64).version


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"version": "1.0", "model": ' + "[" * 200 + "]" * 200 + "}",
        "",
    ],
    ids=["lists", "objects", "model", "empty"],
)
def test_tokenizer_json_that_is_deep_or_empty_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(text)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    with refusal(InvalidSpec, what="tokenizer.json", where=path):
        _ = make("tokens", tokenizer=str(path), sha256=digest).version


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        ({"tokenizer": "a.json"}, {"what": "tokenizer and sha256", "given": ("a.json", None)}),
        ({"tokenizer": "a.json", "sha256": "AB"}, {"what": "sha256", "given": "AB"}),
        ({"field": "tokens.u2"}, {"what": "field", "given": "tokens.u2"}),
        ({"field": "Q.tokens.npy"}, {"what": "field", "given": "Q.tokens.npy"}),
        ({"template": "t.jinja"}, {"what": "template", "given": "t.jinja"}),
        ({"chat": "txt"}, {"what": "chat", "given": "txt"}),
        ({"chat": "json"}, {"what": "tokenizer", "given": None, "accepted": "a tokenizer.json"}),
        (
            {"chat": "json", "tokenizer": "a.model", "sha256": "0" * 64},
            {"what": "tokenizer", "given": "a.model"},
        ),
        (
            {"chat": "json", "tokenizer": "a.json", "sha256": "0" * 64, "append": 1},
            {"what": "append", "given": 1},
        ),
        (
            {"chat": "json", "tokenizer": "a.json", "sha256": "0" * 64, "image": "txt"},
            {"what": "chat", "given": "json"},
        ),
    ],
)
def test_parameters_that_do_not_fit_are_refused(wrong: dict[str, Any], fault: dict[str, object]) -> None:
    with refusal(InvalidSpec, **fault):
        make("tokens", **wrong)


def test_appended_id_beyond_the_vocabulary_is_refused(parameters: dict[str, Any]) -> None:
    with refusal(InvalidSpec, what="append", given=4000):
        _ = make("tokens", append=4000, **parameters).version


def test_text_with_half_a_surrogate_pair_is_refused(parameters: dict[str, Any]) -> None:
    with pytest.raises(Unusable) as caught:
        make("tokens", **parameters)("text", {"txt": b"\xed\xa0\x80"})
    assert caught.value.code == "undecodable"
