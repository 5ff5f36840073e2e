"""Runs the tests of this folder; further arguments go to pytest. Without pytest they are skipped."""

import pathlib
import sys

try:
    import pytest
except ImportError:
    print("skipped: pytest is not installed (scripts/setup installs it)")
    sys.exit(77)
folder = pathlib.Path(__file__).parent
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", str(folder), *sys.argv[1:]]))
