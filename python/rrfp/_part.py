"""A part of a model, task by task: the gradients of its weights are those of a loop over the microbatches."""

import sys
import time

import torch
from torch.autograd.graph import get_gradient_edge

from . import _backward
from ._buffers import sum_of_bits
from ._modules import has_multi_grad_hook, is_compiled, take_hooks


class Part:
    """Runs F, B and W of one module for microbatches in any order, and adds up the gradients in theirs.

    splits: whether W computes the gradients of weights, or "auto". is_exact: whether they are added up in the order of
    the microbatches.

    A kind of part has begin_step(step, trains), received(mb, message), which returns the tensors that arrived and what
    compute() takes, and compute(mb, ...), which returns the tensors that get a gradient and the message to the next part.
    """

    device = None  # None: the CPU
    before = after = None  # of this step: local() of the neighbours
    mesh_of = None  # a function of names: the device mesh of DTensors
    recomputes = False  # whether backward calls compute(is_again=True), so that nothing is held before

    def __init__(self, module, is_first, is_last, splits="auto", is_exact=True):
        self.module = module
        self.is_first, self.is_last = is_first, is_last
        self.is_exact = is_exact
        self.trains = True  # in this step
        self._splits = splits
        self._trial = _SplitTrial() if splits == "auto" else None
        self._pays = splits is True  # or what the trial has found
        self._flights = {}  # by microbatch, from F to the end of W
        self._last_outputs = []  # of the last forward: tensors without their graph, and their versions
        self._has_checked_hooks = False
        self._has_trained = self._compares = False
        self.on_fold = None  # of this step: called when the gradients of one more microbatch are added

    def split_as_others(self):
        """For ranks whose tasks join collectives: what a rank measures alone must not decide where these are."""
        self._trial, self._pays = None, True

    def begin(self, trains):
        self.trains = trains
        self.before, self.after = self.local(-1), self.local(+1)
        self._flights.clear()
        self._last_outputs = []
        self._turn = 0  # the microbatch whose gradients are added next
        self.on_fold = self._versions = None
        self._has_module_hooks = False
        self._compares = trains and not self._has_trained and not is_compiled(self.module)
        self._has_trained |= trains
        parameters = list(self.module.parameters()) if trains else []  # those of a step stay the same
        self._slots = self.gradient_slots(parameters)
        self._unset = [slot for slot in self._slots if slot.value() is None]
        # Hooks on several gradients want them from one backward, and compilation makes both halves one.
        self._may_split = (
            trains
            and not any(map(has_multi_grad_hook, parameters))
            and (self._splits is True or self._splits == "auto" and not is_compiled(self.module))
        )
        if any(map(may_have_hooks_of_accumulation, parameters)):
            # Such hooks see the gradients of earlier microbatches, and may change parameters, which the versions show.
            # In the first step the values are compared, too: a change through .data has no version.
            copy = (lambda p: None) if self._has_checked_hooks else (lambda p: p.detach().clone())
            self._versions = [(p, p._version, copy(p)) for p in parameters]
            self._has_checked_hooks = True
            # Once in a whole backward, and twice where the gradients wait for their turn.
            self._has_module_hooks = any(m._backward_hooks or m._backward_pre_hooks for m in self.module.modules())

    def forward(self, mb, message):
        """F. Returns the message to the next part."""
        inputs, given = self.received(mb, message)
        take_hooks()
        outputs, sent = self.compute(mb, *given)
        hooks, retained = take_hooks()
        self._check_last_outputs(outputs)
        if self.trains:
            flight = self._flights[mb] = _Flight(inputs)
            if self.recomputes:
                flight.given = given
                flight.sums = list(map(sum_of_bits, outputs)) if self._compares else None
            else:
                flight.outputs, flight.retained = outputs, retained
                flight.has_hooks = self._has_module_hooks or hooks > 0
        return sent

    def backward(self, mb, grads, is_whole, folds):
        """B, or BW if `is_whole`; `grads` of the outputs. Returns the gradients of the inputs."""
        flight = self._flights[mb]
        trial = self._trial
        begun = trial and trial.now(self.device)
        if flight.given is not None and any(g is not None for g in grads):
            take_hooks()
            flight.outputs, _ = self.compute(mb, *flight.given, is_again=True)
            hooks, flight.retained = take_hooks()
            flight.has_hooks = self._has_module_hooks or hooks > 0
            if flight.sums is not None and flight.sums != list(map(sum_of_bits, flight.outputs)):
                self._refuse_other_values()
        outputs, grads = _matching(flight.outputs, grads)
        inputs = flight.inputs
        flight.outputs = flight.inputs = flight.given = None
        is_turn = not self.is_exact or mb == self._turn and not self.on_fold
        is_early = not is_turn or not is_whole and not flight.has_hooks
        found = self._early(flight, outputs, grads, inputs, is_whole) if is_early else None
        if found is None:
            backward = (outputs, grads, inputs)
            found = _backward.full(*backward) if is_turn else self._full_apart(flight, *backward)
            self._turn += is_turn
            flight.is_added = is_turn
        for v, grad in zip(inputs, found) if flight.retained else ():
            if any(v is retained for retained in flight.retained):
                v.grad = grad
        if self._unset or self.on_fold:
            flight.lent = {_memory(g) for g in found if g is not None}
            flight.lent.update(map(_memory, flight.late.shares() if flight.late else ()))
        if flight.is_added:
            self._keep_own(flight)
        if is_whole:
            self._fold(mb, folds)
        if trial:
            flight.ns = trial.now(self.device) - begun
        return found

    def _refuse_other_values(self):
        raise RuntimeError(
            "forward gives other values when backward runs it again: expected random numbers of torch's default "
            "generator alone, or pipeline.recompute = false"
        )

    def _check_last_outputs(self, outputs):
        """Refuses a forward that changes what the one before it has passed on, perhaps without a copy."""
        for value, version in self._last_outputs:
            if value._version != version:
                raise RuntimeError(
                    "forward changes in place what it has returned for another microbatch: expected a new tensor for each"
                )
        plain = [value for value in outputs if type(value) is torch.Tensor and not value.is_inference()]
        self._last_outputs = [(value.detach(), value._version) for value in plain]

    def weight(self, mb, folds):
        """W of a microbatch whose B has run."""
        flight = self._flights[mb]
        trial = self._trial
        begun = trial and trial.now(self.device)
        self._fold(mb, folds)
        if trial and len(folds) == 1 and folds.start == mb:
            self._pays = trial.add(flight.is_split, flight.ns + trial.now(self.device) - begun)
            if self._pays is not None:
                self._trial = None

    def local(self, way):
        """Where tensors on devices wait for a neighbour in this process; None: there is none."""

    def after_weights(self):
        """Called when W has added gradients up."""

    def gradient_slots(self, parameters):
        """Where backward leaves the gradients of the parameters of a step."""
        return [Slot(p, "grad") for p in parameters if p.requires_grad]

    def has_hooks_of_accumulation(self):
        """In this step; perhaps."""
        return self._versions is not None

    def trained(self):
        """The parameters that this step trains."""
        return [slot.owner for slot in self._slots]

    def take_gradients(self):
        """Of the parameters that this step trains, since its begin or the last call; None where there is none."""
        self._unset = list(self._slots)
        return [slot.take() for slot in self._slots]

    # ---- the order of the gradients

    def _early(self, flight, outputs, grads, inputs, is_whole):
        """The gradients of the inputs, from a backward that leaves those of the weights; None: it must be whole."""
        is_hooked = self._versions is not None
        splits = self._may_split and not flight.has_hooks  # which would run twice
        if splits and is_whole:
            splits = is_hooked
        elif splits:
            splits = self._trial.splits_next() if self._trial else self._pays
        if splits:
            halves = _backward.split(outputs, grads, inputs)
            if halves is not None:
                found, flight.late = halves
                flight.is_split = True
                return found
            self._splits = self._may_split = False
            self._trial = None
        if is_hooked:
            found, flight.late = _backward.again(outputs, grads, inputs, flight.retained)
            return found
        return None

    def _full_apart(self, flight, *backward):
        """A whole backward whose gradients of weights wait for their turn."""
        held = [slot.take() for slot in self._slots]
        try:
            return _backward.full(*backward)
        finally:
            flight.grads = [slot.take() for slot in self._slots]
            for slot, value in zip(self._slots, held):
                slot.put(value)

    def _keep_own(self, flight):
        """After gradients were added: those of a slot that had none may share memory with what B gives away."""
        if self._unset:
            self._unset = [slot for slot in self._unset if not slot.has_own(flight.lent)]

    def _fold(self, mb, folds):
        """Adds what has waited, in the order of the microbatches."""
        for other in folds if self.is_exact else [mb]:
            flight = self._flights.pop(other)
            if flight.late is not None:
                flight.late.run()
                self.after_weights()
            elif flight.grads:
                _add(self._slots, flight.grads)
            if not flight.is_added:
                self._turn = other + 1
                self._keep_own(flight)
            if self.on_fold:
                self.on_fold()
        for parameter, version, value in self._versions or ():
            if parameter._version != version or value is not None and not _are_equal(parameter, value):
                raise RuntimeError(
                    f"a hook changes a parameter of {list(parameter.shape)} when a gradient is added, while other "
                    "microbatches use it: expected the pipeline's optimizer to change it, at the end of the step"
                )


