"""Adapters of frameworks refuse damaged records: each error names rollout, field and value."""

import re

import numpy as np
import pytest

import loader
from examples.rl.adapters.openrlhf_experiences import from_experience, to_experience
from examples.rl.adapters.routed_experts import NO_EXPERT
from examples.rl.adapters.skyrl_outputs import from_generator_output, to_generator_output
from examples.rl.adapters.tinker_datums import from_datum, to_datum
from examples.rl.adapters.verl_outputs import from_agent_loop_output, to_agent_loop_output
from loader.errors import InvalidSample

from . import recorded_outputs
from .recorded_outputs import EXPERTS, LOGPROBS, RESPONSE_MASK, tensor_data

NAN = float("nan")


def expect_refusal(says):
    return pytest.raises(InvalidSample, match=re.escape(says))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"response_mask": [1, 1]}, "rollout 'r1': response_mask has 2 values, response_ids 5"),
        ({"response_mask": None}, "response_mask has shape []"),
        ({"response_mask": [1, 2, 0, 0, 1]}, "mask.npy has the value 2"),
        ({"response_logprobs": LOGPROBS[:4]}, "response_logprobs has 4 values, response_ids 5"),
        ({"response_logprobs": [NAN, *LOGPROBS[1:]]}, "logprobs.npy has nan at token 2, which was sampled"),
        ({"response_logprobs": [None, *LOGPROBS[1:]]}, "logprobs.npy has nan at token 2, which was sampled"),
        ({"response_logprobs": ["a"] * 5}, "response_logprobs has dtype <U1"),
        ({"response_logprobs": [None, "a", 0, 0, 0]}, "response_logprobs holds other values than numbers"),
        ({"response_ids": [[1], [2, 3]]}, "response_ids is not an array"),
        ({"prompt_ids": [2**31]}, "tokens.npy has the value 2147483648"),
        ({"prompt_ids": [0.5]}, "tokens.npy has dtype float64"),
        ({"reward_score": NAN}, "reward=nan"),
        ({"routed_experts": EXPERTS[:5]}, "routed_experts has 5 rows for 7 tokens; 6 to 7 are accepted"),
        ({"routed_experts": np.zeros((8, 2, 3), int)}, "routed_experts has 8 rows for 7 tokens"),
        ({"routed_experts": EXPERTS[:, 0]}, "routed_experts has shape [6, 3]; 3 dimensions"),
        ({"routed_experts": EXPERTS + NO_EXPERT}, "routed_experts has the expert 65570"),
        ({"routed_experts": EXPERTS - 1}, "experts.npy has the value -1"),
        ({"multi_modal_data": {"images": ["x"]}}, "multi_modal_data holds images"),
        ({"extra_fields": {"teacher_logprobs": [[-1.0]]}}, "teacher_logprobs.npy has 1 values, tokens.npy 7"),
        ({"extra_fields": {"min_global_steps": -2}}, "versions.npy has the value -2"),
    ],
)
def test_verl_output_is_refused(wrong, says):
    output = {**recorded_outputs.agent_loop_output(), **wrong}
    with expect_refusal(says):
        from_agent_loop_output("r1", output, group_id="g7")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("loss_masks", [[1, 1]], "loss_masks has 1 values, response_ids 3"),
        ("loss_masks", [[1], [1], [0, 0]], "rollout 'p/gsm-7_3/0': loss_masks has 1 values, response_ids 2"),
        (
            "rollout_logprobs",
            [[-1, NAN], [-1], [-1, -1]],
            "logprobs.npy has nan at token 3, which was sampled",
        ),
        ("rewards", [[0.5], [1.0], [0.0, 1.0]], "rewards has 1 values, response_ids 2"),
        ("rewards", [[0.5, NAN], [1.0], [0.0, 1.0]], "rewards.npy has nan at token 3"),
        ("trajectory_ids", None, "trajectory_ids is missing"),
        ("is_last_step", None, "trajectory_ids holds 'gsm-7_3' twice, and is_last_step is missing"),
        ("pixel_values", [np.ones(3)] * 3, "pixel_values holds images"),
        ("rollout_sample_support", [np.ones((1, 2), int)] * 3, "rollout_sample_support has 1 values"),
        ("rollout_expert_indices", [EXPERTS[:2]] * 3, "rollout_expert_indices has 2 rows for 4 tokens"),
    ],
)
def test_skyrl_output_is_refused(name, value, says):
    output = {**recorded_outputs.generator_output(), name: value}
    with expect_refusal(says):
        from_generator_output(output, prefix="p/")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("attention_mask", np.ones((2, 6)), "attention_mask has shape [2, 6], sequences [2, 7]"),
        ("attention_mask", np.array([[0] + [1] * 6, [1] * 7]), "attention_mask of row 0 has a gap"),
        ("action_mask", np.ones((2, 7)), "action_mask has shape [2, 7]; [2, 6] is needed"),
        ("action_mask", None, "action_mask is missing"),
        ("sequences", np.arange(7), "sequences has shape [7]; 2 dimensions"),
        ("rollout_log_probs", np.full((2, 6), NAN), "rollout 'a': logprobs.npy has nan at token 2"),
        ("advantages", np.full((2, 6), NAN), "rollout 'a': advantages.npy has nan at token 1"),
        ("rewards", np.ones(3), "rewards has 3 values, sequences 2"),
        ("rewards", np.array([NAN, 1]), "rollout 'a' has reward=nan"),
        ("prompts", ["p"], "prompts has 1 values, sequences 2"),
        ("images", [None, "cat.png"], "images holds images"),
    ],
)
def test_experience_is_refused(name, value, says):
    experience = {**recorded_outputs.experience(), name: value}
    with expect_refusal(says):
        from_experience(experience, keys=["a", "b"], group_ids=["g", "g"])


