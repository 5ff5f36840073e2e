"""Optimizers of the program, as the runtime calls them."""

import torch

from ._modules import one_line

#: Ends the name of a state that is a number in Python; it travels as a tensor.
_NUMBER = ":number"
#: Ends the name of a number in the group of a parameter, such as its learning rate.
_GROUP = ":group"
#: Ends the name of a state that has the class of the optimizer as its name.
_KIND = ":kind"


class Parameters(list):
    """The parameters of one part."""

    def __init__(self, tensors, names):
        super().__init__(tensors)
        self._names = names

    def named(self):
        """Pairs of a name and a parameter, for groups; "0.weight" is the weight of part 0."""
        return list(zip(self._names, self))


class Optimizer:
    """One of torch.optim, or anything with step(); with `state` like those of torch.optim it is saved. None: there was
    nothing to train."""

    def __init__(self, made, parameters):
        self.made = made
        self._given = parameters
        self._waiting = {}  # loaded states, by parameter, until the program adds the parameter

    def parameters(self):
        """Those that it has now: a program may add some."""
        groups = getattr(self.made, "param_groups", None)
        return self._given if groups is None else [p for group in groups for p in group["params"]]

    def of_program(self):
        return [] if self.made is None else [self.made]

    def step(self, lr):
        """`lr` is that of the settings; the program's own optimizer has its own."""
        self._take_waiting()
        if self.made is not None:
            self.made.step()
        elif any(p.grad is not None for p in self._given):
            raise RuntimeError("a part has no optimizer: all its parameters were frozen when the pipeline opened")

    def state(self):
        """(parameter, name, tensor) of each state, of the numbers of its group, and of the optimizer's class."""
        yield from self._group_numbers()
        if self.made is not None:
            for parameter in self.parameters():
                yield parameter, type(self.made).__name__ + _KIND, _as_tensor(1)
        self._take_waiting()
        known = getattr(self.made, "state", {})
        if not hasattr(self.made, "state") and hasattr(self.made, "state_dict"):
            raise TypeError(
                f"the optimizer {type(self.made).__name__}: expected its state by parameter in `state`, got none; save its "
                "state_dict() yourself"
            )
        other = [key for key in known if not isinstance(key, torch.Tensor)]
        if other:
            raise TypeError(
                f"the state of the optimizer {type(self.made).__name__}: expected one by parameter, got the key "
                f"{other[0]!r}; save its state_dict() yourself"
            )
        for parameter in (*self.parameters(), *self._waiting):
            for name, value in (known.get(parameter) or self._waiting.get(parameter, {})).items():
                if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
                    yield parameter, name, value
                elif isinstance(value, (int, float)):
                    yield parameter, name + _NUMBER, _as_tensor(value)
                elif value is not None:
                    raise TypeError(
                        f"the state '{name}' of the optimizer: expected a tensor or a number, got "
                        f"{type(value).__name__}; save its state_dict() yourself"
                    )

    def _group_numbers(self):
        """With each parameter, so they are found wherever a model is cut."""
        for group in getattr(self.made, "param_groups", ()):
            for name, value in _numbers_of(group):
                for parameter in group["params"]:
                    yield parameter, name + _GROUP, _as_tensor(value)

    def try_state(self, found):
        """Raises what set_state() would."""
        self._check_kind(found)
        saved = {}
        for parameter, name, value in found:
            if not name.endswith((_GROUP, _KIND)):
                saved.setdefault(parameter, {})[name.removesuffix(_NUMBER)] = value
        for parameter, values in saved.items():
            for name, mine in getattr(self.made, "state", {}).get(parameter, {}).items():
                if mine is not None and name not in values:
                    raise ValueError(f"the checkpoint lacks the state '{name}' of the optimizer")
                value = values.get(name)
                if isinstance(mine, torch.Tensor) and (mine.shape, mine.dtype) != (value.shape, value.dtype):
                    raise ValueError(
                        f"the state '{name}' of the optimizer: expected {mine.dtype} {list(mine.shape)}, got {value.dtype} "
                        f"{list(value.shape)}"
                    )
        waiting = self._waiting
        its = getattr(self.made, "__dict__", {})
        kept = {name: its[name] for name in ("state", "param_groups") if name in its}
        try:
            self.set_state(found)
        except Exception as e:
            raise ValueError(f"the optimizer {type(self.made).__name__} refuses its state: {one_line(e)}") from e
        finally:
            its.update(kept)
            self._waiting = waiting

    def _check_kind(self, found):
        own = type(self.made).__name__
        for _, name, _ in found:
            if self.made is not None and name.endswith(_KIND) and name != own + _KIND:
                raise ValueError(f"the optimizer: expected {name.removesuffix(_KIND)}, as in the checkpoint, got {own}")

    def set_state(self, found):
        """Sets what state() gave; a parameter that is not in `found` restarts."""
        self._check_kind(found)
        by_parameter, of_group = {}, {}
        for parameter, name, value in found:
            if name.endswith(_KIND):
                continue
            if name.endswith(_GROUP):
                of_group.setdefault(parameter, {})[name.removesuffix(_GROUP)] = value
                continue
            is_number = name.endswith(_NUMBER)
            name = name.removesuffix(_NUMBER)
            by_parameter.setdefault(parameter, {})[name] = value.item() if is_number else value.clone()
        if not all(hasattr(self.made, name) for name in ("load_state_dict", "param_groups", "state")):
            return
        state, own = self.made.state_dict(), self.parameters()
        for group in state["param_groups"]:
            of_first = next((of_group[own[at]] for at in group["params"] if own[at] in of_group), {})
            _set_numbers(group, of_first)
        state["state"] = {at: by_parameter[p] for at, p in enumerate(own) if p in by_parameter}
        self.made.load_state_dict(state)
        held = set(own)
        self._waiting = {p: values for p, values in by_parameter.items() if p not in held}
        for parameter in by_parameter.keys() & held:
            self._restore_types(parameter, by_parameter[parameter])

    def _take_waiting(self):
        for parameter in self._waiting.keys() & set(self.parameters()) if self._waiting else ():
            moved = lambda v: v.to(parameter.device) if isinstance(v, torch.Tensor) and v.dim() > 0 else v
            self.made.state[parameter] = {name: moved(v) for name, v in self._waiting.pop(parameter).items()}

    def _restore_types(self, parameter, values):
        """load_state_dict() rounds states to the type of the parameter, as a float32 moment of a bfloat16 parameter."""
        kept = getattr(self.made, "state", {}).get(parameter, {})
        for name, value in values.items():
            loaded = kept.get(name)
            if isinstance(value, torch.Tensor) and isinstance(loaded, torch.Tensor) and loaded.dtype != value.dtype:
                kept[name] = value.to(loaded.device)


