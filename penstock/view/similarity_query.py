"""The samples that a version's page ranks by, and the address of such a page."""

import loader
from loader.dataset.versions.sample_search import parse_keys

from .maps.map_record import has_vectors
from .open_data import OpenData
from .page_address import version_address
from .runs.highest_loss import parse_run_step, worst_key


def parse_like(opened: OpenData, version: "loader.Version", like: str) -> tuple[str, ...]:
    """Return the keys that `like=` names, with commas between them.

    `RUN@STEP` of a recorded run names that step's worst sample. version: the one that is searched. Raises:
    InvalidRuntime for a step without per-sample metrics, and for a sample of another dataset; errors from opening the
    run.
    """
    # Without an index by key, it costs a scan of all keys whether a text with a comma is one.
    cached_as = ("named", version.id, like)
    names: list[str] = opened.cached(opened.media, cached_as, lambda: parse_keys(version, like))
    return tuple(_parse_key(opened, version.dataset, name) for name in names)


def _parse_key(opened: OpenData, dataset: str, like: str) -> str:
    at = parse_run_step(like)
    if at is None or at[0] not in opened.run_names():
        return like
    run, step = at
    training = opened.training(run)
    # A restarted run may record a step again.
    cached_as = ("liked", dataset, run, step, training.last_step)
    return opened.cached(opened.media, cached_as, lambda: worst_key(training, step, dataset))


def like_page(version: "loader.Version", key: str) -> str:
    """Return the address of the samples most similar to one; "" if the version has nothing to compare."""
    if not has_vectors(version):
        return ""
    return version_address(version.name, like=key)
