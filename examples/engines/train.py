"""Trains a pipeline with one stage in each process, under torchrun or an engine that starts it.

torchrun --standalone --nproc-per-node 4 --max-restarts 3 train.py [--steps 10] [--checkpoints FOLDER]
python train.py --stages 4                      the same in one process

With --checkpoints, a program that is started again resumes after the last saved step. An exception is written to the
file named by the variable TORCHELASTIC_ERROR_FILE.
"""

import argparse

import torch
from torch.distributed.elastic.multiprocessing.errors import record

import rrfp


def part(index, count):
    torch.manual_seed(index)
    return torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())


@record
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, help="default: one in each process")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--checkpoints", default="", metavar="FOLDER", help="which all processes share")
    parser.add_argument("--listen", default="127.0.0.1", help="the address of this machine that the others reach")
    options = parser.parse_args()
    torch.manual_seed(0)
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    with rrfp.Pipeline(part, torch.nn.functional.mse_loss, n_microbatches=16, policy="bfw", slots=8,
                       n_stages=options.stages, optimizer=lambda params: torch.optim.AdamW(params, 1e-3),
                       settings={"transport.listen": options.listen, "checkpoint.dir": options.checkpoints,
                                 "checkpoint.every": 5}) as pipe:
        while pipe.steps < options.steps:
            pipe.step(x, target=y)
            if 0 in pipe.stages:
                print(f"step {pipe.last.step}: loss {pipe.last.loss!r}", flush=True)


if __name__ == "__main__":
    main()
