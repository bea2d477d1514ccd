"""The embedding of a text, from the network that embedded a field: in a process of its own."""

import json
import subprocess
import sys
from typing import Any

from loader import Version
from loader.errors import FieldMismatch, InvalidRuntime
from loader.json_text import DamagedJson, parse_json_object

PROGRAM = "assets.search.text_vector"
TIMEOUT_S = 600.0
MOST_CHARACTERS = 400


def text_query(
    version: Version,
    field: str,
    text: str,
    weights: str,
    network: str = "transformers",
) -> list[float]:
    """Return the embedding of a text, to compare with a field of a version.

    weights: folder of the network's weights. network: as for the featurizer `embedding`.

    Raises: InvalidRuntime if the process fails; FieldMismatch if the field was made by other weights.
    """
    if not text.strip() or len(text) > MOST_CHARACTERS:
        raise InvalidRuntime(
            f"--text has {len(text):,} characters; accepted are 1 to {MOST_CHARACTERS}, e.g. 'a red cup'"
        )
    request = {
        "text": text,
        "weights": weights,
        "network": network,
    }
    answer = _answer(request)
    if "error" in answer:
        raise InvalidRuntime(f"--text cannot be embedded by {network!r} with {weights}: {answer['error']}")
    # Vectors of different networks have no common directions, even if they have the same width.
    expected = version.facts.get(field, {}).get("weights_sha256", "")
    if expected and answer["weights_sha256"] != expected:
        raise FieldMismatch(
            f"{field!r} of {version.name} was made by weights with sha256 {expected}, {weights} has "
            f"{answer['weights_sha256']}: pass the folder of the same weights"
        )
    vector: list[float] = answer["vector"]
    return vector


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        process = subprocess.run(
            [sys.executable, "-m", PROGRAM],
            input=json.dumps(request).encode(),
            capture_output=True,
            check=False,
            timeout=TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        raise InvalidRuntime(f"--text was not embedded within {TIMEOUT_S:g} s") from None
    try:
        # Libraries may print before the answer: it is the last line.
        _, _, line = process.stdout.strip().rpartition(b"\n")
        return parse_json_object(line)
    except DamagedJson:
        _, _, reason = process.stderr.decode(errors="replace").strip().rpartition("\n")
        raise InvalidRuntime(
            f"--text was not embedded: the process ended with {process.returncode}: {reason:.300}"
        ) from None
