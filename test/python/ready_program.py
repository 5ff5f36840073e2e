"""A program of torchrun: trains models through ReadySchedule and through a plain loop, and compares all bits.

usage: ready_program.py OPTIONS CASE...   OPTIONS: a Python dict, the options of ReadySchedule
"""

import ast
import contextlib
import copy
import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage

import rrfp
from rrfp.torch import ReadySchedule, pipelining_fn

steps, width = 4, 32
device = None  # of this rank


class Block(torch.nn.Module):
    def __init__(self, dropout=0.0, outputs=1):
        super().__init__()
        self.first = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.Linear(2 * width, width)
        self.norm = torch.nn.LayerNorm(width)
        self.dropout = torch.nn.Dropout(dropout)
        self.outputs = outputs

    def forward(self, x, *others):
        y = x + self.dropout(self.second(torch.nn.functional.gelu(self.first(self.norm(x)))))
        if others:
            y = y + 0.5 * others[0].to(y.dtype)
        return y if self.outputs == 1 else (y, (x + y).half(), torch.ones(len(x), dtype=torch.bool))


class Ending(torch.nn.Module):
    """Ends with what may be the result of a collective."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(width, 2 * width)
        self.second = torch.nn.Linear(2 * width, width)

    def forward(self, x):
        return self.second(torch.nn.functional.gelu(self.first(x)))


def blocks(count, make=lambda i: Block()):
    torch.manual_seed(0)
    with torch.device("cpu"):
        return [make(i).to(device) for i in range(count)]


def loss_fn(output, target):
    return torch.nn.functional.mse_loss(output[0] if isinstance(output, tuple) else output, target)


def whole_tensor(t):
    """All of a DTensor; other tensors are whole. gloo gathers the shards of a DTensor from the memory of a device
    without waiting for its streams."""
    if not hasattr(t, "full_tensor"):
        return t
    if device.type == "cuda":
        torch.cuda.synchronize()
    return t.full_tensor()


def placed(chunks, style):
    """The positions of this rank's stages."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    return [c * ranks + (ranks - 1 - rank if style == "v" and c % 2 else rank) for c in range(chunks)]


def microbatches(step, count, dtype=torch.float32, rows=None):
    torch.manual_seed(100 + step)
    sizes = rows or [4] * count
    draw = lambda: [torch.randn(n, width, dtype=dtype, device="cpu").to(device) for n in sizes]
    return draw(), draw()


def plain_loop(parts, batches, make_optimizer, around=lambda step, mb, part: contextlib.nullcontext()):
    """The same training in one process: losses of all microbatches, and the parameters."""
    optimizers = [make_optimizer(part.parameters()) for part in parts]
    losses = []
    for step, (inputs, targets) in enumerate(batches, 1):
        for mb, (x, y) in enumerate(zip(inputs, targets)):
            for i, part in enumerate(parts):
                with around(step, mb, i):
                    x = part(*x) if isinstance(x, (tuple, list)) else part(x)
            loss = loss_fn(x, y)
            loss.backward()
            losses.append(loss.detach())
        for optimizer, part in zip(optimizers, parts):
            for p in part.parameters():
                if p.grad is not None:
                    p.grad.div_(len(inputs))
            optimizer.step()
            optimizer.zero_grad()
    return losses, parts


def train(chunks, style, options, count=6, counts=(), dtype=torch.float32, rows=None, make_blocks=blocks, **plain):
    """Trains, and compares with the plain loop: every loss and every parameter. `counts`: by step, else `count`."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    make_optimizer = lambda parameters: torch.optim.AdamW(parameters, 1e-2)
    whole = [block.to(dtype) for block in make_blocks(chunks * ranks)]
    batches = [microbatches(step, n, dtype, rows) for step, n in enumerate(counts or [count] * steps)]
    mine = placed(chunks, style)
    own = {i: copy.deepcopy(whole[i]) for i in mine}
    optimizers = [make_optimizer(part.parameters()) for part in own.values()]
    stages = [PipelineStage(own[i], i, chunks * ranks, device) for i in mine]
    schedule = ReadySchedule(stages, count, loss_fn=loss_fn, seed=7, **options)
    losses = []
    for step, (inputs, targets) in enumerate(batches):
        found = []
        schedule.step(
            arg_mbs=[(x,) for x in inputs] if 0 in own else None,
            kwarg_mbs=[{}] * len(inputs) if 0 in own else None,
            target_mbs=targets if chunks * ranks - 1 in own else None,
            losses=found,
            return_outputs=False,
            finalize_gradients=style != "loop",  # all the same without FSDP
        )
        losses += found
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    expected, parts = plain_loop(whole, batches, make_optimizer, **plain)
    for i, part in own.items():
        for (name, a), b in zip(part.state_dict().items(), parts[i].state_dict().values()):
            assert torch.equal(a, b), f"{name} of stage {i} differs by {(a - b).abs().max()}"
    if chunks * ranks - 1 in own:
        assert len(losses) == len(expected)
        for k, (a, b) in enumerate(zip(losses, expected)):
            assert torch.equal(a, b), f"loss {k}: {a} and {b}"
    schedule.close()


def one_chunk(options):
    train(1, "loop", options)


def interleaved(options):
    train(2, "loop", options)


def v_shape(options):
    train(2, "v", options)


def bfloat16(options):
    train(1, "loop", options, dtype=torch.bfloat16)


def one_microbatch(options):
    train(1, "loop", options, count=1)


def other_counts(options):
    train(1, "loop", options, counts=[3, 1, 17, 6])
    train(2, "v", options, counts=[1, 9, 2])


def disagreeing(options):
    """The last rank has other microbatches than the first one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = ReadySchedule(PipelineStage(Block(), rank, ranks, device), 4, loss_fn=loss_fn, **options)
    x = torch.zeros(2, width)
    try:
        schedule.step(
            arg_mbs=[(x,)] * 3 if rank == 0 else None, target_mbs=[x] * 5 if rank == ranks - 1 else None
        )
    except RuntimeError as e:
        assert "expected 3 microbatches, as on the rank of the first stage, got 5" in str(e), e
    else:
        raise AssertionError("expected an error")


