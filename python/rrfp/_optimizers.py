"""Optimizers of the program, as the runtime calls them."""

import torch

#: Ends the name of a state that is a number in Python; it travels as a tensor.
_NUMBER = ":number"


class Parameters(list):
    """The parameters of one part."""

    def __init__(self, tensors, names):
        super().__init__(tensors)
        self._names = names

    def named(self):
        """Pairs of a name and a parameter, for groups; "0.weight" is the weight of part 0."""
        return list(zip(self._names, self))


class Optimizer:
    """One of torch.optim, or anything with step(); with `state` like those of torch.optim it is saved."""

    def __init__(self, made, parameters):
        self.made = made
        self.parameters = parameters

    def step(self, lr):
        """`lr` is that of the settings; the program's own optimizer has its own."""
        self.made.step()

    def state(self):
        """(index of the parameter, name, tensor) of each state."""
        known = getattr(self.made, "state", {})
        for index, parameter in enumerate(self.parameters):
            for name, value in known[parameter].items() if parameter in known else ():
                if isinstance(value, torch.Tensor) and type(value) in (torch.Tensor, torch.nn.Parameter):
                    yield index, name, value
                elif isinstance(value, (int, float)):
                    dtype = torch.int64 if isinstance(value, int) else torch.float64
                    yield index, name + _NUMBER, torch.tensor(value, dtype=dtype)
                elif value is not None:
                    raise TypeError(
                        f"the state '{name}' of the optimizer: expected a tensor or a number, got "
                        f"{type(value).__name__}; save its state_dict() yourself"
                    )

    def set_state(self, found):
        """Sets what state() gave; a parameter that is not in `found` restarts."""
        by_parameter = {}
        for index, name, value in found:
            is_number = name.endswith(_NUMBER)
            name = name.removesuffix(_NUMBER)
            by_parameter.setdefault(index, {})[name] = value.item() if is_number else value.clone()
        if not hasattr(self.made, "load_state_dict"):
            return
        index_of = {parameter: index for index, parameter in enumerate(self.parameters)}
        state = self.made.state_dict()
        own = [index_of[p] for group in self.made.param_groups for p in group["params"]]
        state["state"] = {at: by_parameter[index] for at, index in enumerate(own) if index in by_parameter}
        self.made.load_state_dict(state)


class JobOptimizer(Optimizer):
    """That of the section [train] of the settings."""

    def __init__(self, parameters, job):
        made = None
        if parameters and job["optimizer"] == "adamw":
            options = {name: job[name] for name in ("lr", "betas", "eps", "weight_decay")}
            made = torch.optim.AdamW(parameters, **options)
        elif parameters:
            options = {name: job[name] for name in ("lr", "momentum", "weight_decay")}
            made = torch.optim.SGD(parameters, **options)
        super().__init__(made, parameters)

    def step(self, lr):
        if self.made is not None:
            for group in self.made.param_groups:
                group["lr"] = lr
            self.made.step()
