"""The sample that a version's page ranks by, and the address of such a page."""

import loader

from .maps.map_record import has_vectors
from .open_data import OpenData
from .page_address import version_address
from .runs.worst_sample import run_and_step, worst_key


def liked_key(opened: OpenData, dataset: str, like: str) -> str:
    """Return the key that `like=` names: its text, or for `RUN@STEP` of a recorded run that step's worst sample.

    dataset: the one that is searched. Raises: InvalidRuntime for a step without per-sample metrics, and for a sample of
    another dataset; errors from opening the run.
    """
    at = run_and_step(like)
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
