"""Join the model calls of a trajectory into token sequences, without encoding any text.

An agent sends the history again with each call, so most calls continue the sequence before. If the server encoded its
history in another way, or if the agent compacted it or started a sub-agent, a new sequence begins. The work grows with
calls * sequences * tokens; most comparisons end at the last token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InvalidSample
from . import token_arrays
from .rollout_fields import NOT_SAMPLED

Int32s = NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ModelCall:
    prompt: Int32s
    """Token ids, int32 [P]."""
    sampled: Int32s
    """Token ids, int32 [S]."""
    logprobs: NDArray[np.float32] | None
    """float32 [S]."""
    version: int | None


@dataclass(slots=True, kw_only=True)
class _JoinedSequence:
    tokens: Int32s
    """int32 [T]."""
    mask: NDArray[np.bool_]
    """bool [T]: True where the policy sampled."""
    logprobs: NDArray[np.float32]
    """float32 [T]: 0 where the policy did not sample."""
    versions: Int32s
    """int32 [T]: -1 where the policy did not sample."""
    calls: list[int] = field(default_factory=list)


def join_calls(calls: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the token sequences of a trajectory's model calls, in order of their first call.

    A call whose prompt begins with a whole earlier sequence extends the longest such one. Any other call begins a new
    sequence, so a server that encodes history in another way makes more sequences than expected.

    Args:
        calls: Mappings in the order of the calls: `prompt` and `sampled` (token ids), `logprobs` (of the sampled
            tokens) and `version` (of the policy). Either all calls or none have `logprobs`; likewise `version`.

    Returns:
        A dict per sequence: tokens int32 [T], mask bool [T], logprobs float32 [T] (0 where not sampled), versions
        int32 [T] (-1 there), calls (numbers of its calls). Without log-probabilities or versions, these names are
        missing. `loader.rollout(key, **sequence, group_id=...)` takes it.

    Raises: InvalidSample, which names the call and its value.
    """
    parsed = [_parse(number, call) for number, call in enumerate(calls)]
    has_logprobs = _all_or_none(parsed, "logprobs")
    has_versions = _all_or_none(parsed, "version")

    sequences: list[_JoinedSequence] = []
    for number, call in enumerate(parsed):
        sequence = _longest_beginning(sequences, call.prompt)
        if sequence is None:
            sequence = _empty_sequence()
            sequences.append(sequence)
        _extend(sequence, call)
        sequence.calls.append(number)

    results = []
    for sequence in sequences:
        result: dict[str, Any] = {"tokens": sequence.tokens, "mask": sequence.mask}
        if has_logprobs:
            result["logprobs"] = sequence.logprobs
        if has_versions:
            result["versions"] = sequence.versions
        result["calls"] = sequence.calls
        results.append(result)
    return results


def _parse(number: int, call: Mapping[str, Any]) -> _ModelCall:
    if not isinstance(call, Mapping) or "prompt" not in call or "sampled" not in call:
        raise InvalidSample(f"call {number} is {call!r:.80}; a mapping with prompt and sampled is needed")
    prompt = _token_ids(f"call {number}: prompt", call["prompt"])
    sampled = _token_ids(f"call {number}: sampled", call["sampled"])
    if not len(prompt) + len(sampled):
        raise InvalidSample(f"call {number} has no token; leave it out")

    logprobs = None
    if call.get("logprobs") is not None:
        where = f"call {number}: logprobs"
        array = token_arrays.one_dimensional(where, call["logprobs"])
        if len(array) != len(sampled):
            raise InvalidSample(f"{where} has {len(array)} values, sampled {len(sampled)}")
        logprobs = token_arrays.floats(where, array)

    version = None
    if call.get("version") is not None:
        where = f"call {number}: version"
        array = token_arrays.any_array(where, call["version"])
        if array.ndim:
            raise InvalidSample(f"{where} has shape {list(array.shape)}; one number per call is needed")
        version = int(token_arrays.integers(where, array, np.int32))
    return _ModelCall(
        prompt=prompt,
        sampled=sampled,
        logprobs=logprobs,
        version=version,
    )


def _token_ids(where: str, value: Any) -> Int32s:
    array = token_arrays.one_dimensional(where, value)
    return token_arrays.integers(where, array, np.int32)


def _all_or_none(calls: list[_ModelCall], name: str) -> bool:
    missing = [number for number, call in enumerate(calls) if getattr(call, name) is None]
    if missing and len(missing) < len(calls):
        raise InvalidSample(
            f"call {missing[0]} has no {name}, others have; pass it for all calls or for none"
        )
    return not missing


def _longest_beginning(sequences: list[_JoinedSequence], prompt: Int32s) -> _JoinedSequence | None:
    longest = None
    for sequence in sequences:
        n_tokens = len(sequence.tokens)
        is_longer = longest is None or n_tokens > len(longest.tokens)
        if n_tokens > len(prompt) or not is_longer:
            continue
        # The last token first: sequences of one trajectory share their beginning, and differ at the end.
        if sequence.tokens[-1] != prompt[n_tokens - 1]:
            continue
        if np.array_equal(sequence.tokens, prompt[:n_tokens]):
            longest = sequence
    return longest


def _empty_sequence() -> _JoinedSequence:
    return _JoinedSequence(
        tokens=np.empty(0, np.int32),
        mask=np.empty(0, bool),
        logprobs=np.empty(0, np.float32),
        versions=np.empty(0, np.int32),
    )


def _extend(sequence: _JoinedSequence, call: _ModelCall) -> None:
    """Append the new part of a call's prompt, and what it sampled."""
    new_prompt = call.prompt[len(sequence.tokens) :]
    n_new = len(new_prompt)
    n_sampled = len(call.sampled)
    logprobs = call.logprobs
    if logprobs is None:
        logprobs = np.zeros(n_sampled, np.float32)
    version = call.version
    if version is None:
        version = NOT_SAMPLED

    sequence.tokens = np.concatenate([sequence.tokens, new_prompt, call.sampled])
    sequence.mask = np.concatenate([sequence.mask, np.zeros(n_new, bool), np.ones(n_sampled, bool)])
    sequence.logprobs = np.concatenate([sequence.logprobs, np.zeros(n_new, np.float32), logprobs])
    version_of_each = np.full(n_new + n_sampled, NOT_SAMPLED, np.int32)
    version_of_each[n_new:] = version
    sequence.versions = np.concatenate([sequence.versions, version_of_each])
