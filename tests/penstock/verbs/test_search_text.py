"""`penstock search --text`, by a CLIP of seeded weights."""

import numpy as np
import pytest

import loader
from assets.featurizers.models.embedding import Embedding
from assets.featurizers.models.model import pin_featurizer

TEXTS = ["a red cup", "a blue car", "the cat", "red red red"]


@pytest.fixture(scope="module")
def weights(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("weights")
    shared("assets/featurizers/models/test_libraries").clip(folder)
    return folder


@pytest.fixture
def root(weights, tmp_path):
    """Samples whose embeddings are the ones of texts, by the same network."""
    featurizer = pin_featurizer(
        Embedding(
            network="transformers", weights=str(weights), image=None, video=None, text="txt", device="cpu"
        )
    )
    root = loader.Root(tmp_path / "root")
    facts = {"embedding.npy": {"weights_sha256": featurizer.sha256}}
    with root.write("d", facts=facts) as writer:
        for number, features in enumerate(
            featurizer.features("text", [{"txt": text.encode()} for text in TEXTS])
        ):
            writer.add(f"k{number}", {"embedding.npy": features.fields["embedding.npy"]})
    return root


def test_text_is_embedded_by_the_field_s_own_network(root, weights, cli):
    for number, text in enumerate(TEXTS[:2]):
        body = cli(
            "search", "d", "--text", text, "--weights", weights, "--k", "1", "--json", root=root.url
        ).json
        assert body["found"][0]["score"] == pytest.approx(1, abs=1e-5)
        assert f"k{number}" == body["found"][0]["key"]


def test_other_weights_and_texts_are_refused(root, weights, cli, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    done = cli("search", "d", "--text", "a cup", "--weights", other, root=root.url)
    assert (done.code, "--text cannot be embedded by 'transformers'" in done.err) == (2, True)
    with root.write("e", facts={"embedding.npy": {"weights_sha256": "0" * 64}}) as writer:
        writer.add("a", {"embedding.npy": np.ones(16, np.float32)})
    done = cli("search", "e", "--text", "a cup", "--weights", weights, root=root.url)
    assert (done.code, "was made by weights with sha256 0000" in done.err) == (2, True)
    for arguments, what in (
        (["--text", "a cup"], "--text needs --weights DIR"),
        (["--text", "x" * 401, "--weights", weights], "401 characters"),
        (["--text", " ", "--weights", weights], "1 characters; accepted"),
        (["--text", "a", "--weights", weights, "--like", "k1"], "are two queries"),
        (["--like", "k1", "--weights", weights], "--weights is of a text"),
        (["--text", "a", "--weights", weights, "--network", "nope"], "nope"),
    ):
        done = cli("search", "d", *arguments, root=root.url)
        assert (done.code, what in done.err) == (2, True), done.err
