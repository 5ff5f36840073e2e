"""One stage of torch.distributed.pipelining in this process, task by task."""

import contextlib
import functools

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_map_only

from .._draws import Draws
from .._messages import decode, encode
from .._modules import forwards_in_order
from .._part import Part, Slot
from ._rendezvous import telling_the_cause


class Local:
    """What the stages of a rank share: its device, their positions, and tensors on the device from one to the next."""

    def __init__(self, device, stages):
        self.device, self.stages = device, stages
        self.tensors = {}


def _check_wrapper(ddp):
    """Of a DistributedDataParallel, neither the forward nor the reducer runs."""
    if ddp._comm_hooks or ddp._get_ddp_logging_data().get("comm_hook"):  # of the program, or of torch
        raise ValueError("DistributedDataParallel: expected no communication hook, because its reducer does not run")
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    if ddp.mixed_precision is not None or any(getattr(ddp, name) for name in hooks):
        raise ValueError(
            "DistributedDataParallel: expected hooks on the module inside and no mixed_precision, because the forward "
            "of the wrapper does not run"
        )


class StagePart(Part):
    """A stage; gradients end up in `grad` of its parameters, reduced over data-parallel ranks."""

    def __init__(self, stage, local, splits, is_exact, mesh_of):
        self.stage = stage
        self.device = local.device
        self._local = local
        self.is_sharded = isinstance(stage.submod, FSDPModule)
        module = stage.submod
        module = module.module if isinstance(module, DistributedDataParallel) else module
        super().__init__(module, stage.is_first, stage.is_last, splits, is_exact)
        self.forwards_in_order = forwards_in_order(module)
        self.mesh_of = mesh_of
        self.seed = self.steps_before = 0  # for random numbers
        self.batch = None
        self._draws = Draws(self.device)
        self.around_loss = contextlib.nullcontext()

    def local(self, way):
        is_here = self.device is not None and self.stage.stage_index + way in self._local.stages
        return self._local.tensors if is_here else None

    def begin_step(self, step, trains):
        if isinstance(self.stage.submod, DistributedDataParallel):
            _check_wrapper(self.stage.submod)
        self.begin(trains)
        self._step = step + self.steps_before
        self._has_contexts = bool(getattr(self.stage, "_forward_contexts", None))
        if self.is_sharded:
            with telling_the_cause():
                _begin_fsdp(self.stage.submod, trains)

    def seeds(self, mb):
        return [torch.ones_like(self.batch.losses[mb])]  # the gradient of the loss

    def received(self, mb, message):
        kwargs = self.batch.kwargs[mb]
        if self.is_first:
            return [], (self.batch.args[mb], kwargs)
        args, inputs, _ = decode(message, self.device, self.mesh_of, self.before)
        return inputs, (tuple(args) if isinstance(args, (tuple, list)) else (args,), kwargs)

    def compute(self, mb, args, kwargs):
        batch = self.batch
        key = (self.seed, self._step, mb, self.stage.stage_index)
        call = functools.partial(self._call_in_contexts, mb) if self._has_contexts else self.module
        output = self._draws.run(key, self.module.training, call, args, kwargs)
        if not self.is_last:
            capsule, tensors = encode(output, self.after)
            return tensors, capsule
        if batch.keeps_outputs:
            batch.outputs[mb] = tree_map_only(torch.Tensor, torch.Tensor.detach, output)
        if batch.loss_fn is None:
            return [], None
        key = (self.seed, self._step, mb, self.stage.num_stages)
        given = (output, batch.targets[mb])
        with self.around_loss:
            loss = self._draws.run(key, ("loss", self.module.training), batch.loss_fn, given, batch.loss_kwargs)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            got = list(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise TypeError(f"loss_fn: expected a tensor of one element, got {got}")
        if self.trains and torch.is_grad_enabled() and not loss.requires_grad:
            raise RuntimeError("loss_fn: expected a loss that depends on a parameter which requires a gradient")
        batch.losses[mb] = loss.detach()
        return [loss], None

    def _call_in_contexts(self, mb, *args, **kwargs):
        from torch.distributed.pipelining.stage import PipelineStageInfo

        info = PipelineStageInfo(stage_index=self.stage.stage_index, microbatch_index=mb)
        return self.stage._call_with_forward_context(info, lambda: self.module(*args, **kwargs))

    def after_weights(self):
        if self.is_sharded:
            _accumulate_fsdp(self.stage.submod)

    def gradient_slots(self, parameters):
        slots = super().gradient_slots(parameters)
        if self.is_sharded and parameters:
            slots += [
                Slot(p, "unsharded_accumulated_grad")
                for p in fsdp_params(self.stage.submod)
                if hasattr(p, "to_accumulated_grad_if_needed")
            ]
        return slots

    def end(self, scale):
        """Reduces what data-parallel ranks share, after the last task."""
        module = self.stage.submod
        with telling_the_cause():
            if isinstance(module, DistributedDataParallel):
                _average(module)
            elif self.is_sharded:
                _reduce_fsdp(module)
        if scale != 1:
            for p in module.parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
        self.release()

    def abandon(self):
        """Drops the gradients of a failed step that zero_grad() does not reach."""
        if self.is_sharded:
            for p in fsdp_params(self.stage.submod):
                p.unsharded_accumulated_grad = None
                if hasattr(p, "_unsharded_param"):
                    p._unsharded_param.grad = None
            self.release()

    def release(self):
        """Gives back what FSDP gathered for the tasks of a step."""
        if self.is_sharded:
            for module in _fsdp_modules(self.stage.submod):
                module.reshard()


# ---- FSDP2: one unshard and one reduction a step


def _fsdp_modules(module):
    return [m for m in module.modules() if isinstance(m, FSDPModule)]


def fsdp_groups(module):
    for m in _fsdp_modules(module):
        state = m._get_fsdp_state()
        groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
        yield from (group for group in groups if group is not None)


def fsdp_params(module):
    return [p for group in fsdp_groups(module) for p in group.fsdp_params]


def _begin_fsdp(module, has_backward):
    module._get_fsdp_state()._lazy_init()  # decides what the root does after its forward
    for group in fsdp_groups(module):
        if group.post_forward_mesh_info is not None:
            raise ValueError(
                "fully_shard: expected reshard_after_forward=False: with it each microbatch gathers the parameters "
                "again, in another order on each data-parallel rank"
            )
    for handle in [m.unshard(async_op=True) for m in _fsdp_modules(module)]:
        if handle is not None:
            handle.wait()
    if not has_backward:
        return
    if hasattr(module, "set_manual_backward_finalization"):
        module.set_manual_backward_finalization(True)
    elif hasattr(module, "set_is_last_backward"):
        module.set_is_last_backward(False)
    module.set_reshard_after_backward(False)
    module.set_requires_gradient_sync(False)


def _accumulate_fsdp(module):
    """Adds new gradients up in the type of the reduction, as FSDP does after a whole backward."""
    for param in fsdp_params(module):
        if hasattr(param, "to_accumulated_grad_if_needed"):  # elsewhere `grad` itself has that type
            param.accumulate_unsharded_grad_if_needed()
            param.to_accumulated_grad_if_needed()


def _reduce_fsdp(module):
    module.set_reshard_after_backward(True)
    module.set_requires_gradient_sync(True)
    if hasattr(module, "finalize_backward"):
        # W adds gradients without the hooks that tell a group of them.
        for group in fsdp_groups(module):
            group._post_backward_pending |= any(p.unsharded_accumulated_grad is not None for p in group.fsdp_params)
        handle = module.finalize_backward(async_op=True)
        if handle is not None:
            handle.wait()
        module.set_manual_backward_finalization(False)
    else:
        module.set_is_last_backward(True)
        for group in fsdp_groups(module):
            group.post_backward()
        module._get_fsdp_state()._root_post_backward_final_callback()


# ---- DistributedDataParallel: without its reducer, which expects one backward a step


def _average(ddp):
    """As the reducer does: a parameter that some replicas alone have used counts as zeros in the others."""
    group = ddp.process_group
    parameters = [p for p in ddp.module.parameters() if p.requires_grad and not getattr(p, "_ddp_ignored", False)]
    if not parameters:
        return
    dims = [-1 if p.grad is None else p.grad.sparse_dim() if p.grad.is_sparse else 0 for p in parameters]
    most = torch.tensor(dims, dtype=torch.int32, device=parameters[0].device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX, group)
    for p, sparse_dim in zip(parameters, most.tolist()):
        if sparse_dim < 0:
            continue
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        if sparse_dim > 0:
            p.grad = p.grad.to_sparse(sparse_dim)
        torch.distributed.all_reduce(p.grad, group=group)
        p.grad.div_(group.size())
