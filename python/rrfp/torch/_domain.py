"""The agreement domain of a part: the ranks that must run its tasks in one order, because a task of theirs joins a
collective with a task of this rank."""

import functools

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from ._part import fsdp_groups


def ranks_of(domain, modules):
    """The global ranks of a domain that was given, or of the meshes that the parameters of the parts are spread over."""
    if domain is None or domain == "auto":
        return _found_in(modules)
    if isinstance(domain, DeviceMesh):
        return sorted(domain.mesh.flatten().tolist())
    if isinstance(domain, dist.ProcessGroup):
        return sorted(dist.get_process_group_ranks(domain))
    if not isinstance(domain, (list, tuple, set, range)):
        raise TypeError(f"domain: expected a list of ranks, a DeviceMesh or a ProcessGroup, got {type(domain).__name__}")
    ranks, world = sorted(domain), dist.get_world_size()
    if dist.get_rank() not in ranks:
        raise ValueError(f"domain: expected this rank, {dist.get_rank()}, among its ranks, got {ranks}")
    if not all(isinstance(rank, int) and 0 <= rank < world for rank in ranks):
        raise ValueError(f"domain: expected ranks from 0 to {world - 1}, got {ranks}")
    return ranks


def _found_in(modules):
    """Dimensions of data parallelism reduce gradients once a step, after its tasks, so they do not count."""
    ranks = {dist.get_rank()}
    for module in modules:
        reduced = _data_parallel_ranks(module)
        for parameter in module.parameters():
            if not isinstance(parameter, DTensor):
                continue
            mesh = parameter.device_mesh
            for dim in range(mesh.ndim):
                group = set(dist.get_process_group_ranks(mesh.get_group(dim)))
                if frozenset(group) not in reduced:
                    ranks |= group
    return sorted(ranks)


def _data_parallel_ranks(module):
    """The groups over which FSDP shards and replicates."""
    if not any(isinstance(m, FSDPModule) for m in module.modules()):
        return set()
    groups = set()
    for group in fsdp_groups(module):
        mesh = group.mesh_info.mesh
        for dim in range(mesh.ndim):
            groups.add(frozenset(dist.get_process_group_ranks(mesh.get_group(dim))))
    return groups


def mesh_finder(module):
    """A function that returns the mesh with the given dimension names over which a part's parameters are spread."""
    return functools.cache(functools.partial(_mesh_with, module))


def _mesh_with(module, names):
    for parameter in module.parameters():
        if not isinstance(parameter, DTensor):
            continue
        mesh = parameter.device_mesh
        own = mesh.mesh_dim_names or ()
        if own == names:
            return mesh
        if set(names) <= set(own):
            return mesh[names if len(names) > 1 else names[0]]
    raise RuntimeError(f"received a DTensor on a mesh with the dimensions {names}, which no parameter of the part has")
