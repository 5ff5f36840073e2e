"""The state of a training in the formats of others: torch.distributed.checkpoint, and the folders of transformers."""

import pathlib
import subprocess

import pytest
import rrfp
import torch
import transformers
from models import adam
from test_transformers import ids_of, loss_fn, make
from warm import PYTHON

FOLDER = pathlib.Path(__file__).parent

# In each of two processes: two steps, and a checkpoint of both.
PROGRAM = """
import os, sys
import rrfp, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from test_state import ids_of, open_pipeline

dist.init_process_group("gloo")
rank = dist.get_rank()
with open_pipeline(lambda parts: parts[rank], 2) as pipe:
    for step in range(2):
        ids = ids_of(step)
        pipe.step(*([ids] if rank == 0 else []), target=ids if rank == 1 else None)
    dcp.save(pipe.state_dict(), checkpoint_id=sys.argv[1])
dist.destroy_process_group()
"""


def open_pipeline(of_parts, stages, model=None):
    model = model or make("llama")
    parts = rrfp.from_transformers(model, stages)
    return rrfp.Pipeline(of_parts(parts), loss_fn, 4, optimizer=adam, on_note=lambda line: None)


def losses_of(pipe, steps):
    losses = []
    for step in steps:
        pipe.step(ids_of(step), target=ids_of(step), losses=losses)
    return [loss.item() for loss in losses]


@pytest.fixture(scope="module")
def checkpoint_of_two_processes(tmp_path_factory):
    """Its folder."""
    folder = tmp_path_factory.mktemp("checkpoint")
    command = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    program = folder / "program.py"
    program.write_text(f"import sys; sys.path.insert(0, {str(FOLDER)!r})\n" + PROGRAM)
    done = subprocess.run([*command, str(program), str(folder / "saved")], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return folder / "saved"


@pytest.mark.parametrize("stages", [1, 3, 4])
def test_a_checkpoint_of_torch_loads_with_another_number_of_stages(checkpoint_of_two_processes, stages):
    import torch.distributed.checkpoint as dcp

    with open_pipeline(list, 2) as pipe:
        losses_of(pipe, range(2))
        expected = losses_of(pipe, range(2, 4))
    with open_pipeline(list, stages) as pipe:
        losses_of(pipe, [9])  # the optimizers have a state to be loaded into
        state = pipe.state_dict()
        dcp.load(state, checkpoint_id=checkpoint_of_two_processes, no_dist=True)
        pipe.load_state_dict(state)
        assert losses_of(pipe, range(2, 4)) == expected


def test_a_trained_model_is_a_folder_of_transformers(tmp_path):
    model = make("qwen3")
    with open_pipeline(list, 3, model) as pipe:
        losses_of(pipe, range(2))
        model.save_pretrained(tmp_path)
        expected = losses_of(pipe, range(2, 3))
    assert (tmp_path / "model.safetensors").exists()
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with open_pipeline(list, 2, loaded) as pipe:
        assert losses_of(pipe, range(2, 3)) == expected
