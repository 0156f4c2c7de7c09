"""``quietformer load``: how much a server that speaks KServe v2 takes, how long requests wait, what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def load(
    url: Annotated[
        str, typer.Argument(metavar="URL", help="http://HOST:PORT or grpc://HOST:PORT, of serve or Triton.")
    ],
    *,
    model: Annotated[
        str | None, typer.Option("--model", help="Name; the only one, or the one that takes texts, by default.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="PATH", help="Texts to send; ids are generated without them.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="FILE", help="tokenizer.json, for a model that takes tokens.")
    ] = None,
    length: Annotated[
        int | None, typer.Option("--length", help="Tokens of every row; of the longest in a request by default.", min=3)
    ] = None,
    vocabulary: Annotated[int, typer.Option("--vocabulary", help="Generated ids are below it.", min=2)] = 1000,
    rows: Annotated[int, typer.Option("--rows", help="Of each request.", min=1)] = 1,
    clients: Annotated[
        str, typer.Option("--clients", help="Closed loops of so many clients, joined by commas; '' for none.")
    ] = "1,4,16",
    rate: Annotated[
        str, typer.Option("--rate", help="Open loops of so many requests a second, joined by commas.")
    ] = "",
    seconds: Annotated[float, typer.Option("--seconds", help="Of each measurement.", min=0.1)] = 5.0,
    warm_up: Annotated[float, typer.Option("--warm-up", help="Seconds before each that are not counted.", min=0)] = 1.0,
    timeout: Annotated[float, typer.Option("--timeout", help="Seconds that an answer may take.", min=0.001)] = 30.0,
    bare: Annotated[
        Path | None,
        typer.Option("--bare", metavar="ARTIFACT", help="Compare with a bare session of this run, graph or engine."),
    ] = None,
    backend: Annotated[str | None, typer.Option("--backend", help="Of the bare session.")] = None,
    threads: Annotated[int | None, typer.Option("--threads", help="Of the bare session.", min=1)] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", metavar="FILE", help="Bearer token of the server.")
    ] = None,
    seed: Annotated[
        int, typer.Option("--seed", help="Of texts drawn, of generated ids and of the moments of an open loop.")
    ] = 0,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.svg", help="Latency over throughput.")] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Everything measured.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace these files.")] = False,
) -> None:
    """Load a server with real inputs and tell throughput, latency and errors.

    A closed loop of N clients shows what the server can do; an open loop shows how long people wait at a given rate.
    Exits 1 when a request failed.

    Example: quietformer load http://localhost:8000 --data texts.txt --clients 1,4,16 --rate 50
    """
    import json
    from dataclasses import asdict

    from deploy.data.example_draw import draw
    from deploy.data.text_data import each_text
    from deploy.files import refuse_existing, write_atomically
    from deploy.load.bare_session import bare_rows_per_second
    from deploy.load.client import ModelFacts
    from deploy.load.requests import LoadRequests, make_requests
    from deploy.load.sweep import SweepSettings, run_sweep
    from deploy.machine import machine_facts
    from deploy.serving.server_settings import read_token
    from quietformer.gate import GateFailedError
    from quietformer.progress import progress, say
    from quietformer.report.load_plot import load_plot
    from quietformer.report.load_table import load_table
    from quietformer.terminal_table import terminal_table

    for path in (plot, out):
        if path is not None:
            refuse_existing(path, force=force)
    settings = SweepSettings(
        url=url,
        model=model,
        clients=tuple(int(number) for number in _numbers(clients, "--clients", whole=True)),
        rates=tuple(_numbers(rate, "--rate", whole=False)),
        seconds=seconds,
        warm_up=warm_up,
        timeout=timeout,
        token=None if token_file is None else read_token(token_file),
        seed=seed,
    )
    texts = None if data is None else draw(each_text(data), limit=1024, seed=seed).examples

    def requests_for(facts: ModelFacts) -> LoadRequests:
        made = make_requests(
            facts,
            rows=rows,
            count=256,
            texts=texts,
            tokenizer=tokenizer,
            length=length,
            vocabulary=vocabulary,
            seed=seed,
        )
        say(f"{facts.name}: {made.what}")
        return made

    with progress("load") as job:
        sweep = run_sweep(settings, requests_for, tell=job.advance)
    batches: dict[int, float] = {}
    if bare is not None:
        limit = max(1, (sweep.model.max_batch_size or rows) // rows)
        wanted = sorted({min(number, limit) for number in settings.clients or (1, limit)})
        say(f"bare session of {bare}, requests in a batch: {', '.join(map(str, wanted))}")
        batches = bare_rows_per_second(
            bare, sweep.requests, backend=backend, threads=threads, batches=wanted, seconds=seconds
        )
    typer.echo(terminal_table(load_table(sweep, batches)))
    if plot is not None:
        write_atomically(plot, load_plot(sweep, batches))
    if out is not None:
        record = {
            "url": url, "model": sweep.model.name, "requests": sweep.requests.what, "rows": rows,
            "points": [asdict(point) | {"rows_per_second": point.rows_per_second} for point in sweep.points],
            "bare_rows_per_second": batches, "machine": asdict(machine_facts()),
        }  # fmt: skip
        write_atomically(out, json.dumps(record, indent=1) + "\n")
    failed = sum(sum(point.errors.values()) for point in sweep.points)
    if failed:
        raise GateFailedError(f"{failed} requests failed")


def _numbers(text: str, option: str, *, whole: bool) -> list[float]:
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            number = float(int(part)) if whole else float(part)
        except ValueError:
            number = 0.0
        if not 0 < number < 1e6:
            raise ValueError(f"'{part}' in {option} {text} is no positive number; expected for example 1,4,16")
        found.append(number)
    return found
