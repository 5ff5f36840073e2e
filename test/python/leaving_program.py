"""A rank of two that share a file: one leaves, and the other one prints what it is told.

usage: leaving_program.py RANK FILE HOW
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage

from rrfp.torch import ReadySchedule

rank, file, how = int(sys.argv[1]), sys.argv[2], sys.argv[3]
leaves = rank == (0 if how == "wrong leader" else 1)
settings = {"transport.join_timeout_s": "soon"} if leaves and how.startswith("wrong") else {}
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{file}", rank=rank, world_size=2)
stage = PipelineStage(torch.nn.Linear(4, 4), rank, 2, torch.device("cpu"))
schedule = ReadySchedule(stage, 2, loss_fn=torch.nn.functional.mse_loss, hang_timeout_s=2000, settings=settings)
x = torch.zeros(2, 4)
try:
    for step in range(3):
        if leaves and step == {"before": 0, "exit": 1, "raise": 1, "close": 1}.get(how):
            if how in ("before", "exit"):
                sys.exit()
            if how == "raise":
                raise LookupError("no more rows")
            schedule.close()
        schedule.step(*((x,) if rank == 0 else ()), target=x if rank == 1 else None)
except RuntimeError as e:
    if leaves:
        raise
    print(f"{type(e).__name__}: {e}")
