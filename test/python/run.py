"""Runs a test file of this folder, or all that have no test of their own in ctest. Without pytest they are skipped.

run.py [FILE] [OPTION for pytest...]
"""

import pathlib
import sys

try:
    import pytest
except ImportError:
    print("skipped: pytest is not installed (scripts/setup installs it)")
    sys.exit(77)
folder = pathlib.Path(__file__).parent
apart = ["test_analyze.py", "test_families.py", "test_ready_schedule.py"]
files = [str(folder / sys.argv.pop(1))] if sys.argv[1:] and sys.argv[1].endswith(".py") else [
    str(folder), *(f"--ignore={folder / name}" for name in apart)
]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *files, *sys.argv[1:]]))