def _count_references_of_a_local():
    local = object()
    return sys.getrefcount(local)


_references_of_a_local = _count_references_of_a_local()  # 2, and 1 from Python 3.14 on


def may_have_hooks_of_accumulation(parameter):
    """Torch does not list the hooks of a parameter's AccumulateGrad node; a program that has some keeps the node."""
    if getattr(parameter, "_post_accumulate_grad_hooks", None):
        return True
    if not parameter.requires_grad or type(parameter) not in (torch.Tensor, torch.nn.Parameter):
        return False
    node = get_gradient_edge(parameter).node
    return sys.getrefcount(node) > _references_of_a_local


def _are_equal(parameter, value):
    return torch.allclose(parameter.detach(), value, rtol=0, atol=0, equal_nan=True)


class _Flight:
    """A microbatch between its F and the end of its W."""

    __slots__ = ("inputs", "outputs", "given", "has_hooks", "retained", "is_split", "is_added", "late", "grads", "lent",
                 "ns", "sums")  # fmt: skip

    def __init__(self, inputs):
        self.inputs = inputs
        self.outputs = ()
        self.given = self.late = self.sums = None
        self.has_hooks = self.is_split = self.is_added = False
        self.grads = self.lent = self.retained = ()
        self.ns = 0


class Slot:
    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def value(self):
        return getattr(self.owner, self.name)

    def has_own(self, lent):
        """Whether there is a gradient, which has memory of its own then: the next ones are added in place."""
        value = self.value()
        if value is None:
            return False
        memory = _memory(value)
        own = _resolved(value.clone() if memory is not None and memory in lent else value)
        if own is not value:
            setattr(self.owner, self.name, own)
        return True

    def take(self):
        value = self.value()
        if value is not None:
            setattr(self.owner, self.name, None)
        return value

    def put(self, value):
        if value is not None:
            setattr(self.owner, self.name, value)


