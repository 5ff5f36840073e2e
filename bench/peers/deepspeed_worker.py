"""One rank of DeepSpeed's PipelineEngine on its CPU accelerator; `run` starts one process a rank.

    deepspeed_worker.py OUT.json WARM_UP STEPS MICROBATCHES:DELAYS.csv...

Its schedule is 1F1B, forwards and backwards each in the order of the microbatches. A stage's module
sleeps a forward's delay after its computation; its autograd function sleeps a backward's.
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
from delays import STAGES, Delays


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


class DelayedPart(model.Part):
    def __init__(self, index: int, pauses: Pauses) -> None:
        super().__init__(index, STAGES)
        self.pauses = pauses

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.pauses.sleep("F")
        return BackwardPause.apply(y, self.pauses)


def train(microbatches: int, delays: Delays, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    torch.manual_seed(1)
    layers = [DelayedPart(i, Pauses(i, microbatches, delays)) for i in range(STAGES)]
    pipeline = PipelineModule(
        layers, num_stages=STAGES, loss_fn=model.loss_of, partition_method="uniform"
    )
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=model.LEARNING_RATE)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": microbatches,
        "steps_per_print": 1_000_000_000,
    }
    engine, *_ = deepspeed.initialize(model=pipeline, optimizer=optimizer, config=config)
    tokens, targets = model.batch(microbatches)
    data = itertools.cycle([(tokens[i : i + 1], targets[i : i + 1]) for i in range(microbatches)])
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
    for row in sys.argv[4:]:
        microbatches, file = row.split(":", 1)
        delays = Delays(pathlib.Path(file))
        results.append(train(int(microbatches), delays, warm_up + measured)[warm_up:])
    if distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    distributed.barrier()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)