def other_options(options):
    """The last rank has others than the first one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    begun = time.monotonic()
    choices = {"slots": ("p", 5), "n_microbatches": (4, 6), "scale_grads": (True, False), "jitter.compute": ("lognormal", None)}
    for name, values in choices.items():
        mine = values[rank == ranks - 1]
        given = {"n_microbatches": 4, **options}
        if "." in name:
            name, given["settings"] = f'settings["{name}"]', {} if mine is None else {name: mine}
        else:
            given[name] = mine
        schedule = ReadySchedule(PipelineStage(Block(), rank, ranks, device), loss_fn=loss_fn, **given)
        try:
            schedule.step(torch.zeros(8, width), **({"target": torch.zeros(8, width)} if rank == ranks - 1 else {}))
        except ValueError as e:
            assert str(e) == f"{name}: expected {values[0]!r} on rank {ranks - 1}, as on rank 0, got {values[1]!r}", e
        else:
            raise AssertionError("expected an error")
    assert time.monotonic() - begun < 30


def other_kinds(options):
    """The last rank evaluates what the others train."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = ReadySchedule(PipelineStage(Block(), rank, ranks, device), 4, loss_fn=loss_fn, **options)
    call = schedule.eval if rank == ranks - 1 else schedule.step
    try:
        call(*([torch.zeros(8, width)] if rank == 0 else []), target=torch.zeros(8, width) if rank == ranks - 1 else None)
    except rrfp.Error as e:
        assert "expected step 1, as other processes have begun, got evaluation 1" in str(e), e
    else:
        raise AssertionError("expected an error")


def other_rows(options):
    train(1, "loop", options, rows=[1, 7, 3, 12, 5, 2])


def many_outputs(options):
    make = lambda count: blocks(count, lambda i: Block(outputs=3 if i + 1 < count else 1))
    train(1, "loop", options, make_blocks=make)


def dropout(options):
    """The plain loop draws the numbers of the schedule."""
    around = lambda step, mb, part: rrfp.keyed_generator(7, step, mb, part, device)
    train(1, "loop", options, make_blocks=lambda count: blocks(count, lambda i: Block(dropout=0.3)), around=around)


def resumed(options):
    """A training that resumes draws the numbers of an undisturbed one."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs, targets = microbatches(0, 4)

    def losses_of(first_steps):
        part = blocks(ranks, lambda i: Block(dropout=0.3))[rank]
        losses = []
        for first, count in first_steps:
            schedule = ReadySchedule(
                PipelineStage(part, rank, ranks, device), 4, loss_fn=loss_fn, seed=7, first_step=first, **options
            )
            for _ in range(count):
                found = []
                schedule.step(
                    arg_mbs=[(x,) for x in inputs] if rank == 0 else None,
                    target_mbs=targets if rank == ranks - 1 else None,
                    losses=found,
                )
                losses += found
            schedule.close()
        return [loss.item() for loss in losses]

    assert losses_of([(1, 3)]) == losses_of([(1, 1), (2, 2)])


def of_lists(options):
    """A stage that returns a list gives the next one several arguments, as in torch's schedules."""

    class Listed(Block):
        def forward(self, x, *others):
            return [super().forward(x, *others), x]

    train(1, "loop", options, make_blocks=lambda n: blocks(n, lambda i: Block() if i == n - 1 else Listed()))


