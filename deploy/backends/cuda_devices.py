"""GPUs as the CUDA driver's own library describes them; nothing else is loaded, so nothing can crash.

TensorRT's objects end the process when they are made without a device: whoever needs one asks here first.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

_DRIVER_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_NAME_BYTES = 128
_PCI_BYTES = 16
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR of the driver's interface."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CudaDevice:
    """A GPU as its driver describes it."""

    name: str
    compute_capability: str
    """For example ``8.9``."""
    memory_bytes: int
    driver: str
    """Newest CUDA version that the driver speaks, for example ``13.0``."""
    pci: str = ""
    """Its place, by which NVIDIA's tools know it too, for example ``0000:65:00.0``."""

    def facts(self) -> dict[str, str]:
        """Name and driver, for a report."""
        return {"device": f"{self.name}, SM {self.compute_capability}", "driver": f"CUDA {self.driver}"}


def cuda_devices() -> tuple[list[CudaDevice], str]:
    """GPUs that the CUDA driver offers, and a word on why there are none."""
    driver = load_driver()
    if driver is None:
        return [], "no CUDA driver library on this machine"
    if code := driver.cuInit(0):
        return [], f"the CUDA driver does not start (error {code})"
    count = ctypes.c_int()
    if code := driver.cuDeviceGetCount(ctypes.byref(count)):
        return [], f"the CUDA driver lists no devices (error {code})"
    return [_describe(driver, index) for index in range(count.value)], "" if count.value else "no GPU present"


def load_driver() -> Any:
    """The driver's library, None where there is none."""
    for library in _DRIVER_LIBRARIES:
        try:
            return ctypes.CDLL(library)
        except OSError:
            continue
    return None


def _describe(driver: Any, index: int) -> CudaDevice:
    handle, major, minor, memory = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    version = ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME_BYTES)
    driver.cuDeviceGet(ctypes.byref(handle), index)
    driver.cuDeviceGetName(name, _NAME_BYTES, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, handle)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, handle)
    driver.cuDeviceTotalMem_v2(ctypes.byref(memory), handle)
    driver.cuDriverGetVersion(ctypes.byref(version))
    place = ctypes.create_string_buffer(_PCI_BYTES)
    driver.cuDeviceGetPCIBusId(place, _PCI_BYTES, handle)
    return CudaDevice(
        name=name.value.decode(errors="replace"),
        compute_capability=f"{major.value}.{minor.value}",
        memory_bytes=memory.value,
        driver=f"{version.value // 1000}.{version.value % 1000 // 10}",
        pci=place.value.decode(errors="replace"),
    )
