"""Parts on CUDA devices: a GPU, or the host-side fake that ctest names in RRFP_HOST_CUDA."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch
from fake_cuda import variables


@pytest.mark.skipif(not variables and not torch.cuda.is_available(), reason="no CUDA device")
def test_parts_train_on_devices_to_the_same_bits_in_every_order():
    done = subprocess.run(
        [sys.executable, "on_device.py"],
        cwd=pathlib.Path(__file__).parent,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and "equal" in done.stderr, done.stderr
