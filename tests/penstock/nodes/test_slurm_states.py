"""States of nodes from what `sinfo` prints: reasons may hold any text, and one odd row hides no other node."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.errors import EngineUnreachable
from penstock.nodes.control import NodeState, SlurmNodes, _state
from tests.compute.slurm_answers import printed
from tests.refusals import refusal


class Queue:
    """Slurm's commands, of which `sinfo` prints rows."""

    def __init__(self, *rows: Sequence[str], cut: int = 0, before: str = "") -> None:
        self._rows, self._cut, self._before = rows, cut, before

    def answer(self, command: Sequence[str]) -> str:
        text = self._before + printed(command, *self._rows)
        return text[: len(text) - self._cut]


def states(*rows: Sequence[str], **options: Any) -> dict[str, NodeState]:
    return SlurmNodes(Queue(*rows, **options)).states()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("fan is loud\nm3|drained|evil", "fan is loud m3|drained|evil"),
        ("penstock q-41: 4 wrong\n\n", "penstock q-41: 4 wrong"),
        ("\n", ""),
        ("a|b|c", "a|b|c"),
        ("L\u00fcfter \u2028 laut \x1b[2J", "L\u00fcfter laut [2J"),
        ("x" * 5000, "x" * 399 + "…"),
        ("none", ""),
    ],
)
def test_reason_of_any_text_hides_and_forges_no_node(reason: str, shown: str) -> None:
    rows = [("m1", "idle", "none"), ("m2", "drained", reason), ("m3", "idle", "none")]
    expected = {
        "m1": NodeState(in_service=True),
        "m2": NodeState(in_service=False, reason=shown),
        "m3": NodeState(in_service=True),
    }
    assert states(*rows) == expected
    assert states(*rows, before="Welcome to login1\n") == expected


@settings(max_examples=40)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=4))
def test_states_have_each_node_whatever_the_reasons_say(reasons: list[str]) -> None:
    rows = [(f"m{n}", "drained", reason) for n, reason in enumerate(reasons)]
    listed = states(*rows)
    assert set(listed) == {f"m{n}" for n in range(len(reasons))}
    assert not any(state.in_service or "\n" in state.reason for state in listed.values())


@pytest.mark.parametrize(
    ("word", "in_service"),
    [
        ("idle", True),
        ("allocated+", True),
        ("mixed$", True),
        ("planned", True),
        ("drained*", False),
        ("draining", False),
        ("down*", False),
        ("failing", False),
        ("inval", False),
        ("unknown", False),
    ],
)
def test_word_of_a_state_is_in_service_or_out(word: str, in_service: bool) -> None:
    assert states(("m1", word, "none"))["m1"].in_service is in_service


def test_node_whose_row_is_cut_off_is_named_and_the_others_are_read() -> None:
    whole = len("none") + 18 + 1  # the mark, and the line's end
    listed = states(("m1", "idle", "none"), ("m2", "idle", "none"), cut=whole)
    assert listed["m1"] == NodeState(in_service=True)
    assert not listed["m2"].in_service
    assert listed["m2"].problem == "sinfo prints 'm2 | idle |' in place of name, state and reason"
    assert "in place of" in states(("m1", "", "none"))["m1"].problem
    with refusal(EngineUnreachable, what="sinfo", given="an answer that is cut off"):
        states(("", "idle", "none"), cut=whole)


@pytest.mark.parametrize(
    "node",
    [
        {},
        {"status": None, "spec": None},
        {"status": {"conditions": None}},
        {"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
    ],
)
def test_kubernetes_node_without_conditions_is_in_service(node: dict[str, Any]) -> None:
    assert _state(node) == NodeState(in_service=True)


@pytest.mark.parametrize("node", [{"status": ["x"]}, {"status": {"conditions": [{}]}}, {"spec": "x"}])
def test_kubernetes_node_of_another_shape_is_named(node: dict[str, Any]) -> None:
    state = _state(node)
    assert (state.in_service, state.problem.startswith("its conditions cannot be read")) == (False, True)
