"""A program of torchrun: runs schedules of torch.distributed.pipelining and records them with torch.profiler.

usage: recorded_program.py FOLDER CASE...   CASE: schedule:microbatches:spread, for example 1f1b:8:0.4

Each stage sleeps: F, B and W take known times, which differ between tasks by a log-normal factor of that spread. Each
rank writes FOLDER/CASE/rank0.json.gz and measures its tasks itself: FOLDER/CASE/truth0.json. The schedule
ready-POLICY-SLOTS-CHUNKS is ReadySchedule on the same stages; it measures its steps, and records nothing. "deepspeed" and
"deepspeed_stack" (with Python functions in the trace) are DeepSpeed's pipeline engine, if that is installed.
"""

import json
import os
import random
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)
from torch.profiler import ProfilerActivity, profile

SCHEDULES = {
    "1f1b": (Schedule1F1B, 1),
    "gpipe": (ScheduleGPipe, 1),
    "interleaved": (ScheduleInterleaved1F1B, 2),
    "zero_bubble": (ScheduleInterleavedZeroBubble, 2),
    "zbv": (ScheduleZBVZeroBubble, 2),
}
WIDTH = 32
SECONDS = {kind: float(os.environ.get(f"{kind}_MS", ms)) / 1000 for kind, ms in [("F", 10), ("B", 14), ("W", 6)]}
STEPS = int(os.environ.get("STEPS", 3))


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.backward = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward)
        return gradient.clone(), None, None


class Slow(torch.nn.Module):
    """The first number of each row is its microbatch, which the stage hands on."""

    def __init__(self, stage, spread):
        super().__init__()
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.linear.weight.register_hook(lambda g: time.sleep(SECONDS["W"]))
        self.stage, self.spread = stage, spread

    def seconds(self, kind, microbatch):
        draw = random.Random(f"{self.stage} {microbatch} {kind}")
        return SECONDS[kind] * draw.lognormvariate(0, self.spread)

    def forward(self, x):
        mb = round(x[0, 0].item())
        y = torch.cat([x[:, :1], self.linear(x)[:, 1:]], 1)
        return Sleep.apply(y, self.seconds("F", mb), self.seconds("B", mb))


class Stage(PipelineStage):
    """At the start it sends to its neighbours, which gloo cannot do within a rank of a V."""

    def _get_init_p2p_neighbors_ops(self):
        return [op for op in super()._get_init_p2p_neighbors_ops() if op.group_peer != dist.get_rank()]


def run_timed(tasks, stage, kind, microbatch, run, *args, **kwargs):
    begin = time.perf_counter()
    done = run(*args, **kwargs)
    tasks.append([stage, kind, microbatch, begin * 1e3, time.perf_counter() * 1e3])
    return done


def measured(stage, tasks):
    """The stage whose tasks are measured by this process itself."""

    def timed(method, kind):
        def run(microbatch, *args, **kwargs):
            found = "I" if kind == "B" and not kwargs.get("full_backward", True) else kind
            return run_timed(tasks, stage.stage_index, found, microbatch, method, microbatch, *args, **kwargs)

        return run

    stage.forward_one_chunk = timed(stage.forward_one_chunk, "F")
    stage.backward_one_chunk = timed(stage.backward_one_chunk, "B")
    stage.backward_weight_one_chunk = timed(stage.backward_weight_one_chunk, "W")
    return stage


def count_losses(schedule, tasks):
    """The loss belongs to the forward of the last stage."""
    compute = schedule._compute_loss

    def run(*args):
        loss = compute(*args)
        tasks[-1][4] = time.perf_counter() * 1e3
        return loss

    schedule._compute_loss = run


