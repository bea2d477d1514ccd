"""Featurizers that run a model over batches. Importing this package does not import torch."""

from ..decoding import cropped, images_of
from .devices import gpus_for
from .model import ModelFeaturizer, pinned, tried_out

__all__ = ["MODELS", "ModelFeaturizer", "cropped", "gpus_for", "images_of", "pinned", "tried_out"]

# name -> "module:Class", imported on first use. A new model featurizer gets a line here.
MODELS = {
    "embedding": "assets.featurizers.models.embedding:Embedding",
    "latent": "assets.featurizers.models.latent:Latent",
    "caption": "assets.featurizers.models.caption:Caption",
}
