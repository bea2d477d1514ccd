"""Split by hash: a sample or person is in the same split in every later version."""

from collections.abc import Mapping
from hashlib import blake2b
from math import isclose

from ..errors import InvalidRuntime


def split_of(identity: str, splits: Mapping[str, float], salt: str = "") -> str:
    """Return the split of a sample, such as "train".

        split_of("k0001", {"train": 0.95, "val": 0.05}, "photos")

    The BLAKE2b hash of salt and identity, scaled to [0, 1), selects a split; splits divide this range in name order.

        identity: Text that is hashed: the sample's key, or its person, scene or episode.
        splits: Name -> share of all identities; the shares add up to 1.
        salt: Makes splits independent of each other, such as the dataset's name.

    Raises: InvalidRuntime if a share is negative or the shares do not add up to 1.
    """
    shares = splits.values()
    if not splits or min(shares) < 0 or not isclose(sum(shares), 1, abs_tol=1e-6):
        raise InvalidRuntime(
            f"splits = {dict(splits)}: shares of at least 0 that add up to 1 are needed, such as "
            "{'train': 0.95, 'val': 0.05}"
        )
    digest = blake2b(f"{salt}\0{identity}".encode(), digest_size=8).digest()
    # Where the identity lies in [0, 1), less the splits before.
    rest = int.from_bytes(digest, "little") / 2**64
    for name, share in sorted(splits.items()):
        rest -= share
        if rest < 0:
            return name
    return max(splits)  # rounding: the shares add up to slightly less than 1
