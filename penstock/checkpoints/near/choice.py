"""Choose the near step at which a start goes on.

A near step counts if all objects that one marker names are on reachable nodes, with their sizes. The marker names the
objects of one attempt, so parts of two attempts never mix. Times decide nothing, because the clocks of nodes jump.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..marker import Checkpoint, StoredObject
from .near_marker import NearMarker, parse_near_marker

Holders = Mapping[str, Sequence[str]]
"""Object -> nodes that have it with its size."""
Sizes = Mapping[str, int]
"""Object -> size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearNode:
    """Near steps of one run on one node. Nothing in it is trusted."""

    name: str
    """Address of the node's server."""
    markers: Mapping[int, bytes]
    """Step -> the marker's bytes."""
    files: Mapping[int, Sizes]
    """Step -> its objects."""


class NearRejection(NamedTuple):
    """A near step at which a start does not go on."""

    step: int
    reason: str
    """The attempt and what is wrong with it, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AssessedStep:
    """One attempt at a near step, and whether its objects are there."""

    marker: NearMarker
    holders: Holders
    problem: str
    """Why it is not whole, or ""."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NearChoice:
    """The near step at which a start goes on."""

    checkpoint: Checkpoint | None
    """None if no near step is whole."""
    holders: Holders
    rejections: Sequence[NearRejection]
    """Newer near steps that are not whole, newest first."""


def choose_near_step(
    nodes: Sequence[NearNode],
    run: str,
    *,
    above: int = -1,
    below: int | None = None,
    unreadable: Collection[tuple[int, str]] = (),
) -> NearChoice:
    """Return the newest near step above `above` whose objects are all on the nodes. Does no I/O.

    If two attempts at a step are whole, returns the one whose marker is on more nodes, then the greater attempt.

    below: step that a person set aside; near steps from there on do not count.

    unreadable: (step, attempt) of near steps whose bytes were wrong when they were read.
    """
    rejections: list[NearRejection] = []
    for near in assess_near_steps(nodes, run, above=above):
        marker = near.marker
        # Already reported by `reject`, with the node and the object.
        if (marker.step, marker.attempt) in unreadable:
            continue
        problem = near.problem
        if below is not None and marker.step >= below:
            problem = f"step {below} was set aside, and the run goes on before it"
        if not problem:
            return NearChoice(
                checkpoint=marker.checkpoint,
                holders=near.holders,
                rejections=rejections,
            )
        rejection = NearRejection(marker.step, f"{marker.label}: {problem}")
        rejections.append(rejection)
    return NearChoice(
        checkpoint=None,
        holders={},
        rejections=rejections,
    )


def assess_near_steps(
    nodes: Sequence[NearNode],
    run: str,
    *,
    above: int = -1,
) -> list[AssessedStep]:
    """Return all attempts above a step, in the order in which a start prefers them. Does no I/O."""
    markers = _markers(nodes, run, above)
    markers.sort(key=_precedence, reverse=True)
    steps: list[AssessedStep] = []
    for marker in markers:
        holders: Holders = {}
        problem = marker.problem
        if marker.checkpoint is not None:
            holders = _holders(nodes, marker.checkpoint)
            problem = _missing(nodes, marker.checkpoint, holders)
        step = AssessedStep(marker=marker, holders=holders, problem=problem)
        steps.append(step)
    return steps


def _precedence(marker: NearMarker) -> tuple[int, int, str, bytes]:
    """Newer steps first; of two attempts at a step the one that more nodes know."""
    # A marker goes to all nodes: of two attempts the one that fewer nodes know was cut off.
    return (
        marker.step,
        len(marker.nodes),
        marker.attempt,
        marker.data,
    )


def _markers(
    nodes: Sequence[NearNode],
    run: str,
    above: int,
) -> list[NearMarker]:
    """Return the markers of steps above one, each with the names of the nodes that hold it."""
    # By their bytes: two attempts at a step have two markers.
    holders: dict[tuple[int, bytes], list[str]] = {}
    for node in nodes:
        for step, data in node.markers.items():
            if step > above:
                names = holders.setdefault((step, data), [])
                names.append(node.name)
    markers = []
    for (step, data), names in holders.items():
        marker = parse_near_marker(data, run, step, names)
        markers.append(marker)
    return markers


def _holders(nodes: Sequence[NearNode], checkpoint: Checkpoint) -> Holders:
    """Return name of an object -> names of the nodes that have it whole."""
    holders: dict[str, list[str]] = {}
    # By size only: hashing terabytes here would delay the start. `NearReads` checks the SHA-256.
    for stored in checkpoint.objects:
        names = holders.setdefault(stored.name, [])
        for node in nodes:
            nbytes = _size(node, checkpoint.step, stored.name)
            if nbytes == stored.nbytes:
                names.append(node.name)
    return holders


def _size(node: NearNode, step: int, name: str) -> int | None:
    """Return the bytes of a step's file on a node; None without it."""
    sizes = node.files.get(step, {})
    return sizes.get(name)


def _missing(
    nodes: Sequence[NearNode],
    checkpoint: Checkpoint,
    holders: Holders,
) -> str:
    """Return in one line why a near step is not whole, or ""."""
    # One copy is enough: the second one may be on the lost node.
    missing = [stored for stored in checkpoint.objects if not holders[stored.name]]
    if not missing:
        return ""
    first = missing[0]
    count = f"{len(missing)} of {len(checkpoint.objects)} objects"
    wrong = _wrong_size(nodes, checkpoint.step, first)
    if wrong:
        return f"{count} are incomplete: {wrong}"
    return f"{count} are on no node that answers, such as {first.name}"


def _wrong_size(
    nodes: Sequence[NearNode],
    step: int,
    stored: StoredObject,
) -> str:
    """Return in one line on which node an object has another size than was written, or ""."""
    for node in nodes:
        nbytes = _size(node, step, stored.name)
        if nbytes is not None:
            written = f"{stored.nbytes:,} were written"
            return f"{stored.name} has {nbytes:,} bytes on {node.name}; {written}"
    return ""
