"""A stand-in of ``nvidia-smi`` of an older driver; its lines have the form that drivers 470 to 580 print."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from deploy.measuring.gpu_clocks import PROGRAM

BUSY = [
    "345, 2619, 1980, 34, 76.78, Enabled, 0x0000000000000001\n",
    "1980, 2619, 1980, 52, 512.40, Enabled, 0x0000000000000000\n",
    "1590, 2619, 1980, 71, 699.81, Enabled, 0x0000000000000004\n",
    "1605, 2619, 1980, 70, 699.12, Enabled, 0x0000000000000004\n",
]


@pytest.fixture
def clock_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in of the tool of an older driver, which prints ``BUSY``; its arguments go to a file."""
    recorded = tmp_path / "recorded"
    recorded.write_text("".join(BUSY))
    program = tmp_path / PROGRAM
    program.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/asked\n'
        'case "$*" in\n'
        "  *clocks_event_reasons*) echo 'Field \"clocks_event_reasons.active\" is not a valid field to query.'; exit 2;;\n"
        f"  *loop-ms*) cat {recorded}; exec sleep 60;;\n"
        f"  *) head -n 1 {recorded};;\n"
        "esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path
