"""Records of frameworks with two turns and a tool's answer between them, as their own code writes them."""

from types import SimpleNamespace

import numpy as np

# The prompt is 11, 12. The policy samples 21, 22, a tool answers 31, 32, the policy samples 23.
PROMPT = [11, 12]
RESPONSE = [21, 22, 31, 32, 23]
RESPONSE_MASK = [1, 1, 0, 0, 1]
LOGPROBS = [-0.5, -0.25, 0.0, 0.0, -1.5]
EXPERTS = np.arange(6 * 2 * 3).reshape(6, 2, 3)  # no row for the last token
SUPPORT = np.array([[21, 7, -1], [22, -1, -1], [-1, -1, -1], [-1, -1, -1], [23, 5, 6]], np.int32)


def agent_loop_output():
    """As `AgentLoopOutput` of verl."""
    return {
        "prompt_ids": PROMPT,
        "response_ids": RESPONSE,
        "response_mask": RESPONSE_MASK,
        "response_logprobs": LOGPROBS,
        "routed_experts": EXPERTS.astype(np.int16),
        "multi_modal_data": None,
        "reward_score": 0.75,
        "num_turns": 4,
        "metrics": {},
        "extra_fields": {
            "min_global_steps": 6,
            "max_global_steps": 7,
            "teacher_logprobs": np.linspace(-3, 0, 14, dtype=np.float32).reshape(7, 2),
            "teacher_ids": np.arange(14).reshape(7, 2),
        },
        "mm_processor_output": None,
    }


def generator_output():
    """As `GeneratorOutput` of SkyRL, in step-wise training: two turns of one trajectory, and one of another."""
    first_turn = 2
    history = [*PROMPT, *RESPONSE[:4]]
    return {
        "prompt_token_ids": [PROMPT, history, PROMPT],
        "response_ids": [RESPONSE[:first_turn], RESPONSE[4:], [24, 25]],
        "rewards": [[0.0, 0.25], [1.0], [0.0, 0.5]],
        "loss_masks": [[1, 1], [1], [0, 0]],  # the last one is too long, and masked
        "stop_reasons": ["tool", "stop", "length"],
        "rollout_metrics": None,
        "rollout_logprobs": [LOGPROBS[:first_turn], LOGPROBS[4:], [-1.0, -2.0]],
        "trajectory_ids": [
            {"instance_id": "gsm-7", "repetition_id": 3},
            {"instance_id": "gsm-7", "repetition_id": 3},
            {"instance_id": "gsm-8", "repetition_id": 0},
        ],
        "rollout_expert_indices": [
            EXPERTS[:3].astype(np.uint8),
            EXPERTS.astype(np.uint8),
            EXPERTS[:2].astype(np.uint8),  # a masked tail has no rows
        ],
        "rollout_sample_support": [SUPPORT[:2, :2], SUPPORT[4:], np.array([[24], [-1]], np.int32)],
        "is_last_step": [False, True, True],
        "pixel_values": None,
    }


def experience():
    """As `Experience` of OpenRLHF: two sequences of 7 and 4 tokens."""
    return {
        "sequences": np.array([[*PROMPT, *RESPONSE], [*PROMPT, 24, 25, 0, 0, 0]]),
        "attention_mask": np.array([[1] * 7, [1] * 4 + [0] * 3]),
        "action_mask": np.array([[0, *RESPONSE_MASK], [0, 1, 1, 0, 0, 0]], bool),
        "rollout_log_probs": np.array([[0, *LOGPROBS], [0, -1, -2, 0, 0, 0]], np.float32),
        "action_log_probs": None,
        "base_action_log_probs": np.array([[-1] * 6, [-2] * 3 + [0] * 3], np.float32),
        "values": None,
        "returns": np.array([[0.5] * 6, [0.25] * 3 + [0] * 3], np.float32),
        "advantages": np.array([[1] * 6, [-1] * 3 + [0] * 3], np.float32),
        "kl": None,
        "rewards": np.array([1.0, 0.0]),
        "scores": np.array([1.0, 0.0]),
        "truncated": np.array([False, True]),
        "prompts": ["what is 2 + 2?", "what is 3 + 3?"],
        "labels": ["4", "6"],
        "response_length": np.array([5, 2]),
        "total_length": np.array([7, 4]),
    }


def datum():
    """As `Datum` of tinker, with the inputs of the cookbook's loop."""
    return {
        "model_input": {"chunks": [{"type": "encoded_text", "tokens": [*PROMPT, *RESPONSE[:-1]]}]},
        "loss_fn_inputs": {
            "target_tokens": tensor_data([*PROMPT[1:], *RESPONSE], "int64"),
            "mask": tensor_data([0, *RESPONSE_MASK], "float32"),
            "logprobs": tensor_data([0, *LOGPROBS], "float32"),
            "advantages": tensor_data([0, 1, 1, 0, 0, 1], "float32"),
        },
    }


def tensor_data(values, dtype):
    return {"data": np.array(values, dtype).tolist(), "dtype": dtype, "shape": [len(values)]}


def as_objects(record):
    """Return a record as the library's objects have it: attributes, not names of a mapping."""
    return SimpleNamespace(**record)
