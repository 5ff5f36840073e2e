"""A rank of test_endings.py, of a pipeline of either kind: one rank ends in the given way at some moment of 6 steps.

usage: ending_program.py pipeline|ready|replicated WAY VICTIM STEP MICROBATCH SPLIT SIGMA SECONDS
"""

import os
import signal
import sys
import threading

import torch

kind, way, victim, at_step, at_mb, split, sigma, seconds = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
torch.set_num_threads(1)
torch.manual_seed(rank)
step = forwards = 0


def may_end(*where):
    if rank != int(victim) or step != int(at_step) or way not in where:
        return
    what, _, place = way.partition(" in ")
    if what == "raise":
        raise LookupError(f"planted in {place}")
    if what == "exit":
        sys.exit(5)
    os.kill(os.getpid(), signal.SIGINT if what == "interrupt" else signal.SIGKILL)


class Ending(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        may_end("raise in backward")
        return gradient


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x):
        global forwards
        forwards += 1
        if forwards == int(at_mb):
            may_end("raise in forward", "exit in forward", "interrupt in forward", "kill in forward")
        return Ending.apply(self.layer(x))


def loss_fn(output, target):
    may_end("raise in loss")
    return torch.nn.functional.mse_loss(output, target)


def train(run_step):
    global step, forwards
    while step < 6 or way == "interrupt at any moment":
        may_end("raise in program", "exit in program", "kill in program")
        if way == "interrupt at any moment" and rank == int(victim) and step == int(at_step):
            threading.Timer(float(seconds), os.kill, (os.getpid(), signal.SIGINT)).start()
        forwards = 0
        run_step(*args, **target)
        step += 1


x = torch.randn(8, 8)
stages = 2 if kind == "replicated" else world
index = rank * stages // world
args, target = (x,) if index == 0 else (), {"target": x} if index == stages - 1 else {}
settings = {"jitter.compute": "lognormal", "jitter.compute_sigma": float(sigma)} if float(sigma) > 0 else {}
if kind != "pipeline":
    import torch.distributed as dist
    from rrfp.torch import ReadySchedule
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.pipelining import PipelineStage

    dist.init_process_group("gloo")
    part, group = Part(), None
    if kind == "replicated":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        part = torch.nn.parallel.DistributedDataParallel(part, process_group=mesh["dp"].get_group())
        group = mesh["pp"].get_group()
    stage = PipelineStage(part, index, stages, torch.device("cpu"), group=group)
    schedule = ReadySchedule(stage, 4, loss_fn=loss_fn, split_backward=split == "True", settings=settings)
    train(schedule.step)
    schedule.close()
else:
    import rrfp

    last = loss_fn if index == stages - 1 else None
    options = {"optimizer": lambda p: torch.optim.SGD(p, 0.01), "settings": settings}
    with rrfp.Pipeline(Part(), last, n_stages=world, n_microbatches=4, **options) as pipe:
        train(pipe.step)
