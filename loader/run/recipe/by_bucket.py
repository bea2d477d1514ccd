"""Decoders and transforms that differ by bucket: the one of a sample's bucket is called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import InvalidRuntime

Called = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ByBucket:
    """A decoder or transform per bucket, as `by_bucket` makes it."""

    of: Mapping[str, Called] | Called
    """Label -> decoder or transform, or a function of the label that makes it."""

    def chosen(self, label: str, where: str) -> Called:
        """Return the decoder or transform for samples of a bucket. Raises: InvalidRuntime."""
        if isinstance(self.of, Mapping):
            if label not in self.of:
                raise InvalidRuntime(
                    f"{where} = loader.by_bucket(...) has nothing for the plan's bucket {label!r}, but for "
                    f"{', '.join(map(repr, self.of))}; name every bucket, or pass a function of the label"
                )
            return self.of[label]
        try:
            choice: object = self.of(label)
        except InvalidRuntime as error:
            error.add_note(f"while making {where} of bucket {label!r}")
            raise
        if not callable(choice):
            raise InvalidRuntime(
                f"{where} = loader.by_bucket({self.of!r}): of bucket {label!r} it makes {choice!r}, which cannot be "
                "called"
            )
        return choice


def by_bucket(of: Mapping[str, Called] | Called) -> ByBucket:
    """Return a decoder or a transform for each bucket of a plan with `bucket_by`.

        Loader(plan, decode={"jpg": loader.by_bucket(lambda label: loader.image(size=label, crop="random"))})
        Loader(plan, transform=loader.by_bucket({"short": pad_to_512, "long": pad_to_4096}))

    of: label -> decoder (or transform), with one for every bucket of the plan, or a function that makes it of a label.
    It is called once per bucket when the Loader is made. `plan.describe()` names a plan's buckets, `plan.bucket(step)`
    and `batch.bucket` a batch's.

    Raises: InvalidRuntime.
    """
    called = list(of.values()) if isinstance(of, Mapping) else [of]
    if not called or not all(map(callable, called)):
        raise InvalidRuntime(
            f"by_bucket({of!r}): a dict of bucket -> decoder or transform is needed, or a function of a bucket's label"
        )
    return ByBucket(of)


def of_buckets(value: object, labels: list[str], where: str) -> object:
    """Return a value as it was given; of `by_bucket(...)` with one for each of these labels, made.

    Raises: InvalidRuntime.
    """
    if not isinstance(value, ByBucket):
        return value
    if not labels:
        raise InvalidRuntime(
            f"{where} = loader.by_bucket(...) with a plan that has no buckets; plan with bucket_by=, or pass the one "
            "that is to be called"
        )
    return ByBucket({label: value.chosen(label, where) for label in labels})


def of_bucket(value: Any, label: str | None, where: str) -> Any:
    """Return the decoder or transform for one bucket, of a value that `of_buckets` gave."""
    return value.chosen(label, where) if isinstance(value, ByBucket) and label is not None else value
