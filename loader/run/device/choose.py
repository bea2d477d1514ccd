"""Choose the backend for the device that the user names."""

from typing import Any

from ...errors import InvalidRuntime, MissingDependency
from ..batch.collate import import_framework
from .device_backend import DeviceBackend


def backend_of(device: Any, framework: str, *, default: bool = False) -> DeviceBackend | None:
    """Return the backend that copies batches to a device; None if they stay on the host.

    default: True takes None as JAX's default device. Raises: InvalidRuntime if there is no such device;
    MissingDependency if the framework is missing.
    """
    if isinstance(device, DeviceBackend) or (device is None and not default):
        return device
    if framework == "numpy":
        raise InvalidRuntime(
            f"device = {device!r} with framework = 'numpy', whose arrays lie on the host; accepted: framework='torch' "
            "or 'jax'"
        )
    import_framework(framework)
    try:
        if framework == "jax":
            from .jax_copies import JaxCopies, jax_backend

            return JaxCopies(None) if device is None else jax_backend(device)
        return _torch_backend(device)
    except ImportError as error:
        raise MissingDependency(f"device = {device!r}: {error}") from error


def _torch_backend(device: Any) -> DeviceBackend | None:
    import torch

    try:
        asked = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidRuntime(
            f"device = {device!r}; accepted: None, a torch.device, or its name, such as 'cuda' or 'cuda:1' ({error})"
        ) from None
    if asked.type == "cpu":
        return None
    there = torch.accelerator.current_accelerator(check_available=True)
    if there is None or there.type != asked.type:
        has = "no accelerator" if there is None else f"only {there.type!r}"
        raise InvalidRuntime(
            f"device = {str(asked)!r}, but torch {torch.__version__} finds {has} in this process; leave device out to "
            f"keep batches on the host, or install torch's build for {asked.type!r} and check its driver"
        )
    count = torch.accelerator.device_count()
    if asked.index is not None and asked.index >= count:
        raise InvalidRuntime(f"device = {str(asked)!r}; this process sees {count} of them, 0 to {count - 1}")
    index = torch.accelerator.current_device_index() if asked.index is None else asked.index
    chosen = torch.device(asked.type, index)
    if chosen.type == "cuda":
        from .torch_copies import CudaCopies

        return CudaCopies(chosen)
    from .torch_copies import PlainCopies

    return PlainCopies(chosen)
