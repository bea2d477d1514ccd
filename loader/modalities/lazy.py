"""Import a modality's code when it is first needed, and say what to install where a package is missing."""

from functools import cache
from importlib import import_module
from typing import Any

from ..errors import MissingDependency

EXTRAS = ("image", "audio", "video")
"""Packages in this package that import others; the pip extra of each has its name."""


@cache
def load(target: str) -> Any:
    """The attribute that "module:attribute" names in this package.

    Raises: MissingDependency (a package that the module imports is not installed), with the pip line.
    """
    module, attribute = target.split(":")
    try:
        return getattr(import_module(f"{__package__}.{module}"), attribute)
    except ImportError as error:
        extra = module.partition(".")[0]
        if extra not in EXTRAS or (error.name or "").startswith(str(__package__)):
            raise
        raise MissingDependency(
            f"{extra} fields need the package {str(error.name).partition('.')[0]!r}, which is not installed: "
            f"pip install 'penstock[{extra}]'"
        ) from error
