"""Frameworks for reinforcement learning, versions pinned in frameworks.txt: adapters use fields of their classes.

The classes need ray, vLLM and CUDA to be imported, so their source is read as data.
"""

import ast
from collections.abc import Mapping

import pytest

from examples.rl.adapters.openrlhf_experiences import from_experience, to_experience
from examples.rl.adapters.skyrl_outputs import from_generator_output, to_generator_output
from examples.rl.adapters.tinker_datums import from_datum, to_datum
from examples.rl.adapters.verl_outputs import from_agent_loop_output, to_agent_loop_output
from tests.rollouts import recorded_outputs

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="session")
def fields_of_class(interpreters):
    """fields_of_class(path, name) -> the fields of a class with annotations, in order."""
    (packages,) = interpreters("frameworks").parents[1].glob("lib/python3.*/site-packages")

    def fields(path, name):
        tree = ast.parse((packages / path).read_text())
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name]
        assert len(classes) == 1, (path, name)
        annotated = [line for line in classes[0].body if isinstance(line, ast.AnnAssign)]
        return [line.target.id for line in annotated]

    return fields


class RecordingMapping(Mapping):
    """A mapping that keeps the names that were asked for."""

    def __init__(self, values):
        self._values = values
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self):
        return len(self._values)


def test_adapter_of_verl_uses_fields_of_its_output(fields_of_class):
    output = RecordingMapping(recorded_outputs.agent_loop_output())
    sample = from_agent_loop_output("r1", output, group_id="g7")
    fields = fields_of_class("verl/experimental/agent_loop/agent_loop.py", "AgentLoopOutput")
    assert {"prompt_ids", "routed_experts", "extra_fields"} <= output.names
    assert output.names <= set(fields)
    assert set(to_agent_loop_output(sample)) <= set(fields)
    assert set(recorded_outputs.agent_loop_output()) <= set(fields)


def test_adapter_of_skyrl_uses_fields_of_its_output(fields_of_class):
    path = "skyrl/train/generators/base.py"
    output = RecordingMapping(recorded_outputs.generator_output())
    trajectories = [RecordingMapping(entry) for entry in output["trajectory_ids"]]
    output = RecordingMapping({**recorded_outputs.generator_output(), "trajectory_ids": trajectories})
    samples = from_generator_output(output, prefix="")
    fields = fields_of_class(path, "GeneratorOutput")
    assert {"response_ids", "rollout_expert_indices", "rollout_sample_support"} <= output.names
    assert output.names <= set(fields)
    again = to_generator_output(samples)
    assert set(again) == set(fields)  # a TypedDict may lack no name
    trajectory_fields = fields_of_class(path, "TrajectoryID")
    assert trajectories[0].names == set(trajectory_fields) == set(again["trajectory_ids"][0])


def test_adapter_of_openrlhf_uses_fields_of_its_experience(fields_of_class):
    experience = RecordingMapping(recorded_outputs.experience())
    samples = from_experience(experience, keys=["a", "b"], group_ids=["g", "g"])
    fields = fields_of_class("openrlhf/trainer/ppo_utils/experience.py", "Experience")
    assert {"sequences", "action_mask", "base_action_log_probs"} <= experience.names
    assert experience.names <= set(fields)
    again = to_experience(samples, pad_id=0)
    assert set(again) <= set(fields)
    assert set(fields) - set(again) == {"index", "images", "mm_train_inputs", "info"}


def test_adapter_of_tinker_uses_fields_of_its_datum(fields_of_class):
    record = recorded_outputs.datum()
    inputs = {name: RecordingMapping(value) for name, value in record["loss_fn_inputs"].items()}
    chunk = RecordingMapping(record["model_input"]["chunks"][0])
    model_input = RecordingMapping({"chunks": [chunk]})
    datum = RecordingMapping({"model_input": model_input, "loss_fn_inputs": inputs})
    sample = from_datum("r1", datum, group_id="g7")
    again = to_datum(sample)
    datum_fields = set(fields_of_class("tinker/types/datum.py", "Datum"))
    assert datum.names == set(again) <= datum_fields
    input_fields = set(fields_of_class("tinker/types/_pydantic_types/model_input.py", "ModelInput"))
    assert model_input.names == set(again["model_input"]) <= input_fields
    chunk_fields = set(fields_of_class("tinker/types/encoded_text_chunk.py", "EncodedTextChunk"))
    assert chunk.names | set(again["model_input"]["chunks"][0]) <= chunk_fields
    tensor_fields = set(fields_of_class("tinker/types/_pydantic_types/tensor_data.py", "TensorData"))
    for name, value in again["loss_fn_inputs"].items():
        assert inputs[name].names | set(value) <= tensor_fields


def test_inputs_of_tinkers_losses_are_known_to_it(interpreters):
    (packages,) = interpreters("frameworks").parents[1].glob("lib/python3.*/site-packages")
    tree = ast.parse((packages / "tinker/types/datum.py").read_text())
    tables = [
        ast.literal_eval(line.value)
        for line in tree.body
        if isinstance(line, ast.Assign) and line.targets[0].id == "_KEY_TO_TYPE"
    ]
    (dtypes,) = tables
    inputs = to_datum(from_datum("r1", recorded_outputs.datum(), group_id="g"), mask_name="weights")[
        "loss_fn_inputs"
    ]
    assert {name: value["dtype"] for name, value in inputs.items()} == {name: dtypes[name] for name in inputs}
