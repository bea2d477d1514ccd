"""A rollout as a sample: what is stored, and what is refused."""

import math

import numpy as np
import pytest

import loader
from loader.errors import DuplicateKey, FieldMismatch, InvalidSample
from loader.rollouts.rollout_fields import COLUMNS
from tests.refusals import refusal

TOKENS = [11, 12, 13, 14]
MASK = [False, True, True, False]


def rollout(key="r1", tokens=TOKENS, mask=MASK, **others):
    return loader.rollout(key, tokens, mask, **{"group_id": "g7", **others})


def test_rollout_has_the_stored_dtypes_and_its_columns():
    key, fields, columns = rollout(
        logprobs=[0.0, -0.5, -1.5, 0.0],
        versions=[0, 3, 4, 0],
        reward=np.float32(1),
        calls=[0, 2],
        turns=[{"role": "user", "start": 0, "stop": 1}, {"role": "assistant", "start": 1, "stop": 4}],
        env="sums",
    )
    assert key == "r1"
    assert {name: value.dtype.name for name, value in fields.items() if name != "turns.jsonl"} == {
        "tokens.npy": "int32",
        "mask.npy": "bool",
        "logprobs.npy": "float32",
        "versions.npy": "int32",
    }
    assert fields["versions.npy"].tolist() == [-1, 3, 4, -1]
    assert columns == {
        "group_id": "g7",
        "prompt_id": "",
        "trajectory_id": "",
        "reward": 1.0,
        "n_tokens": 4,
        "n_sampled": 2,
        "n_turns": 2,
        "n_calls": 2,
        "policy_min": 3,
        "policy_max": 4,
        "env": "sums",
    }


def test_rollout_without_a_policy_has_no_fields_of_one():
    _, fields, columns = rollout()
    assert list(fields) == ["tokens.npy", "mask.npy"]
    assert set(columns) == set(COLUMNS)
    unknown = {name for name, value in columns.items() if value is None}
    assert unknown == {"reward", "n_turns", "n_calls", "policy_min", "policy_max"}


def test_rollout_without_a_sampled_token_has_no_policy_range():
    _, fields, columns = rollout(mask=[0, 0, 0, 0], versions=5)
    assert fields["versions.npy"].tolist() == [-1] * 4
    assert columns["policy_min"] is None


def test_rollout_stores_zero_for_missing_logprobs_of_prompt_tokens():
    _, fields, _ = rollout(logprobs=[None, -0.5, -1.5, np.nan])
    assert fields["logprobs.npy"].tolist() == [0.0, -0.5, -1.5, 0.0]


def test_rollout_takes_tensors():
    import torch

    _, fields, _ = rollout(tokens=torch.tensor(TOKENS), mask=torch.tensor(MASK), logprobs=torch.zeros(4))
    assert fields["tokens.npy"].tolist() == TOKENS
    assert fields["mask.npy"].tolist() == MASK


def test_rollout_converts_further_fields_to_their_dtypes():
    _, fields, _ = rollout(
        fields={
            "advantages.npy": [0.5] * 4,
            "experts.npy": np.full((4, 2, 8), 65535),
            "kept_n.npy": [0, 2, 1, 0],
            "kept.npy": [9, 8, 7],
            "entropy.npy": np.zeros(3, np.float16),
        }
    )
    dtypes = {name: str(value.dtype) for name, value in fields.items()}
    assert dtypes["advantages.npy"] == "float32"
    assert dtypes["experts.npy"] == dtypes["kept_n.npy"] == "uint16"
    assert dtypes["kept.npy"] == "uint32"
    assert dtypes["entropy.npy"] == "float16"  # a field of no rule stays as it is


