"""``quietformer load`` against a running server: HTTP and gRPC, texts and tokens, errors, files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quietformer.cli import app
from tests.deploy.serving.served_model import Server, running, write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = write_model(tmp_path_factory.mktemp("load") / "bundle")
    (made / "texts.txt").write_text("".join(f"w{number} w{number + 1} and more of it\n" for number in range(30)))
    return made


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running(folder, "--grpc-port", "0", log=tmp_path_factory.mktemp("log") / "log") as started:
        yield started


def load(*arguments: object) -> Result:
    short = ("--seconds", "0.3", "--warm-up", "0")
    return CliRunner().invoke(app, ["load", *(str(argument) for argument in (*arguments, *short))])


def test_a_sweep_over_http_of_texts_with_a_plot_and_a_record(server: Server, folder: Path, tmp_path: Path) -> None:
    files = ("--plot", tmp_path / "load.svg", "--json", tmp_path / "load.json")
    done = load(server.target.url, "--data", folder / "texts.txt", "--clients", "1,4", "--rate", "20", *files)
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["load", "requests/s", "rows/s", "p50", "ms", "p90", "ms", "p99", "ms", "errors"]
    assert [line.split()[:2] for line in lines[2:5]] == [["1", "client"], ["4", "clients"], ["20", "requests/s"]]
    assert "encoder-text: 30 texts as they are" in done.stdout
    record = json.loads((tmp_path / "load.json").read_text())
    assert [point["clients"] for point in record["points"]] == [1, 4, None]
    assert all(point["answered"] > 0 and not point["errors"] for point in record["points"])
    assert (tmp_path / "load.svg").read_text().startswith("<svg")
    again = load(server.target.url, "--plot", tmp_path / "load.svg")
    assert again.exit_code == 2
    assert "pass --force" in again.stderr


def test_a_sweep_over_grpc_of_tokens_beside_the_bare_session(server: Server, folder: Path) -> None:
    tokens = ("--model", "encoder", "--data", folder / "texts.txt", "--tokenizer", folder / "tokenizer.json")
    done = load(f"grpc://{server.target.grpc}", *tokens, "--length", 8, "--clients", "2", "--rows", 2,
                "--bare", folder, "--threads", 1)  # fmt: skip
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines()[0].endswith("of bare")
    assert "Rows/s of the bare session by requests in a batch" in " ".join(done.stdout.split())


def test_requests_that_fail_are_counted_by_kind_and_fail_the_command(server: Server) -> None:
    done = load(server.target.url, "--model", "encoder", "--clients", "1", "--length", 5, "--vocabulary", 1000)
    assert done.exit_code == 1
    assert "generated ids below 1000" in done.stdout
    assert "times: 400: " in done.stdout
    assert "gate failed" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:9", "--clients", "1"), "does not answer as a KServe v2 server"),
        (("http://127.0.0.1:9", "--clients", "1,x"), "'x' in --clients"),
        (("http://127.0.0.1:9", "--clients", ""), "nothing to measure"),
        (("127.0.0.1", "--clients", "1"), "no address of a server"),
        (("http://127.0.0.1:9", "--token-file", "/dev/null"), "/dev/null is empty; expected a token"),
    ],
)
def test_what_cannot_be_loaded_is_refused(arguments: tuple[str, ...], message: str) -> None:
    done = load(*arguments)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
