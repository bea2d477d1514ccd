"""A basket of samples that a person excludes from the viewer: one version of each dataset is published without them."""

from collections import defaultdict
from collections.abc import Iterable

import loader

from ..upkeep.exclusion import exclude


def exclude_basket(
    root: loader.Root, samples: Iterable[tuple[str, str]], *, reason: str, by: str, page: str
) -> tuple[str, ...]:
    """Exclude samples, those of one dataset together; return the names of the versions without them.

    samples: (version such as photos@3, key); keys are looked up in the newest version that is named of a dataset.
    page: the address or command at which they were chosen. Raises: as `exclude`.
    """
    refs: dict[str, str] = {}
    keys: dict[str, list[str]] = defaultdict(list)
    for version, key in samples:
        dataset, _, number = version.partition("@")
        if dataset not in refs or int(number) > int(refs[dataset].partition("@")[2]):
            refs[dataset] = version
        keys[dataset].append(key)
    return tuple(
        exclude(root, ref, list(dict.fromkeys(keys[dataset])), reason=reason, by=by, page=page)[1].name
        for dataset, ref in refs.items()
    )
