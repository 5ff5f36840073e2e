"""A rank with parameters: their gradients over replicas and ranks, the update, and the state."""

import contextlib
import functools

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from ._errors import Error
from ._messages import decode_gradients, encode_gradients
from ._rank import Rank
from ._shares import Piece, SharedSums, real, sum_over

_optimizer_prefix = "optimizer."
_scale_name, _good_steps_name = (f"{_optimizer_prefix}loss_scale{end}" for end in ("", "_steps"))
_none, _owner, _copy = range(3)  # sides of a tie


class TrainingRank(Rank):
    def __init__(self, model, parts, stage, group, device):
        in_order = any(part.forwards_in_order for part in parts)
        if in_order and model.job["recompute"]:
            raise Error(
                f"stage {stage}: its forward changes buffers, so it may run only once: expected "
                "pipeline.recompute = false",
                "bad_input",
                2,
            )
        super().__init__(parts, model.kept, in_order)
        self._model = model
        self.stage = stage
        self.group = group
        self._sign = "" if group is None or group.size == 1 else f"@{group.rank}"
        self._device = device
        self._scale = LossScale(model.job)
        self._seen = set()  # the ids of all parameters that it has had
        self._find_parameters()
        #: Which sides of a tie are here; frozen ones have no part in it.
        self._ties = {side for p, _, side, _ in self._parameters if side != _none and p.requires_grad}
        self._has_compared_sides = False
        self.tied_side = next(iter(self._ties)) if len(self._ties) == 1 else _none
        values = [p for p, *_ in self._parameters]
        self._optimizer = model.make_optimizer(values, [name for _, name, *_ in self._parameters])
        self.optimizers = self._optimizer.of_program()

    def take_place(self, replica):
        """Before the state of a step comes."""
        self._replica = replica
        for part in self.parts:
            part.replica = replica
        self.drop_gradients()

    def drop_gradients(self):
        for part in self.parts:
            for p in part.module.parameters():
                p.grad = None

    def _find_parameters(self):
        """Anew for each step and state: a program may replace them."""
        self._parameters = []  # (tensor, name, side of the tie, position in the model)
        for part in self.parts:
            for index, (name, value) in enumerate(part.module.named_parameters()):
                name = part.name_of(name)
                side = _none if name != part.tied else _owner if part.is_first else _copy
                if self.group is not None and value.dim() == 0:
                    raise ValueError("pipeline.tp: expected parameters with a dimension, got a scalar")
                at = (part.index, index, 0 if self.group is None else self.group.rank)
                self._parameters.append((value, name, side, at))
        self._seen |= {id(value) for value, *_ in self._parameters}

    # ---- a step

    def prepare_thread(self):
        torch.set_num_threads(1)  # Ranks on one machine would compete for its cores.
        if self._device is not None:
            torch.cuda.set_device(self._device)

    def begin(self, step, trains, counts, pieces):
        self._model.batch.adopt(counts)
        self._counts = counts
        if pieces is None:
            microbatches = range(sum(counts[: self._replica]), sum(counts[: self._replica + 1]))
        else:
            pieces = [Piece(*piece) for piece in pieces]
            microbatches = [mb for piece in pieces for mb in piece.microbatches()]
        for part in self.parts:
            part.microbatches = microbatches
        self._find_parameters()
        if trains:
            for p, name, side, _ in self._parameters:
                if side != _none and p.requires_grad != (side in self._ties):
                    raise RuntimeError(
                        f"the tied parameter '{name}' was {'unfrozen' if p.requires_grad else 'frozen'} after the "
                        "stage was created: expected a requires_grad that does not change"
                    )
            self._model.scale = self._scale.value
        if self.parts[-1].is_last and self._model.batch.divisor <= 0:
            raise Error(
                f"count: expected loss terms that add up to more than 0 in a step, got {self._model.batch.divisor}", "bad_input", 2
            )
        self._folded = [0] * len(self.parts)
        run = super().begin(step, trains, counts, pieces)
        if len(self._model.context) > 0:
            run = functools.partial(self._model.context.copy().run, run)
        self._sums = SharedSums(pieces, self.parts, self._device) if trains and pieces is not None else None
        self._agrees = self.group is not None and trains and pieces is None
        is_alone = not self._agrees and self._model.turn_of_tasks is None
        return run if is_alone else functools.partial(self._run_beside_others, run)

    def _run_beside_others(self, run, kind, mb, chunk, first, count, message):
        """Parts that adapt parameters take turns in a process; the ranks of a group agree on each gradient."""
        with self._model.turn_of_tasks or contextlib.nullcontext():
            result = run(kind, mb, chunk, first, count, message)
        if self._agrees and count:
            self._folded[chunk] += count
            if self._folded[chunk] == len(self.parts[chunk].microbatches):
                # A parameter that is cut over the ranks is one parameter.
                self._agree(self.group, [p for p in self.parts[chunk].module.parameters() if p.requires_grad])
        return result

    def losses(self):
        return self.parts[-1].losses()

    def take_opened_sum(self):
        return None if self._sums is None else self._sums.take_opened()

    def join_opened_sum(self, message):
        self._sums.join_opened(message)

    def sum_gradients(self, replicas):
        if self._sums is not None:
            groups = [replicas] if self.group is None else [self.group, replicas]
            return self._sums.add_up(self._counts, replicas, lambda values: _has_any(groups, values))
        values = [p for p, *_ in self._parameters]
        self._agree(replicas, values)
        for p in values:
            if p.grad is not None:
                sum_over(replicas, p.grad)

    @staticmethod
    def _agree(group, parameters):
        """Gives a gradient of zeros to each parameter that has a gradient only on other ranks."""
        for p, has_any in zip(parameters, _has_any([group], [p.grad for p in parameters])):
            if has_any and p.grad is None:
                p.grad = torch.zeros_like(p)

    def tied_gradient(self):
        """In the first step with the value, which the other side compares."""
        mine = self._of_side(self.tied_side)
        _check_dense(mine)
        return encode_gradients([mine.grad] if self._has_compared_sides else [mine.grad, mine.detach()])

    def join_tied(self, capsule):
        theirs, *value = decode_gradients(capsule, self._device)
        mine = self._of_side(self.tied_side)
        self._compare_sides(mine, *value)
        mine.grad = _sum_of_sides(*((mine.grad, theirs) if self.tied_side == _owner else (theirs, mine.grad)))

    def _compare_sides(self, mine, theirs=None):
        if not self._has_compared_sides and theirs is not None and not torch.equal(mine, theirs):
            raise ValueError("tied_parameter: expected two copies with the same values, got different ones")
        self._has_compared_sides = True

    def _of_side(self, wanted):
        return next(p for p, _, side, _ in self._parameters if side == wanted)

    def _join_local_tie(self):
        """Both sides are on this stage: the same sum as across stages."""
        owner, other = self._of_side(_owner), self._of_side(_copy)
        self._compare_sides(owner, other)
        for side in (owner, other):
            _check_dense(side)
        total = _sum_of_sides(owner.grad, other.grad)
        owner.grad, other.grad = total, None if total is None else total.clone()

    def squared_norms(self):
        """Once in a step with an update, when the gradients of all replicas and of the other side of a tie are here."""
        if len(self._ties) == 2:
            self._join_local_tie()
        if self._scale.is_on:
            self._unscale()
        places, squares = [], []
        elsewhere = set().union(*(part.whole for part in self.parts)) if self.group is not None and self.group.rank else ()
        for p, name, side, at in self._parameters:
            if p.grad is not None and side != _copy and name not in elsewhere:
                places.append(at)
                squares.append(real(p.grad).to(torch.float64).square().sum())
        return list(zip(places, torch.stack(squares).tolist())) if squares else []

    def _unscale(self):
        inverse = torch.tensor(1 / self._scale.value, dtype=torch.float32, device="cpu")  # as GradScaler does
        for p, *_ in self._parameters:
            if p.grad is not None:
                p.grad.mul_(inverse.to(p.grad.device))

    def apply(self, scale, lr):
        """Updates the parameters with `scale` times the gradients; 0: the update is skipped."""
        if scale != 0:
            for p, *_ in self._parameters if scale != 1 else ():
                if p.grad is not None:
                    p.grad.mul_(scale)
            self._optimizer.step(lr)
        self._scale.update(scale == 0)
        for p, *_ in self._parameters:
            p.grad = None

    # ---- the state

    def values(self):
        """The weights for a hash of the model, without copies."""
        for p, _, side, at in self._parameters:
            if side != _copy:
                yield at, _bytes_of(p)

    def names(self):
        return [name for name, *_ in self.state(with_copies=False)]

    def state(self, with_copies):
        """(name, tensor, part of the whole) of parameters, buffers and what the optimizer keeps; part None: all."""
        self._find_parameters()
        for p, name, side, _ in self._parameters:
            if side != _copy or with_copies:
                yield name, p.detach(), self._cut(p)
        for part in self.parts:
            for name, value in zip(part.buffers.saved, part.buffers.saved_values()):
                # A copy: forwards change it, not the end of a step alone.
                yield part.name_of(name), value.detach().clone(), None
        own = {id(p): (name, side) for p, name, side, _ in self._parameters}
        for p, state, value in self._optimizer.state():
            name, side = own.get(id(p), (None, _none))  # None: the part has it no more
            if id(p) not in self._seen:
                raise TypeError(
                    f"the state of the optimizer: expected one of the parameters of a part, got that of another tensor "
                    f"{list(p.shape)}; save its state_dict() yourself"
                )
            if name is None or side == _copy and not with_copies:
                continue
            if "." in state:
                raise ValueError(f"the state '{state}' of the optimizer: expected a name without a dot")
            cut = None if value.dim() == 0 else self._cut(p)
            if cut is not None and value.shape != p.shape:
                raise ValueError(
                    f"the state '{state}' of '{name}', which is cut over the ranks: expected a scalar or "
                    f"{list(p.shape)}, got {list(value.shape)}"
                )
            yield f"{_optimizer_prefix}{name}.{state}", value, cut
        if self._scale.is_on:
            yield _scale_name, torch.tensor(self._scale.value, dtype=torch.float64, device="cpu"), None
            yield _good_steps_name, torch.tensor(self._scale.good_steps, device="cpu"), None

    def snapshot(self, with_copies, is_copied):
        made = []
        for name, value, cut in self.state(with_copies):
            dtype = str(value.dtype).removeprefix("torch.")
            made.append((name, dtype, list(value.shape), _bytes_of(value, is_copied), cut))
        return made

    def restore(self, entries):
        self._set(*self._matching(_of_entries(entries)))

    def named_state(self):
        """(name, tensor) as in state_dict(): what is divided over tensor-parallel ranks is named by the rank, too."""
        for name, value, cut in self.state(with_copies=True):
            yield name if cut is None else name + self._sign, value

    def setter_of(self, state):
        """A function that sets what state_dict() gave. Refuses what does not fit before anything has changed."""
        values, scale, states = self._matching(self._pieces_of(state))
        self._optimizer.try_state(states)
        has_optimizer = any(name.startswith(_optimizer_prefix) for name in state)
        return functools.partial(self._set, values, scale, states, has_optimizer)

    def _set(self, values, scale, states, sets_optimizer=True):
        with torch.no_grad():
            for mine, value in values:
                mine.copy_(value)
        if scale is not None:
            self._scale.value, self._scale.good_steps = scale
        if sets_optimizer:
            self._optimizer.set_state(states)

    def _pieces_of(self, state):
        """Of what state_dict() gave: this rank's own parts."""
        cuts = {name: self._cut(p) for p, name, *_ in self._parameters}
        pieces = {}
        for name, value in state.items():
            if self._sign and "@" in name:
                if not name.endswith(self._sign):
                    continue  # of another rank
                name = name.removesuffix(self._sign)
            of = name.removeprefix(_optimizer_prefix).rpartition(".")[0] if name.startswith(_optimizer_prefix) else name
            pieces[name] = [(value, cuts.get(of) if value.dim() > 0 else None)]
        return pieces

    def _matching(self, pieces):
        """What _set() takes. `pieces`: by name, the (tensor, part) that any rank saved."""
        self._find_parameters()
        values = [(p, _found(pieces, name, p, self._cut(p))) for p, name, *_ in self._parameters]
        for part in self.parts:
            for name, value in zip(part.buffers.saved, part.buffers.saved_values()):
                values.append((value, _found(pieces, part.name_of(name), value, None)))
        scale = None
        if self._scale.is_on and _scale_name in pieces:  # A training may begin to scale its loss later.
            scale = tuple(pieces[name][0][0].item() for name in (_scale_name, _good_steps_name))
        by_parameter = {}
        for name in pieces:
            parameter, _, state = name.removeprefix(_optimizer_prefix).rpartition(".")
            if name.startswith(_optimizer_prefix) and parameter:
                by_parameter.setdefault(parameter, []).append(state)
        states = []
        for p, name, *_ in self._parameters:
            for state in sorted(by_parameter.get(name, ())):
                of_all = f"{_optimizer_prefix}{name}.{state}"
                saved, part = pieces[of_all][0]
                _check_has_values(of_all, saved)
                cut = self._cut(p)
                if part is not None or list(saved.shape) == (cut[0] if cut else list(p.shape)):
                    like = torch.empty(p.shape, dtype=saved.dtype, device="cpu")
                    saved = _found(pieces, of_all, like, cut)
                states.append((p, state, saved))
        return values, scale, states

    def _cut(self, p):
        """The part of this rank: ranks have equal pieces along the first dimension, as far as the runtime knows."""
        if self.group is None or self.group.size == 1:
            return None
        rows = p.shape[0]
        return [rows * self.group.size, *p.shape[1:]], 0, 1, rows * self.group.rank, rows


