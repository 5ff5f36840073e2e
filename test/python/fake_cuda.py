"""The host-side fake of CUDA that ctest names in RRFP_HOST_CUDA."""

import os

import pytest

path = os.environ.get("RRFP_HOST_CUDA")
#: Of a process with four of its devices.
variables = {"LD_PRELOAD": path, "RRFP_HOST_CUDA_DEVICES": "4"} if path else {}
needs_fake = pytest.mark.skipif(not path, reason="no host-side fake of CUDA")