def gradient_of_an_input(options):
    """Also where a hook follows the accumulation of a parameter."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    part = blocks(ranks)[rank]
    part.first.weight.register_post_accumulate_grad_hook(lambda p: None)
    inputs, targets = microbatches(0, 4)
    for x in inputs if rank == 0 else ():
        x.requires_grad_()
    schedule = ReadySchedule(PipelineStage(part, rank, ranks, device), 4, loss_fn=loss_fn, **options)
    schedule.step(arg_mbs=[(x,) for x in inputs] if rank == 0 else None, target_mbs=targets if rank == ranks - 1 else None)
    schedule.close()
    whole = blocks(ranks)
    for x, y in zip(inputs, targets):
        again = x.detach().clone().requires_grad_()
        h = again
        for block in whole:
            h = block(h)
        loss_fn(h, y).backward()
        assert rank != 0 or torch.equal(x.grad, again.grad)


def compiled_loss(options):
    """What is compiled beside the parts stays compiled, although the first step looks for collectives."""
    runs = []

    def backend(graph, inputs):
        return lambda *args: (runs.append(1), graph(*args))[1]

    rank, ranks = dist.get_rank(), dist.get_world_size()
    inputs, targets = microbatches(0, 4)
    compiled = torch.compile(torch.nn.functional.mse_loss, backend=backend)
    schedule = ReadySchedule(PipelineStage(Block().to(device), rank, ranks, device), 4, loss_fn=compiled, **options)
    for _ in range(2):
        schedule.step(arg_mbs=[(x,) for x in inputs] if rank == 0 else None, target_mbs=targets if rank == ranks - 1 else None)
    schedule.close()
    assert len(runs) == (8 if rank == ranks - 1 else 0), runs


def losses_of_other_shapes(options):
    """Each of one element; the forwards of a stage run before its backwards."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x, _ = microbatches(0, 4)
    seen = []

    def loss(output, target):
        seen.append(None)
        found = loss_fn(output, target)
        return found.view(1) if len(seen) % 2 else found

    stage = PipelineStage(Block(), rank, ranks, device)
    schedule = ReadySchedule(
        stage, 4, loss_fn=loss, **options | {"policy": "gpipe", "settings": {"dispatch.mode": "in-order"}}
    )
    schedule.step(arg_mbs=[(one,) for one in x] if rank == 0 else None, target_mbs=x if rank == ranks - 1 else None)
    schedule.close()


def checkpointed(options):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Block):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=False)

    train(1, "loop", options, make_blocks=lambda count: blocks(count, lambda i: Checkpointed()))


def reentrant(options):
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(Block):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=True)

    train(1, "loop", options, make_blocks=lambda count: blocks(count, lambda i: Checkpointed() if i else Block()))


def cast_several_times(options):
    """Autocast around step(), and a stage that uses its input in two matrix products."""

    class Products(Block):
        def forward(self, x):
            x = x.float()
            return x + self.second(self.first(x).relu() * self.first(x))

    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = blocks(ranks, lambda i: Products())
    stage = PipelineStage(copy.deepcopy(whole[rank]), rank, ranks, device)
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
    inputs, targets = microbatches(0, 4)
    with torch.autocast(device.type, torch.bfloat16):
        schedule.step(
            arg_mbs=[(x,) for x in inputs] if rank == 0 else None, target_mbs=targets if rank + 1 == ranks else None
        )
    for x, y in zip(inputs, targets):
        with torch.autocast(device.type, torch.bfloat16):
            for block in whole:
                x = block(x)
            loss = loss_fn(x, y)
        loss.backward()
    for (name, a), b in zip(stage.submod.named_parameters(), whole[rank].parameters()):
        assert b.grad is None and a.grad is None or torch.equal(a.grad, b.grad / 4), name
    schedule.close()


