"""The buffers of a part: what a checkpoint has of them, and whether forward changes any, or a parameter."""

import threading

import torch

#: Buffers with more elements are compared in the first step alone.
_SMALL = 1 << 16

running = threading.local()  # buffers: of the part whose forward this thread runs, or None


class Buffers:
    """The buffers of one module. Each forward of a step runs in `with buffers:`, which refuses changes whose values would
    be those of another order of the microbatches, or that a checkpoint lacks.

    A buffer that forward assigns, registers or changes in place has another identity, version or address after it.
    A change through `.data` or numpy shows in the values alone: these are compared over each step. Of parameters, which
    may be large, a sum is compared over the first step of each kind.
    """

    def __init__(self, module, in_order):
        self.module = module
        self.in_order = in_order  # as its forwards run
        self.tables = [
            (f"{prefix}." if prefix else "", m._buffers, getattr(m, "_non_persistent_buffers_set", ()))
            for prefix, m in module.named_modules()
        ]
        self.used = [table for table in self.tables if len(table[1]) > 0]
        names = self.named()
        self.saved = [name for name in module.state_dict(keep_vars=True) if name in names]
        self.persistent = self._persistent()
        self.compared = set()  # kinds of pass in which the values of all were compared
        self.values = {}  # before the first forward of the step
        self.sums = {}  # of parameters, before it
        self.before = None  # marks before the running forward

    def named(self):
        return {
            prefix + name: value
            for prefix, table, _ in self.used
            for name, value in table.items()
            if value is not None
        }

    def saved_values(self):
        """For a checkpoint, in the order of `saved`."""
        named = self.named()
        return [named[name] for name in self.saved]

    def marks(self):
        """Identity, version and address of each."""
        if not self.used:
            return {}
        return {name: (value, value._version, _address(value)) for name, value in self.named().items()}

    def begin(self, trains, n):
        """Before a step of n forwards."""
        self.trains, self.n, self.forwards = trains, n, 0

    def __enter__(self):
        if self.forwards == 0:
            whole = self.trains not in self.compared
            self.compared.add(self.trains)
            self.values = {name: _bits(value) for name, value in self.named().items() if whole or _is_small(value)}
            self.sums = self._sums_of_parameters() if whole else {}
        running.buffers = self
        self.before = None if self.in_order else self.marks()

    def __exit__(self, kind, *error):
        running.buffers = None
        before, self.before = self.before, None
        if kind is not None:
            return
        self.forwards += 1
        is_last = self.forwards == self.n
        name = self.changed_parameter() if is_last and self.n > 1 else None
        if name is not None:
            raise RuntimeError(
                f"forward changes the parameter '{name}' through .data or numpy, while other microbatches use its value: expected "
                "a change between steps, or one forward before the pipeline opens if only the first one changes it"
            )
        if not self.in_order:
            refuse_change_of(self.changed(before) or (self.changed_in_step() if is_last else None))
        elif is_last and (name := self.added_or_removed()) is not None:
            raise RuntimeError(
                f"forward registers or removes the buffer '{name}', which a checkpoint could not restore: "
                "expected it registered when the pipeline opens, as a tensor"
            )

    def changed(self, before):
        """The name of a buffer that changed since marks() gave `before`."""
        after = self.marks()
        if after.keys() != before.keys():
            return min(after.keys() ^ before.keys())
        for name, (value, *mark) in before.items():
            if after[name][0] is not value or list(after[name][1:]) != mark:
                return name
        return None

    def changed_in_step(self):
        """The name of a buffer whose value changed since the step began, or that is new."""
        named = self.named()
        for name, bits in self.values.items():
            if bits is not None and (name not in named or not torch.equal(_bits(named[name]), bits)):
                return name
        return self.added_or_removed()

    def changed_parameter(self):
        """The name of a parameter whose value changed since the step began, but not its version, which torch checks."""
        after = self._sums_of_parameters() if self.sums else {}
        for name, (version, value) in self.sums.items():
            if name in after and after[name][0] == version and value is not None and value != after[name][1]:
                return name
        return None

    def added_or_removed(self):
        """The name of a persistent buffer that was registered or removed since the pipeline has the module."""
        return min(self._persistent() ^ self.persistent, default=None)

    def _sums_of_parameters(self):
        return {name: (p._version, sum_of_bits(p)) for name, p in self.module.named_parameters()}

    def _persistent(self):
        return {
            prefix + name
            for prefix, table, others in self.tables
            for name, value in table.items()
            if value is not None and name not in others
        }


def refuse_change_of(name):
    if name is not None:
        raise RuntimeError(
            f"forward changes the buffer '{name}', whose value would depend on the order of the "
            "microbatches: expected an attribute forwards_in_order = True of the module"
        )


def _is_small(value):
    return value.numel() <= _SMALL and value.device.type == "cpu"


def _address(value):
    try:
        return value.data_ptr()
    except RuntimeError:  # sparse, for example
        return 0


def _bits(value):
    """A copy of the values; None where they have no bytes."""
    try:
        return value.detach().clone(memory_format=torch.contiguous_format).reshape(-1).view(torch.uint8)
    except RuntimeError:
        return None


def sum_of_bits(value):
    """To compare two computations of one tensor, or two states of it; None where it has no bytes."""
    try:
        bits = value.detach().reshape(-1).view(torch.uint8)
        whole = bits.numel() // 8 * 8
        return bits[:whole].view(torch.int64).sum().item() + bits[whole:].sum().item()
    except RuntimeError:
        return None
