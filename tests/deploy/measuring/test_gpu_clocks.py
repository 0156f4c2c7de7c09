"""Clocks of a GPU from what ``nvidia-smi`` answers: lines in the form that drivers 470 to 580 print them."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.backends.cuda_devices import CudaDevice
from deploy.measuring.gpu_clocks import GpuClocks, read_clocks, watched_clocks
from tests.deploy.clock_tool import BUSY, clock_tool

__all__ = ["clock_tool"]

GPU = CudaDevice(name="NVIDIA H100", compute_capability="9.0", memory_bytes=80 << 30, driver="13.0", pci="0000:65:00.0")


def test_samples_become_least_median_and_greatest_and_what_held_the_clocks_back() -> None:
    clocks = read_clocks(BUSY)
    assert clocks == GpuClocks(
        samples=4,
        sm_mhz=(345, 1597, 1980),
        sm_limit_mhz=1980,
        memory_mhz=2619,
        temperature_c=71,
        power_w=699.81,
        persistence=True,
        held_back={"software power cap": 0.5},
    )
    assert clocks.summary() == (
        "SM clock 1597 MHz (345 to 1980 of 1980), memory 2619 MHz, up to 71 °C, up to 700 W, persistence on"
    )
    (warning,) = clocks.warnings()
    assert warning.startswith("GPU clocks were held back in 50% of 4 samples: software power cap; SM clock 1597 MHz")


def test_what_a_gpu_does_not_tell_is_left_out() -> None:
    clocks = read_clocks(["[N/A], [N/A], [Not Supported], 41, [N/A], Disabled, 0x0000000000000000"])
    assert clocks is not None
    assert (clocks.sm_mhz, clocks.sm_limit_mhz, clocks.memory_mhz, clocks.power_w) == (None, None, None, None)
    assert clocks.summary() == "up to 41 °C, persistence off"
    assert list(clocks.warnings()) == []


@pytest.mark.parametrize("text", ["", "Unable to determine the device handle for GPU0: Unknown Error", "1, 2, 3"])
def test_what_is_no_sample_says_nothing(text: str) -> None:
    assert read_clocks([text]) is None


def test_the_tool_is_asked_for_the_very_gpu_in_words_that_its_driver_knows(clock_tool: Path) -> None:
    with watched_clocks(GPU) as watch:
        pass
    assert watch.clocks == read_clocks(BUSY)
    asked = (clock_tool / "asked").read_text().splitlines()
    assert len(asked) == 3
    assert "--loop-ms=500" in asked[2]
    assert "clocks_throttle_reasons.active" in asked[2]
    assert all("--id=0000:65:00.0" in line for line in asked)


def test_without_gpu_or_tool_nothing_is_started(clock_tool: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with watched_clocks(None) as watch:
        pass
    assert watch.clocks is None
    assert not (clock_tool / "asked").exists()
    monkeypatch.setenv("PATH", "")
    with watched_clocks(GPU) as watch:
        pass
    assert watch.clocks is None
