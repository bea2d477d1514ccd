"""The table of docs/gates.md: what is detected, and how often an honest batch is taken for a regression.

python -m benchmarks.gates            prints the tables, and exits with 1 where one is missed
"""

from .regressions import REGRESSIONS
from .trial import judged, seen
from .world import delivery

HONEST = {seed: (1_500, 60, 300, 3_000)[seed % 4] for seed in range(20)}
"""Seed of an honest batch -> its raw objects."""
PLANTED_SEED = 77


def detection() -> list[tuple[str, str, str, bool]]:
    """(regression, check, what it says, whether it is seen) of each."""
    rows = []
    for name, one in REGRESSIONS.items():
        found = judged(one.plant(delivery(PLANTED_SEED)))[one.check]
        said = [item for item in found.findings if str(item["what"]).startswith(one.finding)]
        told = f"{said[0]['column']}: {said[0]['before']} -> {said[0]['now']}" if said else found.explanation
        rows.append((name, one.check, told, seen(found, one.finding, one.by)))
    return rows


def false_alarms() -> list[tuple[int, int, list[str]]]:
    """(seed, objects, what stopped it) of every honest batch."""
    rows = []
    for seed, n_objects in HONEST.items():
        found = judged(delivery(seed, n_objects))
        rows.append((seed, n_objects, [one.explanation for one in found.values() if one.stops]))
    return rows


def main() -> int:
    """0 when every regression is seen."""
    found = detection()
    print("| regression | check | what it says | seen |\n| --- | --- | --- | --- |")
    for name, check, told, is_seen in found:
        print(f"| {name} | {check} | {told} | {'yes' if is_seen else '**no**'} |")
    honest = false_alarms()
    stopped = [row for row in honest if row[2]]
    print(f"\n{sum(row[3] for row in found)} of {len(found)} regressions are seen. ", end="")
    print(f"Of {len(honest)} honest batches {len(stopped)} are stopped.")
    for seed, n_objects, said in stopped:
        print(f"\nseed {seed}, {n_objects} objects: {'; '.join(said)}")
    return 0 if all(row[3] for row in found) else 1


if __name__ == "__main__":
    raise SystemExit(main())
