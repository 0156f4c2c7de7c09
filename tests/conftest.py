"""No property is judged by how long its examples take: a busy machine is no defect. Without a GPU, tests of one are skipped."""

from __future__ import annotations

import pytest
from hypothesis import settings

from deploy.backends.cuda_devices import cuda_devices

settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU, with the driver's own reason, where there is none."""
    if item.get_closest_marker("gpu") is not None:
        devices, why_none = cuda_devices()
        if not devices:
            pytest.skip(f"needs an NVIDIA GPU: {why_none}")
