"""Rows of tabular data as dictionaries: JSON lines, CSV, TSV and parquet, plain or zstd-packed.

STS Benchmark's files have no header and are tab-separated under a ``.csv`` name; they are recognised by their first line.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any

from deploy.data.text_files import file_format, read_bytes, read_lines

STS_BENCHMARK_COLUMNS = ("genre", "file", "year", "id", "score", "sentence1", "sentence2")
"""Columns of an STS Benchmark file; licence columns may follow."""

Row = tuple[str, dict[str, Any]]
"""Where a row is, for messages (``FILE line N``), and its values by column."""


def read_rows(path: Path) -> Iterator[Row]:
    """Rows of one file in order.

    Raises:
        ValueError: the file is damaged or a row does not fit its header.
        ImportError: parquet without pyarrow.
    """
    kind = file_format(path)
    if kind == ".jsonl":
        return _json_rows(path)
    if kind == ".parquet":
        return _parquet_rows(path)
    assert kind in {".csv", ".tsv"}
    return _table_rows(path, kind)


def pick_column(row: Row, *candidates: str) -> str:
    """The first of ``candidates`` that ``row`` has.

    Raises:
        ValueError: it has none of them; the message names the columns that exist.
    """
    where, values = row
    for name in candidates:
        if name in values:
            return name
    wanted = " or ".join(f"'{name}'" for name in candidates)
    raise ValueError(f"{where} has no column {wanted}; its columns are {', '.join(map(str, values)) or 'none'}")


def _json_rows(path: Path) -> Iterator[Row]:
    with closing(read_lines(path)) as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{path} line {number}"
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error
            except RecursionError as error:
                raise ValueError(f"{where} is JSON nested too deeply to be read") from error
            if not isinstance(values, dict):
                raise ValueError(f"{where} is a JSON {type(values).__name__}; expected an object with named columns")  # noqa: TRY004 - a fault of the data
            yield where, values


def _table_rows(path: Path, kind: str) -> Iterator[Row]:
    with closing(read_lines(path)) as lines:
        first = next(lines, None)
        if first is None:
            return
        if _is_sts_benchmark(first):
            yield from _sts_benchmark_rows(path, chain([first], lines))
            return
        # TSV carries quotation marks as plain characters (SST-2); CSV uses them to quote.
        text = (f"{line}\n" for line in chain([first], lines))
        if kind == ".tsv":
            reader = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:
            reader = csv.reader(text, strict=True)
        header: list[str] = []
        try:
            header = next(reader)
            if twice := [name for name in header if header.count(name) > 1]:
                raise ValueError(f"{path} line 1 names the column '{twice[0]}' twice")
            for cells in reader:
                if not cells:
                    continue
                where = f"{path} line {reader.line_num}"
                if len(cells) != len(header):
                    raise ValueError(f"{where} has {len(cells)} fields; the header has {len(header)}")
                yield where, dict(zip(header, cells, strict=True))
        except csv.Error as error:
            raise ValueError(f"{path} line {reader.line_num} is not {kind[1:].upper()}: {error}") from error


def _is_sts_benchmark(line: str) -> bool:
    cells = line.split("\t")
    if len(cells) < len(STS_BENCHMARK_COLUMNS):
        return False
    try:
        float(cells[STS_BENCHMARK_COLUMNS.index("score")])
    except ValueError:
        return False
    return True


def _sts_benchmark_rows(path: Path, lines: Iterator[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        cells = line.split("\t")
        where = f"{path} line {number}"
        if len(cells) < len(STS_BENCHMARK_COLUMNS):
            raise ValueError(f"{where} has {len(cells)} fields; expected {', '.join(STS_BENCHMARK_COLUMNS)}")
        yield where, dict(zip(STS_BENCHMARK_COLUMNS, cells, strict=False))


def _parquet_rows(path: Path) -> Iterator[Row]:
    try:
        from pyarrow import ArrowException, parquet  # noqa: PLC0415 - an optional extra
    except ImportError as error:
        raise ImportError("reading parquet needs pyarrow; install it with: pip install 'quietformer[data]'") from error
    source = io.BytesIO(read_bytes(path)) if path.suffix == ".zst" else path
    try:
        with parquet.ParquetFile(source) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for values in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", values
    except ArrowException as error:
        raise ValueError(f"{path} is not a parquet file: {str(error).splitlines()[0]}") from error