def hooks_of_modules(options):
    """Beside a hook of accumulation, which wants the microbatches in order."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(blocks(ranks)[rank], rank, ranks, device)
    seen = []
    stage.submod.first.register_full_backward_hook(lambda *_: seen.append("module"))
    stage.submod.second.weight.register_post_accumulate_grad_hook(lambda p: seen.append("parameter"))
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options | {"policy": "one_f_one_b"})
    inputs, targets = microbatches(0, 4)
    schedule.step(
        arg_mbs=[(x,) for x in inputs] if rank == 0 else None, target_mbs=targets if rank + 1 == ranks else None
    )
    assert sorted(seen) == ["module"] * 4 + ["parameter"] * 4, seen
    schedule.close()


def among_others(options):
    """Schedules of some ranks, then of all; of torch, whose stages another one has, too; closed before the first step."""
    from torch.distributed.pipelining import ScheduleZBVZeroBubble

    rank, ranks = dist.get_rank(), dist.get_world_size()
    some = dist.new_group([0, 1])
    inputs, targets = microbatches(0, 4)

    def step(stage, last):
        schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
        schedule.step(
            arg_mbs=[(x,) for x in inputs] if rank == 0 else None, target_mbs=targets if rank == last else None
        )
        assert schedule.last["step"] == 1
        schedule.close()

    if rank < 2:
        step(PipelineStage(blocks(2)[rank], rank, 2, device, group=some), 1)
    step(PipelineStage(blocks(ranks)[rank], rank, ranks, device), ranks - 1)

    stages = [PipelineStage(block, i, 2 * ranks, device) for i, block in zip((rank, 2 * ranks - 1 - rank), blocks(2))]
    ScheduleZBVZeroBubble(stages, 4, loss_fn=loss_fn)
    mapping = stages[0].stage_index_to_group_rank
    schedule = ReadySchedule(stages, 4, loss_fn=loss_fn)
    assert stages[0].stage_index_to_group_rank == mapping
    schedule.close()
    try:
        schedule.step()
    except rrfp.Error as e:
        assert str(e) == "the pipeline is closed", e
    else:
        raise AssertionError("expected a closed schedule to make no step")


def skipped(options):
    """Stages of torch's pipeline(), of which the last one takes an output of the first."""
    from torch.distributed.pipelining import SplitPoint, pipeline

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(width, width) for _ in range(3))

        def forward(self, x):
            x = self.a(x)
            return x + self.c(self.b(x).relu())

    traced = pipeline(Model(), mb_args=(torch.zeros(2, width),), split_spec={n: SplitPoint.BEGINNING for n in ("b", "c")})
    stage = traced.build_stage(dist.get_rank(), device)
    try:
        ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
    except ValueError as e:
        assert "expected a chain, but stage 2 takes an output of stage 0" in str(e), e
    else:
        raise AssertionError("expected a skip connection to be refused")


def batch_norm(options):
    """Statistics are those of the microbatches in order."""

    make = lambda count: blocks(count, lambda i: torch.nn.Sequential(Block(), torch.nn.BatchNorm1d(width)))
    train(1, "loop", options, make_blocks=make)


def evaluation(options):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = blocks(ranks)
    schedule = ReadySchedule(PipelineStage(whole[rank], rank, ranks, device), 3, loss_fn=loss_fn, **options)
    x, y = torch.cat(microbatches(0, 3)[0]), torch.zeros(12, width)
    args, target = ((x,) if rank == 0 else ()), (y if rank == ranks - 1 else None)
    for _ in range(2):
        losses = []
        out = schedule.eval(*args, target=target, losses=losses)
        assert all(p.grad is None for p in whole[rank].parameters())
        schedule.step(*args, target=target)
        assert all(p.grad is not None for p in whole[rank].parameters())
        whole[rank].zero_grad()
    if rank == ranks - 1:
        for part in whole[:-1]:
            x = part(x)
        expected = [whole[-1](part) for part in x.tensor_split(3)]
        assert torch.equal(out, torch.cat(expected))
        assert [loss.item() for loss in losses] == [loss_fn(o, torch.zeros_like(o)).item() for o in expected]
    schedule.close()


