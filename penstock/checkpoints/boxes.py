"""Rectangular pieces of arrays that lie in row-major order, and where their bytes are. All numbers are elements."""

from collections.abc import Iterator, Sequence
from math import prod

Sizes = tuple[int, ...]


def cut(sizes: Sequence[int], most: int) -> Iterator[tuple[Sizes, Sizes]]:
    """Yield (offsets, sizes) of boxes that fill an array, each one run of at most `most` elements, in their order.

    An array without elements has none. Every piece of it is an array that other tools can read by itself.
    """
    whole, total = tuple(sizes), prod(sizes)
    if not total:
        return
    if total <= most or not any(size > 1 for size in whole):
        yield (0,) * len(whole), whole
        return
    axis = next(axis for axis, size in enumerate(whole) if size > 1)
    rest = whole[axis + 1 :]
    rows = max(1, most // prod(rest))
    for start in range(0, whole[axis], rows):
        slab = (*whole[:axis], min(rows, whole[axis] - start), *rest)
        for offsets, inner in cut(slab, most):
            yield (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :]), inner


def strides(sizes: Sequence[int]) -> Sizes:
    """Return the number of elements between neighbours along each axis."""
    return tuple(prod(sizes[axis + 1 :]) for axis in range(len(sizes)))


def extent(sizes: Sequence[int], offsets: Sequence[int], lengths: Sequence[int]) -> tuple[int, int]:
    """Return (first, count) of the shortest run of an array's elements that holds a box of it, which is not empty."""
    steps = strides(sizes)
    first = sum(offset * step for offset, step in zip(offsets, steps, strict=True))
    last = sum((length - 1) * step for length, step in zip(lengths, steps, strict=True))
    return first, last + 1


def named(name: str, offsets: Sequence[int], sizes: Sequence[int], whole: Sequence[int]) -> str:
    """Return a piece's name in its file: the tensor's, and the piece's place in it: `wte.weight[0:64,0:768]`."""
    if tuple(sizes) == tuple(whole):
        return name
    return f"{name}[{','.join(f'{low}:{low + size}' for low, size in zip(offsets, sizes, strict=True))}]"
