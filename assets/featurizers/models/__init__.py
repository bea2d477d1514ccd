"""Featurizers that run a model over batches. One file each and one line here; networks are plugged into them.

torch is imported where a model runs, and not by importing this package.
"""

from .devices import gpus_for
from .model import ModelFeaturizer, pinned, tried_out
from .pictures import cropped, pictures_of

__all__ = ["MODELS", "ModelFeaturizer", "cropped", "gpus_for", "pictures_of", "pinned", "tried_out"]

# name -> "module:Class", imported on first use; `weights` has no default.
MODELS = {
    "embedding": "assets.featurizers.models.embedding:Embedding",
    "latent": "assets.featurizers.models.latent:Latent",
    "caption": "assets.featurizers.models.caption:Caption",
}