def fully_sharded(options):
    """Two stages of two ranks each, over which FSDP2 spreads the parameters: the sums of both replicas."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    whole = blocks(2)
    part = copy.deepcopy(whole[pp])
    fully_shard(part, mesh=mesh["dp"], reshard_after_forward=False)
    optimizer = torch.optim.SGD(part.parameters(), 0.1)
    stage = PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group())
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
    optimizers = [torch.optim.SGD(block.parameters(), 0.1) for block in whole]
    for step in range(steps):
        inputs, targets = microbatches(step, 8)
        mine = slice(4 * dp, 4 * dp + 4)
        schedule.step(
            arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None,
            kwarg_mbs=[{}] * 4,
            target_mbs=targets[mine] if pp == 1 else None,
        )
        optimizer.step()
        optimizer.zero_grad()
        sums = []
        for replica in range(2):
            for x, y in list(zip(inputs, targets))[4 * replica : 4 * replica + 4]:
                loss_fn(whole[1](whole[0](x)), y).backward()
            sums.append([p.grad / 1 for block in whole for p in block.parameters()])
            for block in whole:
                block.zero_grad()
        for p, a, b in zip([p for block in whole for p in block.parameters()], *sums):
            p.grad = (a + b) / 2 / 4
        for one in optimizers:
            one.step()
            one.zero_grad()
    for (name, a), b in zip(part.named_parameters(), whole[pp].parameters()):
        torch.testing.assert_close(whole_tensor(a), b, rtol=1e-6, atol=1e-7, msg=name)
    part.set_reshard_after_forward(True)
    try:
        schedule.step(arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None, target_mbs=targets[mine] if pp == 1 else None)
    except rrfp.Error as e:
        assert "fully_shard: expected reshard_after_forward=False" in str(e), e
    else:
        raise AssertionError("expected what is gathered for each microbatch to be refused")


def sharded_again(options):
    """The gradients of a failed step are in none of a later schedule."""
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    inputs, targets = microbatches(0, 8)
    mine = slice(4 * dp, 4 * dp + 4)

    def step(part):
        stage = PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group())
        schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options | {"policy": "one_f_one_b"})
        try:
            schedule.step(
                arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None, target_mbs=targets[mine] if pp == 1 else None
            )
        finally:
            schedule.close()
        return [whole_tensor(p.grad) for p in part.parameters()]

    parts = [fully_shard(blocks(2)[pp], mesh=mesh["dp"], reshard_after_forward=False) for _ in range(2)]
    seen = []

    def fail(*_):
        seen.append(None)
        if pp == 1 and len(seen) == 4:
            raise ValueError("no more")

    hook = parts[0].first.register_forward_hook(fail)
    try:
        step(parts[0])
    except rrfp.Error as e:
        assert "F3 of step 1: ValueError: no more" in str(e), e
    else:
        raise AssertionError("expected an error")
    hook.remove()
    parts[0].zero_grad()
    dist.barrier()
    for a, b in zip(*(step(part) for part in parts)):
        assert torch.equal(a, b)


def replicated(options):
    """DistributedDataParallel inside the parts."""
    from torch.nn.parallel import DistributedDataParallel

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    whole = blocks(2)
    part = DistributedDataParallel(copy.deepcopy(whole[pp]), process_group=mesh["dp"].get_group())
    stage = PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group())
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
    inputs, targets = microbatches(0, 8)
    mine = slice(4 * dp, 4 * dp + 4)
    schedule.step(
        arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None,
        kwarg_mbs=[{}] * 4,
        target_mbs=targets[mine] if pp == 1 else None,
    )
    for x, y in zip(inputs, targets):
        loss_fn(whole[1](whole[0](x)), y).backward()
    for (name, a), b in zip(part.module.named_parameters(), whole[pp].parameters()):
        torch.testing.assert_close(a.grad, b.grad / 8, rtol=1e-5, atol=1e-7, msg=lambda text: f"{name}: {text}")
    schedule.close()


def replicated_experts(options):
    """A parameter that one replica alone has used is averaged with zeros; an ignored one is left alone."""
    from torch.nn.parallel import DistributedDataParallel

    class Experts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(3))
            self.ignored = torch.nn.Parameter(torch.ones(width))
            self.table = torch.nn.Embedding(4, width, sparse=True)

        def forward(self, x):
            y = self.experts[int(x[0, 0] > 0)](x) * self.ignored
            return y + self.table(torch.arange(len(x)) % 4) if x[0, 0] > 0 else y

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    pp, dp = mesh["pp"].get_local_rank(), mesh["dp"].get_local_rank()
    whole = blocks(2, lambda i: Experts() if i == 0 else Block())
    part = copy.deepcopy(whole[pp])
    if pp == 0:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(part, ["ignored"])
    part = DistributedDataParallel(part, process_group=mesh["dp"].get_group(), find_unused_parameters=True)
    schedule = ReadySchedule(
        PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group()), 2, loss_fn=loss_fn, **options
    )
    inputs, targets = microbatches(0, 4)
    for i, x in enumerate(inputs):
        x[:, 0] = 1 if i < 2 else -1  # replica 0 uses the second expert, replica 1 the first one
    mine = slice(2 * dp, 2 * dp + 2)
    schedule.step(
        arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None, target_mbs=targets[mine] if pp == 1 else None
    )
    alone = copy.deepcopy(whole)
    for i, (x, y) in enumerate(zip(inputs, targets)):
        loss_fn(whole[1](whole[0](x)), y).backward()
        if i // 2 == dp:
            loss_fn(alone[1](alone[0](x)), y).backward()
    for (name, a), b, c in zip(part.module.named_parameters(), whole[pp].parameters(), alone[pp].parameters()):
        wanted = c.grad / 2 if name == "ignored" else None if b.grad is None else b.grad / 4
        assert (a.grad is None) == (wanted is None), name
        if wanted is not None:
            a.grad, wanted = (grad.to_dense() if grad.is_sparse else grad for grad in (a.grad, wanted))
            torch.testing.assert_close(a.grad, wanted, rtol=1e-5, atol=1e-7, msg=lambda text: f"{name}: {text}")
    schedule.close()
    hooked, commed, built_in = (
        DistributedDataParallel(Block(), process_group=mesh["dp"].get_group()) for _ in range(3)
    )
    hooked.register_forward_hook(lambda *_: None)
    commed.register_comm_hook(None, lambda state, bucket: None)
    built_in._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
    comm = "expected no communication hook"
    for part, word in (hooked, "expected hooks on the module inside"), (commed, comm), (built_in, comm):
        schedule = ReadySchedule(
            PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group()), 2, loss_fn=loss_fn, **options
        )
        try:
            schedule.step(
                arg_mbs=[(x,) for x in inputs[mine]] if pp == 0 else None, target_mbs=targets[mine] if pp == 1 else None
            )
        except rrfp.Error as e:
            assert word in str(e), e
        else:
            raise AssertionError(f"{word}: expected to be refused")
        dist.barrier()  # the hook of a rank is the first error of its pipeline


def tensor_parallel(options, make=lambda i: Block()):
    """Two stages of two tensor-parallel ranks, with sequence parallelism if the options say so."""
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    pp = mesh["pp"].get_local_rank()
    whole = blocks(2, make)
    part = parallelize_module(
        copy.deepcopy(whole[pp]), mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()}
    )
    stage = PipelineStage(part, pp, 2, device, group=mesh["pp"].get_group())
    schedule = ReadySchedule(stage, 6, loss_fn=loss_fn, **options)
    inputs, targets = microbatches(0, 6)
    losses = []
    schedule.step(
        arg_mbs=[(x,) for x in inputs] if pp == 0 else None,
        kwarg_mbs=[{}] * 6,
        target_mbs=targets if pp == 1 else None,
        losses=losses,
    )
    assert schedule._rank is not None and len(schedule._place.domain) == 2
    for x, y in zip(inputs, targets):
        loss_fn(whole[1](whole[0](x)), y).backward()
    for (name, a), b in zip(part.named_parameters(), whole[pp].parameters()):
        torch.testing.assert_close(whole_tensor(a.grad), b.grad / 6, rtol=1e-5, atol=1e-7, msg=lambda text: f"{name}: {text}")
    schedule.close()


def verdicts_that_differ(options):
    """What a rank has measured alone does not decide whether tensor-parallel ranks split a backward."""
    from rrfp import _part

    add = _part._SplitTrial.add
    of_rank = lambda self, *found: None if add(self, *found) is None else dist.get_rank() % 2 == 0
    _part._SplitTrial.add = of_rank
    try:
        for _ in range(2):
            tensor_parallel(options)
    finally:
        _part._SplitTrial.add = add


def tensor_parallel_at_the_end(options):
    tensor_parallel(options, lambda i: Ending())


def reported(options):
    """The picture of a step, the metrics, and a trace for Perfetto."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    schedule = ReadySchedule(PipelineStage(Block(), rank, ranks, device), 4, loss_fn=loss_fn, trace=True, **options)
    x = torch.zeros(8, width)
    schedule.step(*((x,) if rank == 0 else ()), target=x if rank == ranks - 1 else None)
    several = [torch.zeros(2, n, width) for n in (4, 6)]
    outputs = schedule.step(arg_mbs=several if rank == 0 else None, target_mbs=several if rank == ranks - 1 else None)
    assert outputs is None or [output.shape for output in outputs] == [mb.shape for mb in several]
    assert schedule.report().svg.startswith("<svg")
    assert "rrfp_stage_steps_total" in schedule.metrics()
    assert schedule.last["step"] == 2 and 0 <= schedule.last["bubble"] < 1
    schedule.close()
    try:
        schedule.step()
    except RuntimeError as e:
        assert "closed" in str(e)
    else:
        raise AssertionError("expected an error")


