"""What every test may use."""

import os

# Two test processes with two threads each on two cores wait for each other at every small parallel region; one thread
# each is many times faster. Set before torch is imported, and for the processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real lengths and texts: $PADLESS_TEST_DATA, or shared/data beside the checkout."""
    folder = Path(os.environ.get("PADLESS_TEST_DATA", ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no test data at {folder}; set PADLESS_TEST_DATA to a folder that holds it")
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` skip where there is no GPU, and say so."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in marked:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device; none here"))
