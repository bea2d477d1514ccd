"""Point clouds: the word xyz, little-endian float32 triples."""

import numpy as np
import numpy.typing as npt

from loader.errors import DecodeFailed, InvalidField
from loader.modalities import Buffer

POINT_BYTES = 12


def decode(data: Buffer, rng: np.random.Generator | None = None) -> npt.NDArray[np.float32]:
    """Return float32 [points, 3], in metres. Raises: DecodeFailed for bytes that are not whole points."""
    if len(data) % POINT_BYTES:
        message = f"xyz: {len(data)} bytes are not whole points of {POINT_BYTES} bytes"
        raise DecodeFailed(message, what="xyz", given=len(data))
    return np.frombuffer(data, "<f4").reshape(-1, 3).copy()


def encode(field: str, value: object) -> bytes:
    """Return the bytes of an array [points, 3]. Raises: InvalidField."""
    points = np.asarray(value)
    if points.ndim != 2 or points.shape[1] != 3:
        message = f"field {field!r} takes an array [points, 3], got shape {points.shape}"
        raise InvalidField(message, what=field, given=points.shape, accepted="[points, 3]")
    return points.astype("<f4").tobytes()
