"""Trainings that test_processes.py runs under torchrun, each beside its plain loop."""

import copy

import pytest
import rrfp
import torch
import test_transformers as hugging_face
from kinds import KINDS
from models import HALF, adam, mlp, rows, rows_with_overflow, train_in_half, train_plainly, twin
from test_gradients import Branches, Experts
from test_pages import blocks
from torch import nn

JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5, "run.hang_timeout_s": 60}
PROCESSES = 4
mse = nn.functional.mse_loss


class Case:
    """`part(rank)` is the module of a process, or makes it; `plain()` returns losses and the parts by process."""

    n_microbatches = 4
    loss_fn = staticmethod(mse)
    settings = {}
    options = {}

    def batches(self):
        return [((x,), y) for x, y in (rows(step) for step in range(3))]

    def takes_inputs(self, rank):
        return rank == 0

    def takes_target(self, rank):
        return rank == PROCESSES - 1

    def counts(self, step):
        """The microbatches of each replica in a step; None: as many as `n_microbatches`."""

    def costs(self, step):
        """Of the microbatches of a step, which are then cut before it; None: they start as they are."""

    def gives_output(self, rank, step):
        return self.takes_target(rank)


class Blocking(Case):
    settings = {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b", "dispatch.messages": "blocking"}

    def part(self, rank):
        rrfp._runtime.begin_study()
        return mlp(PROCESSES)[rank]

    def plain(self):
        parts = mlp(PROCESSES)
        return train_plainly(parts, mse, [(x, y) for (x,), y in self.batches()], 4), parts


class Costs(Case):
    def part(self, rank):
        return mlp(PROCESSES)[rank]

    def costs(self, step):
        return [[7, 1, 4, 2], [1, 2, 3, 4], [3, 3, 1, 9]][step]

    def plain(self):
        parts, batches = mlp(PROCESSES), []
        orders = [rrfp.admission_order(self.costs(step)) for step in range(3)]
        for order, ((x,), y) in zip(orders, self.batches()):
            batches.append([torch.cat([values.tensor_split(4)[i] for i in order]) for values in (x, y)])
        losses = train_plainly(parts, mse, batches, 4)
        return [[step[order.index(i)] for i in range(4)] for order, step in zip(orders, losses)], parts


class OfKind(Case):
    options = {"seed": 3}

    def __init__(self, kind):
        self.kind, self.loss_fn, self.batches = kind, kind.loss_fn, kind.batches

    def part(self, rank):
        return self.kind.make(PROCESSES)[rank]

    def plain(self):
        parts = self.kind.make(PROCESSES)
        return self.kind.train_plainly(parts), parts


class Half(Case):
    n_microbatches = 6
    settings = HALF
    options = {"autocast": torch.float16}

    def batches(self):
        return [((x,), y) for x, y in rows_with_overflow()]

    def part(self, rank):
        return mlp(PROCESSES)[rank]

    def plain(self):
        parts = mlp(PROCESSES)
        losses, _ = train_in_half(parts, mse, rows_with_overflow(), 6)
        return [losses[i : i + 6] for i in range(0, len(losses), 6)], parts


class OfTransformers(Case):
    loss_fn = staticmethod(hugging_face.loss_fn)

    def __init__(self, name):
        self.name = name

    def batches(self):
        return [((hugging_face.ids_of(step),), hugging_face.ids_of(step)) for step in range(2)]

    def part(self, rank):
        return rrfp.from_transformers(hugging_face.make(self.name), PROCESSES)[rank]

    def plain(self):
        model = hugging_face.make(self.name)
        whole = hugging_face.Logits(model)
        losses = train_plainly([whole], self.loss_fn, [(x, y) for (x,), y in self.batches()], 4)
        return losses, rrfp.from_transformers(model, PROCESSES)


class Replicas(Case):
    """Two stages, two replicas with three microbatches each."""

    n_microbatches = 3
    settings = {"pipeline.replicas": 2}

    def parts(self):
        return mlp(2)

    def part(self, rank):
        return self.parts()[rank % 2]

    def takes_inputs(self, rank):
        return rank % 2 == 0

    def takes_target(self, rank):
        return rank % 2 == 1

    def plain(self):
        parts, losses = self.parts(), []
        optimizer = adam([p for part in parts for p in part.parameters()])
        for step, ((x,), y) in enumerate(self.batches()):
            losses.append([])
            replicas = [twin(parts), twin(parts)]
            counts = self.counts(step) or [3, 3]
            n = sum(counts)
            for i, (inputs, target) in enumerate(zip(x.tensor_split(n), y.tensor_split(n))):
                a, b = replicas[i >= counts[0]]
                loss = mse(b(a(inputs)), target)
                (loss / n).backward()
                losses[-1].append(loss.item())
            for own, *others in zip(*([p for part in r for p in part.parameters()] for r in (parts, *replicas))):
                gradients = [p.grad for p in others if p.grad is not None]
                own.grad = sum(gradients[1:], gradients[0]) if gradients else None
            optimizer.step()
        return losses, [*parts, *parts]


def from_the_page(name):
    """A class of a snippet of docs/python.md."""
    (block,) = (block for block in blocks("docs/python.md", "py") if f"class {name}(" in block)
    names = {"rrfp": rrfp, "torch": torch}
    exec(compile(block.split("\npipe = ")[0], "docs/python.md", "exec"), names)
    return names[name]


class CountsOfReplicas(Replicas):
    """Another number of microbatches in each step, and on each replica."""

    def counts(self, step):
        return [[1, 4], [5, 0], [2, 7]][step]

    def gives_output(self, rank, step):
        return self.takes_target(rank) and self.counts(step)[rank // 2] > 0


class UnusedInReplicas(Replicas):
    """One layer is used by few microbatches, so in some steps by one replica or none; one never."""

    def parts(self):
        torch.manual_seed(1)
        return [Branches(), Branches()]


class ExpertsInReplicas(Replicas):
    """One expert gets no token, others few, so in some steps from one replica alone."""

    def parts(self):
        torch.manual_seed(1)
        return [Experts(), Experts()]


Divided = from_the_page("Divided")


class WithUnused(Divided):
    """No rank uses one parameter; only one rank uses another, which all of them update."""

    def __init__(self, index, group):
        super().__init__(index, group)
        self.unused, self.of_one = (nn.Parameter(torch.ones(16)) for _ in range(2))

    def forward(self, x):
        inner = torch.tanh(nn.functional.linear(rrfp.copy_to_ranks(x, self.group), self.up))
        own = nn.functional.linear(inner, self.down)
        if self.group.rank == 1:
            own = own + self.of_one
        return rrfp.reduce_from_ranks(own, self.group) + self.bias


class OneOfTwo:
    size = 2

    def __init__(self, rank):
        self.rank = rank


class Ranks(Case):
    """Two stages of two ranks."""

    n_microbatches = 6
    settings = {"pipeline.tp": 2}
    module = Divided

    def part(self, rank):
        return lambda index, count, group: self.module(index, group)

    def takes_inputs(self, rank):
        return rank < 2

    def takes_target(self, rank):
        return rank >= 2

    def of_second_rank(self, output, rank):
        return output

    def plain(self):
        """Both ranks of a stage, one after the other, and the sums between them by hand."""
        stages = [[self.module(stage, OneOfTwo(rank)) for rank in range(2)] for stage in range(2)]
        optimizer = adam([p for ranks in stages for r in ranks for p in r.parameters()])

        def of_stage(ranks, x):
            inner = [torch.tanh(nn.functional.linear(x, r.up)) for r in ranks]
            a, b = (nn.functional.linear(h, r.down) for h, r in zip(inner, ranks))
            return a + self.of_second_rank(b, ranks[1]) + ranks[0].bias

        losses = []
        for (x,), y in self.batches():
            losses.append([])
            for inputs, target in zip(x.tensor_split(6), y.tensor_split(6)):
                loss = mse(of_stage(stages[1], of_stage(stages[0], inputs)), target)
                (loss / 6).backward()
                losses[-1].append(loss.item())
            for a, b in stages:
                b.bias.grad = a.bias.grad.clone()
                if isinstance(a, WithUnused):
                    a.of_one.grad = torch.zeros_like(a.of_one)
            optimizer.step()
            optimizer.zero_grad()
        return losses, [r for ranks in stages for r in ranks]


class UnusedOnRanks(Ranks):
    module = WithUnused

    def of_second_rank(self, output, rank):
        return output + rank.of_one


CASES = {
    **{name: OfKind(kind) for name, kind in KINDS.items()},
    "float16 with an overflow": Half(),
    **{name: OfTransformers(name) for name in ("llama", "qwen3", "gpt2")},
    "costs of microbatches": Costs(),
    "sends that block": Blocking(),
    "replicas": Replicas(),
    "replicas with other numbers of microbatches": CountsOfReplicas(),
    "parameters that replicas do not use": UnusedInReplicas(),
    "experts in replicas": ExpertsInReplicas(),
    "tensor-parallel ranks": Ranks(),
    "parameters that ranks do not use": UnusedOnRanks(),
}


def train(case, rank):
    """In a process of torchrun: the losses by step and the part."""
    losses = []
    with rrfp.Pipeline(
        case.part(rank),
        case.loss_fn,
        n_microbatches=case.n_microbatches,
        optimizer=adam,
        settings={**JITTER, **case.settings},
        on_note=lambda line: None,
        **case.options,
    ) as pipe:
        with pytest.raises(TypeError, match="no part has a parameter named unknown"):
            pipe.step(*case.batches()[0][0], target=case.batches()[0][1], unknown=1)
        for step, (x, y) in enumerate(case.batches()):
            losses.append([])
            costs = case.costs(step)
            if costs is not None:
                mbs = x[0].tensor_split(len(costs)) if case.takes_inputs(rank) else None
                targets = y.tensor_split(len(costs)) if case.takes_target(rank) else None
                outputs = pipe.step_microbatches(mbs, None, targets, losses[-1], costs=costs)
                assert len(outputs) == (len(costs) if case.gives_output(rank, step) else 0)
                continue
            output = pipe.step(
                *(x if case.takes_inputs(rank) else ()),
                target=y if case.takes_target(rank) else None,
                losses=losses[-1],
                n_microbatches=case.counts(step),
            )
            assert (output is not None) == case.gives_output(rank, step)
        (part,) = pipe.stages.values()
    return [[loss.item() for loss in step] for step in losses], copy.deepcopy(part.state_dict())
