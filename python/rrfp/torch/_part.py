"""One stage of torch.distributed.pipelining in this process, task by task."""

import torch
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from .._modules import forwards_in_order, hooks_entered, is_compiled
from . import _backward

_seed_step = 0x9E3779B97F4A7C15  # of Weyl sequences: different keys give different seeds


class Part:
    """Runs F, B and W of a stage for microbatches in any order, and adds up the gradients in theirs."""

    def __init__(self, stage, split_backward, is_exact):
        self.stage = stage
        self.is_exact = is_exact
        self._splits = split_backward
        self.seed = 0
        self._draws = {}  # whether forwards draw random numbers, by mode
        self._flights = {}  # by microbatch, from F to the end of W
        self._is_checked = False
        self._early = {}  # by microbatch: gradients that came before their turn
        self._step = 0
        self.has_backward = True

    @property
    def forwards_in_order(self):
        return forwards_in_order(self.module)

    @property
    def module(self):
        module = self.stage.submod
        return module.module if isinstance(module, DistributedDataParallel) else module

    def begin(self, step, has_backward):
        self._step = step
        self.has_backward = has_backward
        self._flights.clear()
        self._early.clear()
        self._slots = None
        if isinstance(self.stage.submod, FSDPModule):
            _begin_fsdp(self.stage.submod, has_backward, is_first=not self._is_checked)
        self._is_checked = True

    def forward(self, mb, args, kwargs, loss_of=None):
        """The output, and the loss if this is the last stage."""
        if not self.stage.is_first and self.has_backward:
            for value in args:
                if isinstance(value, torch.Tensor) and value.is_floating_point():
                    value.requires_grad_(True)
        before = hooks_entered()
        output = self._call(mb, args, kwargs)
        loss = None if loss_of is None else loss_of(output)
        if self.has_backward:
            outputs = [loss] if loss is not None else list(_as_tuple(output))
            has_hooks = hooks_entered() != before
            self._flights[mb] = _Flight(outputs, list(args), has_hooks)
        return output, loss

    def backward(self, mb, grads, is_whole, folds):
        """B, or BW if `is_whole`. Returns the gradients of the arguments."""
        flight = self._flights[mb]
        outputs, grads = _matching(flight.outputs, grads)
        if not is_whole and self._may_split(flight):
            flight.halves = _backward.Halves(outputs, grads, flight.args)
            found = flight.halves.input_grads
        elif is_whole and self._is_turn_of(mb, folds):
            found = _backward.full(outputs, grads, flight.args)
        else:
            found = self._apart(mb, lambda: _backward.full(outputs, grads, flight.args))
        flight.outputs = flight.args = None
        if is_whole:
            self._end(mb, folds)
        return tuple(found)

    def weight(self, mb, folds):
        """W of a microbatch whose B has run."""
        halves = self._flights[mb].halves
        if halves is not None:
            halves.run_weights()
            if isinstance(self.stage.submod, FSDPModule):
                _accumulate_fsdp(self.stage.submod)
        self._end(mb, folds)

    def end(self, scale):
        """Reduces what data-parallel ranks share, after the last task."""
        assert not self._early, "all gradients are added up"
        module = self.stage.submod
        if isinstance(module, DistributedDataParallel):
            _average(module)
        elif isinstance(module, FSDPModule):
            _reduce_fsdp(module)
        if scale != 1:
            for p in module.parameters():
                if p.grad is not None:
                    p.grad.div_(scale)
        self.release()

    def release(self):
        """Gives back what FSDP gathered for the tasks of a step."""
        if isinstance(self.stage.submod, FSDPModule):
            for module in _fsdp_modules(self.stage.submod):
                module.reshard()

    # ---- calls

    def _call(self, mb, args, kwargs):
        module = self.module
        contexts = getattr(self.stage, "_forward_contexts", None)
        call = lambda: module(*args, **kwargs)
        if contexts:
            from torch.distributed.pipelining.stage import PipelineStageInfo

            info = PipelineStageInfo(stage_index=self.stage.stage_index, microbatch_index=mb)
            call = lambda: self.stage._call_with_forward_context(info, lambda: module(*args, **kwargs))
        draws = self._draws.get(module.training)
        if draws is False:
            return call()
        torch.manual_seed(self.key(self._step, mb, self.stage.stage_index))
        before = torch.get_rng_state() if draws is None else None
        output = call()
        if draws is None:
            self._draws[module.training] = not torch.equal(before, torch.get_rng_state())
        return output

    def key(self, step, mb, stage):
        """The seed of a forward."""
        key = self.seed
        for number in (step, mb, stage):
            key = (key ^ (number + 1)) * _seed_step % 2**64
            key ^= key >> 29
        return key % 2**63

    # ---- the order of the gradients

    def _may_split(self, flight):
        if flight.has_hooks:
            return False  # a checkpoint would compute its forward twice
        if self._splits == "auto":
            self._splits = _can_split(self.module)
        return self._splits

    def _is_turn_of(self, mb, folds):
        return not self.is_exact or (folds.stop > folds.start and folds.start == mb)

    def _apart(self, mb, work):
        """Runs a backward whose gradients wait for their turn."""
        slots = self._gradient_slots()
        held = [slot.take() for slot in slots]
        try:
            return work()
        finally:
            self._early[mb] = [slot.take() for slot in slots]
            for slot, value in zip(slots, held):
                slot.put(value)

    def _end(self, mb, folds):
        """Adds what has waited, in the order of the microbatches."""
        del self._flights[mb]
        for other in folds if self.is_exact else [mb]:
            early = self._early.pop(other, None)
            if early is None:
                continue
            for slot, value in zip(self._gradient_slots(), early):
                slot.add(value)

    def _gradient_slots(self):
        """Where backward leaves gradients; the parameters of a step stay the same."""
        if self._slots is None:
            self._slots = [_Slot(p, "grad") for p in self.module.parameters() if p.requires_grad]
            if isinstance(self.stage.submod, FSDPModule):
                self._slots += [
                    _Slot(p, "unsharded_accumulated_grad")
                    for p in fsdp_params(self.stage.submod)
                    if hasattr(p, "to_accumulated_grad_if_needed")
                ]
        return self._slots


