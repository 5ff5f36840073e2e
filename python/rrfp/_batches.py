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

    def __init__(self, args, kwargs, targets):
        self.args, self.kwargs, self.targets = args, kwargs, targets
        self.keeps_outputs = True
        self.outputs = {}

    @staticmethod
    def cut(args, kwargs, target, n, args_chunk_spec, kwargs_chunk_spec):
        """Splits what step() was given into n microbatches."""
        check_rows(args, args_chunk_spec, n, "argument")
        check_rows(kwargs, kwargs_chunk_spec, n, "argument")
        check_rows(target, None, n, "target")
        arg_mbs, kwarg_mbs, targets = [()] * n, [{}] * n, [None] * n
        if args or kwargs:
            arg_mbs, kwarg_mbs = split_args_kwargs_into_chunks(args, kwargs, n, args_chunk_spec, kwargs_chunk_spec)
        if target is not None:
            (targets, _) = split_args_kwargs_into_chunks((target,), {}, n)
            targets = [t[0] for t in targets]
        return Batch(arg_mbs, kwarg_mbs, targets)

    @staticmethod
    def of_microbatches(arg_mbs, kwarg_mbs, target_mbs, n):
        """The lists that step_microbatches() was given."""
        given = {"arg_mbs": (arg_mbs, ()), "kwarg_mbs": (kwarg_mbs, {}), "target_mbs": (target_mbs, None)}
        all_mbs = []
        for name, (values, empty) in given.items():
            values = [empty] * n if values is None else list(values)
            if len(values) != n:
                raise ValueError(f"{name}: expected {n} microbatches, got {len(values)}")
            all_mbs.append(values)
        args = [a if isinstance(a, tuple) else (a,) for a in all_mbs[0]]
        return Batch(args, *all_mbs[1:])

    def has_inputs(self):
        return any(self.args) or any(self.kwargs)

    def has_targets(self):
        return any(target is not None for target in self.targets)

    def outputs_in_order(self):
        # From the device; its work of this step is done.
        return [tree_map_only(torch.Tensor, torch.Tensor.cpu, self.outputs[i]) for i in sorted(self.outputs)]

    def merged_outputs(self):
        """The outputs of all microbatches as one; None where the last stage is elsewhere."""
        outputs = self.outputs_in_order()
        if not outputs:
            return None
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
                f"{what}: expected at least {n} rows, one per microbatch, got {rows}"
            )
