"""Several processes, one stage each."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest
import torch
from models import mlp, rows, train_plainly

FOLDER = pathlib.Path(__file__).parent


def torchrun(processes, *args):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, str(FOLDER / "train_one_stage.py"), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=FOLDER,
    )


@pytest.mark.parametrize("processes, way", [(2, "ready"), (4, "jitter")])
def test_every_process_trains_its_stage_to_the_bits_of_a_plain_loop(tmp_path, processes, way):
    done = torchrun(processes, tmp_path, way)
    assert done.returncode == 0, done.stderr
    plain = mlp(processes)
    losses = train_plainly(plain, torch.nn.functional.mse_loss, [rows(step) for step in range(3)], 6)
    for rank in range(processes):
        saved = torch.load(tmp_path / f"{rank}.pt")
        assert saved["losses"] == losses
        expected = plain[rank].state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in saved["part"].items())


def test_a_killed_process_ends_the_others_with_its_name(tmp_path):
    # Without torchrun, which ends the others itself as soon as one is gone.
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(FOLDER / "train_one_stage.py"), str(tmp_path), "kill"],
            env=os.environ
            | {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
            stderr=subprocess.PIPE,
            text=True,
            cwd=FOLDER,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, -signal.SIGKILL], errors
    assert "rrfp.Error" in errors[0] and "node 1" in errors[0] and "lost" in errors[0], errors
    assert not list(tmp_path.iterdir())
