"""Read members of records, checked arrays, and the values of a stored rollout."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidSample

Sample = tuple[str, dict[str, Any], dict[str, Any]]
"""Key, fields and metadata, as `loader.rollout` returns them."""


def member(
    record: Any,
    name: str,
) -> Any:
    """Return a member of a mapping or an object; None if it has none of this name."""
    if isinstance(record, Mapping):
        return record.get(name)
    return getattr(record, name, None)


def array(
    where: str,
    value: Any,
    n_dimensions: int = 1,
) -> NDArray[Any]:
    """Return a list, array or CPU tensor as an array. An empty list has integers."""
    try:
        values = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # ragged lists, tensors on a GPU
        raise InvalidSample(
            f"{where} is not an array: {error}; pass a list, a numpy array or a CPU tensor"
        ) from error
    if values.ndim != n_dimensions:
        raise InvalidSample(f"{where} has shape {list(values.shape)}; {n_dimensions} dimensions are needed")
    if not values.size and n_dimensions == 1:
        return np.zeros(0, np.int64)
    if values.dtype == object:  # None among numbers: servers return it for a missing log-probability
        return _with_missing(where, values)
    if values.dtype.kind not in "iufb":
        raise InvalidSample(f"{where} has dtype {values.dtype}; numbers are needed")
    return values


def _with_missing(
    where: str,
    values: NDArray[Any],
) -> NDArray[Any]:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidSample(f"{where} holds other values than numbers: {error}") from error


def check_length(
    where: str,
    values: Any,
    n_expected: int,
    name: str,
) -> None:
    """Raise InvalidSample unless `values` are as many as `name` has."""
    n_values = len(values)
    if n_values != n_expected:
        raise InvalidSample(f"{where} has {n_values} values, {name} {n_expected}")


def behind_prompt(
    where: str,
    values: Any,
    n_prompt: int,
    n_response: int,
    fill: float,
) -> NDArray[Any]:
    """Return [P + R]: `fill` for each token of the prompt, then the response's values."""
    response = array(where, values)
    check_length(where, response, n_response, "response_ids")
    prompt = np.full(n_prompt, fill, response.dtype)
    return np.concatenate([prompt, response])


def refuse_images(
    where: str,
    value: Any,
    rollout_arguments: Mapping[str, Any],
) -> None:
    """Raise InvalidSample if a record has images that `media=` does not name."""
    has_images = value is not None and len(value) > 0
    has_media = rollout_arguments.get("media") is not None
    if has_images and not has_media:
        raise InvalidSample(
            f"{where} holds images. Write them to a dataset of their own, and pass media= and media_version="
        )


class StoredRollout:
    """The values of a rollout: a result of `loader.rollout`, or a sample of a view, `view[i]`."""

    def __init__(
        self,
        sample: Sample | Mapping[str, Any],
    ) -> None:
        if isinstance(sample, Mapping):
            self._values = dict(sample)
            self.key = self._values.get("__key__", "")
        else:
            self.key, fields, metadata = sample
            self._values = {**metadata, **fields}
        self.where = f"rollout {self.key!r}"
        tokens = self._required("tokens.npy")
        self.tokens = array(f"{self.where}: tokens.npy", tokens)  # [T]
        mask_place = f"{self.where}: mask.npy"
        mask = array(mask_place, self._required("mask.npy"))
        check_length(mask_place, mask, len(self.tokens), "tokens.npy")
        self.mask = mask.astype(bool)  # [T]

    def column(
        self,
        name: str,
    ) -> Any:
        """Return a column; None if the sample has none of this name."""
        return self._values.get(name)

    def per_token(
        self,
        field: str,
    ) -> NDArray[Any] | None:
        """Return a field with a row per token; None if the sample lacks it."""
        value = self._values.get(field)
        if value is None:
            return None
        rows: NDArray[Any] = np.asarray(value)
        check_length(f"{self.where}: {field}", rows, len(self.tokens), "tokens.npy")
        return rows

    def rows(
        self,
        field: str,
    ) -> NDArray[Any] | None:
        """Return a field with any number of rows; None if the sample lacks it."""
        value = self._values.get(field)
        if value is None:
            return None
        return np.asarray(value)

    @property
    def n_prompt(self) -> int:
        """Number of tokens before the response: the column that an adapter wrote, or those before the first sampled."""
        n_prompt = self._values.get("n_prompt_tokens")
        if n_prompt is not None:
            return int(n_prompt)
        if not self.mask.any():
            return len(self.tokens)
        return int(self.mask.argmax())

    def refuse_media(
        self,
        images: Any,
    ) -> None:
        """Raise InvalidSample if the rollout has media and the caller passes no images."""
        media = self._values.get("media.npy")
        if media is not None and len(media) and images is None:
            raise InvalidSample(
                f"{self.where} has media.npy. Read the images with images[media[:, 0]], and pass them"
            )

    def refuse_sampled_beginning(
        self,
        name: str,
    ) -> None:
        """Raise InvalidSample if the first token was sampled: rows of a record predict the token after them."""
        if self.mask[:1].any():
            raise InvalidSample(
                f"{self.where}: token 0 was sampled, and no row of {name} predicts it; a prompt is needed"
            )

    def _required(
        self,
        field: str,
    ) -> Any:
        if field not in self._values:
            raise InvalidSample(f"{self.where} has no {field}; select it in the view")
        return self._values[field]
