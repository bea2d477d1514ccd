"""Check arguments: whole numbers, and unknown keywords, for which an error names the closest one or penstock's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import ParamSpec, TypeGuard, TypeVar

from .errors import InvalidRuntime, PenstockError

P = ParamSpec("P")
T = TypeVar("T")

_ORDER = "the plan fixes the order: loader.plan(..., seed=7)"
_BATCH = "loader.plan(..., global_batch=256) is the batch of all ranks together"

PLAN_WORDS = {
    "batch_size": "global_batch= is the batch of all ranks together",
    "drop_last": 'the last batch continues into the next epoch; boundary="mask" pads it instead',
    "generator": "seed= fixes the order",
    "num_replicas": "the world size is the Loader's: loader.Loader(plan, rank=0, world_size=8)",
    "num_workers": "workers are the Loader's: loader.Loader(plan, workers=8)",
    "rank": "the rank is the Loader's: loader.Loader(plan, rank=0, world_size=8)",
    "sampler": "the plan fixes the order: loader.source(view, weight=2), bucket_by=, loader.listed(...)",
    "shuffle": "every plan is shuffled by its seed; loader.listed(...) gives an order of your own",
    "weights": "give a source its weight: {'photos': loader.source(view, weight=2)}",
    "world_size": "the world size is the Loader's: loader.Loader(plan, rank=0, world_size=8)",
}
"""Argument of a DataLoader or DistributedSampler -> its replacement in `loader.plan`."""
LOADER_WORDS = {
    "batch_sampler": _ORDER,
    "batch_size": f"{_BATCH}; micro_batch= cuts a rank's part of it",
    "collate_fn": "transform= makes each sample; values of one shape are stacked",
    "dataset": "a Loader takes a plan: loader.Loader(loader.plan({'photos': version}, seed=7, global_batch=256))",
    "drop_last": 'every batch is whole: loader.plan(..., boundary="fill"), the default',
    "generator": "the plan's seed decides every random draw: loader.plan(..., seed=7)",
    "global_batch": _BATCH,
    "multiprocessing_context": 'executor="processes" makes batches in processes',
    "num_replicas": "world_size= is the number of data-parallel ranks",
    "num_workers": 'workers= is the number of threads or processes; "auto", the default, chooses',
    "persistent_workers": "workers live as long as the Loader",
    "pin_memory": "device='cuda' copies batches to the GPU through page-locked memory, ahead of the training",
    "prefetch_factor": "prefetch= is in bytes of batches made ahead",
    "sampler": _ORDER,
    "seed": _ORDER,
    "shuffle": _ORDER,
    "timeout": "timeouts are the store's: loader.Root(url, options={'timeout_s': 30})",
    "worker_init_fn": "a transform is sent to each worker; prepare on its first call",
}
"""Argument of a DataLoader or of `loader.plan` -> its replacement in `loader.Loader`."""


def explains(words: Mapping[str, str]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator: a function called with a keyword from `words` raises TypeError with the keyword's text.

    For other unknown keywords the error names the closest argument.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        code = function.__code__
        accepted = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        takes_any = bool(code.co_flags & 0x08)
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            for keyword in kwargs:
                if keyword in words and keyword not in accepted:
                    raise TypeError(f"{name}() has no argument {keyword!r}: {words[keyword]}")
                if keyword not in accepted and not takes_any:
                    near = did_you_mean(keyword, accepted) or f"; it has {', '.join(accepted)}"
                    raise TypeError(f"{name}() has no argument {keyword!r}{near}")
            return function(*args, **kwargs)

        return call

    return decorate


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ", did you mean 'photos'?" if a known name is close to `name`, else ""."""
    from difflib import get_close_matches  # imported only for errors: takes 2 ms

    near = get_close_matches(name, list(known), 1)
    return f", did you mean {near[0]!r}?" if near else ""


def is_whole_number(value: object, low: int, high: int | None = None) -> TypeGuard[int]:
    """Return whether a value is an int from `low` to `high`, None for no limit. A bool and numpy's integers are not."""
    if type(value) is not int:
        return False
    return low <= value and (high is None or value <= high)


def check_whole_number(
    name: str,
    value: object,
    low: int,
    high: int | None = None,
    error: type[PenstockError] = InvalidRuntime,
) -> int:
    """Return a value that `is_whole_number`. For values that are stored as they are."""
    if is_whole_number(value, low, high):
        return value
    accepted = f"a whole number of at least {low:,}"
    if high is not None:
        accepted = f"a whole number from {low:,} to {high:,}"
    raise error(
        f"{name} = {value!r}: {accepted} is needed",
        what=name,
        given=value,
        accepted=accepted,
    )


def whole_number(
    name: str,
    value: object,
    low: int,
    high: int | None = None,
    error: type[PenstockError] = InvalidRuntime,
) -> int:
    """Return an argument as an int from `low` to `high`. Accepts numpy's integers."""
    number = value
    if hasattr(value, "__index__") and not isinstance(value, bool):
        number = int(value.__index__())
    if is_whole_number(number, low, high):
        return number
    return check_whole_number(
        name,
        value,
        low,
        high,
        error,
    )


def check_word(name: str, value: object, accepted: Sequence[str]) -> None:
    """Raise InvalidRuntime for an argument that is none of the accepted words."""
    if value not in accepted:
        words = ", ".join(map(repr, accepted))
        raise InvalidRuntime(
            f"{name} = {value!r}; accepted: {words}", what=name, given=value, accepted=list(accepted)
        )