def _as_tensor(value):
    if isinstance(value, torch.Tensor):
        return value.detach()
    return torch.tensor(value, dtype=torch.int64 if isinstance(value, int) else torch.float64, device="cpu")


def _numbers_of(group):
    """(name, number) of the entries of a group; those of a tuple, such as betas, are named by their position."""
    for name, value in group.items():
        several = isinstance(value, (tuple, list)) and name != "params"
        for at, number in enumerate(value) if several else [(None, value)]:
            is_scalar = isinstance(number, torch.Tensor) and number.dim() == 0
            if is_scalar or isinstance(number, (int, float)) and not isinstance(number, bool):
                yield name if at is None else f"{name}[{at}]", number


def _set_numbers(group, found):
    for key, value in found.items():
        name, _, at = key.removesuffix("]").partition("[")
        old = group.get(name)
        if at and isinstance(old, (tuple, list)) and int(at) < len(old):
            values = list(old)
            values[int(at)] = _like(values[int(at)], value)
            group[name] = type(old)(values)
        elif not at:
            group[name] = _like(old, value)


def _like(old, value):
    return value.clone() if isinstance(old, torch.Tensor) else value.item()


class JobOptimizer(Optimizer):
    """That of the section [train] of the settings."""

    def __init__(self, parameters, job):
        kind, names = torch.optim.SGD, ("lr", "momentum", "weight_decay")
        if job["optimizer"] == "adamw":
            kind, names = torch.optim.AdamW, ("lr", "betas", "eps", "weight_decay")
        super().__init__(kind(parameters, **{name: job[name] for name in names}) if parameters else None, parameters)

    def of_program(self):
        return []

    def _group_numbers(self):
        return ()  # Those of the settings hold.

    def step(self, lr):
        if self.made is not None:
            for group in self.made.param_groups:
                group["lr"] = lr
            self.made.step()
