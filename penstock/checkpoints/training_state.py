"""A model and its optimizers as one entry of a state, by the names of parameters and whatever shards them."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer


class TrainingState:
    """A Stateful of torch.distributed.checkpoint: `checkpoints.save(step, {"train": TrainingState(...)})`.

    Names are the model's own, without the prefixes of DDP, FSDP or torch.compile, and moments go by their parameter's
    name. So a state that was saved under one of these loads under another. An optimizer that was not used yet gets its
    moments made before they are filled, where `optimizer.state_dict()` would have none to fill.
    """

    def __init__(self, model: nn.Module, optimizers: Optimizer | Iterable[Optimizer] = ()) -> None:
        self._model, self._optimizers = model, optimizers

    def state_dict(self) -> dict[str, Any]:
        """Return parameters and buffers, and the optimizers' state; tensors are the live ones."""
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