class LossScale:
    """The factor of the loss, by the rule of torch.amp.GradScaler: doubled after an interval of steps without an
    infinite or NaN gradient, halved after a step with one."""

    def __init__(self, job):
        self.is_on = job["loss_scale"] > 0
        self.value = job["loss_scale"] or 1.0
        self.good_steps = 0
        self._interval = job["loss_scale_interval"]

    def update(self, is_skipped):
        if not self.is_on:
            return
        self.good_steps = 0 if is_skipped else self.good_steps + 1
        if is_skipped:
            self.value /= 2
        elif self.good_steps == self._interval:
            self.good_steps = 0
            if torch.tensor(self.value * 2, dtype=torch.float32, device="cpu").isfinite():
                self.value *= 2


def shape_of(tensor):
    return f"{tensor.dtype} {list(tensor.shape)}"


def _has_any(groups, values):
    """Whether any member has something else than None, for each value."""
    has = torch.tensor([value is not None for value in values], dtype=torch.int64, device="cpu")
    for group in groups:
        group.max(to_dlpack(has))
    return has.tolist()


def _check_dense(tied):
    if tied.grad is not None and tied.grad.layout != torch.strided:
        raise RuntimeError(f"tied_parameter: expected a dense gradient, got one of layout {tied.grad.layout}")


