"""Records of frameworks become rollouts, and come back as they were, also out of a dataset."""

import numpy as np
import pytest

import loader
from examples.rl.adapters.openrlhf_experiences import from_experience, to_experience
from examples.rl.adapters.routed_experts import NO_EXPERT
from examples.rl.adapters.skyrl_outputs import from_generator_output, to_generator_output
from examples.rl.adapters.tinker_datums import from_datum, to_datum
from examples.rl.adapters.verl_outputs import from_agent_loop_output, to_agent_loop_output

from . import recorded_outputs
from .recorded_outputs import EXPERTS, LOGPROBS, PROMPT, RESPONSE, RESPONSE_MASK, as_objects


def through_a_dataset(folder, samples):
    """Write samples, and return them as a view with its columns reads them, in the same order."""
    root = loader.Root(folder)
    root.create()
    transaction = root.begin("rl", txn="step-1")
    part = loader.write_part(root, transaction, samples, groups=loader.ROLLOUT_GROUPS, name="w0")
    root.publish("rl", [part])
    version = root.open("rl@latest")
    rows = version.samples().collect().to_dicts()
    by_key = {row["key"]: {**row, **version[row["ordinal"]]} for row in rows}
    return [by_key[key] for key, _, _ in samples]


def assert_equal(actual, expected):
    """Compare what `expected` names, arrays by value."""
    for name, value in expected.items():
        if isinstance(value, dict):
            assert_equal(actual[name], value)
        elif isinstance(value, np.ndarray):
            np.testing.assert_array_equal(actual[name], value, err_msg=name)
        elif isinstance(value, list) and value and isinstance(value[0], np.ndarray):
            assert len(actual[name]) == len(value)
            for actual_rows, rows in zip(actual[name], value, strict=True):
                np.testing.assert_array_equal(actual_rows, rows, err_msg=name)
        else:
            assert actual[name] == value, name


@pytest.fixture(params=["memory", "dataset"])
def store_samples(request, tmp_path):
    """store_samples(samples) -> the samples as `loader.rollout` returned them, or as a dataset does."""
    if request.param == "memory":
        return lambda samples: samples
    return lambda samples: through_a_dataset(tmp_path / "root", samples)


def test_verl_output_comes_back(store_samples):
    output = recorded_outputs.agent_loop_output()
    sample = from_agent_loop_output("r1", output, group_id="g7")
    (again,) = store_samples([sample])
    expected = {name: value for name, value in output.items() if name != "mm_processor_output"}
    assert_equal(to_agent_loop_output(again), expected)
    assert to_agent_loop_output(again)["routed_experts"].dtype == np.uint8


def test_rollout_of_a_verl_output_has_its_values_by_token():
    _, fields, columns = from_agent_loop_output(
        "r1", recorded_outputs.agent_loop_output(), group_id="g7", env="sums"
    )
    assert fields["tokens.npy"].tolist() == [*PROMPT, *RESPONSE]
    assert fields["mask.npy"].tolist() == [False, False, True, True, False, False, True]
    assert fields["logprobs.npy"].tolist() == [0, 0, *LOGPROBS]
    assert fields["versions.npy"].tolist() == [-1, -1, 6, 6, -1, -1, 6]
    assert fields["experts.npy"][:6].tolist() == EXPERTS.tolist()
    assert (fields["experts.npy"][6] == NO_EXPERT).all()
    assert (columns["policy_min"], columns["max_global_steps"]) == (6, 7)
    assert (columns["reward"], columns["env"], columns["num_turns"]) == (0.75, "sums", 4)


def test_versions_of_the_caller_count_before_the_range_of_verl():
    _, fields, columns = from_agent_loop_output(
        "r1", recorded_outputs.agent_loop_output(), group_id="g7", versions=[0, 0, 6, 6, 0, 0, 7]
    )
    assert fields["versions.npy"].tolist() == [-1, -1, 6, 6, -1, -1, 7]
    assert (columns["policy_min"], columns["policy_max"]) == (6, 7)
    extra = to_agent_loop_output(("r1", fields, columns))["extra_fields"]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (6, 7)


def test_skyrl_output_of_steps_comes_back(store_samples):
    output = recorded_outputs.generator_output()
    samples = from_generator_output(output, prefix="run-7/", versions=5, env="sums")
    assert [key for key, _, _ in samples] == ["run-7/gsm-7_3/0", "run-7/gsm-7_3/1", "run-7/gsm-8_0/0"]
    assert_equal(to_generator_output(store_samples(samples)), output)


