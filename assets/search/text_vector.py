"""`python -m assets.search.text_vector`: the embedding of one text, by the text tower of an `embedding` featurizer.

Reads JSON from standard input: `text`, `weights`, `network`. Writes JSON: `vector` and `weights_sha256`, or `error`. It
runs in a process of its own, because the model's libraries take gigabytes and parse weights from elsewhere.
"""

import json
import sys
from typing import Any

from loader.errors import PenstockError
from loader.json_text import parse_json_object

from ..featurizers.models.embedding import Embedding
from ..featurizers.models.model import pin_featurizer
from ..media.unit import Unusable

_FIELD = "query.txt"


def text_vector(text: str, weights: str, network: str) -> dict[str, Any]:
    """Return a text's embedding and the sha256 of the weights. Raises: InvalidWeights; ModelFailed; ValueError."""
    featurizer = Embedding(
        network=network,
        weights=weights,
        image=None,
        video=None,
        text=_FIELD,
        device="cpu",
    )
    featurizer = pin_featurizer(featurizer)
    (features,) = featurizer.features("text", [{_FIELD: text.encode()}])
    if isinstance(features, Unusable):
        raise ValueError(str(features))
    # A pipeline that ran on this processor has the same bits for this text: a batch of one gives the bits of any batch.
    # A pipeline that ran on another device rounds differently.
    vector = features.fields[featurizer.field]
    return {"vector": vector.astype(float).tolist(), "weights_sha256": featurizer.sha256}


def main() -> int:
    request = parse_json_object(sys.stdin.buffer.read())
    try:
        answer = text_vector(
            request["text"],
            request["weights"],
            request["network"],
        )
    except (PenstockError, ValueError, OSError, ImportError) as error:
        # The caller raises this text; a traceback on stderr would be lost.
        answer = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answer, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
