"""Describe the makers of batches and what they make ahead, for a log."""

from collections.abc import Sequence

from .choice import Maker
from .making.prefetch import PREFETCH_SHARE, READY_STRIDES, Bound, Prefetch

TRAINING_THREAD = "the training's own thread"


def maker_phrase(maker: Maker, caller: str = TRAINING_THREAD) -> str:
    """Return a maker as "4 threads" or "1 process". caller: name of the thread that takes the batches."""
    if maker.name == "caller":
        return caller
    plural = maker.name
    if maker.workers != 1:
        return f"{maker.workers} {plural}"
    ending = {"threads": "s", "processes": "es"}[plural]
    return f"1 {plural.removesuffix(ending)}"


def describe_trials(trials: Sequence[tuple[Maker, float]]) -> str:
    """Return the makers of a run, each with the seconds for which it was used."""
    texts = [f"{maker_phrase(maker)} for {seconds:,.1f} s" for maker, seconds in trials]
    return f"tried: {', '.join(texts)}"


def describe_ahead(bound: Bound, prefetch: Prefetch | None) -> str:
    """Return how many bytes of batches are made ahead, and why. prefetch: None before the first batch."""
    most_bytes = bound.least
    if prefetch is not None:
        most_bytes = prefetch.bound_bytes
    ahead = f"up to {_mib(most_bytes)} are made ahead"
    if prefetch is not None and prefetch.batch_bytes is not None:
        ahead += f", in batches of {_mib(prefetch.batch_bytes)}"
    if not bound.by_need:
        return f"{ahead}: set by prefetch="
    return (
        f"{ahead}: {READY_STRIDES} lie ready for each worker, at least {_mib(bound.least)} in all and at "
        f"most {_mib(bound.most)}, 1/{PREFETCH_SHARE} of this rank's memory"
    )


def _mib(nbytes: int) -> str:
    digits = 2
    if nbytes >= 10 * 2**20:
        digits = 0
    return f"{nbytes / 2**20:,.{digits}f} MiB"