class _Flight:
    """A microbatch between its F and the end of its W."""

    def __init__(self, outputs, args, has_hooks):
        self.outputs = outputs
        self.args = args
        self.has_hooks = has_hooks
        self.halves = None


class _Slot:
    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def take(self):
        value = getattr(self.owner, self.name)
        setattr(self.owner, self.name, None)
        return value

    def put(self, value):
        setattr(self.owner, self.name, value)

    def add(self, value):
        if value is None:
            return
        mine = getattr(self.owner, self.name)
        if mine is None:
            self.put(value)
        else:
            with torch.no_grad():
                mine += value


def _as_tuple(output):
    return tuple(output) if isinstance(output, (tuple, list)) else (output,)


def _matching(outputs, grads):
    """The tensors among the outputs that have a gradient, with it."""
    if grads is None:  # the loss
        return outputs, [None] * len(outputs)
    grads = _as_tuple(grads)
    if len(grads) != len(outputs):
        raise RuntimeError(f"expected {len(outputs)} gradients from the next stage, got {len(grads)}")
    pairs = [(o, g) for o, g in zip(outputs, grads) if isinstance(o, torch.Tensor) and g is not None]
    return [o for o, _ in pairs], [g for _, g in pairs]


def _can_split(module):
    """A compiled part computes both halves at once, and hooks of parameters wait for autograd's own accumulation."""
    return not is_compiled(module) and not any(
        getattr(p, "_post_accumulate_grad_hooks", None) for p in module.parameters()
    )


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


def _begin_fsdp(module, has_backward, is_first):
    module._get_fsdp_state()._lazy_init()  # decides what the root does after its forward
    for handle in [m.unshard(async_op=True) for m in _fsdp_modules(module)]:
        if handle is not None:
            handle.wait()
    for group in fsdp_groups(module) if is_first else ():
        if group.post_forward_mesh_info is not None:
            raise ValueError(
                "fully_shard: expected reshard_after_forward=False: with it each microbatch gathers the parameters "
                "again, in another order on each data-parallel rank"
            )
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
    group = ddp.process_group
    grads = [p.grad for p in ddp.module.parameters() if p.grad is not None]
    for grad in grads:
        torch.distributed.all_reduce(grad, group=group)
        grad.div_(group.size())
