"""A program whose processes are killed and started again goes on, with the bits of an undisturbed run."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading

import torch
from recovering_process import STEPS, STAGES, Part, batch, pipeline

FOLDER = pathlib.Path(__file__).parent
LIVES_MAX = 10


def run(folder, world, *kills, **environment):
    """Each process in a loop that starts it again when it was killed. Returns what each one saved and printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ends, errors = [None] * world, [""] * world

    def live(rank):
        env = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        command = [sys.executable, str(FOLDER / "recovering_process.py"), str(folder), *kills]
        env = os.environ | {key: str(value) for key, value in env.items()} | environment
        for _ in range(LIVES_MAX):
            done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, cwd=FOLDER, timeout=200)
            errors[rank] += done.stderr
            ends[rank] = done.returncode
            if done.returncode != -signal.SIGKILL:
                return

    lives = [threading.Thread(target=live, args=(rank,)) for rank in range(world)]
    for life in lives:
        life.start()
    for life in lives:
        life.join()
    assert ends == [0] * world, errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)], errors


def check_undisturbed(saved, replicas):
    parts = [Part(index, replicas == 1) for index in range(STAGES)]
    losses = []
    with pipeline(parts, replicas) as pipe:
        for step in range(STEPS):
            x, y = batch(step)
            pipe.step(x, target=y)
            losses.append(pipe.last.losses)
    for stage, of_process, state in saved:  # one that was started again has the later losses
        assert of_process and all(losses[step] == values for step, values in of_process.items())
        expected = parts[stage].state_dict()
        assert state.keys() == expected.keys()
        assert all(torch.equal(value, state[key]) for key, value in expected.items())


def test_killed_processes_are_replaced_and_the_bits_are_those_of_an_undisturbed_run(tmp_path):
    saved, errors = run(tmp_path, 4, "1:5:forward", "0:7:between", "3:9:forward")
    check_undisturbed(saved, replicas=2)
    assert "goes on after step" in errors[2], errors


def test_the_loss_of_all_processes_goes_on_from_a_checkpoint(tmp_path):
    saved, _ = run(tmp_path, 2, "1:5:forward", "0:9:between", "1:9:between", CHECKPOINTS=str(tmp_path / "checkpoints"))
    check_undisturbed(saved, replicas=1)
