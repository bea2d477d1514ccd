"""Every interleaving of a scenario, each world once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from .checks import check_beliefs, check_log
from .world import Histories, Process, Role, Rules, World, steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """before: roles that run one after the other, without faults, to make the log that `roles` start from."""

    name: str
    roles: Callable[[Rules], tuple[Role, ...]]
    before: Callable[[Rules], tuple[Role, ...]] = lambda rules: ()
    faults: int = 1
    crashes: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """worlds: how many; ends: how often each combination of ends was reached."""

    worlds: int
    ends: Counter[tuple[str | None, ...]]


def explore(scenario: Scenario, rules: Rules) -> Explored:
    """Visit every world. Raises: Violation at the first that must not be."""
    histories = Histories(check_log)
    start = 0
    for role in scenario.before(rules):
        start = _run_alone(start, role, histories, rules)
    roles = scenario.roles(rules)
    first = World(
        log=start,
        processes=tuple(Process() for _ in roles),
        faults=scenario.faults,
        crashes=scenario.crashes,
    )
    seen, todo = {first}, [first]
    ends: Counter[tuple[str | None, ...]] = Counter()
    while todo:
        world = todo.pop()
        check_beliefs(world, roles, histories)
        if all(p.end is not None for p in world.processes):
            ends[tuple(p.end for p in world.processes)] += 1
        for after in steps(world, roles, histories, rules):
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return Explored(worlds=len(seen), ends=ends)


def _run_alone(log: int, role: Role, histories: Histories, rules: Rules) -> int:
    world = World(log=log, processes=(Process(),))
    while world.processes[0].end is None:
        world = replace(next(steps(world, (role,), histories, rules)))
    return world.log
