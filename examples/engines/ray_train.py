"""Trains a pipeline of four parts under Ray Train, each part in a worker of its own.

pip install rrfp 'ray[train]' torch
python ray_train.py [--workers 4] [--cpus 1] [--steps 10]

Ray's workers have torch's process group. The pipeline finds its processes through the store of that group, and its
connections are authenticated by a key that the driver draws. If a worker is lost, the others end within seconds, and the
error of fit() names the lost stage.
"""

import argparse
import os
import secrets

import ray
import ray.train
import torch
from ray.train.torch import TorchTrainer

import rrfp


def train(config):
    os.environ["RRFP_KEY"] = config["key"]
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"  # at MASTER_PORT is the store of the process group
    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(rank)
    part = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh())
    torch.manual_seed(0)
    x, y = torch.randn(64, 32), torch.randn(64, 32)
    with rrfp.Pipeline(part, torch.nn.functional.mse_loss, n_microbatches=16, policy="bfw", slots=8,
                       optimizer=lambda params: torch.optim.AdamW(params, 1e-3),
                       settings={"transport.listen": ray.util.get_node_ip_address()}) as pipe:
        for step in range(config["steps"]):
            pipe.step(x, target=y)
            ray.train.report({"loss": pipe.last.loss})
            if rank == 0:
                print(f"step {pipe.last.step}: loss {pipe.last.loss:.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--cpus", type=float, default=1, help="of each worker, as Ray counts them")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    trainer = TorchTrainer(
        train,
        train_loop_config={"key": secrets.token_hex(32), "steps": options.steps},
        scaling_config=ray.train.ScalingConfig(num_workers=options.workers, resources_per_worker={"CPU": options.cpus}),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
