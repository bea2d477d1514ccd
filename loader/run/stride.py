"""How many steps are made in one go: what a step costs however small it is, they share."""

MAX_STEPS = 64
SECONDS = 0.1
"""Of work at most: what is begun must be waited for at a seek, and at the end."""
GROWTH = 8
"""From one stretch to the next at most: the first batches tell little of those to come."""
BYTES = 16 * 2**20
"""Of batches at most: they may lie in one piece of memory, which lives as long as the last of them."""


class Stride:
    """`steps` to make in one go: 1 in the beginning, and then as many as are small."""

    def __init__(self) -> None:
        self.steps = 1

    def saw(self, steps: int, seconds: float, nbytes: int) -> None:
        """So many steps took so long, and so much memory."""
        by_time = SECONDS * steps / max(seconds, 1e-9)
        by_memory = BYTES * steps / max(nbytes, 1)
        self.steps = max(1, int(min(MAX_STEPS, GROWTH * steps, by_time, by_memory)))
