"""The samples of a version that slices and a lasso allow."""

from collections.abc import Sequence

import numpy as np

from loader import Version
from loader.dataset.shards.bitmap import Bools
from loader.dataset.versions.slice_members import newest_slice, slice_ordinals

from .map.version_map import lasso_members


def filter_members(
    version: Version,
    within: Sequence[str],
    without: Sequence[str],
    lasso: str | None,
) -> Bools | None:
    """Return bool [len(version)]: samples in all of some slices, in none of others, and inside a lasso. Writes nothing.

    None stands for all samples. Raises: SliceNotFound; InvalidName; InvalidRuntime; NotIndexed; Corrupt; FieldNotFound.
    """
    if not within and not without and lasso is None:
        return None
    members = np.ones(len(version), bool)
    if lasso is not None:
        members &= lasso_members(version, lasso)
    for name in within:
        members &= _slice_members(version, name)
    for name in without:
        members &= ~_slice_members(version, name)
    return members


def _slice_members(version: Version, name: str) -> Bools:
    members = np.zeros(len(version), bool)
    record = newest_slice(version, name)
    members[slice_ordinals(version, record)] = True
    return members
