"""The host-side fake of CUDA that ctest names in RRFP_HOST_CUDA."""

import os
import sys

import pytest

path = os.environ.get("RRFP_HOST_CUDA")
#: Of a process with four of its devices, which begins without torch, as do the ranks that it starts by torchrun.
variables = {"LD_PRELOAD": path, "RRFP_HOST_CUDA_DEVICES": "4", "PYTHON_EXEC": sys.executable} if path else {}
needs_fake = pytest.mark.skipif(not path, reason="no host-side fake of CUDA")
