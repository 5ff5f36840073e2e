"""Runs a test file of this folder, one of the groups below, or all other files. Without pytest they are skipped.

run.py [FILE | GROUP] [OPTION for pytest...]
"""

import importlib.util
import pathlib
import sys

import warm

if importlib.util.find_spec("pytest") is None:
    print("skipped: pytest is not installed (scripts/setup installs it)")
    sys.exit(77)
folder = pathlib.Path(__file__).parent
# Each of these groups is a test of its own in ctest, so that they run side by side.
groups = {
    "analyze": ["analyze"],
    "engines": ["engines"],
    "families": ["families"],
    "ready_schedule": ["ready_schedule"],
    "recovery": ["endings", "recovery"],
    "transformers": ["adapters", "dpo", "finetune", "towers", "transformers"],
}
path_of = lambda name: str(folder / f"test_{name}.py")
chosen = sys.argv.pop(1) if sys.argv[1:] and not sys.argv[1].startswith("-") else None
if chosen is None:
    files = [str(folder), *(f"--ignore={path_of(name)}" for names in groups.values() for name in names)]
else:
    files = [path_of(name) for name in groups[chosen]] if chosen in groups else [str(folder / chosen)]
warm.start(warm.MODULES + (["transformers.models.auto.modeling_auto", "peft"] if chosen == "transformers" else []))
import pytest  # after it, so that forks begin without pytest

sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *files, *sys.argv[1:]]))