def test_experience_with_other_keys_than_sequences_is_refused():
    with expect_refusal("keys has 1 values, sequences 2"):
        from_experience(recorded_outputs.experience(), keys=["a"], group_ids=["g", "g"])


SPARSE = {"data": [1.0], "dtype": "float32", "shape": [6, 9], "sparse_crow_indices": [0, 1]}


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("target_tokens", None, "target_tokens is missing"),
        ("target_tokens", tensor_data([1, 2], "int64"), "target_tokens has 2 values, model_input 6"),
        ("target_tokens", SPARSE, "target_tokens is sparse"),
        (
            "target_tokens",
            {**tensor_data([1] * 6, "int64"), "shape": [2, 3]},
            "target_tokens has shape [2, 3]",
        ),
        ("target_tokens", [12, 99, 22, 31, 32, 23], "target_tokens has 99 at 1, model_input 21 after it"),
        ("mask", None, "loss_fn_inputs has none of mask, weights, sequence_ratio_mask"),
        ("mask", [0, 0.5, 1, 0, 0, 1], "the mask has the value 0.5"),
        ("logprobs", [0, NAN, -1, 0, 0, -1], "logprobs.npy has nan at token 2, which was sampled"),
        ("advantages", [NAN] * 6, "advantages.npy has nan at token 1"),
    ],
)
def test_datum_is_refused(name, value, says):
    datum = recorded_outputs.datum()
    datum["loss_fn_inputs"][name] = value
    with expect_refusal(says):
        from_datum("r1", datum, group_id="g7")


def test_datum_without_tokens_or_with_images_is_refused():
    datum = recorded_outputs.datum()
    datum["model_input"]["chunks"].append({"type": "image", "data": b""})
    with expect_refusal("chunk 1 of model_input is 'image'"):
        from_datum("r1", datum, group_id="g7")
    empty = {"model_input": {"chunks": []}, "loss_fn_inputs": {"target_tokens": [], "mask": []}}
    with expect_refusal("model_input has no token"):
        from_datum("r1", empty, group_id="g7")


def sample(key="r1", tokens=(1, 2, 3), mask=(0, 1, 1), **others):
    return loader.rollout(key, tokens, mask, **{"group_id": "g", **others})


@pytest.mark.parametrize(
    "convert",
    [
        to_agent_loop_output,
        to_datum,
        lambda value: to_generator_output([value]),
        lambda value: to_experience([value], pad_id=0),
    ],
    ids=["verl", "tinker", "skyrl", "openrlhf"],
)
def test_sample_that_is_no_whole_rollout_is_refused(convert):
    with expect_refusal("rollout 'r1' has no mask.npy; select it in the view"):
        convert({"__key__": "r1", "tokens.npy": np.arange(3)})
    with expect_refusal("rollout 'r1': mask.npy has 2 values, tokens.npy 3"):
        convert({"__key__": "r1", "tokens.npy": np.arange(3), "mask.npy": np.ones(2, bool)})
    with expect_refusal("rollout 'r1' has media.npy"):
        convert(sample(media=[[0, 1, 1]], media_version="images@1"))


def test_first_token_that_was_sampled_has_no_row():
    beginning = sample(mask=(1, 1, 1))
    with expect_refusal("token 0 was sampled, and no row of action_mask predicts it"):
        to_experience([beginning], pad_id=0)
    with expect_refusal("token 0 was sampled, and no row of loss_fn_inputs predicts it"):
        to_datum(beginning)
    assert to_agent_loop_output(beginning)["prompt_ids"] == []


def test_one_token_is_no_datum():
    with expect_refusal("rollout 'r1' has one token"):
        to_datum(sample(tokens=[1], mask=[0]))


def test_batch_with_a_field_in_some_rollouts_is_refused():
    with_logprobs = sample("a", logprobs=[0, -1, -1], reward=1)
    without = sample("b", reward=1)
    with expect_refusal("rollout 'b' has no logprobs.npy, others of the batch have"):
        to_generator_output([with_logprobs, without])
    with expect_refusal("rollout 'b' has no logprobs.npy, others of the batch have"):
        to_experience([with_logprobs, without], pad_id=0)
    with expect_refusal("no rollout has a reward"):
        to_generator_output([sample()])


def test_experts_with_a_gap_are_refused():
    experts = np.zeros((3, 2, 2), int)
    experts[1] = NO_EXPERT
    with expect_refusal("experts.npy lacks the row of token 1, and has one for token 2"):
        to_agent_loop_output(sample(fields={"experts.npy": experts}))


def test_rollouts_of_another_source_get_numbers_in_their_group():
    rollouts = [
        sample("a", group_id="g1", reward=1),
        sample("b", group_id="g2", reward=0),
        sample("c", group_id="g1", reward=0, trajectory_id="t"),
        sample("d", group_id="g1", reward=0, trajectory_id="t"),
    ]
    output = to_generator_output(rollouts)
    assert [entry["repetition_id"] for entry in output["trajectory_ids"]] == [0, 0, 1, 1]
    assert output["response_ids"] == [[2, 3]] * 4
    assert output["loss_masks"] == [RESPONSE_MASK[:2]] * 4
    with expect_refusal("rollout 'a' has no group_id; select it in the view"):
        to_generator_output([{**rollouts[0][1], "__key__": "a", "reward": 1}])
