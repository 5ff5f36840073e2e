"""The arguments of a step as microbatches."""

import torch
from torch.distributed.pipelining.microbatch import (
    TensorChunkSpec,
    merge_chunks,
    split_args_kwargs_into_chunks,
)
from torch.utils._pytree import tree_flatten, tree_map, tree_map_only


class Batch:
    """The arguments, the targets and the outputs of a step that is running, by microbatch."""

    def __init__(self, args, kwargs, target, n, args_chunk_spec, kwargs_chunk_spec):
        check_rows(args, args_chunk_spec, n, "argument")
        check_rows(kwargs, kwargs_chunk_spec, n, "argument")
        check_rows(target, None, n, "target")
        if args or kwargs:
            self.args, self.kwargs = split_args_kwargs_into_chunks(
                args, kwargs, n, args_chunk_spec, kwargs_chunk_spec
            )
        else:
            self.args, self.kwargs = [()] * n, [{}] * n
        self.targets = [None] * n
        if target is not None:
            (self.targets, _) = split_args_kwargs_into_chunks((target,), {}, n)
            self.targets = [t[0] for t in self.targets]
        self.keeps_outputs = True
        self.outputs = {}

    def merged_outputs(self):
        """The outputs of all microbatches as one; None where the last stage is elsewhere."""
        if not self.outputs:
            return None
        # From the device; its work of this step is done.
        outputs = [tree_map_only(torch.Tensor, torch.Tensor.cpu, self.outputs[i]) for i in sorted(self.outputs)]
        spec = tree_map(
            lambda v: TensorChunkSpec(0) if isinstance(v, torch.Tensor) and v.dim() > 0 else None,
            outputs[0],
        )
        return merge_chunks(outputs, spec)


def check_rows(values, spec, n, what):
    """Refuses a tensor with fewer rows than there are microbatches."""
    if spec is not None:
        return
    for value in tree_flatten(values)[0]:
        if isinstance(value, torch.Tensor) and (value.dim() == 0 or value.size(0) < n):
            rows = 0 if value.dim() == 0 else value.size(0)
            raise ValueError(
                f"{what}: expected at least {n} rows, one a microbatch, got {rows}"
            )
