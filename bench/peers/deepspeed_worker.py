"""One rank of DeepSpeed's PipelineEngine on its CPU accelerator; `run` starts one process a rank.

    deepspeed_worker.py OUT.json WARM_UP STEPS ROW:DELAYS.csv...

Its schedule is 1F1B, forwards and backwards each in the order of the microbatches. A stage's module
sleeps a forward's delay after its computation; its autograd function sleeps a backward's. In the rows "images"
shapes are exchanged before every message (dynamic_shape).
"""

import itertools
import json
import os
import pathlib
import sys
import time

import deepspeed
import torch
import torch.distributed as distributed
from deepspeed.pipe import PipelineModule

import model
from delays import STAGES, Delays, Row, row_of


class Pauses:
    """Sleeps the delays of a stage, whose tasks run in a known order."""

    def __init__(self, stage: int, microbatches: int, delays: Delays) -> None:
        self.stage = stage
        self.microbatches = microbatches
        self.delays = delays
        self.done = {"F": 0, "BW": 0}

    def sleep(self, task: str) -> None:
        step, mb = divmod(self.done[task], self.microbatches)
        self.done[task] += 1
        ms = sum(self.delays.ms_of(step, self.stage, mb, kind) for kind in task)
        if ms > 0:
            time.sleep(ms / 1e3)


class BackwardPause(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor, pauses: Pauses) -> torch.Tensor:
        ctx.pauses = pauses
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: torch.Tensor):
        ctx.pauses.sleep("BW")
        return gradient, None


class DelayedPart(torch.nn.Module):
    def __init__(self, row: Row, index: int, pauses: Pauses) -> None:
        super().__init__()
        self.part = model.part_of(row, index, STAGES)
        self.pauses = pauses

    def forward(self, x) -> torch.Tensor:
        y = self.part(*x) if isinstance(x, tuple) else self.part(x)
        self.pauses.sleep("F")
        return BackwardPause.apply(y, self.pauses)


def train(row: Row, delays: Delays, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    torch.manual_seed(1)
    layers = [DelayedPart(row, i, Pauses(i, row.microbatches, delays)) for i in range(STAGES)]
    pipeline = PipelineModule(
        layers, num_stages=STAGES, loss_fn=model.loss_of, partition_method="uniform",
        dynamic_shape=row.kind == "images",
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=model.LEARNING_RATE)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": row.microbatches,
        "steps_per_print": 1_000_000_000,
    }
    engine, *_ = deepspeed.initialize(model=pipeline, optimizer=optimizer, config=config)
    microbatches = [
        (arguments if len(arguments) > 1 else arguments[0], target)
        for step in model.batches(row)
        for arguments, target in step
    ]
    data = itertools.cycle(microbatches)
    begun = []
    for _ in range(steps):
        begun.append(time.perf_counter())
        engine.train_batch(data)
    begun.append(time.perf_counter())
    distributed.barrier()
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def main() -> None:
    out, warm_up, measured = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo")
    results = []
    for argument in sys.argv[4:]:
        name, file = argument.split(":", 1)
        delays = Delays(pathlib.Path(file))
        results.append(train(row_of(name), delays, warm_up + measured)[warm_up:])
    if distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    distributed.barrier()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