def other_outputs(options):
    """Those that are no tensors come in a list."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(8, width)
    for other in None, 3, "a text":

        class Several(Block):
            def forward(self, x):
                return super().forward(x), other

        part = Several() if rank == ranks - 1 else Block()
        schedule = ReadySchedule(PipelineStage(part, rank, ranks, device), 4, loss_fn=loss_fn, **options)
        outputs = schedule.step(*((x,) if rank == 0 else ()), target=x if rank == ranks - 1 else None)
        assert outputs is None or [(y.shape, o) for y, o in outputs] == [((2, width), other)] * 4, outputs
        schedule.close()


def refused(options):
    """What a schedule cannot do is refused, on all ranks alike."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    stage = PipelineStage(Block(), rank, ranks, device)
    elsewhere = PipelineStage(Block(), rank, ranks, torch.device("meta"))
    twin = PipelineStage(stage.submod, rank + ranks, 2 * ranks, device)
    for wrong, word in [
        ({"policy": "bwf"}, "bfw_plus"),
        ({"gradient_order": "some"}, "exact"),
        ({"split_backward": "no"}, "split_backward"),
        ({"settings": {"dispatch.weight_pieces": 2}}, "weight_pieces"),
        ({"stages": elsewhere}, "CUDA device, got meta"),
        ({"stages": [stage, elsewhere]}, "CUDA device, got cpu, meta"),
        ({"stages": [stage, twin]}, f"stages {rank} and {rank + ranks} share the parameter 'first.weight'"),
        ({"first_step": 0}, "first_step: expected an integer >= 1, got 0"),
        ({"settings": {"pipeline.stages": 3}}, "expected none, because the schedule sets it"),
        ({"seed": -1}, "seed: expected an integer from 0 to 2^64 - 1, got -1"),
        ({"n_microbatches": 0}, "n_microbatches: expected an integer >= 1, got 0"),
        ({"n_microbatches": "4"}, "n_microbatches: expected an integer >= 1, got '4'"),
        ({"stages": None}, "stages: expected a PipelineStage, or several, got NoneType"),
        ({"stages": []}, "stages: expected a PipelineStage, or several, got none"),
        ({"args_chunk_spec": 3}, "args_chunk_spec: expected a tuple, got 3"),
    ]:
        try:
            ReadySchedule(**{"stages": stage, "n_microbatches": 4, **wrong})
        except ValueError as e:
            assert word in str(e), e
        else:
            raise AssertionError(f"expected {wrong} to be refused")
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, **options)
    x = torch.zeros(8, width)
    several = [(x,)] * 4
    for wrong, word in [
        ({"kwarg_mbs": [{}, 3]}, "kwarg_mbs[1]: expected a dict, got int"),
        ({"target": (x,)}, "target: expected a tensor, or target_mbs, got tuple"),
    ]:
        try:
            schedule.step(**wrong)
        except TypeError as e:
            assert str(e) == word, e
        else:
            raise AssertionError(f"expected {list(wrong)} to be refused")
    for wrong in [{"arg_mbs": []}, {"arg_mbs": several, "kwarg_mbs": [{}]}, {"arg_mbs": several, "target": x}]:
        try:
            schedule.step(**wrong)
        except ValueError as e:
            assert "got" in str(e), e
        else:
            raise AssertionError(f"expected {list(wrong)} to be refused")
    if rank + 1 == ranks:
        try:
            schedule.eval(*([x] if rank == 0 else []), losses=[])
        except ValueError as e:
            assert "target: expected one on the rank of the last stage" in str(e), e
        else:
            raise AssertionError("expected losses without a target to be refused")
    schedule = ReadySchedule(stage, 4, loss_fn=lambda output, target: output - target, **options)
    x = x.to(device)
    try:
        schedule.step(*([x] if rank == 0 else []), target=x if rank + 1 == ranks else None)
    except rrfp.Error as e:
        assert f"loss_fn: expected a tensor of one element, got [2, {width}]" in str(e), e
    else:
        raise AssertionError("expected the loss of a row to be refused")
    schedule = ReadySchedule(stage, 4, loss_fn=lambda output, target: loss_fn(output.detach(), target), **options)
    try:
        schedule.step(x, losses=())
    except TypeError as e:
        assert str(e) == "losses: expected a list, got tuple", e
    else:
        raise AssertionError("expected losses in a tuple to be refused")
    try:
        schedule.step(*([x] if rank == 0 else []), target=x if rank + 1 == ranks else None)
    except rrfp.Error as e:
        assert "loss_fn: expected a loss that depends on a parameter which requires a gradient" in str(e), e
    else:
        raise AssertionError("expected a loss without a graph to be refused")


