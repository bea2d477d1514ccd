"""Featurizers that run a model on batches. Importing this package does not import torch."""

from ..decoding import cropped, images_of
from .devices import gpus_for
from .model import ModelFeaturizer, machine_facts, pinned

__all__ = ["MODELS", "ModelFeaturizer", "cropped", "gpus_for", "images_of", "machine_facts", "pinned"]

# name -> "module:Class", imported on first use. A new model featurizer gets a line here.
MODELS = {
    "embedding": "assets.featurizers.models.embedding:Embedding",
    "latent": "assets.featurizers.models.latent:Latent",
    "caption": "assets.featurizers.models.caption:Caption",
}
