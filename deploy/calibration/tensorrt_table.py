"""TensorRT's text calibration cache: one scale per tensor, symmetric int8.

    TRT-8601-EntropyCalibration2
    input_ids: 3c010a14
    encoder/0/output: 3d8f5c29

The first line names library version and calibrator; each other line a tensor and the float32 bits of its scale in hex,
``scale = largest absolute value / 127``. TensorRT 11 reads none any more; TensorRT 10 and other tools do.
"""

from __future__ import annotations

import re
import struct

from deploy.calibration.calibration_cache import CalibrationCache
from deploy.calibration.range_table import RangeTable, checked_range

_HEADER = re.compile(r"TRT-\d+-\w+")
_BITS = re.compile(r"[0-9a-fA-F]{8}")
_STEPS = 127
_WRITTEN_HEADER = "TRT-101600-{calibrator}"
"""TensorRT 10.16.0, the last series that calibrates."""


def read_tensorrt_table(text: str, *, name: str) -> RangeTable:
    """Ranges of a cache's text.

    Args:
        text: content of the file.
        name: of the file, for messages.

    Raises:
        ValueError: another format, or a damaged line (told by its number).
    """
    header, *lines = text.splitlines() or [""]
    if not _HEADER.fullmatch(header.strip()):
        raise ValueError(
            f"{name} is no calibration file: its first line is '{header.strip()[:40]}'; expected one like "
            "'TRT-8601-EntropyCalibration2' (TensorRT), or JSON (ONNX Runtime)"
        )
    ranges: dict[str, tuple[float, float]] = {}
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        tensor, mark, bits = line.rpartition(": ")
        if not mark or not tensor or not _BITS.fullmatch(bits.strip()):
            raise ValueError(f"{name}, line {number}: '{line[:60]}'; expected 'tensor: ' and 8 hexadecimal digits")
        if tensor in ranges:
            raise ValueError(f"{name}, line {number}: tensor '{tensor}' has a scale already")
        scale = struct.unpack(">f", bytes.fromhex(bits.strip()))[0]
        if not scale >= 0:
            raise ValueError(f"{name}, line {number}: tensor '{tensor}' has scale {scale}; expected 0 or more")
        ranges[tensor] = checked_range(-_STEPS * scale, _STEPS * scale, tensor=tensor, name=name)
    if not ranges:
        raise ValueError(f"{name} holds no scale: it ends after its first line")
    return RangeTable(format="tensorrt", origin=header.strip(), ranges=ranges, symmetric=True)


def write_tensorrt_table(cache: CalibrationCache) -> str:
    """Text of a cache whose scales are those that profile ``tensorrt`` would use.

    Raises:
        ValueError: ranges of random data, which the format cannot mark, or a name that it cannot hold.
    """
    if cache.not_for_accuracy:
        raise ValueError("the ranges come from random data, and TensorRT's cache cannot say so; calibrate on real data")
    calibrator = "EntropyCalibration2" if cache.method == "entropy" else "MinMaxCalibration"
    lines = [_WRITTEN_HEADER.format(calibrator=calibrator)]
    for tensor in cache.tensors:
        if "\n" in tensor or "\r" in tensor:
            raise ValueError(f"tensor {tensor!r} has a line break in its name, which TensorRT's cache cannot hold")
        lines.append(f"{tensor}: {struct.pack('>f', cache.range_of(tensor, symmetric=True).scale).hex()}")
    return "\n".join(lines) + "\n"
