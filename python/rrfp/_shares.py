"""The gradient sums of a step whose replicas run microbatches of others.

Gradients are summed by replica: each sum in the order of its microbatches, then the sums in the order of the replicas,
whoever runs them. A piece is some consecutive microbatches of one sum. The rank that has opened a sum and leaves its rest
to another rank sends it there; that rank keeps the gradients of its own microbatches apart until the sum has come.
"""

import typing

import torch
from torch.utils.dlpack import to_dlpack

from ._messages import decode_gradients, encode_gradients


class Piece(typing.NamedTuple):
    """Consecutive microbatches of the gradient sum of one replica."""

    sum: int  #: its replica
    first: int  #: numbered over all replicas
    count: int
    opens: bool  #: none of the sum come before them
    closes: bool  #: none of the sum come after them

    def microbatches(self):
        return range(self.first, self.first + self.count)


class _OfPart:
    """What one part of the model has summed."""

    def __init__(self, part):
        self.part = part
        self.piece = self.folded = 0  # the piece that is summed now, and its microbatches so far
        self.held = []  # gradients by microbatch, of the piece whose sum has not come yet
        self.sums = {}  # by replica; a gradient may be None


class SharedSums:
    """Of one rank in one step."""

    def __init__(self, pieces, parts, device):
        self._pieces = pieces
        self._device = device
        self._parts = [_OfPart(part) for part in parts]
        self._is_joined = False
        self._left = None
        for of in self._parts:
            if of.part.has_hooks_of_accumulation():
                raise RuntimeError(
                    "a hook follows the accumulation of a gradient, which other replicas continue: expected "
                    'pipeline.shares = "equal"'
                )
            of.part.on_fold = lambda of=of: self._count(of)

    def take_opened(self):
        """The message to the rank that goes on with a sum, once; None: there is none, or not yet."""
        left, self._left = self._left, None
        return left

    def join_opened(self, message):
        """The sum that another rank has opened."""
        replica = next(piece.sum for piece in self._pieces if not piece.opens)
        values = iter(decode_gradients(message, self._device))
        for of in self._parts:
            of.sums[replica] = [value if value is None else value.clone() for _, value in zip(of.part.trained(), values)]
            for gradients in of.held:
                _add(of.sums[replica], gradients)
            of.held = []
        self._is_joined = True
        self._leave_opened()

    def _count(self, of):
        """The gradients of one more microbatch are in the parameters."""
        piece = self._pieces[of.piece]
        of.folded += 1
        is_complete = of.folded == piece.count
        if not piece.opens and self._is_joined:
            _add(of.sums[piece.sum], of.part.take_gradients())
        elif not piece.opens:
            of.held.append(of.part.take_gradients())
        elif is_complete:
            of.sums[piece.sum] = of.part.take_gradients()
        if is_complete:
            of.piece, of.folded = of.piece + 1, 0
            self._leave_opened()

    def _leave_opened(self):
        at = next((i for i, piece in enumerate(self._pieces) if not piece.closes), None)
        if at is None or not (self._pieces[at].opens or self._is_joined):
            return
        replica = self._pieces[at].sum
        if all(of.piece > at and replica in of.sums for of in self._parts):
            self._left = encode_gradients([value for of in self._parts for value in of.sums.pop(replica)])

    def add_up(self, counts, replicas, has_any):
        """Leaves the sum over all replicas in the parameters.

        counts: the microbatches of each sum. replicas: the group of this rank. has_any(values): whether any rank has
        something else than None, for each value.
        """
        with torch.no_grad():
            for of in self._parts:
                parameters = of.part.trained()
                held = [next((g for g in of_all if g is not None), None) for of_all in zip(*of.sums.values())]
                for i, is_some in enumerate(has_any(held or [None] * len(parameters))):
                    if is_some:
                        terms = [_term(of.sums, replica, i, n) for replica, n in enumerate(counts)]
                        _set_total(parameters[i], terms, counts, replicas)
                of.sums.clear()


def _term(sums, replica, index, count):
    """A gradient, or the number to add in its place: -0 changes nothing."""
    if replica not in sums:
        return -0.0 if count > 0 else 0.0
    value = sums[replica][index]
    return 0.0 if value is None else value


def _set_total(parameter, terms, counts, replicas):
    """One term after the other, so that the order is that of the replicas, whoever has a term."""
    gradient = torch.empty_like(parameter)
    like = real(gradient)
    total = None
    for term, count in zip(terms, counts):
        if isinstance(term, float):
            value = torch.full(like.shape, term, dtype=_type_of_sums(like.dtype), device="cpu")
        else:
            value = real(term).to("cpu", _type_of_sums(like.dtype), copy=True).contiguous()
        if count > 0:
            replicas.sum(to_dlpack(value))
        total = value if total is None else total.add_(value)
    like.copy_(total)
    parameter.grad = gradient


def sum_over(group, gradient):
    """In place, in the order of the members."""
    if gradient.layout != torch.strided:
        raise RuntimeError(f"expected dense gradients with replicas or tensor-parallel ranks, got {gradient.layout}")
    mine = real(gradient)
    host = mine.detach().to("cpu", _type_of_sums(mine.dtype)).contiguous()
    group.sum(to_dlpack(host))
    if host.data_ptr() != mine.data_ptr():
        mine.copy_(host)


def _type_of_sums(dtype):
    """Of those that collectives know."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def real(tensor):
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _add(sums, values):
    for i, value in enumerate(values):
        if sums[i] is None:
            sums[i] = value
        elif value is not None:
            sums[i] += value
