"""Convert the experts that routed each token, between a server's rows and a dataset's.

A server returns no row for a token that it did not feed to the model, such as the last one. A dataset has a row per
token, and 65535 in place of a missing one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.errors import InvalidSample

from .records import StoredRollout, array

NO_EXPERT = 65535


def padded_experts(
    where: str,
    experts: Any,
    mask: NDArray[np.bool_],
) -> NDArray[Any]:
    """Return experts [T, layers, k] from rows of the first tokens, [rows, layers, k].

    mask: bool [T], True for sampled tokens. Row t predicts token t + 1, so a sampled token needs the row before it.
    """
    rows = array(where, experts, 3)
    n_rows = len(rows)
    n_tokens = len(mask)
    sampled = np.flatnonzero(mask)
    n_needed = int(sampled.max(initial=0))
    if not n_needed <= n_rows <= n_tokens:
        raise InvalidSample(
            f"{where} has {n_rows} rows for {n_tokens} tokens; {n_needed} to {n_tokens} are accepted, because row "
            f"{n_needed - 1} predicts the last sampled token"
        )
    if rows.max(initial=0) >= NO_EXPERT:
        raise InvalidSample(f"{where} has the expert {rows.max()}; accepted: 0 to {NO_EXPERT - 1}")
    missing_shape = (n_tokens - n_rows, *rows.shape[1:])
    missing = np.full(missing_shape, NO_EXPERT, np.int32)  # in the dtype of the rows, uint8, it would be 255
    return np.concatenate([rows, missing])


def server_experts(rollout: StoredRollout) -> NDArray[Any] | None:
    """Return experts [rows, layers, k] of the first tokens, in the smallest dtype of uint8, int16 and int32."""
    stored = rollout.per_token("experts.npy")
    if stored is None:
        return None
    experts = array(f"{rollout.where}: experts.npy", stored, 3)
    n_rows = len(experts)
    is_no_expert = experts == NO_EXPERT  # [T, layers, k]
    is_missing = is_no_expert.any(axis=(1, 2))  # [T]
    if is_missing.any():
        n_rows = int(is_missing.argmax())
    rows_behind = np.flatnonzero(~is_missing[n_rows:])
    if len(rows_behind):
        raise InvalidSample(
            f"{rollout.where}: experts.npy lacks the row of token {n_rows}, and has one for token "
            f"{n_rows + rows_behind[0]}; a server's rows have no gap"
        )
    rows = experts[:n_rows]
    largest = int(rows.max(initial=0))
    for dtype in (np.uint8, np.int16):
        bound = np.iinfo(dtype).max
        if largest <= bound:
            return rows.astype(dtype)
    return rows.astype(np.int32)
