"""The processes that train together, one per device: how they meet, agree and add up."""

from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """A process's place among those that train together. Alone it talks to nobody."""

    rank: int = 0
    world_size: int = 1

    def agree(self, name: str, value: str) -> str:
        """What rank 0 says; every rank asks, and of a name once."""
        if self.world_size == 1:
            return value
        store = dist.distributed_c10d._get_default_store()
        if self.rank == 0:
            store.set(f"prl/{name}", value)
        return store.get(f"prl/{name}").decode()

    def total(self, values: Tensor) -> Tensor:
        """The sum over ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values


def join(rank: int, world_size: int, rendezvous: str, timeout: float, device: torch.device = torch.device("cpu")) -> Group:
    """Waits for the other ranks at rendezvous, host:port of rank 0, at most timeout seconds, as every exchange does then."""
    if world_size == 1:
        return Group()
    backend, bound = ("nccl", device) if device.type == "cuda" else ("gloo", None)
    limit = timedelta(seconds=timeout)
    dist.init_process_group(backend, init_method=f"tcp://{rendezvous}", rank=rank, world_size=world_size, timeout=limit, device_id=bound)
    return Group(rank, world_size)


def shard(policy: torch.nn.Module, layers: torch.nn.ModuleList, group: Group, device: torch.device, dtype: torch.dtype) -> None:
    """Gives every rank an equal part of every parameter, on its device; a layer is whole while it is computed. Layers
    travel in dtype, embeddings and head in float32; gradients are summed, never averaged, in float32."""
    from torch.distributed.device_mesh import init_device_mesh  # these are slow to import, and one rank needs none of them
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (group.world_size,))
    for module in [*layers, policy]:
        precision = MixedPrecisionPolicy(None if module is policy else dtype, torch.float32, cast_forward_inputs=False)
        fully_shard(module, mesh=mesh, mp_policy=precision)
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


def local(t: Tensor) -> Tensor:
    """The part of a parameter or gradient that this process holds, sharing its memory."""
    t = t.detach()
    return t.to_local() if _sharded(t) else t


def whole(part: Tensor, of: Tensor) -> Tensor:
    """The parts of all ranks, put together as the parameter of is; every rank calls it."""
    if not _sharded(of):
        return part
    return type(of.data).from_local(part, of.device_mesh, of.placements, run_check=False, shape=of.shape, stride=of.stride()).full_tensor()


def part(whole: Tensor, of: Tensor) -> Tensor:
    """This process's part of a tensor that every rank has."""
    if not _sharded(of):
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, of.device_mesh, of.placements, src_data_rank=None).to_local()


def _sharded(t: Tensor) -> bool:
    return hasattr(t, "placements")  # as torch.distributed.tensor.DTensor has
