"""A model and its optimizers as a state that checkpoints hold."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


class TrainingState:
    """A torch.distributed.checkpoint Stateful: `checkpoints.save(step, {"train": TrainingState(...)})`.

    Names are the model's own, without DDP, FSDP or torch.compile prefixes, so a state saved under one wrapper loads
    under another. Loading also fills an optimizer that has not taken a step.
    """

    def __init__(self, model: "nn.Module", optimizers: "Optimizer | Iterable[Optimizer]" = ()) -> None:
        self._model = model
        self._optimizers = optimizers

    def state_dict(self) -> dict[str, Any]:
        """Return parameters, buffers and optimizer states. Tensors are not copied."""
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self._model, self._optimizers)
        if optimizer:
            return {"model": model, "optimizer": optimizer}
        return {"model": model}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state into the model and the optimizers."""
        from torch.distributed.checkpoint.state_dict import set_state_dict

        set_state_dict(
            self._model,
            self._optimizers,
            model_state_dict=state["model"],
            optim_state_dict=state.get("optimizer", {}),
        )
