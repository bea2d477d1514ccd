"""Copies of JAX arrays. JAX stages host memory itself and orders computations after its copies."""

from typing import Any

import jax

from ...errors import InvalidRuntime
from ..batch.batch import Batch
from ..batch.frameworks import to_jax
from .device_backend import Copy, DeviceBackend, with_values


class JaxCopy:
    """Arrays being copied to a device."""

    def __init__(self, arrays: list[Any]) -> None:
        self._arrays = arrays
        self.nbytes = sum(one.nbytes for one in jax.tree.leaves(arrays) if isinstance(one, jax.Array))

    def wait(self) -> None:
        jax.block_until_ready(self._arrays)  # type: ignore[no-untyped-call, unused-ignore]

    def hand_over(self) -> None:
        """Do nothing: JAX's computations wait for their arrays."""


class JaxCopies(DeviceBackend):
    """Copies to a `jax.Device`, or to the devices of a `jax.sharding.Sharding`."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def copy(self, batch: Batch) -> tuple[Batch, Copy]:
        moved = self.moved(batch)
        columns = [moved.mask, *moved.fields.values()]
        return moved, JaxCopy([value for value in columns if isinstance(value, jax.Array | list)])

    def moved(self, batch: Batch) -> Batch:
        fields = {name: self._put(name, value) for name, value in batch.fields.items()}
        return with_values(batch, fields, self._put("mask", batch.mask))

    def _put(self, name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [self._put(name, item) for item in value]
        if isinstance(value, jax.Array):
            return jax.device_put(value, self.device)
        return to_jax(name, value, self.device)

    def checksum_source(self, host: Batch, moved: Batch) -> Batch:
        """Return the moved batch: JAX may have narrowed the host's dtypes."""
        return moved


def jax_backend(device: Any) -> DeviceBackend:
    """Return the backend of a `jax.Device`, a `Sharding`, or a name such as "cuda", "tpu:1", "cpu".

    Raises: InvalidRuntime if JAX has no such device.
    """
    if isinstance(device, jax.Device | jax.sharding.Sharding):
        return JaxCopies(device)
    if not isinstance(device, str):
        raise InvalidRuntime(
            f"device = {device!r}; accepted with framework='jax': None, a jax.Device, a jax.sharding.Sharding, or a "
            "name such as 'cuda' or 'tpu:1'",
            what="device",
            given=device,
            accepted="None, a jax.Device, a jax.sharding.Sharding, or a name",
        )
    platform, _, number = device.partition(":")
    try:
        devices = jax.local_devices(backend=platform)
    except RuntimeError as error:
        raise InvalidRuntime(
            f"device = {device!r}; JAX finds {jax.devices()} in this process ({error})",
            what="device",
            given=device,
            accepted=str(jax.devices()),
        ) from None
    if number.isdigit():
        index = int(number)
    elif not number:
        index = 0
    else:
        # Refused below: no device has this number.
        index = -1
    if not 0 <= index < len(devices):
        raise InvalidRuntime(
            f"device = {device!r}; this process has {platform} devices 0 to {len(devices) - 1}",
            what="device",
            given=device,
            accepted=f"{platform} devices 0 to {len(devices) - 1}",
        )
    return JaxCopies(devices[index])