def in_a_trainer(options):
    """As torchtitan calls the pipelining_fn of a model."""
    from types import SimpleNamespace

    from torch.distributed.pipelining import Schedule1F1B

    def base(model, *, parallel_dims, loss_fn, n):
        rank, ranks = dist.get_rank(), dist.get_world_size()
        stage = PipelineStage(model[rank], rank, ranks, device)
        schedule = Schedule1F1B(stage, n, loss_fn=loss_fn, scale_grads=False)
        return schedule, [model[rank]], rank == 0, rank + 1 == ranks

    class ChunkedLossWrapper:
        def __call__(self, *pair, weight):
            return weight * loss_fn(*pair)

    dims = SimpleNamespace(pp=dist.get_world_size(), cp=1, tp=1, ep=1, world_size=dist.get_world_size())
    model = blocks(dims.pp)
    schedule, parts, has_first, has_last = pipelining_fn(base, **options)(
        model, parallel_dims=dims, loss_fn=ChunkedLossWrapper(), n=4
    )
    assert isinstance(schedule, ReadySchedule) and parts == [model[dist.get_rank()]]
    inputs, targets = microbatches(0, 4)
    losses = [] if has_last else None
    schedule.step(
        arg_mbs=[(x,) for x in inputs] if has_first else None,
        kwarg_mbs=[{}] * 4,
        target_mbs=targets if has_last else None,
        losses=losses,
        loss_kwargs={"weight": 2.0},
        return_outputs=False,
    )
    assert schedule._rank.forwards_in_order == has_last
    grads = [p.grad.clone() for p in parts[0].parameters()]
    for block in model:
        block.zero_grad()
    for x, y in zip(inputs, targets):
        for block in model:
            x = block(x)
        (2.0 * loss_fn(x, y)).backward()
    assert all(torch.equal(a, b.grad) for a, b in zip(grads, parts[0].parameters()))
    schedule.close()


