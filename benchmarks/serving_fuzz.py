"""Send broken requests to a fresh server, and see whether it crashes, hangs, fails without saying why, or answers wrongly afterwards.

Usage: python benchmarks/serving_fuzz.py [--requests 10000] [--seed 1]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.deploy.serving.mutations import fuzz
from tests.deploy.serving.served_model import running, write_model


def main() -> None:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = write_model(Path(name) / "bundle")
        with running(folder, log=Path(name) / "log") as server:
            started = time.monotonic()
            outcome = fuzz(server.target, requests=arguments.requests, seed=arguments.seed)
            seconds = time.monotonic() - started
            alive = server.process.poll() is None
            log = server.log.read_text()
    print(f"{arguments.requests} broken requests, seed {arguments.seed}, in {seconds:.0f} s")
    print("answers:", ", ".join(f"{status} {count}" for status, count in sorted(outcome.statuses.items())))
    print(f"hangs {len(outcome.hangs)}, server alive {alive}, wrong answers in between {outcome.wrong_answers}")
    print(f"tracebacks in the log {log.count('Traceback')} (every 500 must have one)")
    for request in outcome.hangs[:5]:
        print("hang:", request[:300])


if __name__ == "__main__":
    main()
