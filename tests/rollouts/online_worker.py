"""A process of an online run that a test may kill at any moment.

write ROOT NAME N             publish N transactions; a start goes on at the first one that is not published
train ROOT RANK WORLD STEPS STATE    train to STEPS, and print each step's digest; a start goes on at STATE, if any
"""

import json
import os
import random
import sys
from pathlib import Path

import loader
from tests.rollouts.rollout_roots import group, online, publish

ARGUMENTS = {"groups": 3, "updates": 2, "multiple": 4, "max_lag": 2, "min_size": 2}


def transaction(name: str, number: int) -> list[list[object]]:
    """Return the parts of a transaction: groups of one to four, of old and new policies, members in any part."""
    txn = f"{name}-{number}"
    draw = random.Random(txn)
    parts: list[list[object]] = [[] for _ in range(draw.randrange(1, 4))]
    for member_of in range(draw.randrange(2, 6)):
        # Trainers make about that many steps per transaction: behind them groups are stale, before them fresh.
        policy = max(0, 8 * number // 3 + 2 - draw.randrange(8))
        for member in group(txn, f"g{member_of}", draw.randrange(1, 5), policy):
            draw.choice(parts).append(member)
    return [part for part in parts if part]


def write(url: str, name: str, n: str) -> None:
    root = loader.Root(url)
    for number in range(int(n)):
        txn = root.state.txns.get(f"{name}-{number}")
        if txn is None or txn.status != "committed":
            publish(root, f"{name}-{number}", transaction(name, number))


def train(url: str, rank: str, world_size: str, steps: str, state_file: str) -> None:
    root = loader.Root(url)
    state = Path(state_file)
    with online(root, world=(int(rank), int(world_size)), steps=int(steps), **ARGUMENTS) as batches:
        if state.exists():
            batches.load_state_dict(json.loads(state.read_text()))
        for batch in batches:
            print(batch.step, batch.digest, flush=True)
            if batch.step % 3 == 2:
                new = state.with_name(f"{state.name}.{rank}.new")
                new.write_text(json.dumps(batches.state_dict()))
                os.replace(new, state)


if __name__ == "__main__":
    {"write": write, "train": train}[sys.argv[1]](*sys.argv[2:])
