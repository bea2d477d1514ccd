"""Samples of every kind, and models that are small."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assets.testing.featurizers import Sample, flac, jpeg, mp4, samples_of_every_kind, scene, sine

sys.path.append(str(Path(__file__).parent / "networks"))  # tests_networks, here and in workers


@pytest.fixture(scope="session")
def make() -> "type[Make]":
    """How samples are made."""
    return Make


class Make:
    scene, jpeg, mp4, flac, sine = map(staticmethod, (scene, jpeg, mp4, flac, sine))


@pytest.fixture(scope="session")
def samples() -> Mapping[str, list[Sample]]:
    """kind -> samples; each has every field that a featurizer of the registry reads of this kind."""
    return samples_of_every_kind()


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """Name in MODELS -> parameters with which it runs: small networks with random weights."""
    from tests_networks import autoencoder, captioner, two_towers

    folder = tmp_path_factory.mktemp("weights")
    made = {"embedding": two_towers, "latent": autoencoder, "caption": captioner}
    for name, network in made.items():
        network.save_small(folder / f"{name}.safetensors", seed=7)
    parameters = {
        name: {
            "weights": str(folder / f"{name}.safetensors"),
            "network": f"{network.__name__}:load",
            "device": "cpu",
        }
        for name, network in made.items()
    }
    parameters["embedding"] |= {"text": "txt"}
    parameters["latent"] |= {"size_px": 0}
    parameters["caption"] |= {"video": "mp4", "max_tokens": 6}
    return parameters