def collective_outside(options):
    """Over both replicas inside a task: refused, unless the replicas run the same tasks."""
    mesh = init_device_mesh(device.type, (2, 2), mesh_dim_names=("pp", "dp"))
    pp, group = mesh["pp"].get_local_rank(), mesh["dp"].get_group()
    x = torch.zeros(8, width)

    def mean_of(y):
        mean = y.detach().mean()
        dist.all_reduce(mean, group=group)
        return mean

    class Averaging(Block):
        def forward(self, x):
            y = super().forward(x)
            return y - mean_of(y)

    class Exchanging(Block):
        def forward(self, x):
            y = super().forward(x)
            torch.ops._dtensor.shard_dim_alltoall(y.detach(), 0, 1, group.group_name)
            return y

    class Own(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            mean_of(torch.ones(1))
            return func(*(a.as_subclass(torch.Tensor) if isinstance(a, Own) else a for a in args), **(kwargs or {}))

    class Handling(Block):
        def forward(self, x):
            y = super().forward(x)
            torch.ops.aten.neg(y.detach().as_subclass(Own))
            return y

    def compiled(block):
        block.first.compile(backend="eager")
        return block

    def step(parts, loss_fn=loss_fn, domain=None):
        among = mesh["pp"].get_group()
        stages = [PipelineStage(part, pp + 2 * i, 2 * len(parts), device, group=among) for i, part in enumerate(parts)]
        schedule = ReadySchedule(stages, 4, loss_fn=loss_fn, domain=domain, **options)
        schedule.step(*((x,) if pp == 0 else ()), target=x if pp == 1 else None)
        schedule.close()

    def check_refused(what, *given):
        try:
            step(*given)
        except rrfp.Error as e:
            assert f"{what} over the ranks [0, 1] inside a task" in str(e) or f"{what} over the ranks [2, 3]" in str(e), e
        else:
            raise AssertionError(f"expected {what} to be refused")
        dist.barrier()

    step([Averaging() if pp == 0 else Block()], domain=mesh["dp"])
    for kind, what in (Averaging, "allreduce"), (Exchanging, "shard_dim_alltoall"), (Handling, "allreduce"):
        check_refused(what, [kind() if pp == 0 else Block()])
    check_refused("allreduce", [compiled(Block()), Averaging() if pp == 0 else Block()])
    check_refused("allreduce", [compiled(Block())], lambda y, target: loss_fn(y, target) + mean_of(y))


def interrupted(options):
    """Ctrl-C on one rank ends the step of all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    class Slow(Block):
        def forward(self, x):
            if rank == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return super().forward(x)

    schedule = ReadySchedule(PipelineStage(Slow(), rank, ranks, device), 4, loss_fn=loss_fn, **options)
    x = torch.zeros(8, width)
    try:
        schedule.step(*((x,) if rank == 0 else ()), target=x if rank == ranks - 1 else None)
    except KeyboardInterrupt:
        assert rank == 1
    except RuntimeError as e:
        assert rank != 1 and "KeyboardInterrupt" in str(e), e
    else:
        raise AssertionError("expected an end")


def raised(options):
    """An exception of one rank reaches all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    class Broken(Block):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                raise ValueError("no more")
            return super().forward(x)

    part = Broken() if rank == 1 else Block()
    schedule = ReadySchedule(PipelineStage(part, rank, ranks, device), 4, loss_fn=loss_fn, **options)
    x = torch.zeros(8, width)
    try:
        schedule.step(*((x,) if rank == 0 else ()), target=x if rank == ranks - 1 else None)
    except RuntimeError as e:
        assert "stage 1, F2 of step 1: ValueError: no more" in str(e), e
        assert (e.__cause__ is not None) == (rank == 1), e.__cause__
    else:
        raise AssertionError("expected an error")


if __name__ == "__main__":
    torch.set_num_threads(1)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    torch.set_default_device(device)
    dist.init_process_group(os.environ.get("RRFP_TEST_BACKEND", "gloo"))
    for case in sys.argv[2:]:
        globals()[case](ast.literal_eval(sys.argv[1]))
        dist.barrier()
        if dist.get_rank() == 0:
            print("passed", case, flush=True)
    dist.destroy_process_group()
