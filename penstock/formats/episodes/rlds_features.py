"""Read `features.json` of TensorFlow Datasets: the features of an episode and its steps, by path."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from loader.errors import Corrupt, InvalidSample
from loader.json_text import DamagedJson, parse_json_object

STEPS = "steps"
"""Feature whose values are lists with one entry per step."""
_MOST_DEPTH = 32


class RldsFeature(NamedTuple):
    """A leaf of the tree of features."""

    path: str
    """Name in a record: names of the tree, joined by "/"."""
    in_steps: bool
    """True for a value per step, False for the episode's own."""
    kind: str
    """"numbers", "text", "image" of 8 bits, or "depth" of steps: one channel of 16 bits."""
    dtype: np.dtype[Any]
    """Dtype of numbers."""
    shape: tuple[int, ...]
    """Shape of one value; () for texts and images."""

    @property
    def size(self) -> int:
        """Numbers in one value."""
        return math.prod(self.shape)


def features_in(data: bytes, name: str) -> list[RldsFeature]:
    """Return the features of a `features.json`. name: of it, for errors. Raises: Corrupt; InvalidSample."""
    try:
        features = list(_leaves(parse_json_object(data), "", 0, name, 0))
    except (DamagedJson, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Corrupt(f"{name}: it is no features.json of TensorFlow Datasets: {error!r}") from error
    if not any(one.in_steps for one in features):
        raise InvalidSample(f"{name} has no steps: import such a dataset as tfrecord")
    return features


def _leaves(node: Any, path: str, sequences: int, name: str, depth: int) -> Iterator[RldsFeature]:
    """Yield the leaves below a node. sequences: number of enclosing lists."""
    if depth > _MOST_DEPTH:
        raise ValueError(f"{path} lies deeper than {_MOST_DEPTH}")
    if "featuresDict" in node:
        for child, below in node["featuresDict"]["features"].items():
            yield from _leaves(below, f"{path}/{child}" if path else child, sequences, name, depth + 1)
    elif "sequence" in node:
        yield from _leaves(node["sequence"]["feature"], path, sequences + 1, name, depth + 1)
    else:
        yield _leaf(node, path, sequences)


def _leaf(node: dict[str, Any], path: str, sequences: int) -> RldsFeature:
    """Return a leaf; its kind is "" if it cannot be read."""
    kind, dtype, shape = "", "int64", list[int]()
    if "tensor" in node:
        body = node["tensor"]
        kind, dtype = "numbers", str(body["dtype"])
        shape = [int(one) for one in body.get("shape", {}).get("dimensions", [])]
        if dtype == "string":
            kind, dtype = ("text" if not shape else ""), "int64"
        if body.get("encoding", "none") != "none" or min(shape, default=1) < 0:
            kind = ""
    elif "classLabel" in node:
        kind = "numbers"
    elif "text" in node:
        kind = "text"
    in_steps = path.partition("/")[0] == STEPS
    if "image" in node:
        body = node["image"]
        kind = "image"
        if in_steps and body.get("dtype", "uint8") != "uint8":
            kind = "depth" if (body["dtype"], body["shape"]["dimensions"][-1]) == ("uint16", "1") else ""
    if sequences != in_steps:
        kind = ""
    return RldsFeature(path, in_steps, kind, np.dtype(dtype.replace("bfloat16", "float32")), tuple(shape))
