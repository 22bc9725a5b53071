"""Run-time checks of shapes in public signatures, enabled for tests only."""

import os
import signal

from jaxtyping import install_import_hook

install_import_hook("eligo", "beartype.beartype")

import pytest  # noqa: E402
import torch  # noqa: E402


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def pytest_configure() -> None:
    """Default signal handlers and plain text of 80 columns, in child processes too.

    A shell without job control starts background processes with SIGINT ignored.
    """
    os.environ["COLUMNS"] = "80"
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        os.environ.pop(name, None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA device")
        for item in items:
            if "gpu" in item.keywords:
                item.add_marker(skip)
