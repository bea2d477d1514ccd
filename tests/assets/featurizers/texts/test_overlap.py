"""The featurizer `overlap`: words of documents that protected versions have."""

import json
from pathlib import Path
from typing import Any

import pytest

import loader
from assets.featurizers import make
from assets.featurizers.texts import overlap
from assets.media.unit import Unusable
from loader.errors import InvalidSpec, VersionRetired
from tests.refusals import refusal

QUESTION = "Natalia sold clips to 48 of her friends in April, and then she sold half as many clips in May."
FILLER = "The committee met again on Tuesday to discuss the budget for the coming year without any result. "


@pytest.fixture
def root(tmp_path: Path) -> loader.Root:
    root = loader.Root(tmp_path / "root")
    with root.write("exam") as writer:
        writer.add("q", {"txt": QUESTION})
    with root.write("other") as writer:
        writer.add("o", {"txt": f"{QUESTION} {FILLER}"})
    return root


def columns(
    root: loader.Root, document: str | bytes, kind: str = "text", **parameters: Any
) -> tuple[Any, Any]:
    data = document
    if isinstance(data, str):
        data = data.encode()
    featurizer = make("overlap", root=root.url, **{"protected": ["exam@1", "other@1"], **parameters})
    (field,) = featurizer.inputs[kind]
    features = featurizer(kind, {field: data})
    assert not features.fields
    return features.columns["overlap_ratio"], features.columns["overlap_with"]


def test_largest_share_is_named(root: loader.Root) -> None:
    assert columns(root, QUESTION) == (1.0, "exam@1[0]")
    assert columns(root, FILLER + QUESTION) == (1.0, "other@1[0]")
    n_words = 20
    assert columns(root, f"{QUESTION} and {'more ' * 79}", protected=["exam@1"]) == (
        n_words / 100,
        "exam@1[0]",
    )
    for nothing in ("one", "\n", "!", "the budget for the coming year without any result"):
        assert columns(root, nothing) == (0.0, None)


def test_chat_and_caption_are_texts(root: loader.Root) -> None:
    chat = json.dumps(
        {"messages": [{"role": "user", "content": QUESTION}, {"role": "a", "content": "\ud800"}]}
    )
    ratio, protected_sample = columns(root, chat, text="chat.json")
    assert (ratio, protected_sample) == (20 / 22, "exam@1[0]")  # "user" and "a" are words, too
    assert columns(root, QUESTION, kind="image", image="caption.txt") == (1.0, "exam@1[0]")
    featurizer = make("overlap", root=root.url, protected=["exam@1"], image="caption.txt")
    assert dict(featurizer("image", {}).columns) == {"overlap_ratio": None, "overlap_with": None}


def test_bad_texts_are_rejected_and_bad_parameters_refused(root: loader.Root) -> None:
    for text, code, parameters in (
        (b"\xff", "undecodable", {}),
        (b"{", "undecodable", {"text": "chat.json"}),
        (b"", "empty", {}),
        (b"one two", "too_large", {"max_bytes": 3}),
    ):
        with pytest.raises(Unusable) as refused:
            columns(root, text, **parameters)
        assert refused.value.code == code
    for bad, fault in (
        ({"protected": []}, {"what": "protected", "given": []}),
        ({"protected": "exam@1"}, {"what": "protected", "given": "exam@1"}),
        ({"protected": ["exam@latest"]}, {"what": "protected", "given": "exam@latest"}),
        ({"text": "tokens.npy"}, {"what": "field", "given": "tokens.npy"}),
        ({"max_bytes": 0}, {"what": "max_bytes", "given": 0}),
    ):
        with refusal(InvalidSpec, **fault):
            columns(root, "text", **bad)
    with root.write("exam") as writer:
        writer.add("q2", {"txt": "another"})
    root.retire("exam@1", reason="replaced")
    overlap._indexes.cache_clear()
    with refusal(VersionRetired, what="exam@1", given="replaced"):
        columns(root, "text")


def test_version_follows_the_protected_versions_and_not_the_root(root: loader.Root) -> None:
    versions = {
        make("overlap", root=url, protected=protected).version
        for url in (root.url, "s3://lake")
        for protected in (["exam@1"], ("exam@1",), ["exam@1", "other@1"])
    }
    assert len(versions) == 2
