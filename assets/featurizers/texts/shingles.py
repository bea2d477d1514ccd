"""Cut words into shingles: each run of n words, joined by blanks."""

from collections.abc import Iterable, Iterator, Sequence


def shingle_blocks(
    word_blocks: Iterable[list[str]],
    n: int,
) -> Iterator[list[str]]:
    """Yield the shingles of n words block by block, in order. Fewer words are one shingle; no words give none."""
    words: list[str] = []  # the last n - 1 words, with which the next block's shingles begin
    is_short = True  # fewer than n words so far
    for block in word_blocks:
        words += block
        if len(words) < n:
            continue
        is_short = False
        yield shingles(words, n)
        words = words[len(words) - n + 1 :]
    if is_short and words:
        yield [" ".join(words)]


def shingles(words: Sequence[str], n: int) -> list[str]:
    """Return the shingles of n words, joined by blanks; none for fewer words."""
    shifted = [words[start:] for start in range(n)]
    runs = zip(*shifted, strict=False)
    # `map` takes half the time of a slice and a join per shingle.
    return list(map(" ".join, runs))
