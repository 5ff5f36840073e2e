"""One rank of torch.distributed.pipelining; `run` starts one process a rank.

    torch_worker.py SCHEDULE OUT.json WARM_UP STEPS MICROBATCHES:DELAYS.csv...

A stage sleeps the delay of a task after its computation and before its result is sent. In schedules
with two stages per rank, each of the two sleeps half of the rank's delay.
"""

import json
import os
import pathlib
import sys
import time

import torch
import torch.distributed as distributed
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    Schedule1F1B,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

import model
from delays import STAGES, Delays

CHUNKS = {Schedule1F1B: 1, ScheduleInterleaved1F1B: 2, ScheduleInterleavedZeroBubble: 2}
SCHEDULES = {schedule.__name__: schedule for schedule in CHUNKS}


class DelayedStage(PipelineStage):
    def __init__(self, part: torch.nn.Module, index: int, stages: int, delays: Delays) -> None:
        super().__init__(part, index, stages, torch.device("cpu"))
        self.delays = delays
        self.share = STAGES / stages
        self.at_step = 0

    def pause(self, mb: int, kinds: str) -> None:
        rank = self.stage_index % STAGES
        ms = sum(self.delays.ms_of(self.at_step, rank, mb, kind) for kind in kinds)
        if ms > 0:
            time.sleep(ms * self.share / 1e3)

    def forward_one_chunk(self, fwd_chunk_id: int, *arguments, **more):
        output = super().forward_one_chunk(fwd_chunk_id, *arguments, **more)
        self.pause(fwd_chunk_id, "F")
        return output

    def backward_one_chunk(self, bwd_chunk_id: int, loss=None, full_backward=True, **more):
        super().backward_one_chunk(bwd_chunk_id, loss=loss, full_backward=full_backward, **more)
        self.pause(bwd_chunk_id, "BW" if full_backward else "B")

    def backward_weight_one_chunk(self, bwd_chunk_id: int, **more):
        super().backward_weight_one_chunk(bwd_chunk_id, **more)
        self.pause(bwd_chunk_id, "W")


def train(schedule_type, microbatches: int, delays: Delays, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    rank = distributed.get_rank()
    chunks = CHUNKS[schedule_type]
    places = [rank + STAGES * chunk for chunk in range(chunks)]
    torch.manual_seed(1)
    stages = [
        DelayedStage(model.Part(place, STAGES * chunks), place, STAGES * chunks, delays)
        for place in places
    ]
    schedule = schedule_type(
        stages if chunks > 1 else stages[0], n_microbatches=microbatches, loss_fn=model.loss_of
    )
    parameters = [weight for stage in stages for weight in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=model.LEARNING_RATE)
    tokens, targets = model.batch(microbatches)
    arguments = (tokens,) if rank == 0 else ()
    labels = {"target": targets} if rank == STAGES - 1 else {}
    begun = []
    for step in range(steps):
        for stage in stages:
            stage.at_step = step
        begun.append(time.perf_counter())
        schedule.step(*arguments, **labels)
        optimizer.step()
        optimizer.zero_grad()
    begun.append(time.perf_counter())
    distributed.barrier()
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def main() -> None:
    schedule, out, warm_up, measured = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    results = []
    for row in sys.argv[5:]:
        microbatches, file = row.split(":", 1)
        delays = Delays(pathlib.Path(file))
        steps = train(SCHEDULES[schedule], int(microbatches), delays, warm_up + measured)
        results.append(steps[warm_up:])
    if distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # do not wait for gloo's threads
