"""One rank of the Python package rrfp; `run` starts one process a rank.

    rrfp_worker.py MODE POLICY CHUNKS OUT.json WARM_UP STEPS ROW:DELAYS.csv...

The model, the loss and the optimizer are those of torch_worker.py; two CHUNKS are placed in a V. MODE "schedule" is
rrfp.torch.ReadySchedule over torch's own stages, in a loop if CHUNKS is "loop". The runtime itself sleeps the delays, after the computation of a task and before its result is sent.
"""

import json
import os
import pathlib
import sys
import time

import rrfp
import torch
import torch.distributed as distributed
from rrfp.torch import ReadySchedule
from torch.distributed.pipelining import PipelineStage

import model
from delays import STAGES, Row, row_of


def train(mode: str, policy: str, chunks: int, row: Row, file: str, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    rank = int(os.environ["RANK"])
    parts = STAGES * chunks

    def part(index: int, count: int) -> torch.nn.Module:
        torch.manual_seed(1 + index)
        return model.part_of(row, index, count)

    settings = {"jitter.delays": file, "pipeline.chunks": chunks, "dispatch.mode": mode}
    if chunks > 1:
        settings |= {"pipeline.placement": "v", "dispatch.slot_unit": "chunk"}
    has_target = rank == (STAGES - 1 if chunks == 1 else 0)
    batches = [list(zip(*microbatches)) for microbatches in model.batches(row)]
    begun = []
    with rrfp.Pipeline(
        part, model.loss_of, n_microbatches=row.microbatches, n_stages=parts, policy=policy,
        optimizer=lambda weights: torch.optim.SGD(weights, lr=model.LEARNING_RATE), settings=settings,
    ) as pipe:
        for step in range(steps):
            arguments, targets = batches[step % len(batches)]
            begun.append(time.perf_counter())
            pipe.step_microbatches(
                arguments if rank == 0 else None, target_mbs=targets if has_target else None, return_outputs=False
            )
        begun.append(time.perf_counter())
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def train_stages(policy: str, chunks: str, row: Row, file: str, steps: int) -> list[float]:
    """The same through the stages of torch.distributed.pipelining."""
    rank = distributed.get_rank()
    places = {"1": [rank], "2": [rank, 2 * STAGES - 1 - rank], "loop": [rank, STAGES + rank]}[chunks]
    parts = STAGES * len(places)
    torch.manual_seed(1)
    stages = [PipelineStage(model.part_of(row, at, parts), at, parts, torch.device("cpu")) for at in places]
    settings = {"jitter.delays": file} | ({"dispatch.slot_unit": "chunk"} if len(places) > 1 else {})
    schedule = ReadySchedule(stages, row.microbatches, loss_fn=model.loss_of, policy=policy, settings=settings)
    optimizer = torch.optim.SGD([w for s in stages for w in s.submod.parameters()], lr=model.LEARNING_RATE)
    batches = [list(zip(*microbatches)) for microbatches in model.batches(row)]
    begun = []
    for step in range(steps):
        arguments, targets = batches[step % len(batches)]
        begun.append(time.perf_counter())
        schedule.step(
            arg_mbs=list(arguments) if 0 in places else None,
            kwarg_mbs=[{}] * row.microbatches,
            target_mbs=list(targets) if parts - 1 in places else None,
            return_outputs=False,
        )
        optimizer.step()
        optimizer.zero_grad()
    begun.append(time.perf_counter())
    schedule.close()
    distributed.barrier()
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def main() -> None:
    mode, policy, chunks, out = sys.argv[1:5]
    warm_up, measured = int(sys.argv[5]), int(sys.argv[6])
    torch.set_num_threads(1)
    if mode == "schedule":
        distributed.init_process_group("gloo")
    results = []
    for argument in sys.argv[7:]:
        name, file = argument.split(":", 1)
        row, steps = row_of(name), warm_up + measured
        if mode == "schedule":
            times = train_stages(policy, chunks, row, file, steps)
        else:
            times = train(mode, policy, int(chunks), row, file, steps)
        results.append(times[warm_up:])
    if os.environ["RANK"] == "0":
        pathlib.Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