def deepspeed_step(count, spread, tasks):
    """A function that trains one step in DeepSpeed's engine, whose tasks are measured by this process itself."""
    import deepspeed
    from deepspeed.pipe import PipelineModule
    from deepspeed.runtime.pipe.schedule import BackwardPass, ForwardPass

    deepspeed.init_distributed(dist_backend="gloo")
    stages = [Slow(i, spread) for i in range(dist.get_world_size())]
    pipeline = PipelineModule(
        stages, num_stages=len(stages), loss_fn=torch.nn.functional.mse_loss, partition_method="uniform"
    )
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": count}
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.01)
    engine, *_ = deepspeed.initialize(model=pipeline, optimizer=optimizer, config=config)

    def timed(method, kind):
        def run(engine, *args, **kwargs):
            microbatch = sum(task[1] == kind for task in tasks) % count
            return run_timed(tasks, engine.stage_id, kind, microbatch, method, engine, *args, **kwargs)

        return run

    methods = engine._INSTRUCTION_MAP
    engine._INSTRUCTION_MAP = {
        **methods, ForwardPass: timed(methods[ForwardPass], "F"), BackwardPass: timed(methods[BackwardPass], "B")
    }
    microbatches = [torch.randn(2, WIDTH) for _ in range(count)]
    for i, x in enumerate(microbatches):
        x[:, 0] = i
    return lambda: engine.train_batch(iter([(x, torch.zeros(2, WIDTH)) for x in microbatches]))


def run(folder, case):
    name, count, spread = case.split(":")
    count, spread = int(count), float(spread)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if name.startswith("deepspeed"):
        tasks = []
        return record(folder, case, tasks, deepspeed_step(count, spread, tasks), with_stack=name.endswith("_stack"))
    ready = name.startswith("ready-")
    if ready:
        _, policy, slots, chunks = name.split("-")
        chunks = int(chunks)
    else:
        make, chunks = SCHEDULES[name]
    positions = [2 * ranks - 1 - rank if name == "zbv" and c else rank + c * ranks for c in range(chunks)]
    tasks = []
    stages = [
        Stage(Slow(i, spread), i, chunks * ranks, torch.device("cpu")) for i in positions
    ]
    options = dict(n_microbatches=count, loss_fn=torch.nn.functional.mse_loss)
    if ready:
        from rrfp.torch import ReadySchedule

        # "auto" compares the CPU times of both ways, and stages that sleep have almost none.
        schedule = ReadySchedule(stages, policy=policy, slots=int(slots), split_backward=True, **options)
    else:
        stages = [measured(stage, tasks) for stage in stages]
        schedule = make(stages if chunks > 1 else stages[0], **options)
        if name != "gpipe":  # whose name ends before the loss
            count_losses(schedule, tasks)
    x = torch.randn(count * 2, WIDTH)
    x[:, 0] = torch.arange(count).repeat_interleave(2)
    y = torch.randn(count * 2, WIDTH)

    inputs = [x] if 0 in positions else []
    targets = {"target": y} if chunks * ranks - 1 in positions else {}
    record(folder, case, tasks, lambda: schedule.step(*inputs, **targets), ready=ready)
    if ready:
        schedule.close()


def record(folder, case, tasks, step, ready=False, with_stack=False):
    """Trains some steps, and writes their trace and what the process measured."""
    rank = dist.get_rank()
    for _ in range(1 + ready):
        step()
    dist.barrier()
    tasks.clear()
    os.makedirs(f"{folder}/{case}", exist_ok=True)
    times = []

    def measured_step():
        begin = time.perf_counter()
        step()
        times.append((time.perf_counter() - begin) * 1e3)

    if ready:
        for _ in range(STEPS):
            dist.barrier()
            measured_step()
    else:
        with profile(activities=[ProfilerActivity.CPU], with_stack=with_stack) as recorder:
            for _ in range(STEPS):
                measured_step()
        recorder.export_chrome_trace(f"{folder}/{case}/rank{rank}.json.gz")
    with open(f"{folder}/{case}/truth{rank}.json", "w") as file:
        json.dump({"tasks": tasks, "steps": times}, file)
    dist.barrier()


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for case in sys.argv[2:]:
        run(sys.argv[1], case)
        sys.stdout.write(f"recorded {case}\n")  # at once: ranks share it, and torchrun starts them without a buffer
    dist.destroy_process_group()
