"""TensorRT-RTX's parser alone: seconds cheaper than a build, and the place where graphs are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def refuse_unparsable(path: Path) -> None:
    """Fail with the parser's words; the network is strongly typed. Skips the test where the package is not installed."""
    rtx: Any = pytest.importorskip("tensorrt_rtx")
    logger = rtx.Logger(rtx.Logger.ERROR)
    flags = 1 << int(rtx.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    network = rtx.Builder(logger).create_network(flags)
    parser = rtx.OnnxParser(network, logger)
    assert parser.parse_from_file(str(path)), [parser.get_error(place).desc() for place in range(parser.num_errors)]
