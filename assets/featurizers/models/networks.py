"""Models of other libraries, as networks that model featurizers run. Each is a function `load(path, dtype, place)`.

It has a line in the registry of its featurizer (`EMBEDDERS`, `CODERS`, `CAPTIONERS`), or is named by "module:function"
without a line.

Importing a network imports torch: the featurizers do so when they load.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_HERE = "assets.featurizers.models"

EMBEDDERS = {
    "transformers": f"{_HERE}.of_transformers:load_clip",
    "timm": f"{_HERE}.of_timm:load",
}
CODERS = {"diffusers": f"{_HERE}.of_diffusers:load"}
CAPTIONERS = {"transformers": f"{_HERE}.of_transformers:load_captioner"}


def check_network(networks: Mapping[str, str], name: str) -> None:
    """Check that a name is in the registry or is "module:function". Raises: ValueError."""
    if name not in networks and ":" not in name:
        raise ValueError(
            f"network={name!r}; accepted: {', '.join(map(repr, networks))}, or 'module:function' of another one"
        )


def network_loader(networks: Mapping[str, str], name: str) -> Callable[..., Any]:
    """Return the function that loads a network. Raises: ImportError, AttributeError."""
    module, _, function = networks.get(name, name).partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
