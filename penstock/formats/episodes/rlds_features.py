"""`features.json` of TensorFlow Datasets: the features of an episode and of its steps, by their paths."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.json_text import DamagedJson, parse_json_object

STEPS = "steps"
"""Feature whose values are lists, one entry for each step."""
_MOST_DEPTH = 32


class Feature(NamedTuple):
    """A leaf of the tree of features."""

    path: str
    """Name in a record: names of the tree, with "/" between them."""
    in_steps: bool
    """True for a value of each step, False for the episode's own."""
    kind: str
    """"numbers", "text", "image" of 8 bits, or "depth" of steps: one channel of 16 bits."""
    dtype: np.dtype[Any]
    """Dtype of numbers."""
    shape: tuple[int, ...]
    """Shape of one value; () for texts and images."""

    @property
    def size(self) -> int:
        """Numbers of one value."""
        return math.prod(self.shape)


def features_in(data: bytes, name: str) -> list[Feature]:
    """Return the features of a `features.json`. name: of it, for errors. Raises: Corrupt; InvalidSample."""
    try:
        found = list(_leaves(parse_json_object(data), "", 0, name, 0))
    except (DamagedJson, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"{name}: it is no features.json of TensorFlow Datasets: {error!r}") from error
    if not any(one.in_steps for one in found):
        raise InvalidSample(f"{name} has no steps: import such a dataset as tfrecord")
    return found


def _leaves(node: Any, path: str, sequences: int, name: str, depth: int) -> Iterator[Feature]:
    """Yield the leaves below a node. sequences: lists around it. Raises: KeyError; TypeError; ValueError."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"{path} lies deeper than {_MOST_DEPTH}")
    if "featuresDict" in node:
        for child, below in node["featuresDict"]["features"].items():
            yield from _leaves(below, f"{path}/{child}" if path else child, sequences, name, depth + 1)
    elif "sequence" in node:
        yield from _leaves(node["sequence"]["feature"], path, sequences + 1, name, depth + 1)
    else:
        yield _leaf(node, path, sequences)


def _leaf(node: dict[str, Any], path: str, sequences: int) -> Feature:
    """Return a leaf; of a kind that is not read its kind says so. Raises: KeyError; TypeError; ValueError."""
    kind, dtype, shape = "", "int64", list[int]()
    if "tensor" in node:
        told = node["tensor"]
        kind, dtype = "numbers", str(told["dtype"])
        shape = [int(one) for one in told.get("shape", {}).get("dimensions", [])]
        if dtype == "string":
            kind, dtype = ("text" if not shape else ""), "int64"
        if told.get("encoding", "none") != "none" or min(shape, default=1) < 0:
            kind = ""
    elif "classLabel" in node:
        kind = "numbers"
    elif "text" in node:
        kind = "text"
    in_steps = path.partition("/")[0] == STEPS
    if "image" in node:
        told = node["image"]
        kind = "image"
        if in_steps and told.get("dtype", "uint8") != "uint8":
            kind = "depth" if (told["dtype"], told["shape"]["dimensions"][-1]) == ("uint16", "1") else ""
    if sequences != in_steps:
        kind = ""
    return Feature(path, in_steps, kind, np.dtype(dtype.replace("bfloat16", "float32")), tuple(shape))
