"""The host-side fake of CUDA that ctest names in RRFP_HOST_CUDA."""

import functools
import os
import sys

import pytest
import warm

path = os.environ.get("RRFP_HOST_CUDA")
DEVICES = {"RRFP_HOST_CUDA_DEVICES": "4"}
#: Of a process with its devices, which begins without torch, as do the ranks that it starts by torchrun.
variables = {"LD_PRELOAD": path, "PYTHON_EXEC": sys.executable} | DEVICES if path else {}
needs_fake = pytest.mark.skipif(not path, reason="no host-side fake of CUDA")


@functools.cache
def variables_of_forks():
    """Of programs with its devices that are forks of one process with torch imported."""
    return variables if warm.PYTHON == sys.executable else warm.start_other(variables) | DEVICES
