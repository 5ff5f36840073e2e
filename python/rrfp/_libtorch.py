"""The compiled part that links libtorch, for the version of torch that it was built with."""

import torch  # loads the libraries that _rrfp needs

from . import _rrfp

if torch.__version__.split("+")[0] != _rrfp.torch_version:
    raise ImportError(
        f"rrfp {_rrfp.version} was built with torch {_rrfp.torch_version}, but this is torch "
        f"{torch.__version__}: install torch=={_rrfp.torch_version}, or build rrfp again"
    )
