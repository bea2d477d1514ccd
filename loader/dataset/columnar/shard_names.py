"""Names that state how many files there are, such as `train-00000-of-00005.parquet`."""

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

OF = r"\d{1,9}-of-\d{1,9}"
"""Pattern for a file's number and the number of files. Most writers number from 0, some from 1."""
MOST_FILES = 10**6
"""Most files that a name may state: a larger number is not a count of files. Also the most names that are looked up."""
_NAME = re.compile(r"(?P<number>\d{1,9})-of-(?P<total>\d{1,9})(?P<hash>-[0-9a-f]{8,})?(?=[._-]|$)")
"""The Hub's writers append a hash of the content, which differs from file to file."""


class ShardSet(NamedTuple):
    """Files whose names state the same set."""

    begin: str
    """Text before the number: folder and stem."""
    width: int
    """Digits of the number."""
    total: str
    """Number of files, as written."""
    end: str
    """Text after the number of files, with `*` for a hash."""

    def name(self, number: int) -> str:
        return f"{self.begin}{number:0{self.width}d}-of-{self.total}{self.end}"


def shard_set(key: str) -> tuple[ShardSet, int] | None:
    """Return the set that an object's name states, and the object's number in it; None if it states none."""
    folder, slash, name = key.rpartition("/")
    matches = list(_NAME.finditer(name))
    if not matches:
        return None
    match = matches[-1]  # the stem may have numbers of its own
    if not 0 < int(match["total"]) <= MOST_FILES:
        return None
    stem = name[: match.start()]
    end = name[match.end() :]
    if match["hash"]:
        end = f"-*{end}"
    number = match["number"]
    files = ShardSet(
        begin=f"{folder}{slash}{stem}",
        width=len(number),
        total=match["total"],
        end=end,
    )
    return files, int(number)


def missing_shards(keys: Iterable[str], is_left_out: Callable[[str], bool]) -> Iterator[str]:
    """Yield the names of files that other files' names state and that are not among `keys`.

    is_left_out: whether a name was left out on purpose. Memory: 100 bytes per key with such a name. Ends after
    `MOST_FILES` names: each of many files may state a million others.
    """
    numbers_of: dict[ShardSet, set[int]] = {}
    for key in keys:
        member = shard_set(key)
        if member is None:
            continue
        files, number = member
        numbers_of.setdefault(files, set()).add(number)
    n_names = 0
    for files, numbers in sorted(numbers_of.items()):
        total = int(files.total)
        # Numbers from 1 to `total` are a set too, if its last file is there and none has the number 0.
        first = 0
        if total in numbers and 0 not in numbers:
            first = 1
        expected = range(first, first + total)
        if len(numbers) >= total and numbers.issuperset(expected):
            continue
        for number in expected:
            if number in numbers:
                continue
            n_names += 1
            if n_names > MOST_FILES:
                return
            name = files.name(number)
            if not is_left_out(name):
                yield name