def _memory(tensor):
    """Where its elements are; None where it has no memory of its own."""
    local = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
    try:
        return local.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # sparse, for example
        return None


def _resolved(tensor):
    """Its elements as numbers, not as conjugates or negatives of others, which some operators refuse."""
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor


def _add(slots, values):
    """As torch's accumulation does."""
    sums, more = [], []
    for slot, value in zip(slots, values):
        if value is None:
            continue
        mine = slot.value()
        if mine is None:
            slot.put(value)
        elif mine.is_sparse and not value.is_sparse:
            slot.put(value + mine)
        else:
            sums.append(mine)
            more.append(_resolved(value))
    if sums:
        with torch.no_grad():
            if all(type(mine) is torch.Tensor for mine in sums):
                torch._foreach_add_(sums, more)
            else:
                for mine, value in zip(sums, more):
                    mine += value


def _matching(outputs, grads):
    """The outputs that need a gradient and got one, with it."""
    if len(grads) != len(outputs):
        if not outputs:  # no gradient came
            return [], []
        raise RuntimeError(f"expected {len(outputs)} gradients from the next stage, got {len(grads)}")
    wanted, given = [], []
    for output, grad in zip(outputs, grads):
        if grad is not None and output.requires_grad:
            wanted.append(output)
            given.append(grad)
    return wanted, given


class _SplitTrial:
    """Finds out whether it pays to leave the gradients of weights to W.

    The first backwards of a part alternate between both ways; the bits are equal. If B and W together take over a
    tenth longer than one backward, as with tiny layers, B computes all gradients from then on, and W adds them up.
    """

    _warm_up, _samples = 1, 4  # the first time of each way allocates memory

    def __init__(self):
        self._splits = False
        self._times = ([], [])  # whole, split

    def now(self, device):
        """The time of this thread, or when the device has done its work."""
        if device is None:
            return time.thread_time_ns()
        torch.cuda.synchronize(device)
        return time.perf_counter_ns()

    def splits_next(self):
        self._splits = not self._splits
        return self._splits

    def add(self, is_split, ns):
        """Whether it pays; None: more times are needed."""
        self._times[is_split].append(ns)
        if min(map(len, self._times)) < self._samples:
            return None
        whole, split = (sorted(times[self._warm_up :]) for times in self._times)
        return split[len(split) // 2] <= 1.1 * whole[len(whole) // 2]
