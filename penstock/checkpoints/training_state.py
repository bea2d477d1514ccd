"""A model and its optimizers as one entry of a state."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer


class TrainingState:
    """A Stateful of torch.distributed.checkpoint: `checkpoints.save(step, {"train": TrainingState(...)})`.

    Parameters and moments have the model's own names, without the prefixes of DDP, FSDP or torch.compile. A state saved
    under one of these loads under another. Loading also fills an optimizer that has made no step yet.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizer | Iterable[Optimizer] = ()) -> None:
        self._model, self._optimizers = model, optimizers

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and the optimizers' state; tensors are not copied."""
        model, optimizer = get_state_dict(self._model, self._optimizers)
        return {"model": model, "optimizer": optimizer} if optimizer else {"model": model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state into the model and the optimizers."""
        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict=state["model"],
            optim_state_dict=state.get("optimizer", {}),
        )
