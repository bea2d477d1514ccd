"""What the ranks did, from their lines, against a training that nothing disturbs."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import loader


@dataclass(slots=True)
class Start:
    """One start of the ranks."""

    ranks: int
    """Their number."""
    steps: dict[int, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    """Step -> rank -> digest."""

    @property
    def whole(self) -> dict[int, int]:
        """Step -> digest, of the steps that every rank did."""
        return {
            step: sum(digests.values()) % 2**64
            for step, digests in self.steps.items()
            if len(digests) == self.ranks
        }


def starts(folder: Path) -> tuple[list[Start], list[str]]:
    """Return the starts in order, and lines that break the books. A file: JOB-RESTART-ATTEMPT-RANK."""
    by_name: dict[tuple[int, ...], Start] = {}
    problems = []
    for file in sorted(folder.iterdir()):
        name = tuple(map(int, file.name.split("-")[:3]))
        for line in file.read_text().splitlines():
            words = line.split()
            if len(words) != 5:
                continue  # the last line of a rank that was killed
            rank, ranks, step, digest, weight = map(int, words)
            start = by_name.setdefault(name, Start(ranks))
            if rank in start.steps[step] or ranks != start.ranks:
                problems.append(f"{file.name}: step {step} is done twice by one start")
            if weight != step * (step + 1) // 2:
                problems.append(f"{file.name}: step {step} has the state of other steps")
            start.steps[step][rank] = digest
    return [start for _, start in sorted(by_name.items())], problems


def wrong_steps(all_starts: Sequence[Start], plan: loader.Plan, end: int) -> list[str]:
    """Return the steps below `end` that no start did, and those that came out otherwise."""
    problems, done = [], set[int]()
    with loader.Loader(plan, framework="numpy", workers=0) as batches:
        expected = {step: batches.batch_at(step).digest for step in range(end)}
    for start in all_starts:
        for step, digest in start.whole.items():
            done.add(step)
            if step < end and digest != expected[step]:
                problems.append(f"step {step} with {start.ranks} ranks has another digest")
    return [*problems, *(f"step {step} was never done" for step in sorted(set(range(end)) - done))]