REFUSED = {
    "a mask of another length": ({"mask": [True]}, {"what": "mask.npy", "given": 1, "accepted": 4}),
    "a mask of other numbers": (
        {"mask": [0, 1, 2, 0]},
        {"what": "mask.npy", "given": 2, "accepted": "True and False, or 0 and 1"},
    ),
    "logprobs of another length": (
        {"logprobs": [-1.0] * 3},
        {"what": "logprobs.npy", "given": 3, "accepted": 4},
    ),
    "a NaN where sampled": (
        {"logprobs": [0, np.nan, -1, 0]},
        {"what": "logprobs.npy", "given": "nan at token 1", "accepted": "a finite log-probability"},
    ),
    "None where sampled": (
        {"logprobs": [0, -1, None, 0]},
        {"what": "logprobs.npy", "given": "nan at token 2", "accepted": "a finite log-probability"},
    ),
    "a float32 overflow where sampled": (
        {"logprobs": [0, -1e300, -1, 0]},
        {"what": "logprobs.npy", "given": "-1e+300 at token 1", "accepted": "a finite log-probability"},
    ),
    "texts as logprobs": (
        {"logprobs": ["0", "-1", "-1", "0"]},
        {"what": "logprobs.npy", "given": "<U2", "accepted": "integers, floats or booleans"},
    ),
    "texts and None as logprobs": (
        {"logprobs": [None, "-1", "-1", None]},
        {"what": "logprobs.npy", "given": "object", "accepted": "integers, floats or booleans"},
    ),
    "no token": ({"tokens": [], "mask": []}, {"what": "tokens.npy", "given": 0}),
    "a token beyond int32": (
        {"tokens": [1, 2, 3, 2**31]},
        {"what": "tokens.npy", "given": 2147483648, "accepted": "0 to 2147483647"},
    ),
    "a negative token": (
        {"tokens": [1, -1, 3, 4]},
        {"what": "tokens.npy", "given": -1, "accepted": "0 to 2147483647"},
    ),
    "a token beyond int64": (
        {"tokens": [1, 2, 3, 2**70]},
        {"what": "tokens.npy", "given": "object", "accepted": "integers, floats or booleans"},
    ),
    "tokens as floats": (
        {"tokens": [1.0, 2.0, 3.0, 4.0]},
        {"what": "tokens.npy", "given": "float64", "accepted": "integers"},
    ),
    "a batch of tokens": (
        {"tokens": [TOKENS]},
        {"what": "tokens.npy", "given": [1, 4], "accepted": "one dimension"},
    ),
    "tokens that are text": (
        {"tokens": "abcd"},
        {"what": "tokens.npy", "given": "<U4", "accepted": "integers, floats or booleans"},
    ),
    "an iterator of tokens": (
        {"tokens": iter(TOKENS)},
        {"what": "tokens.npy", "given": "object", "accepted": "integers, floats or booleans"},
    ),
    "masked tokens": (
        {"tokens": np.ma.array(TOKENS, mask=[True, False, False, False])},
        {"what": "tokens.npy", "given": "masked values"},
    ),
    "ragged tokens": (
        {"tokens": [[1], [2, 3]]},
        {"what": "tokens.npy", "given": "ValueError", "accepted": "an array"},
    ),
    "a negative version where sampled": (
        {"versions": [0, -2, 1, 0]},
        {"what": "versions.npy", "given": -2, "accepted": "0 to 2147483647"},
    ),
    "versions of another length": ({"versions": [1, 2]}, {"what": "versions.npy", "given": 2, "accepted": 4}),
    "a reward that is text": (
        {"reward": "1.0"},
        {"what": "reward", "given": "1.0", "accepted": "a finite number, or None"},
    ),
    "a NaN reward": (
        {"reward": float("nan")},
        {"what": "reward", "given": math.nan, "accepted": "a finite number, or None"},
    ),
    "a vector of rewards": (
        {"reward": [1.0, 2.0]},
        {"what": "reward", "given": [1.0, 2.0], "accepted": "a finite number, or None"},
    ),
    "an empty group_id": (
        {"group_id": ""},
        {"what": "group_id", "given": "", "accepted": "a text that is not empty"},
    ),
    "a number as group_id": (
        {"group_id": 7},
        {"what": "group_id", "given": 7, "accepted": "a text that is not empty"},
    ),
    "a number as prompt_id": ({"prompt_id": 7}, {"what": "prompt_id", "given": 7, "accepted": "a text"}),
    "None as trajectory_id": (
        {"trajectory_id": None},
        {"what": "trajectory_id", "given": None, "accepted": "a text"},
    ),
    "a number of calls": (
        {"calls": 2},
        {"what": "calls", "given": 2, "accepted": "the list of the calls' numbers"},
    ),
    "a list of fields": (
        {"fields": [1]},
        {"what": "fields", "given": [1], "accepted": "a mapping of field to array"},
    ),
    "a number as turns": ({"turns": 5}, {"what": "turns", "given": 5, "accepted": "a list of mappings"}),
    "a column of rollout's own": ({"n_tokens": 3}, {"what": "columns", "given": ["n_tokens"]}),
    "a field with a parameter": (
        {"fields": {"mask.npy": MASK}},
        {"what": "fields", "given": "mask.npy", "accepted": "fields without a parameter of their own"},
    ),
    "a field of another kind": (
        {"fields": {"a.txt": "x"}},
        {"what": "fields", "given": "a.txt", "accepted": "names that end in .npy"},
    ),
    "experts one row short": (
        {"fields": {"experts.npy": np.zeros((3, 2, 8), int)}},
        {"what": "experts.npy", "given": 3, "accepted": 4},
    ),
    "experts without layers": (
        {"fields": {"experts.npy": np.zeros((4, 8), int)}},
        {"what": "experts.npy", "given": [4, 8], "accepted": "3 dimensions"},
    ),
    "a scalar advantage": (
        {"fields": {"advantages.npy": 1.0}},
        {"what": "advantages.npy", "given": [], "accepted": "1 dimensions"},
    ),
    "a NaN advantage": (
        {"fields": {"advantages.npy": [0, 0, np.nan, 0]}},
        {"what": "advantages.npy", "given": "nan at token 2", "accepted": "finite numbers"},
    ),
    "an infinite reward of a token": (
        {"fields": {"rewards.npy": [0, 0, np.inf, 0]}},
        {"what": "rewards.npy", "given": "inf at token 2", "accepted": "finite numbers"},
    ),
    "rewards that are texts": (
        {"fields": {"rewards.npy": list("abcd")}},
        {"what": "rewards.npy", "given": "<U1", "accepted": "integers, floats or booleans"},
    ),
    "kept without kept_n": ({"fields": {"kept.npy": [1]}}, {"what": "kept_n.npy", "given": None}),
    "kept of another sum": (
        {"fields": {"kept.npy": [1], "kept_n.npy": [1, 1, 0, 0]}},
        {"what": "kept.npy", "given": 1, "accepted": 2},
    ),
    "a turn without a role": (
        {"turns": [{"text": "hi"}]},
        {
            "what": "role",
            "where": "rollout 'r1': turn 0",
            "given": "{'text': 'hi'}",
            "accepted": "a mapping with a role",
        },
    ),
    "a turn beyond the tokens": (
        {"turns": [{"role": "user", "start": 2, "stop": 5}]},
        {"what": "bound", "where": "rollout 'r1': turn 0", "given": (2, 5), "accepted": 4},
    ),
    "a turn with times for tokens": (
        {"turns": [{"role": "user", "start": 0.5}]},
        {"what": "bound", "where": "rollout 'r1': turn 0", "given": 0.5, "accepted": "numbers of tokens"},
    ),
    "a turn with a truth value for tokens": (
        {"turns": [{"role": "user", "start": True, "stop": 3}]},
        {"what": "bound", "where": "rollout 'r1': turn 0", "given": True, "accepted": "numbers of tokens"},
    ),
    "media without a version": (
        {"media": [[0, 0, 2]]},
        {"what": "media_version", "given": None, "accepted": "a version, such as 'images@1'"},
    ),
    "media of a numbered version": (
        {"media": [[0, 0, 2]], "media_version": 1},
        {"what": "media_version", "given": 1, "accepted": "a version, such as 'images@1'"},
    ),
    "media beyond the tokens": (
        {"media": [[0, 3, 2]], "media_version": "images@1"},
        {"what": "media.npy", "given": [0, 3, 2], "accepted": 4},
    ),
    "media beyond int64": (
        {"media": [[0, 2, 2**63 - 1]], "media_version": "images@1"},
        {"what": "media.npy", "given": [0, 2, 9223372036854775807], "accepted": 4},
    ),
    "media as a number": (
        {"media": 5, "media_version": "images@1"},
        {"what": "media.npy", "given": [], "accepted": "[m, 3]"},
    ),
    "media of two columns": (
        {"media": [[0, 3]], "media_version": "images@1"},
        {"what": "media.npy", "given": [1, 2], "accepted": "[m, 3]"},
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rollout_refuses(case):
    arguments, fields = REFUSED[case]
    with refusal(InvalidSample, **{"where": "rollout 'r1'", **fields}):
        rollout(**arguments)


def test_experts_one_row_short_name_the_row_to_add():
    with refusal(InvalidSample, what="experts.npy", given=3) as caught:
        rollout(fields={"experts.npy": np.zeros((3, 2, 8), int)})
    assert "add one of 65535" in str(caught.value)


def test_step_of_rollouts_is_written_by_groups_and_read_back(tmp_path):
    root = loader.Root(tmp_path)
    txn = root.begin("math-rl", txn="big-7-120")
    rollouts = [
        rollout(
            key=f"p{number % 2}/{number}",
            group_id=f"p{number % 2}",
            versions=number,
            logprobs=[0, -1, -2, 0],
            media=[[number % 3, 0, 1], [number % 3, 1, 1]],
            media_version="images@1",
            turns=[],
        )
        for number in range(6)
    ]
    part = loader.write_part(root, txn, iter(rollouts), groups=loader.ROLLOUT_GROUPS, name="worker_0")
    version = root.publish("math-rl", [part])
    assert set(version.manifest["groups"]) == {"tokens", "policy", "turns", "media"}
    newest = version.where("policy_min >= 4").select("tokens.npy", "versions.npy", "turns.jsonl", "media.npy")
    samples = {sample["__key__"]: sample for sample in newest}
    assert set(samples) == {"p0/4", "p1/5"}
    assert samples["p1/5"]["versions.npy"].tolist() == [-1, 5, 5, -1]
    assert samples["p1/5"]["media.npy"].tolist() == [[2, 0, 1], [2, 1, 1]]
    assert samples["p1/5"]["turns.jsonl"] == []


def publish(root, txn, keys_by_worker):
    root.begin("math-rl", txn=txn)
    parts = []
    for worker, keys in keys_by_worker.items():
        rollouts = map(rollout, keys)
        parts.append(loader.write_part(root, txn, rollouts, groups=loader.ROLLOUT_GROUPS, name=worker))
    return root.publish("math-rl", parts)


@pytest.mark.parametrize(
    ("keys_by_worker", "key", "where"),
    [
        ({"w0": ["r1", "r9", "r1"]}, "r1", "this version"),
        ({"w0": ["r1"], "w1": ["r1"]}, "r1", "this version"),
        ({"w0": ["r1", "r0"]}, "r0", "math-rl@1"),
    ],
    ids=["by one worker", "by two workers", "by an earlier step"],
)
def test_key_of_two_rollouts_is_refused_and_named(tmp_path, keys_by_worker, key, where):
    root = loader.Root(tmp_path)
    publish(root, "step-0", {"w0": ["r0"]})
    with refusal(DuplicateKey, what="key", where=where, given=key):
        publish(root, "step-1", keys_by_worker)
    assert len(root.open("math-rl@latest")) == 1


def test_step_that_is_published_again_is_the_same_version(tmp_path):
    root = loader.Root(tmp_path)
    first = publish(root, "step-0", {"w0": ["r0"]})
    again = publish(root, "step-0", {"w0": ["r0"]})
    assert (again.name, again.number) == (first.name, first.number)


def test_column_of_two_types_names_both_rollouts(tmp_path):
    root = loader.Root(tmp_path)
    root.begin("math-rl", txn="step-0")
    rollouts = [rollout("r0", env="sums"), rollout("r1", env=7)]
    kinds = [("str", "r0"), ("int", "r1")]
    with refusal(FieldMismatch, what="env", given=kinds, accepted="one kind per column"):
        loader.write_part(root, "step-0", iter(rollouts), groups=loader.ROLLOUT_GROUPS, name="w0")


def test_rollouts_with_and_without_logprobs_in_one_part_are_refused(tmp_path):
    root = loader.Root(tmp_path)
    root.begin("math-rl", txn="step-0")
    rollouts = [rollout("r0", logprobs=[0, -1, -1, 0]), rollout("r1")]
    with pytest.raises(FieldMismatch, match=r"sample 'r1' has fields .*missing \['logprobs.npy'\]"):
        loader.write_part(root, "step-0", iter(rollouts), groups=loader.ROLLOUT_GROUPS, name="w0")
