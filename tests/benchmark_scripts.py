"""The scripts in `benchmarks/`, which are no package, as modules."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[1] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    """`benchmarks/<name>.py`, under a name that hides no package."""
    known_as = f"benchmark_{name}"
    spec = spec_from_file_location(known_as, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[known_as] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
