"""One rank of torch.distributed.pipelining; `run` starts one process a rank.

    torch_worker.py SCHEDULE OUT.json WARM_UP STEPS ROW:DELAYS.csv...

A stage sleeps the delay of a task after its computation and before its result is sent. In schedules with two
stages per rank, each of the two sleeps half of the rank's delay. Shapes are those of the first microbatch, so the
rows "images" are padded, and their delays are those of the largest microbatch. SCHEDULE "plain" is a loop over the
microbatches with all parts in this process.
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
    ScheduleDualPipeV,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
    ScheduleZBVZeroBubble,
)

import model
from delays import STAGES, Delays, Row, row_of

V = (ScheduleZBVZeroBubble, ScheduleDualPipeV)
SCHEDULES = {
    schedule.__name__: schedule
    for schedule in (Schedule1F1B, ScheduleInterleaved1F1B, ScheduleInterleavedZeroBubble, *V)
}


class DelayedStage(PipelineStage):
    def __init__(self, part: torch.nn.Module, index: int, stages: int, rank: int, delays: Delays) -> None:
        super().__init__(part, index, stages, torch.device("cpu"))
        self.delays = delays
        self.rank = rank
        self.share = STAGES / stages
        self.at_step = 0

    def _get_init_p2p_neighbors_ops(self):
        """No handshake of neighbours: with a V it sends to its own rank, which gloo cannot do."""
        return []

    def pause(self, mb: int, kinds: str) -> None:
        ms = sum(self.delays.ms_of(self.at_step, self.rank, mb, kind) for kind in kinds)
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


def train(schedule_type, row: Row, delays: Delays, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    rank = distributed.get_rank()
    places = [rank]
    if schedule_type is not Schedule1F1B:
        places.append(2 * STAGES - 1 - rank if schedule_type in V else STAGES + rank)
    parts = STAGES * len(places)
    torch.manual_seed(1)
    stages = [DelayedStage(model.part_of(row, place, parts), place, parts, rank, delays) for place in places]
    schedule = schedule_type(
        stages if len(stages) > 1 else stages[0], n_microbatches=row.microbatches, loss_fn=model.loss_of
    )
    parameters = [weight for stage in stages for weight in stage.submod.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=model.LEARNING_RATE)
    batches = [model.padded(row, microbatches) for microbatches in model.batches(row)]
    begun = []
    for step in range(steps):
        for stage in stages:
            stage.at_step = step
        arguments, targets = batches[step % len(batches)]
        labels = {"target": targets} if parts - 1 in places else {}
        begun.append(time.perf_counter())
        schedule.step(*(arguments if rank == 0 else ()), **labels)
        optimizer.step()
        optimizer.zero_grad()
    begun.append(time.perf_counter())
    distributed.barrier()
    return durations(begun)


def loop(row: Row, steps: int) -> list[float]:
    torch.manual_seed(1)
    parts = torch.nn.Sequential(*[model.part_of(row, place, STAGES) for place in range(STAGES)])
    optimizer = torch.optim.SGD(parts.parameters(), lr=model.LEARNING_RATE)
    batches = model.batches(row)
    begun = []
    for step in range(steps):
        begun.append(time.perf_counter())
        for arguments, target in batches[step % len(batches)]:
            (model.loss_of(parts(*arguments), target) / row.microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()
    begun.append(time.perf_counter())
    return durations(begun)


def durations(begun: list[float]) -> list[float]:
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def main() -> None:
    schedule, out, warm_up, measured = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    is_plain = schedule == "plain"
    if not is_plain:
        distributed.init_process_group("gloo")
    results = []
    for argument in sys.argv[5:]:
        name, file = argument.split(":", 1)
        row, steps = row_of(name), warm_up + measured
        if is_plain:
            times = loop(row, steps)
        else:
            times = train(SCHEDULES[schedule], row, Delays(pathlib.Path(file)), steps)
        results.append(times[warm_up:])
    if is_plain or distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    if not is_plain:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # do not wait for gloo's threads
