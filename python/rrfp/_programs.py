"""The commands of a wheel: rrfp-sim, rrfp-jitter, rrfp-report, rrfp-node and rrfp-jitter-node become the programs in rrfp/bin."""

import os
import sys
from pathlib import Path


def run():
    program = Path(__file__).parent / "bin" / Path(sys.argv[0]).name
    os.execv(program, sys.argv)
