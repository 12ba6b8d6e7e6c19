"""Several processes as one: devices, replicas, shards, agreement.  [distributed] -> run, loop

`accelerate` knows the processes, the device, autocast and loss scaling. Replicas are its DDP;
shards are torch's own `fully_shard`, which keeps one parameter one tensor, so that a checkpoint has
the same names and shapes however its run was split.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssdlm.storage.checkpoint import resolve_device

PRECISIONS = {"fp32": "no", "bf16": "bf16", "fp16": "fp16"}
SHARDING_ASKED = "ACCELERATE_USE_FSDP"
"""What `accelerate launch --use_fsdp` sets."""
STORE_PORT = "ssdlm/port"
JOIN_SECONDS = 300
"""How long processes that are started again wait for the first of them."""


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
    join_elastic("gloo" if is_cpu else "nccl")
    # Sharding is done here: accelerate refuses to shard on CPUs.
    os.environ.pop(SHARDING_ASKED, None)
    # A run before this one in the same process may have had another precision.
    AcceleratorState._reset_state()
    replicas = DistributedDataParallelKwargs(gradient_as_bucket_view=True)
    return Accelerator(
        mixed_precision=PRECISIONS[precision], cpu=is_cpu, kwargs_handlers=[replicas]
    )


def join_elastic(backend: str) -> None:
    """Join the other processes of a launcher that may start all of them again.

    torchrun keeps one store of addresses for all attempts, in which those of dead processes would
    be found. So the first process opens a store of its own, and leaves its port in the other one.
    """
    may_restart = os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"
    is_old_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not (may_restart and is_old_store) or torch.distributed.is_initialized():
        return
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    address, rank = os.environ["MASTER_ADDR"], int(os.environ["RANK"])
    old = TCPStore(address, int(os.environ["MASTER_PORT"]), is_master=False)
    if rank == 0:
        store = TCPStore(address, 0, is_master=True, wait_for_workers=False)
        old.set(STORE_PORT, str(store.port))
    else:
        store = find_store(old, address)
    count = int(os.environ["WORLD_SIZE"])
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=count)


def find_store(old: Any, address: str) -> Any:
    """Return the store that the first process has opened; a port may be that of a dead one."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    until = time.monotonic() + JOIN_SECONDS
    while True:
        port = int(old.get(STORE_PORT))
        try:
            socket.create_connection((address, port), timeout=JOIN_SECONDS).close()
            return TCPStore(address, port, is_master=False)
        except (OSError, RuntimeError):
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def distribute(
    accelerator: Any, module: nn.Module, *, is_sharded: bool, layers: Iterable[nn.Module]
) -> Any:
    """Return the module as every process calls it: replicated, or in shards layer by layer.

    What is to be cut into shards may be without memory; then each process gets that of its shards.
    """
    if not is_sharded:
        module.to(accelerator.device)
        # Buffers are alike from the start and never change; DDP would send them in every pass.
        names = [name for name, _ in module.named_buffers()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)
        return accelerator.prepare_model(module)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard

    count = accelerator.num_processes
    mesh = init_device_mesh(accelerator.device.type, (count,))
    is_empty = not has_memory(module)
    if not is_empty:
        module.to(accelerator.device)

    def place(weight: nn.Parameter) -> Shard | None:
        # Torch cuts along the first dimension, whose 3 of queries, keys and values are too few.
        is_short = weight.dim() > 1 and weight.shape[0] < count
        return Shard(1) if is_short and weight.shape[1] % count == 0 else None

    for part in (*layers, module):
        fully_shard(part, mesh=mesh, shard_placement_fn=place)
    if is_empty:
        give_memory(module, accelerator.device)
    return module


def has_memory(module: nn.Module) -> bool:
    """Tell whether a module has weights, and not their shapes alone."""
    return not any(weight.is_meta for weight in module.parameters())


def give_memory(module: nn.Module, device: torch.device) -> None:
    """Give a module in shards the memory of its own, with nothing in it; tied weights stay tied."""
    made: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, weight in part.named_parameters(recurse=False, remove_duplicate=False):
            if id(weight) not in made:
                empty = torch.empty_like(weight, device=device)
                made[id(weight)] = nn.Parameter(empty, requires_grad=weight.requires_grad)
            part.register_parameter(name, made[id(weight)])
        for name, buffer in part.named_buffers(recurse=False):
            is_meta = buffer.is_meta
            filled = torch.empty_like(buffer, device=device) if is_meta else buffer.to(device)
            setattr(part, name, filled)


def new_group() -> Any:
    """Return a group of all processes that a thread may use beside training."""
    return torch.distributed.new_group(backend="gloo")


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
def read_into(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Read a file's tensors into others of the same names; of a shard its own part alone."""
    with safe_open(path, "pt") as stored:
        for name, tensor in tensors.items():
            copy_part(tensor, stored.get_slice(name))


@torch.no_grad()
def copy_part(tensor: Tensor, whole: Any) -> None:
    """Copy into a tensor, of a shard into its own part, what a whole one has in that place."""
    own, place = own_part(tensor)
    if own.numel() > 0:
        own.copy_(whole[place])


def own_part(tensor: Tensor) -> tuple[Tensor, tuple[slice, ...]]:
    """Return this process's part of a tensor, in the same memory, and its place in the whole."""
    tensor = tensor.detach()
    if not hasattr(tensor, "to_local"):
        return tensor, tuple(slice(0, length) for length in tensor.shape)
    own, (chunk,) = tensor.to_local(), tensor.__create_chunk_list__()  # pyright: ignore
    spans = zip(chunk.offsets, chunk.sizes, strict=True)
    return own, tuple(slice(at, at + length) for at, length in spans)


def broadcast(accelerator: Any, value: Any) -> Any:
    """Return the main process's value in every process."""
    if accelerator.num_processes == 1:
        return value
    from accelerate.utils import broadcast_object_list

    return broadcast_object_list([value])[0]
