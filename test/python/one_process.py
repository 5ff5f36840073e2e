"""One process of test_processes.py. With "cases" it trains all of cases.py and saves what comes out; with "kill"
process 1 ends in the middle of a training; with "rows" it has a target of other rows than the inputs, with "counts"
other microbatches; with "late" it calls step() after the others have given up, with "first" process 0 does; with "names"
both have the same; with "updates" it makes no update; with "kinds" it evaluates instead."""

import os
import signal
import sys
import time

import rrfp
import torch
from models import adam, mlp, rows

folder, what = sys.argv[1:]
rank = int(os.environ["RANK"])
if what == "cases":
    from cases import CASES, train

    torch.save({name: train(case, rank) for name, case in CASES.items()}, f"{folder}/{rank}.pt")
else:
    late = {"first": 0, "late": 1}.get(what)
    settings = {} if late is None else {"run.hang_timeout_s": 2}
    part = mlp(2)[rank]
    if what == "names":
        part.name_of_parameter = lambda name: "a." + name
    with rrfp.Pipeline(
        part, torch.nn.functional.mse_loss, n_microbatches=6, optimizer=adam, settings=settings
    ) as pipe:
        for step in range(3):
            x, y = rows(step)
            if what == "rows" and step == 1:
                y = y[:7]
            if rank == late and step == 1:
                time.sleep(6)
            if rank == 1 and step == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            n = 5 if what == "counts" and rank == 1 and step == 1 else None
            update = not (what == "updates" and rank == 1 and step == 1)
            if what == "kinds" and rank == 1 and step == 1:
                pipe.eval(target=y)
            given = {"target": y if rank == 1 else None, "n_microbatches": n, "update": update}
            try:
                pipe.step(*([x] if rank == 0 else []), **given)
            except rrfp.Error:
                if what == "updates" and rank == 1:
                    pipe.step(target=y)  # which fails, too
                    os._exit(0)
                raise
