"""Join the model calls of a trajectory into token sequences, without encoding any text.

An agent sends the history again with each call, so most calls continue the sequence before. If the server encoded its
history in another way, or if the agent compacted it or started a sub-agent, a new sequence begins. The work grows with
calls * sequences * tokens; most comparisons end at the last token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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


class _JoinedSequence:
    """A sequence of T tokens, to which calls are appended."""

    def __init__(self) -> None:
        self.tokens = np.empty(0, np.int32)  # [T]
        self._mask = np.empty(0, bool)  # [T]: True where the policy sampled
        self._logprobs = np.empty(0, np.float32)  # [T]: 0 where it did not
        self._versions = np.empty(0, np.int32)  # [T]: NOT_SAMPLED where it did not
        self._calls: list[int] = []

    def extend(self, number: int, call: _ModelCall) -> None:
        """Append the part of a call's prompt that is new, and the tokens that it sampled."""
        n_tokens = len(self.tokens)
        new_prompt = call.prompt[n_tokens:]  # its beginning equals this sequence: see `_longest_beginning`
        n_new = len(new_prompt)
        n_sampled = len(call.sampled)
        n_added = n_new + n_sampled

        mask = np.zeros(n_added, bool)
        mask[n_new:] = True
        logprobs = np.zeros(n_added, np.float32)
        if call.logprobs is not None:
            logprobs[n_new:] = call.logprobs
        versions = np.full(n_added, NOT_SAMPLED, np.int32)
        if call.version is not None:
            versions[n_new:] = call.version

        new_tokens = np.concatenate([new_prompt, call.sampled])
        self.tokens = np.append(self.tokens, new_tokens)
        self._mask = np.append(self._mask, mask)
        self._logprobs = np.append(self._logprobs, logprobs)
        self._versions = np.append(self._versions, versions)
        self._calls.append(number)

    def result(
        self,
        *,
        has_logprobs: bool,
        has_versions: bool,
    ) -> dict[str, Any]:
        arrays: dict[str, Any] = {"tokens": self.tokens, "mask": self._mask}
        if has_logprobs:
            arrays["logprobs"] = self._logprobs
        if has_versions:
            arrays["versions"] = self._versions
        arrays["calls"] = self._calls
        return arrays


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
    if not isinstance(calls, Iterable):
        raise InvalidSample(
            f"join_calls({calls!r:.80}): a list of calls is needed",
            what="calls",
            given=f"{calls!r:.80}",
            accepted="a list of calls",
        )
    parsed = [_parse(number, call) for number, call in enumerate(calls)]
    logprobs = [call.logprobs for call in parsed]
    versions = [call.version for call in parsed]
    has_logprobs = _all_or_none("logprobs", logprobs)
    has_versions = _all_or_none("version", versions)

    sequences: list[_JoinedSequence] = []
    for number, call in enumerate(parsed):
        sequence = _longest_beginning(sequences, call.prompt)
        if sequence is None:
            sequence = _JoinedSequence()
            sequences.append(sequence)
        sequence.extend(number, call)
    return [
        sequence.result(
            has_logprobs=has_logprobs,
            has_versions=has_versions,
        )
        for sequence in sequences
    ]


def _parse(number: int, call: Mapping[str, Any]) -> _ModelCall:
    is_mapping = isinstance(call, Mapping)
    if not is_mapping or not {"prompt", "sampled"} <= set(call):
        raise InvalidSample(
            f"call {number} is {call!r:.80}; a mapping with prompt and sampled is needed",
            what="call",
            where=f"call {number}",
            given=f"{call!r:.80}",
            accepted="a mapping with prompt and sampled",
        )
    prompt = _token_ids(f"call {number}: prompt", call["prompt"])
    sampled = _token_ids(f"call {number}: sampled", call["sampled"])
    n_sampled = len(sampled)
    if not n_sampled and not len(prompt):
        raise InvalidSample(
            f"call {number} has no token; leave it out", what="tokens", where=f"call {number}", given=0
        )
    logprobs = _logprobs(number, call, n_sampled)
    version = _version(number, call)
    return _ModelCall(
        prompt=prompt,
        sampled=sampled,
        logprobs=logprobs,
        version=version,
    )


def _logprobs(
    number: int,
    call: Mapping[str, Any],
    n_sampled: int,
) -> NDArray[np.float32] | None:
    logprobs = call.get("logprobs")
    if logprobs is None:
        return None
    where = f"call {number}: logprobs"
    # Servers return None for a token without one: NaN as float64, which `rollout` refuses where sampled.
    array = token_arrays.one_dimensional(where, logprobs, np.float64)
    n_values = len(array)
    if n_values != n_sampled:
        raise token_arrays.refused_array(
            where,
            f"has {n_values} values, sampled {n_sampled}; one per sampled token is needed",
            given=n_values,
            accepted=n_sampled,
        )
    return token_arrays.floats(where, array)


def _version(
    number: int,
    call: Mapping[str, Any],
) -> int | None:
    version = call.get("version")
    if version is None:
        return None
    where = f"call {number}: version"
    array = token_arrays.any_array(where, version)
    if array.ndim:
        shape = list(array.shape)
        raise token_arrays.refused_array(
            where,
            f"has shape {shape}; one number per call is needed",
            given=shape,
            accepted="one number",
        )
    checked = token_arrays.integers(where, array, np.int32)
    return int(checked)


def _token_ids(
    where: str,
    value: Any,
) -> Int32s:
    array = token_arrays.one_dimensional(where, value)
    return token_arrays.integers(where, array, np.int32)


def _all_or_none(name: str, values: list[Any]) -> bool:
    """Return whether all calls have a value. Raises: InvalidSample if only some have one."""
    missing = [number for number, value in enumerate(values) if value is None]
    # A call without a value would get zeros or -1, which nothing could tell from stored ones.
    is_mixed = 0 < len(missing) < len(values)
    if is_mixed:
        raise InvalidSample(
            f"call {missing[0]} has no {name}, others have; pass it for all calls or for none",
            what=name,
            where=f"call {missing[0]}",
        )
    return not missing


def _longest_beginning(
    sequences: list[_JoinedSequence],
    prompt: Int32s,
) -> _JoinedSequence | None:
    """Return the longest sequence with which the prompt begins."""
    longest = None
    n_longest = 0
    for sequence in sequences:
        n_tokens = len(sequence.tokens)
        is_candidate = n_longest < n_tokens <= len(prompt)
        if not is_candidate:
            continue
        # The last token first: sequences of one trajectory share their beginning, and differ at the end.
        if sequence.tokens[-1] != prompt[n_tokens - 1]:
            continue
        beginning = prompt[:n_tokens]
        if np.array_equal(sequence.tokens, beginning):
            longest = sequence
            n_longest = n_tokens
    return longest
