"""Parts on CUDA devices: a GPU, or the host-side fake that ctest names in RRFP_HOST_CUDA."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

fake = os.environ.get("RRFP_HOST_CUDA")


@pytest.mark.skipif(not fake and not torch.cuda.is_available(), reason="no CUDA device")
def test_parts_train_on_devices_to_the_same_bits_in_every_order():
    on_fake = {"LD_PRELOAD": fake, "RRFP_HOST_CUDA_DEVICES": "4"} if fake else {}
    done = subprocess.run(
        [sys.executable, "on_device.py"],
        cwd=pathlib.Path(__file__).parent,
        env={**os.environ, **on_fake},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0 and "equal" in done.stderr, done.stderr
