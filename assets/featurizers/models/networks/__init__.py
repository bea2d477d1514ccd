"""Networks that model featurizers run. A file with a function `load(path, dtype, place)`, and a line in the registry
of what it is plugged into: `EMBEDDERS`, `CODERS`, `CAPTIONERS`; or named by "module:function" without a line.

Importing one imports torch: the featurizers do so when they load.
"""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_HERE = "assets.featurizers.models.networks"

EMBEDDERS = {
    "two_towers": f"{_HERE}.two_towers:load",
    "transformers": f"{_HERE}.of_transformers:load_clip",
    "timm": f"{_HERE}.of_timm:load",
}
CODERS = {
    "autoencoder": f"{_HERE}.autoencoder:load",
    "diffusers": f"{_HERE}.of_diffusers:load",
}
CAPTIONERS = {
    "captioner": f"{_HERE}.captioner:load",
    "transformers": f"{_HERE}.of_transformers:load_captioner",
}


def check_network(networks: Mapping[str, str], name: str) -> None:
    """Raises: ValueError for a name that is neither in the registry nor "module:function"."""
    if name not in networks and ":" not in name:
        raise ValueError(
            f"network={name!r}; accepted: {', '.join(map(repr, networks))}, or 'module:function' of another one"
        )


def network_loader(networks: Mapping[str, str], name: str) -> Callable[..., Any]:
    """The function that loads it. Raises: ImportError, AttributeError."""
    module, _, function = networks.get(name, name).partition(":")
    found: Callable[..., Any] = getattr(import_module(module), function)
    return found
