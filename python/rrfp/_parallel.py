"""Operators of a part whose matrices are divided over the tensor-parallel ranks of its stage."""

import torch
from torch.utils.dlpack import to_dlpack


class RankGroup:
    """The tensor-parallel ranks of a stage."""

    def __init__(self, group):
        self.connect(group)

    def connect(self, group):
        """Also after the loss of a process, when the parts have kept this object."""
        self.rank = group.rank
        self.size = group.size
        self.max = group.max
        self.sum = group.sum

    def all_reduce(self, tensor):
        """Returns the sum over all ranks, added in rank order. Takes float32, float64 or int64."""
        total = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        self.sum(to_dlpack(total))
        return total.to(tensor.device)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return _sum(gradient, ctx.group), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        return _sum(x, group)

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def _sum(x, group):
    """In float32, which the collectives take."""
    return group.all_reduce(x.float()).to(x.dtype)


def copy_to_ranks(x, group):
    """Returns x; its gradient is summed over all ranks. Use it before a matrix that is divided by columns.

    Megatron-LM calls this copy_to_tensor_model_parallel_region.
    """
    return _Copy.apply(x, group)


def reduce_from_ranks(x, group):
    """Returns the sum of x over all ranks, added in rank order. Use it after a matrix that is divided by rows.

    Megatron-LM calls this reduce_from_tensor_model_parallel_region.
    """
    return _Reduce.apply(x, group)
