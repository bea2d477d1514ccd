"""Describe the makers of batches and what they make ahead, for a log."""

from collections.abc import Sequence

from .maker_choice import Maker
from .making.prefetch import PREFETCH_SHARE, READY_STRIDES, Bound, Prefetch

TRAINING_THREAD = "the training's own thread"


def maker_phrase(maker: Maker, caller: str = TRAINING_THREAD) -> str:
    """Return a maker as "4 threads" or "1 process". caller: name of the thread that takes the batches."""
    if maker.name == "caller":
        return caller
    plural = maker.name
    if maker.workers != 1:
        return f"{maker.workers} {plural}"
    endings = {
        "threads": "s",
        "processes": "es",
    }
    singular = plural.removesuffix(endings[plural])
    return f"1 {singular}"


def describe_trials(trials: Sequence[tuple[Maker, float]]) -> str:
    """Return the makers of a run, each with the seconds for which it was used."""
    texts: list[str] = []
    for maker, seconds in trials:
        phrase = maker_phrase(maker)
        texts.append(f"{phrase} for {seconds:,.1f} s")
    tried = ", ".join(texts)
    return f"tried: {tried}"


def describe_ahead(bound: Bound, prefetch: Prefetch | None) -> str:
    """Return how many bytes of batches are made ahead, and why. prefetch: None before the first batch."""
    most_bytes = bound.least
    if prefetch is not None:
        most_bytes = prefetch.max_bytes
    ahead = f"up to {_mib(most_bytes)} are made ahead"
    if prefetch is not None and prefetch.batch_bytes is not None:
        batch_mib = _mib(prefetch.batch_bytes)
        ahead += f", in batches of {batch_mib}"
    if not bound.by_need:
        return f"{ahead}: set by prefetch="
    least = _mib(bound.least)
    most = _mib(bound.most)
    return (
        f"{ahead}: {READY_STRIDES} lie ready for each worker, at least {least} in all and at "
        f"most {most}, 1/{PREFETCH_SHARE} of this rank's memory"
    )


def _mib(nbytes: int) -> str:
    mib = nbytes / 2**20
    if mib < 10:
        return f"{mib:,.2f} MiB"
    return f"{mib:,.0f} MiB"
