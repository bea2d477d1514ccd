"""A rollout as a sample: what is stored, and what is refused."""

import re

import numpy as np
import pytest

import loader
from loader.errors import DuplicateKey, FieldMismatch, InvalidSample
from loader.rollouts.rollout_fields import COLUMNS

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
    "a mask of another length": ({"mask": [True]}, "mask.npy has 1 values, tokens.npy 4"),
    "a mask of other numbers": ({"mask": [0, 1, 2, 0]}, "mask.npy has the value 2"),
    "logprobs of another length": ({"logprobs": [-1.0] * 3}, "logprobs.npy has 3 values, tokens.npy 4"),
    "a NaN where sampled": (
        {"logprobs": [0, np.nan, -1, 0]},
        "logprobs.npy has nan at token 1, which was sampled",
    ),
    "None where sampled": (
        {"logprobs": [0, -1, None, 0]},
        "logprobs.npy has nan at token 2, which was sampled",
    ),
    "a float32 overflow where sampled": ({"logprobs": [0, -1e300, -1, 0]}, "at token 1, which was sampled"),
    "texts as logprobs": ({"logprobs": ["0", "-1", "-1", "0"]}, "logprobs.npy has dtype <U2"),
    "texts and None as logprobs": ({"logprobs": [None, "-1", "-1", None]}, "logprobs.npy has dtype object"),
    "no token": ({"tokens": [], "mask": []}, "tokens.npy has no token"),
    "a token beyond int32": (
        {"tokens": [1, 2, 3, 2**31]},
        "has the value 2147483648 at 3; accepted: 0 to 2147483647",
    ),
    "a negative token": ({"tokens": [1, -1, 3, 4]}, "tokens.npy has the value -1 at 1"),
    "a token beyond int64": ({"tokens": [1, 2, 3, 2**70]}, "tokens.npy has dtype object"),
    "tokens as floats": ({"tokens": [1.0, 2.0, 3.0, 4.0]}, "tokens.npy has dtype float64"),
    "a batch of tokens": ({"tokens": [TOKENS]}, r"tokens.npy has shape [1, 4]"),
    "tokens that are text": ({"tokens": "abcd"}, "tokens.npy has dtype <U4"),
    "an iterator of tokens": ({"tokens": iter(TOKENS)}, "a list, a numpy array or a CPU tensor"),
    "masked tokens": (
        {"tokens": np.ma.array(TOKENS, mask=[True, False, False, False])},
        "tokens.npy has masked values",
    ),
    "ragged tokens": ({"tokens": [[1], [2, 3]]}, "tokens.npy is not an array"),
    "a negative version where sampled": ({"versions": [0, -2, 1, 0]}, "versions.npy has the value -2"),
    "versions of another length": ({"versions": [1, 2]}, "versions.npy has 2 values"),
    "a reward that is text": ({"reward": "1.0"}, "reward='1.0'"),
    "a NaN reward": ({"reward": float("nan")}, "reward=nan"),
    "a vector of rewards": ({"reward": [1.0, 2.0]}, "reward=[1.0, 2.0]"),
    "an empty group_id": ({"group_id": ""}, "group_id=''"),
    "a number as group_id": ({"group_id": 7}, "group_id=7"),
    "a number as prompt_id": ({"prompt_id": 7}, "prompt_id=7; a text is needed"),
    "None as trajectory_id": ({"trajectory_id": None}, "trajectory_id=None; a text is needed"),
    "a number of calls": ({"calls": 2}, "calls=2; the list of the calls' numbers"),
    "a list of fields": ({"fields": [1]}, "fields=[1]; a mapping of field to array"),
    "a number as turns": ({"turns": 5}, "turns=5; a list of mappings"),
    "a column of rollout's own": ({"n_tokens": 3}, "columns ['n_tokens']"),
    "a field with a parameter": ({"fields": {"mask.npy": MASK}}, "mask.npy has a parameter of its own"),
    "a field of another kind": ({"fields": {"a.txt": "x"}}, "a.txt in fields=: names that end in .npy"),
    "experts one row short": ({"fields": {"experts.npy": np.zeros((3, 2, 8), int)}}, "add one of 65535"),
    "experts without layers": ({"fields": {"experts.npy": np.zeros((4, 8), int)}}, "3 dimensions are needed"),
    "a scalar advantage": ({"fields": {"advantages.npy": 1.0}}, "advantages.npy has shape []"),
    "a NaN advantage": (
        {"fields": {"advantages.npy": [0, 0, np.nan, 0]}},
        "advantages.npy has nan at token 2",
    ),
    "an infinite reward of a token": (
        {"fields": {"rewards.npy": [0, 0, np.inf, 0]}},
        "rewards.npy has inf at token 2; finite numbers are needed",
    ),
    "rewards that are texts": ({"fields": {"rewards.npy": list("abcd")}}, "rewards.npy has dtype <U1"),
    "kept without kept_n": ({"fields": {"kept.npy": [1]}}, "kept.npy without kept_n.npy"),
    "kept of another sum": (
        {"fields": {"kept.npy": [1], "kept_n.npy": [1, 1, 0, 0]}},
        "kept.npy has 1 values, the sum of kept_n.npy is 2",
    ),
    "a turn without a role": ({"turns": [{"text": "hi"}]}, "turn 0 is"),
    "a turn beyond the tokens": (
        {"turns": [{"role": "user", "start": 2, "stop": 5}]},
        "turn 0 is [2, 5) of 4",
    ),
    "a turn with times for tokens": (
        {"turns": [{"role": "user", "start": 0.5}]},
        "numbers of tokens are needed",
    ),
    "media without a version": ({"media": [[0, 0, 2]]}, "media_version=None; name the version"),
    "media of a numbered version": (
        {"media": [[0, 0, 2]], "media_version": 1},
        "media_version=1; name the version",
    ),
    "media beyond the tokens": ({"media": [[0, 3, 2]], "media_version": "images@1"}, "row [0, 3, 2]"),
    "media beyond int64": (
        {"media": [[0, 2, 2**63 - 1]], "media_version": "images@1"},
        "beyond the 4 tokens",
    ),
    "media as a number": ({"media": 5, "media_version": "images@1"}, "[m, 3] is needed"),
    "media of two columns": ({"media": [[0, 3]], "media_version": "images@1"}, "[m, 3] is needed"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_rollout_refuses(case):
    arguments, message = REFUSED[case]
    with pytest.raises(InvalidSample, match=re.escape(message)) as raised:
        rollout(**arguments)
    assert "'r1'" in str(raised.value)


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
    ("keys_by_worker", "says"),
    [
        ({"w0": ["r1", "r9", "r1"]}, r"key 'r1' comes twice in this version; .*needs its own key"),
        ({"w0": ["r1"], "w1": ["r1"]}, r"key 'r1' comes twice in this version; .*needs its own key"),
        ({"w0": ["r1", "r0"]}, r"key 'r0' is already in math-rl@1 .*Write under new keys"),
    ],
    ids=["by one worker", "by two workers", "by an earlier step"],
)
def test_key_of_two_rollouts_is_refused_and_named(tmp_path, keys_by_worker, says):
    root = loader.Root(tmp_path)
    publish(root, "step-0", {"w0": ["r0"]})
    with pytest.raises(DuplicateKey, match=says):
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
    with pytest.raises(
        FieldMismatch, match=r"'env' holds different kinds: str in sample 'r0', int in .*'r1'"
    ):
        loader.write_part(root, "step-0", iter(rollouts), groups=loader.ROLLOUT_GROUPS, name="w0")


def test_rollouts_with_and_without_logprobs_in_one_part_are_refused(tmp_path):
    root = loader.Root(tmp_path)
    root.begin("math-rl", txn="step-0")
    rollouts = [rollout("r0", logprobs=[0, -1, -1, 0]), rollout("r1")]
    with pytest.raises(FieldMismatch, match=r"sample 'r1' has fields .*missing \['logprobs.npy'\]"):
        loader.write_part(root, "step-0", iter(rollouts), groups=loader.ROLLOUT_GROUPS, name="w0")
