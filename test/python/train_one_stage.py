"""One process of test_processes.py, started by torchrun: trains its stage and saves what came out."""

import os
import signal
import sys
import time

import rrfp
import torch
from models import adam, mlp, rows

folder, way = sys.argv[1:]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
part = mlp(world)[rank]
settings = {"run.hang_timeout_s": 60}
if way == "jitter":
    settings.update({"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5})
with rrfp.Pipeline(
    part, torch.nn.functional.mse_loss, n_microbatches=6, optimizer=adam, settings=settings
) as pipe:
    all_losses = []
    for step in range(3):
        x, y = rows(step)
        if way == "kill" and step == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        losses = []
        output = pipe.step(
            *([x] if rank == 0 else []), target=y if rank == world - 1 else None, losses=losses
        )
        assert (output is not None) == (rank == world - 1)
        all_losses.append([loss.item() for loss in losses])
torch.save({"losses": all_losses, "part": part.state_dict()}, f"{folder}/{rank}.pt")
