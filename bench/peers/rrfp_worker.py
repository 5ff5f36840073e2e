"""One rank of the Python package rrfp; `run` starts one process a rank.

    rrfp_worker.py OUT.json WARM_UP STEPS MICROBATCHES:DELAYS.csv...

The model, the loss and the optimizer are those of torch_worker.py. The runtime itself sleeps the delays, after
the computation of a task and before its result is sent.
"""

import json
import os
import pathlib
import sys
import time

import rrfp
import torch

import model
from delays import STAGES


def train(microbatches: int, file: str, steps: int) -> list[float]:
    """For each step: milliseconds from its start to the start of the next, on this rank."""
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    part = model.Part(rank, STAGES)
    tokens, targets = model.batch(microbatches)
    arguments = (tokens,) if rank == 0 else ()
    labels = {"target": targets} if rank == STAGES - 1 else {}
    begun = []
    with rrfp.Pipeline(
        part, model.loss_of, n_microbatches=microbatches, policy="bfw",
        optimizer=lambda weights: torch.optim.SGD(weights, lr=model.LEARNING_RATE),
        settings={"jitter.delays": file},
    ) as pipe:
        for _ in range(steps):
            begun.append(time.perf_counter())
            pipe.step(*arguments, return_outputs=False, **labels)
        begun.append(time.perf_counter())
    return [(end - begin) * 1e3 for begin, end in zip(begun, begun[1:])]


def main() -> None:
    out, warm_up, measured = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    results = []
    for row in sys.argv[4:]:
        microbatches, file = row.split(":", 1)
        results.append(train(int(microbatches), file, warm_up + measured)[warm_up:])
    if os.environ["RANK"] == "0":
        pathlib.Path(out).write_text(json.dumps(results))


if __name__ == "__main__":
    main()
