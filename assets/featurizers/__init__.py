"""Featurizers: each computes fields and columns from one sample."""

from importlib import import_module
from typing import Any

from loader.errors import InvalidSpec

from .featurizer import Features, Featurizer, version_of

__all__ = ["FEATURIZERS", "Features", "Featurizer", "make", "version_of"]

# name -> "module:Class", imported on first use. A new featurizer gets a line here, or in `models`.
FEATURIZERS = {
    "appearance": "assets.featurizers.appearance:Appearance",
    "episode_sync": "assets.featurizers.episode_sync:EpisodeSync",
    "picture": "assets.featurizers.picture:Picture",
    "loudness": "assets.featurizers.loudness:Loudness",
    "mel": "assets.featurizers.mel:Mel",
    "minhash": "assets.featurizers.texts.minhash:MinHash",
    "overlap": "assets.featurizers.texts.overlap:TextOverlap",
    "phash": "assets.featurizers.phash:PerceptualHash",
    "tokens": "assets.featurizers.texts.tokens:Tokens",
    "vad": "assets.featurizers.vad:VoiceActivity",
}


def make(name: str, /, **parameters: Any) -> Featurizer:
    """Return the featurizer with this registered name or "module:Class" path.

    Raises: InvalidSpec (unknown name or value), TypeError (unknown parameter), ImportError or AttributeError (no such
    class).
    """
    from .models import MODELS  # a spec without features loads no models

    registry = {**FEATURIZERS, **MODELS}
    target = registry.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise InvalidSpec(
            f"no featurizer {name!r}; accepted: {', '.join(sorted(registry))}. Name any other as "
            "'module:Class', or add a line to assets/featurizers/__init__.py",
            what="featurizer",
            given=name,
            accepted=sorted(registry),
        )
    featurizer: Featurizer = getattr(import_module(module), attribute)(**parameters)
    return featurizer
