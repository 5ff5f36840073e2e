"""One process of test_recovery.py: trains its parts and saves them. Where `kills` say so, it kills itself once, in a
forward or in the program between two steps. STAND_IN: spare or reroute, so that another process takes its place; COME_BACK: until it is back. TP: tensor-parallel
ranks, of one stage."""

import os
import pathlib
import signal
import sys

import rrfp
import torch

STEPS, STAGES, MICROBATCHES = 12, 2, 4


class Part(torch.nn.Module):
    def __init__(self, index, has_buffer, may_die=lambda step, where: None, group=None):
        super().__init__()
        torch.manual_seed(index if group is None else group.rank)
        self.group = group
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.2), torch.nn.Tanh())
        self.has_buffer = self.forwards_in_order = has_buffer  # not with replicas
        if has_buffer:
            self.register_buffer("seen", torch.zeros(()))
        self.step, self.may_die = 0, may_die

    def forward(self, x):
        if self.has_buffer:
            self.seen += x.detach().mean()
        self.may_die(self.step, "forward")
        if self.group is not None:
            return rrfp.reduce_from_ranks(self.layers(rrfp.copy_to_ranks(x, self.group)), self.group)
        return self.layers(x)


def batch(step):
    draw = torch.Generator().manual_seed(step)
    return torch.randn(8, 8, generator=draw), torch.randn(8, 8, generator=draw)


def pipeline(parts, replicas, **settings):
    return rrfp.Pipeline(
        parts,
        torch.nn.functional.mse_loss,
        n_microbatches=MICROBATCHES // replicas,
        n_stages=settings.get("pipeline.stages", STAGES),
        optimizer=lambda params: torch.optim.AdamW(params, 1e-2),
        settings={"pipeline.replicas": replicas, "run.hang_timeout_s": 60} | settings,
    )


def between_steps(pipe):
    """A learning rate of the program, and other weights for a moment, which no copy of the state may hold."""
    for optimizer in pipe.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + pipe.steps)
    for part in pipe.stages.values():
        for p in part.parameters():
            kept = p.detach().clone()
            with torch.no_grad():
                p.zero_()
                p.copy_(kept)


def main():
    folder, kills = pathlib.Path(sys.argv[1]), sys.argv[2:]
    rank, world = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE"))
    stand_in = os.environ.get("STAND_IN")
    marks = set(folder.glob("*.mark"))

    def may_die(step, where):
        mark = folder / f"{rank}-{step}-{where}.mark"
        if f"{rank}:{step}:{where}" in kills and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    settings = {"recovery.max_restarts": 8}
    if os.environ.get("CHECKPOINTS"):
        settings |= {"checkpoint.dir": os.environ["CHECKPOINTS"], "checkpoint.every": 4, "checkpoint.resume": "auto"}
    if stand_in == "spare":
        settings["recovery.spares"] = 1
        world -= 1
    elif stand_in:
        settings["recovery.without_replacement"] = stand_in
    ranks = int(os.environ.get("TP", 1))
    stages = STAGES // ranks
    if ranks > 1:
        settings |= {"pipeline.tp": ranks, "pipeline.stages": stages}
    part_at = lambda index, count, group=None: Part(index, world == STAGES, may_die, group)
    pipe = pipeline(part_at, world // STAGES, **settings)
    losses, recoveries = {}, 0

    def are_away():
        """Whether a process has to come back yet: its loss and its return are a recovery each."""
        return "COME_BACK" in os.environ and recoveries < 2 * len(set(folder.glob("*.mark")) - marks)

    while pipe.steps < STEPS or are_away():
        step = pipe.steps
        for part in pipe.stages.values():
            part.step = step
        may_die(step, "between")
        between_steps(pipe)
        x, y = batch(step)
        passes = lambda stage: stand_in or stage in pipe.stages
        try:
            pipe.step(*([x] if passes(0) else []), target=y if passes(stages - 1) else None)
        except rrfp.Error as e:
            if e.kind != "node_lost":
                raise
            pipe.recover()
            recoveries += 1
            (folder / "goes_on").touch()
            print(f"rank {rank} goes on after step {pipe.steps}: {e}", file=sys.stderr)
        else:
            losses[step] = pipe.last.losses
    pipe.finish()
    torch.save((losses, {stage: part.state_dict() for stage, part in pipe.stages.items()}), folder / f"{rank}.pt")


if __name__ == "__main__":
    main()