def _sum_of_sides(owner, other):
    if owner is None or other is None:
        only = other if owner is None else owner
        return None if only is None else only.clone()
    return owner + other


def _bytes_of(value, is_copied=False):
    host = value.detach().cpu().contiguous()
    if is_copied and host.data_ptr() == value.data_ptr():
        host = host.clone()
    return to_dlpack(host.reshape(-1).view(torch.uint8))


def _of_entries(entries):
    pieces = {}
    for name, dtype, sizes, capsule, part in entries:
        value = from_dlpack(capsule).view(getattr(torch, dtype)).view(sizes)
        pieces.setdefault(name, []).append((value, None if part is None else (list(part[0]), *part[1:])))
    return pieces


def _check_has_values(name, value):
    if value.is_meta or value.layout != torch.strided:
        got = "one on the device meta" if value.is_meta else f"one of the layout {value.layout}"
        raise ValueError(f"'{name}': expected a tensor with values for each element, got {got}")


def _found(pieces, name, like, cut):
    """The saved value for `like`, which is the part `cut` of the whole tensor, put together from the saved pieces."""
    if name not in pieces:
        raise ValueError(f"the checkpoint lacks '{name}'")
    wanted = cut[0] if cut else list(like.shape)
    for value, part in pieces[name]:
        _check_has_values(name, value)
        sizes = part[0] if part else list(value.shape)
        if list(sizes) != list(wanted) or value.dtype != like.dtype:
            raise ValueError(
                f"the checkpoint's '{name}' is {value.dtype} {list(sizes)}, but the model's is {like.dtype} {list(wanted)}"
            )
    for value, part in pieces[name]:
        if part == cut:
            return value
    dim = cut[1] if cut else pieces[name][0][1][1]
    begin, length = (cut[3], cut[4]) if cut else (0, wanted[dim])
    joined, got = torch.empty(like.shape, dtype=like.dtype, device="cpu"), 0
    taken = set()
    for value, part in pieces[name]:
        _, at_dim, blocks, offset, size = part or (wanted, dim, 1, 0, wanted[dim])
        if at_dim != dim or blocks != 1:
            raise ValueError(f"the checkpoint's '{name}' is cut differently from the model's")
        first, last = max(begin, offset), min(begin + length, offset + size)
        if first >= last or offset in taken:
            continue
        taken.add(offset)  # replicas save the same parts
        joined.narrow(dim, first - begin, last - first).copy_(value.narrow(dim, first - offset, last - first))
        got += last - first
    if got < length:
        raise ValueError(f"the checkpoint's parts of '{name}' hold {got} of the {length} rows that this rank needs")
    return joined
