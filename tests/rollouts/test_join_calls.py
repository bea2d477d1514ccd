"""Model calls become token sequences, as a second implementation over tuples says."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader
from loader.errors import InvalidSample
from tests.refusals import refusal


def call(prompt, sampled, version=0):
    return {
        "prompt": list(prompt),
        "sampled": list(sampled),
        "logprobs": [-float(token) for token in sampled],
        "version": version,
    }


def join_tuples(calls):
    """Return (tokens, mask, logprobs, versions, calls) per sequence, from tuples of (token, ...) rows."""
    sequences = []
    for number, one in enumerate(calls):
        beginnings = [
            entry
            for entry in sequences
            if tuple(row[0] for row in entry["rows"]) == tuple(one["prompt"][: len(entry["rows"])])
        ]
        if beginnings:
            entry = max(beginnings, key=lambda entry: len(entry["rows"]))
        else:
            entry = {"rows": [], "calls": []}
            sequences.append(entry)
        for token in one["prompt"][len(entry["rows"]) :]:
            entry["rows"].append((token, False, 0.0, -1))
        for token, logprob in zip(one["sampled"], one["logprobs"], strict=True):
            entry["rows"].append((token, True, logprob, one["version"]))
        entry["calls"].append(number)
    return [(*map(list, zip(*entry["rows"], strict=True)), entry["calls"]) for entry in sequences]


@st.composite
def trajectories(draw):
    """Calls that continue an earlier history, cut it, or begin anew; two token ids make repeats likely."""
    tokens = st.lists(st.integers(0, 1), max_size=3)
    histories = [()]
    calls = []
    for number in range(draw(st.integers(1, 7))):
        history = draw(st.sampled_from(histories))
        kept = draw(st.integers(max(0, len(history) - 2), len(history)))
        prompt = (*history[:kept], *draw(tokens))
        sampled = draw(tokens)
        if not len(prompt) + len(sampled):
            sampled = [1]
        calls.append(call(prompt, sampled, version=number // 2))
        histories.append((*prompt, *sampled))
    return calls


@settings(max_examples=40)
@given(trajectories())
def test_join_calls_agrees_with_tuples(calls):
    joined = loader.join_calls(calls)
    names = ("tokens", "mask", "logprobs", "versions", "calls")
    assert [tuple(list(sequence[name]) for name in names) for sequence in joined] == join_tuples(calls)
    n_sampled = sum(len(one["sampled"]) for one in calls)
    assert sum(int(sequence["mask"].sum()) for sequence in joined) == n_sampled  # no sampled token is lost


def test_call_extends_the_longest_prefix_of_its_prompt():
    calls = [call([1], [2]), call([1, 3], [4]), call([1, 2], [5]), call([1, 2, 5, 6], [7]), call([1, 2], [8])]
    joined = loader.join_calls(calls)
    assert [sequence["calls"] for sequence in joined] == [[0, 2, 3], [1], [4]]
    assert joined[0]["tokens"].tolist() == [1, 2, 5, 6, 7]
    assert joined[0]["mask"].tolist() == [False, True, True, False, True]
    # The last call's prompt is part of a sequence, not the whole of one: its tokens may not be trained on twice.
    assert joined[2]["mask"].tolist() == [False, False, True]


def test_call_extends_the_longer_one_of_two_answers_to_one_prompt():
    joined = loader.join_calls([call([1], [2]), call([1], [2, 3]), call([1, 2, 3, 4], [5])])
    assert [sequence["calls"] for sequence in joined] == [[0], [1, 2]]


def test_call_whose_prompt_differs_in_the_middle_begins_a_sequence():
    joined = loader.join_calls([call([1, 2], [5]), call([1, 3, 5], [7])])
    assert [sequence["tokens"].tolist() for sequence in joined] == [[1, 2, 5], [1, 3, 5, 7]]


def test_join_calls_without_logprobs_and_versions_omits_them():
    joined = loader.join_calls([{"prompt": [1], "sampled": [2]}])
    assert list(joined[0]) == ["tokens", "mask", "calls"]
    assert loader.join_calls([]) == []


def test_joined_sequence_is_a_rollout():
    (sequence,) = loader.join_calls([call([1], [2], 3), call([1, 2, 9], [4, 5], 4)])
    _, fields, columns = loader.rollout("k", **sequence, group_id="g")
    assert fields["versions.npy"].tolist() == [-1, 3, -1, 4, 4]
    assert (columns["n_calls"], columns["policy_min"], columns["policy_max"]) == (2, 3, 4)


@pytest.mark.parametrize(
    ("wrong", "what", "where", "value"),
    [
        ([call([1], [2]), {"prompt": [1]}], "call", "call 1", "{'prompt': [1]}"),
        ([call([1], [2]), {"prompt": [1], "sampled": [2]}], "logprobs", "call 1", None),
        ([{"prompt": [1], "sampled": [2], "logprobs": []}], "logprobs", "call 0", 0),
        ([{"prompt": [], "sampled": []}], "tokens", "call 0", 0),
        ([{"prompt": [2**40], "sampled": []}], "prompt", "call 0", 2**40),
        ([{"prompt": [1], "sampled": [2], "version": [3]}], "version", "call 0", [1]),
        ([{"prompt": [1], "sampled": [2], "version": 3.5}], "version", "call 0", "float64"),
        ([{"prompt": [1], "sampled": [2], "logprobs": ["-1"]}], "logprobs", "call 0", "<U2"),
        (None, "calls", None, "None"),
        ([{"prompt": "hello", "sampled": [2]}], "prompt", "call 0", "<U5"),
    ],
)
def test_join_calls_refuses(wrong, what, where, value):
    with refusal(InvalidSample, what=what, where=where, given=value):
        loader.join_calls(wrong)


def test_join_calls_leaves_its_arguments_alone():
    prompt = np.array([1, 2], np.int64)
    loader.join_calls([{"prompt": prompt, "sampled": [3]}, {"prompt": [1, 2, 3], "sampled": [4]}])
    assert prompt.tolist() == [1, 2]
