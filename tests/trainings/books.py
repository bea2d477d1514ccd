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
    begun_s: float
    """Time of its first line, in seconds since 1970."""
    ended_s: float
    """Time of its last one."""
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


def starts(folder: Path, after: int = 0) -> tuple[list[Start], list[str]]:
    """Return the starts in order, without the first `after` ones, and lines that break the books."""
    files = defaultdict[tuple[int, ...], list[Path]](list)
    for file in folder.iterdir():
        if file.stat().st_size:
            files[tuple(map(int, file.name.split("-")[:3]))].append(file)  # JOB-RESTART-ATTEMPT-RANK
    results, problems = [], []
    for _, of_start in sorted(files.items())[after:]:
        lines = [
            (file.name, line.split()) for file in sorted(of_start) for line in file.read_text().splitlines()
        ]
        whole = [
            (name, *map(int, words)) for name, words in lines if len(words) == 6
        ]  # not cut off by a kill
        start = Start(whole[0][2], min(line[6] for line in whole) / 1e6, max(line[6] for line in whole) / 1e6)
        for name, rank, ranks, step, digest, weight, _ in whole:
            if rank in start.steps[step] or ranks != start.ranks:
                problems.append(f"{name}: step {step} is done twice by one start")
            if weight != step * (step + 1) // 2:
                problems.append(f"{name}: step {step} has the state of other steps")
            start.steps[step][rank] = digest
        results.append(start)
    return results, problems


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
