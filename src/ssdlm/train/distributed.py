"""Several processes as one: devices, replicas, shards, agreement.  [distributed] -> run, loop

`accelerate` knows the processes, the device, autocast and loss scaling. Replicas are its DDP;
shards are torch's own `fully_shard`, which keeps one parameter one tensor, so that a checkpoint has
the same names and shapes however its run was split.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssdlm.storage.checkpoint import resolve_device

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
SHARDING_ASKED = "ACCELERATE_USE_FSDP"
"""What `accelerate launch --use_fsdp` sets."""


def is_sharding_asked() -> bool:
    """Return whether the launcher asks for shards."""
    return os.environ.get(SHARDING_ASKED, "").lower() in ("1", "true")


def make_accelerator(*, precision: str, device: str) -> Any:
    """Return this process's `accelerate.Accelerator`, alone or under a launcher."""
    from accelerate import Accelerator, DistributedDataParallelKwargs
    from accelerate.state import AcceleratorState

    if device == "cuda":
        resolve_device(device)  # refused in one line where there is none
    is_cpu = device == "cpu" or not torch.accelerator.is_available()
    if is_cpu and precision == "fp16":
        raise ValueError("train.precision=fp16 needs a GPU; use bf16 or fp32")
    # Sharding is done here: accelerate refuses to shard on CPUs.
    os.environ.pop(SHARDING_ASKED, None)
    # A run before this one in the same process may have had another precision.
    AcceleratorState._reset_state()
    replicas = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    return Accelerator(
        mixed_precision=PRECISIONS[precision], cpu=is_cpu, kwargs_handlers=[replicas]
    )


def distribute(
    accelerator: Any, module: nn.Module, *, sharding: str, layers: Iterable[nn.Module]
) -> Any:
    """Return the module as every process calls it: replicated, or in shards layer by layer."""
    module.to(accelerator.device)
    if sharding == "ddp" or accelerator.num_processes == 1:
        # Buffers are alike from the start and never change; DDP would send them in every pass.
        names = [name for name, _ in module.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
        return accelerator.prepare_model(module)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(module, mesh=mesh)


@contextmanager
def accumulate(module: Any, *, is_last: bool) -> Iterator[None]:
    """Exchange gradients between processes in the last backward pass of an optimiser step alone."""
    if hasattr(module, "set_requires_gradient_sync"):
        module.set_requires_gradient_sync(is_last)
        yield
    elif hasattr(module, "no_sync") and not is_last:
        with module.no_sync():
            yield
    else:
        yield


@contextmanager
def unsharded(module: nn.Module) -> Iterator[None]:
    """Keep every sharded layer whole in every process, so that any method may be called."""
    parts: list[Any] = [part for part in module.modules() if hasattr(part, "unshard")]
    for part in parts:
        part.set_reshard_after_forward(False, recurse=False)
        part.unshard()
    try:
        yield
    finally:
        for part in parts:
            part.set_reshard_after_forward(part is not module, recurse=False)
            part.reshard()


def gather_tensor(tensor: Tensor) -> Tensor:
    """Return a tensor whole; all processes must ask for a sharded one at the same time."""
    own = tensor.detach()
    return own.full_tensor() if hasattr(own, "full_tensor") else own  # pyright: ignore


@torch.no_grad()
def copy_tensor(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be a shard."""
    target.copy_(shard_like(target, value))


def shard_like(target: Tensor, value: Tensor) -> Tensor:
    """Return a whole tensor as `target` is: on its device, in its shards, of its type."""
    value = value.to(device=target.device, dtype=target.dtype)
    mesh = getattr(target, "device_mesh", None)
    if mesh is None:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(target, DTensor)
    return distribute_tensor(value, mesh, target.placements)


def broadcast(accelerator: Any, value: Any) -> Any:
    """Return the main process's value in every process."""
    if accelerator.num_processes == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]