def test_rollouts_of_a_skyrl_output_have_turns_rewards_and_kept_tokens():
    output = recorded_outputs.generator_output()
    first, second, masked = from_generator_output(output, prefix="", versions=5)
    assert first[2]["trajectory_id"] == second[2]["trajectory_id"] == "gsm-7_3"
    assert first[2]["group_id"] == second[2]["group_id"] == "gsm-7"
    assert (first[2]["reward"], second[2]["reward"]) == (0.25, 1.0)
    assert first[1]["kept_n.npy"].tolist() == [0, 0, 2, 1]
    assert first[1]["kept.npy"].tolist() == [21, 7, 22]
    assert second[1]["versions.npy"].tolist() == [-1] * 6 + [5]
    assert masked[2]["n_sampled"] == 0
    assert (masked[1]["experts.npy"][2:] == NO_EXPERT).all()


def test_skyrl_output_with_a_reward_per_trajectory_comes_back(store_samples):
    output = recorded_outputs.generator_output()
    output["is_last_step"] = None
    output["rewards"] = [1.0, 0.5, 0.0]
    output["trajectory_ids"][1] = {"instance_id": "gsm-7", "repetition_id": 4}
    samples = from_generator_output(output, prefix="run-7/")
    assert [key for key, _, _ in samples] == ["run-7/gsm-7_3", "run-7/gsm-7_4", "run-7/gsm-8_0"]
    assert_equal(to_generator_output(store_samples(samples)), output)


def test_experience_comes_back_without_and_with_padding(store_samples):
    experience = recorded_outputs.experience()
    samples = from_experience(experience, keys=["a", "b"], group_ids=["g1", "g2"], versions=3)
    assert [len(fields["tokens.npy"]) for _, fields, _ in samples] == [7, 4]
    assert samples[1][1]["logprobs.npy"].tolist() == [0, 0, -1, -2]
    assert samples[1][1]["advantages.npy"].tolist() == [0, -1, -1, -1]
    assert_equal(to_experience(store_samples(samples), pad_id=0), experience)


def test_datum_comes_back(store_samples):
    datum = recorded_outputs.datum()
    sample = from_datum("r1", datum, group_id="g7", reward=1, versions=2)
    (again,) = store_samples([sample])
    assert_equal(to_datum(again), datum)
    assert sample[1]["advantages.npy"].tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert (sample[2]["reward"], sample[2]["policy_min"]) == (1.0, 2)


def test_datum_with_weights_or_a_mask_of_the_caller_is_the_same_rollout():
    datum = recorded_outputs.datum()
    expected = from_datum("r1", datum, group_id="g7")
    mask = datum["loss_fn_inputs"].pop("mask")
    by_argument = from_datum("r1", datum, group_id="g7", mask=mask["data"])
    datum["loss_fn_inputs"]["weights"] = np.array(mask["data"])
    datum["loss_fn_inputs"]["target_tokens"]["data"][0] = 0  # not trained: some loops write 0 there
    by_weights = from_datum("r1", datum, group_id="g7")
    for _, fields, columns in (by_argument, by_weights):
        assert columns == expected[2]
        assert_equal(fields, expected[1])
    weights = to_datum(by_weights, mask_name="weights")["loss_fn_inputs"]["weights"]
    assert weights["data"] == [0, *RESPONSE_MASK]


def test_objects_and_tensors_are_read_as_mappings_are():
    import torch

    output = recorded_outputs.agent_loop_output()
    expected = from_agent_loop_output("r1", output, group_id="g7")
    output["routed_experts"] = torch.tensor(output["routed_experts"])
    _, fields, columns = from_agent_loop_output("r1", as_objects(output), group_id="g7")
    assert columns == expected[2]
    assert_equal(fields, expected[1])

    experience = recorded_outputs.experience()
    (first, second) = from_experience(experience, keys=["a", "b"], group_ids=["g", "g"])
    for name, value in experience.items():
        if isinstance(value, np.ndarray):
            experience[name] = torch.from_numpy(value)
    for sample, of_objects in zip(
        (first, second),
        from_experience(as_objects(experience), keys=["a", "b"], group_ids=["g", "g"]),
        strict=True,
    ):
        assert of_objects[2] == sample[2]
        assert_equal(of_objects[1], sample[1])

    skyrl = recorded_outputs.generator_output()
    samples = from_generator_output(skyrl, prefix="")
    skyrl["trajectory_ids"] = [as_objects(entry) for entry in skyrl["trajectory_ids"]]
    assert [sample[2] for sample in from_generator_output(skyrl, prefix="")] == [
        sample[2] for sample in samples
    ]

    datum = recorded_outputs.datum()
    inputs = {name: torch.tensor(value["data"]) for name, value in datum["loss_fn_inputs"].items()}
    chunk = as_objects(datum["model_input"]["chunks"][0])
    of_objects = as_objects({"model_input": as_objects({"chunks": [chunk]}), "loss_fn_inputs": inputs})
    assert_equal(
        from_datum("r1", of_objects, group_id="g")[1],
        from_datum("r1", datum, group_id="g")[1],
    )
