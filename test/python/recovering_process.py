"""One process of test_recovery.py: trains its part and saves it. Where `kills` say so, it kills itself once, in a forward
or in the program between two steps."""

import os
import pathlib
import signal
import sys

import rrfp
import torch

STEPS, STAGES, MICROBATCHES = 12, 2, 4


class Part(torch.nn.Module):
    def __init__(self, index, has_buffer, may_die=lambda step, where: None):
        super().__init__()
        torch.manual_seed(index)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Tanh())
        self.has_buffer = self.forwards_in_order = has_buffer  # not with replicas
        if has_buffer:
            self.register_buffer("seen", torch.zeros(()))
        self.step, self.may_die = 0, may_die

    def forward(self, x):
        if self.has_buffer:
            self.seen += x.detach().mean()
        self.may_die(self.step, "forward")
        return self.layers(x)


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 8, generator=draw), torch.randn(8, 8, generator=draw)


def pipeline(parts, replicas, **settings):
    return rrfp.Pipeline(
        parts,
        torch.nn.functional.mse_loss,
        n_microbatches=MICROBATCHES // replicas,
        n_stages=STAGES,
        optimizer=lambda params: torch.optim.AdamW(params, 1e-2),
        settings={"pipeline.replicas": replicas, "run.hang_timeout_s": 60} | settings,
    )


def main():
    folder, kills = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))

    def may_die(step, where):
        mark = folder / f"{rank}-{step}-{where}"
        if f"{rank}:{step}:{where}" in kills and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"recovery.max_restarts": 8}
    if os.environ.get("CHECKPOINTS"):
        settings |= {"checkpoint.dir": os.environ["CHECKPOINTS"], "checkpoint.every": 4, "checkpoint.resume": "auto"}
    part_at = lambda index, count: Part(index, world == STAGES, may_die)
    pipe = pipeline(part_at, world // STAGES, **settings)
    (stage, part), = pipe.stages.items()
    losses = {}
    while pipe.steps < STEPS:
        step = part.step = pipe.steps
        may_die(step, "between")
        x, y = batch(step)
        try:
            pipe.step(*([x] if stage == 0 else []), target=y if stage == STAGES - 1 else None)
        except rrfp.Error as e:
            if e.kind != "node_lost":
                raise
            pipe.recover()
            print(f"rank {rank} goes on after step {pipe.steps}: {e}", file=sys.stderr)
        else:
            losses[step] = pipe.last.losses
    pipe.finish()
    torch.save((stage, losses, part.state_dict()), folder / f"{rank}.pt")


if __name__ == "__main__":
    main()
