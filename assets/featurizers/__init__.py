"""Featurizers: computations on one sample. One file each, and one line here (or in `models`, with a model)."""

from importlib import import_module
from typing import Any

from .featurizer import Features, Featurizer, version_of

__all__ = ["FEATURIZERS", "Features", "Featurizer", "make", "version_of"]

# name -> "module:Class", imported on first use. The conformance suite runs over these.
FEATURIZERS = {
    "picture": "assets.featurizers.picture:Picture",
    "loudness": "assets.featurizers.loudness:Loudness",
    "mel": "assets.featurizers.mel:Mel",
    "phash": "assets.featurizers.phash:PerceptualHash",
    "tokens": "assets.featurizers.tokens:Tokens",
    "vad": "assets.featurizers.vad:VoiceActivity",
}


def make(name: str, /, **parameters: Any) -> Featurizer:
    """Return the featurizer of that name, or the class at "module:Class", with these parameters.

    Raises: ValueError (an unknown name; a value the featurizer refuses), TypeError (a parameter that it does
    not have), ImportError and AttributeError (no such module or class).
    """
    from .models import MODELS  # a spec without features does without the machinery of models

    registry = {**FEATURIZERS, **MODELS}
    target = registry.get(name, name)
    module, colon, attribute = target.partition(":")
    if not colon:
        raise ValueError(
            f"no featurizer {name!r}; there are {', '.join(sorted(registry))}. Another one is named by "
            "'module:Class', or gets a line in assets/featurizers/__init__.py"
        )
    made: Featurizer = getattr(import_module(module), attribute)(**parameters)
    return made
