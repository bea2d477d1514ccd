"""Featurizers that run a model on batches. Importing this package does not import torch."""

from ..decoding import crop_centre, sample_images
from .devices import device_gpus
from .model import ModelFeaturizer, machine_facts, pin_featurizer

__all__ = [
    "MODELS",
    "ModelFeaturizer",
    "crop_centre",
    "device_gpus",
    "machine_facts",
    "pin_featurizer",
    "sample_images",
]

# name -> "module:Class", imported on first use. A new model featurizer gets a line here.
MODELS = {
    "embedding": "assets.featurizers.models.embedding:Embedding",
    "latent": "assets.featurizers.models.latent:Latent",
    "caption": "assets.featurizers.models.caption:Caption",
}
