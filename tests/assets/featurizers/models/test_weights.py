"""Weights by their content: files, folders and URLs; what is missing, damaged, changed or a pickle."""

import hashlib
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from tests_networks import autoencoder, two_towers
from tests_networks.modules import read_weights, save_weights

from assets.featurizers.models.weights import local_weights, weights_sha256
from loader.errors import InvalidWeights
from loader.storage import open_store
from tests.refusals import refusal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As save_pretrained leaves it, with what a download may leave beside it."""
    made = tmp_path / "model"
    made.mkdir()
    two_towers.save_small(made / "model.safetensors", seed=1)
    (made / "config.json").write_text("{}")
    (made / "vocab.txt").write_text("a\nb\n")
    (made / "pytorch_model.bin").write_bytes(pickle.dumps([1]))
    (made / "README.md").write_text("read me")
    (made / ".cache").mkdir()
    (made / ".cache" / "other.json").write_text("{}")
    return made


def test_file_has_the_sum_that_sha256sum_says(folder: Path) -> None:
    file = folder / "model.safetensors"
    assert weights_sha256(str(file)) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert weights_sha256(f"file://{file}") == weights_sha256(str(file))


def test_folder_has_the_sum_that_the_page_says(folder: Path) -> None:
    command = (weights_sha256.__doc__ or "").split("\n\n")[1].strip()
    said = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=True
    ).stdout.split()[0]
    assert weights_sha256(str(folder)) == said
    (folder / "README.md").write_text("read me again")
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert weights_sha256(str(folder)) == said
    (folder / "config.json").write_text("{ }")
    assert weights_sha256(str(folder)) != said


def test_file_is_hashed_again_when_it_is_another(folder: Path) -> None:
    file = folder / "model.safetensors"
    first = weights_sha256(str(file))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    status = file.stat()
    with open(file, "r+b") as place:
        place.write(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert weights_sha256(str(file)) == first  # same size, mtime and inode: not read again
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert weights_sha256(str(file)) == hashlib.sha256(data).hexdigest() != first


@pytest.mark.parametrize(("name", "what"), [("gone.safetensors", "weights"), ("gone", ".safetensors")])
def test_missing_weights_are_said_so(tmp_path: Path, name: str, what: str) -> None:
    with refusal(InvalidWeights, what=what, where=tmp_path / name):
        weights_sha256(str(tmp_path / name))
    with refusal(InvalidWeights, what="weights", given=""):
        weights_sha256("")


def test_pickles_are_never_loaded(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with refusal(InvalidWeights, what=".safetensors", where=folder):
        weights_sha256(str(folder))
    named = folder / "really_a_pickle.safetensors"
    named.write_bytes((folder / "pytorch_model.bin").read_bytes())
    with refusal(InvalidWeights, what="file", where=named):
        read_weights(named)


def test_other_weights_than_stated_are_refused(folder: Path) -> None:
    with (
        refusal(InvalidWeights, what="sha256", where=folder, accepted="00ff"),
        local_weights(str(folder), "00ff"),
    ):
        pass


def test_weights_that_change_while_they_are_loaded_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    with (
        refusal(InvalidWeights, what="sha256", where=file),
        local_weights(str(file), weights_sha256(str(file))) as path,
    ):
        two_towers.save_small(path, seed=2)


def test_local_weights_are_read_where_they_lie(folder: Path) -> None:
    for what in (folder, folder / "model.safetensors"):
        with local_weights(str(what), weights_sha256(str(what))) as path:
            assert path == what


def test_weights_behind_a_url_are_fetched_and_verified(folder: Path) -> None:
    url = f"memory://{folder.parent.name}/models"
    store = open_store(url)
    for file in folder.iterdir():
        if file.is_file():
            store.put(f"clip/{file.name}", file.read_bytes())
    assert weights_sha256(f"{url}/clip") == weights_sha256(str(folder))
    one = f"{url}/clip/model.safetensors"
    assert weights_sha256(one) == weights_sha256(str(folder / "model.safetensors"))
    with local_weights(f"{url}/clip", weights_sha256(str(folder))) as path:
        assert {file.name for file in path.iterdir()} == {"config.json", "model.safetensors", "vocab.txt"}
        assert (path / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()
    assert not path.exists()
    with local_weights(one, weights_sha256(one)) as path:
        read_weights(path)
    with refusal(InvalidWeights, what="sha256", where=one, accepted="00ff"), local_weights(one, "00ff"):
        pass
    with refusal(InvalidWeights, what="weights", where=f"{url}/gone.safetensors"):
        weights_sha256(f"{url}/gone.safetensors")


def test_same_weights_are_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        two_towers.save_small(tmp_path / f"{name}.safetensors", seed=5)
        torch.rand(3)
    assert (tmp_path / "one.safetensors").read_bytes() == (tmp_path / "other.safetensors").read_bytes()


def test_what_is_saved_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    tensors = {"a": torch.arange(6).reshape(2, 3).T, "b": torch.tensor(0.5, dtype=torch.bfloat16)}
    save_weights(path, {"network": "x", "wörter": ["é"]}, tensors)
    config, back = read_weights(path)
    assert config == {"network": "x", "wörter": ["é"]}
    assert all(torch.equal(back[name], value) for name, value in tensors.items())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "x.safetensors"
    autoencoder.save_small(path, seed=1)
    with refusal(InvalidWeights, what="network", where=path, given="autoencoder", accepted="two_towers"):
        two_towers.load(path, torch.float32, "cpu")
    config, tensors = read_weights(path)
    tensors.pop("first.weight")
    save_weights(path, config, tensors)
    with refusal(InvalidWeights, what="autoencoder", where=path) as unfitting:
        autoencoder.load(path, torch.float32, "cpu")
    assert "first.weight" in str(unfitting.value.given)
    save_weights(path, {"network": "autoencoder"}, tensors)
    with refusal(InvalidWeights, what="autoencoder", where=path):
        autoencoder.load(path, torch.float32, "cpu")
    save_file({"a": np.zeros(3)}, path)
    with refusal(InvalidWeights, what="configuration", where=path):
        autoencoder.load(path, torch.float32, "cpu")
