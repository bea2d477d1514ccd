"""Convert a rollout's arrays to their stored dtypes. No value may change: what does not fit is refused."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ..errors import InvalidSample


def refused_array(where: str, fault: str, **fields: object) -> InvalidSample:
    """Return the error of an array. where: its owner and its name, such as "rollout 'r1': mask.npy"."""
    # At the last colon: a key may contain one.
    owner, _, name = where.rpartition(": ")
    return InvalidSample(f"{where} {fault}", what=name, where=owner, **fields)


def one_dimensional(
    where: str,
    value: Any,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return a sequence, array or CPU tensor as an array [n]. Raises: InvalidSample, which begins with `where`."""
    array = any_array(where, value, dtype)
    if array.ndim != 1:
        shape = list(array.shape)
        raise refused_array(
            where,
            f"has shape {shape}; one dimension is needed, a value per token",
            given=shape,
            accepted="one dimension",
        )
    return array


def any_array(
    where: str,
    value: Any,
    dtype: DTypeLike | None = None,
) -> NDArray[Any]:
    """Return numbers or truth values as an array. Raises: InvalidSample.

    dtype: dtype of lists with None, which becomes NaN.
    """
    if np.ma.is_masked(value):  # numpy.asarray would return what lies under the mask
        raise refused_array(where, "has masked values; fill them: array.filled(...)", given="masked values")
    try:
        array = np.asarray(value)
        if dtype is not None and array.dtype == object and not _has_text(array):
            array = array.astype(dtype)
    except (
        TypeError,
        ValueError,
        OverflowError,
        RuntimeError,
    ) as error:  # ragged lists, tensors that need grad or are on a GPU
        raise refused_array(
            where,
            f"is not an array: {error}; pass a list, a numpy array or a CPU tensor",
            given=type(error).__name__,
            accepted="an array",
        ) from error
    if array.dtype.kind not in "iufb" and array.size:
        raise refused_array(
            where,
            f"has dtype {array.dtype}; a list, a numpy array or a CPU tensor of integers, floats or booleans is needed",
            given=str(array.dtype),
            accepted="integers, floats or booleans",
        )
    return array


def _has_text(array: NDArray[Any]) -> bool:
    """Return whether an object array holds texts, which numpy would parse as numbers."""
    return any(isinstance(value, str | bytes) for value in array.flat)


def integers(
    where: str,
    array: NDArray[Any],
    dtype: DTypeLike,
) -> NDArray[Any]:
    """Return integers from 0 on in `dtype`. Raises: InvalidSample with a value that does not fit."""
    if array.size and array.dtype.kind not in "iu":
        raise refused_array(
            where,
            f"has dtype {array.dtype}; integers are needed",
            given=str(array.dtype),
            accepted="integers",
        )
    highest = int(np.iinfo(dtype).max)
    # As Python's integers: numpy refuses to compare an array with a bound beyond its own dtype.
    smallest = int(array.min(initial=0))
    largest = int(array.max(initial=0))
    wrong = None
    if smallest < 0:
        wrong = smallest
    elif largest > highest:
        wrong = largest
    if wrong is not None:
        position = int(np.flatnonzero(array.reshape(-1) == wrong)[0])
        raise refused_array(
            where,
            f"has the value {wrong} at {position}; accepted: 0 to {highest}",
            given=wrong,
            accepted=f"0 to {highest}",
        )
    return np.asarray(array, dtype, order="C")


def truth_values(where: str, array: NDArray[Any]) -> NDArray[np.bool_]:
    """Return bool [n]; accepts booleans and the integers 0 and 1. Raises: InvalidSample."""
    if array.dtype.kind == "b":
        return np.asarray(array, order="C")
    # Frameworks hold masks as integers: verl's response_mask, SkyRL's loss_masks.
    numbers = integers(where, array, np.int64)
    if numbers.max(initial=0) > 1:
        largest = int(numbers.max())
        raise refused_array(
            where,
            f"has the value {largest}; accepted: True and False, or 0 and 1",
            given=largest,
            accepted="True and False, or 0 and 1",
        )
    return numbers.astype(bool)


def floats(where: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """Return float32, infinite where a value is beyond it. Raises: InvalidSample for booleans."""
    if array.size and array.dtype.kind == "b":
        raise refused_array(where, "has dtype bool; floats are needed", given="bool", accepted="floats")
    # No warning for a value beyond float32: where infinity is invalid, the caller raises.
    with np.errstate(over="ignore"):
        return np.asarray(array, np.float32, order="C")


def check_length(
    where: str,
    array: NDArray[Any],
    n_tokens: int,
) -> None:
    """Raise InvalidSample unless there is a row per token."""
    n_values = len(array)
    if n_values == n_tokens:
        return
    advice = ""
    if where.endswith("experts.npy") and n_values == n_tokens - 1:
        # Servers route no token after the last one, so they return no row for it.
        advice = ". The server returned no row for the last token: add one of 65535"
    raise refused_array(
        where,
        f"has {n_values} values, tokens.npy {n_tokens}; one per token is needed{advice}",
        given=n_values,
        accepted=n_tokens,
    )
