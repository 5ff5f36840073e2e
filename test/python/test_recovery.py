"""A program whose processes are killed and started again goes on, with the bits of an undisturbed run."""

import os
import pathlib
import signal
import subprocess
import threading
import time

import pytest
import torch
from network import free_port
from recovering_process import STEPS, STAGES, Part, batch, between_steps, pipeline
from warm import PYTHON

FOLDER = pathlib.Path(__file__).parent
LIVES_MAX = 10


def run(folder, world, *kills, lives=LIVES_MAX, **environment):
    """Each process in a loop that starts it again when it was killed. Returns what each one saved and printed; with one
    life, without those that were killed."""
    folder.mkdir(exist_ok=True)
    port = free_port()
    ends, errors = [None] * world, [""] * world

    def live(rank):
        env = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1}
        command = [PYTHON, str(FOLDER / "recovering_process.py"), str(folder), *kills]
        env = os.environ | {key: str(value) for key, value in (env | environment).items()}
        for _ in range(lives):
            done = subprocess.run(command, env=env, stderr=subprocess.PIPE, text=True, cwd=FOLDER, timeout=200)
            errors[rank] += done.stderr
            ends[rank] = done.returncode
            if done.returncode != -signal.SIGKILL:
                return
            for _ in range(6000 if "COME_BACK" in environment else 0):  # else the others might not go on without it
                if (folder / "goes_on").exists():
                    break
                time.sleep(0.01)

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lost = {int(kill.split(":")[0]) for kill in kills} if lives == 1 else set()
    assert ends == [-signal.SIGKILL if rank in lost else 0 for rank in range(world)], errors
    return [torch.load(folder / f"{rank}.pt") for rank in range(world) if rank not in lost], errors


def check_undisturbed(saved, replicas):
    parts = [Part(index, replicas == 1) for index in range(STAGES)]
    losses = []
    with pipeline(parts, replicas) as pipe:
        for step in range(1 + max(step for of_process, _ in saved for step in of_process)):
            between_steps(pipe)
            x, y = batch(step)
            pipe.step(x, target=y)
            losses.append(pipe.last.losses)
    assert len(losses) >= STEPS
    for of_process, states in saved:  # one that was started again has the later losses
        assert all(losses[step] == values for step, values in of_process.items())
        for stage, state in states.items():
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


def test_a_spare_takes_the_place_of_a_process(tmp_path):
    saved, errors = run(tmp_path, 3, "0:5:forward", lives=1, STAND_IN="spare")
    check_undisturbed(saved, replicas=1)
    assert sorted(stage for _, states in saved for stage in states) == [0, 1], errors


def test_the_process_of_another_replica_takes_the_place_of_one(tmp_path):
    saved, errors = run(tmp_path, 4, "3:5:forward", lives=1, STAND_IN="reroute")
    check_undisturbed(saved, replicas=2)
    assert "goes on after step" in "".join(errors)


def test_a_tensor_parallel_rank_takes_the_place_of_one(tmp_path):
    whole, _ = run(tmp_path / "whole", 4, STAND_IN="reroute", TP=2)
    saved, errors = run(tmp_path, 4, "3:5:forward", lives=1, STAND_IN="reroute", TP=2)
    assert "goes on after step" in "".join(errors)
    for (losses, states), (of_process, mine) in zip(whole, saved):
        assert all(losses[step] == values for step, values in of_process.items())
        assert all(torch.equal(value, mine[0][key]) for key, value in states[0].items())


@pytest.mark.parametrize(
    "killed, stand_in, world, replicas", [("0:1:forward", "reroute", 4, 2), ("1:8:between", "spare", 3, 1)]
)
def test_a_process_that_comes_back_gets_its_parts_again(tmp_path, killed, stand_in, world, replicas):
    saved, _ = run(tmp_path, world, killed, STAND_IN=stand_in, COME_BACK=1)
    check_undisturbed(saved, replicas)
    assert [sorted(states) for _, states in saved] == [[0], [1], [0], [1]][: STAGES * replicas] + [[]] * (world - STAGES * replicas)
