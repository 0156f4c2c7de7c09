"""Runs a few lines of Python in two processes that train together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_in_two_processes(folder: Path, *lines: str) -> None:
    """Run ``lines`` in both; they find ``folder`` as ``out`` and what they import from the project.

    On a CPU ``accelerate launch`` wants MPI; torchrun sets the same variables as it does for GPUs.
    """
    script = folder / "in_each_process.py"
    program = (
        "import sys; from dataclasses import replace; from pathlib import Path",
        f"sys.path.insert(0, {str(ROOT)!r})",
        "from accelerate import PartialState",
        f"out = Path({str(folder)!r})",
        *lines,
        "state = PartialState()",
        "assert state.num_processes == 2",
        "state.destroy_process_group()",
    )
    script.write_text("\n".join(program) + "\n")
    launcher = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    done = subprocess.run(
        [sys.executable, "-m", *launcher, str(script)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
