"""Broken requests: the cases of the conformance suite with headers, bodies, sizes and types mutated."""

from __future__ import annotations

import json
import random
import re
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.deploy.serving.conformance_cases import CASES, INFER, LENGTH, MODEL, infer_body
from tests.deploy.serving.served_model import Target, json_of

TEXT_BODY = json.dumps(
    {"inputs": [{"name": "TEXT", "datatype": "BYTES", "shape": [2, 1], "data": ["w1 w2", "w3"]}]}
).encode()
_SEEDS = [(case.method, case.path, case.body, case.headers) for case in CASES if len(case.body) < 10_000]
_SEEDS += [("POST", f"/v2/models/{MODEL}-text/infer", TEXT_BODY, {})] * 10
_VALUES: tuple[Callable[[random.Random], Any], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: [],
    lambda _: {},
    lambda _: "",
    lambda r: r.choice([0, -1, 1, 2, 7, 8, 9, 24, 25, 49, 50, 2**31, 2**32, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30]),
    lambda r: r.choice([0.5, -0.0, 1e308, -1e308, 1e-320]),
    lambda r: "".join(chr(r.randrange(1, 0x3000)) for _ in range(r.randrange(1, 40))),
    lambda r: "x" * r.choice([100, 2_000, 50_000]),
    lambda r: r.choice(["INT64", "INT32", "FP32", "FP16", "BF16", "BYTES", "BOOL", "UINT8", "FP64"]),
    lambda r: [r.choice([1, 2, 3, -1, 0, 2**40, "a", None]) for _ in range(r.randrange(0, 12))],
    lambda r: _nested(r.choice([3, 30, 70, 900])),
    lambda r: {"binary_data_size": r.choice([0, 1, -1, 80, 2**62, "9", None])},
    lambda r: {"binary_data_output": r.choice([True, False, 1, None]), "timeout": r.choice([0, 1, -5, 2**70, "x"])},
)
_METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "FETCH", "post", "")


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def mutated(generator: random.Random) -> bytes:
    """The bytes of one broken request."""
    method, path, body, headers = generator.choice(_SEEDS)
    headers = {"Host": "x", "Content-Length": str(len(body))} | headers
    for _ in range(generator.choice([1, 1, 1, 2, 3])):
        match generator.randrange(8):
            case 0 | 1 | 2:
                body = _mutated_json(body, generator)
                headers["Content-Length"] = str(len(body))
            case 3 | 4:
                body = _mutated_bytes(body, generator)
                if generator.random() < 0.8:
                    headers["Content-Length"] = str(len(body))
            case 5 | 6:
                _mutate_headers(headers, body, generator)
            case 7:
                method, path = _mutated_line(method, path, generator)
    head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{key}: {value}\r\n" for key, value in headers.items()) + "\r\n"
    request = head.encode("utf-8", "replace") + body
    return _mutated_bytes(request, generator) if generator.random() < 0.05 else request


def _mutated_json(body: bytes, generator: random.Random) -> bytes:
    size = body.rfind(b"}") + 1
    try:
        document = json.loads(body[:size])
    except ValueError:
        return _mutated_bytes(body, generator)
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [document]
    while stack:
        value = stack.pop()
        entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in entries:
            places.append((value, key))
            stack.append(inner)
    if not places:
        return body
    owner, key = generator.choice(places)
    match generator.randrange(4):
        case 0:
            del owner[key]
        case 1 if isinstance(owner, dict):
            owner[generator.choice(["name", "shape", "data", "outputs", "parameters", "x", ""])] = owner.pop(key)
        case _:
            owner[key] = generator.choice(_VALUES)(generator)
    return json.dumps(document).encode() + body[size:]


def _mutated_bytes(body: bytes, generator: random.Random) -> bytes:
    changed = bytearray(body)
    place = generator.randrange(len(changed) + 1)
    match generator.randrange(5):
        case 0:
            del changed[place:]
        case 1:
            changed[place:place] = generator.randbytes(generator.choice([1, 4, 100, 5_000]))
        case 2:
            changed[place:place] = changed[:place]
        case 3:
            del changed[place : place + generator.choice([1, 8, 80])]
        case _:
            for _ in range(min(len(changed), generator.choice([1, 3, 30]))):
                changed[generator.randrange(len(changed))] = generator.randrange(256)
    return bytes(changed)


def _mutate_headers(headers: dict[str, str], body: bytes, generator: random.Random) -> None:
    size = len(body)
    number = generator.choice([0, 1, -1, size, size - 1, size + 1, 10 * size + 5, 2**31, 2**63, 2**64, "x", "1e3", ""])
    match generator.randrange(6):
        case 0:
            headers[LENGTH] = str(number)
        case 1:
            headers["Content-Length"] = str(number)
        case 2:
            headers["Content-Encoding"] = generator.choice(["gzip", "deflate", "br", "identity", "gzip, gzip", "\x01"])
        case 3:
            headers["Transfer-Encoding"] = generator.choice(["chunked", "gzip", "chunked, chunked"])
        case 4:
            headers[generator.choice(["X", "Expect", "Connection", "Upgrade", "Host", "Authorization"])] = (
                generator.choice(["100-continue", "close", "keep-alive", "websocket", "", "y" * 20_000, "\xff"])
            )
        case 5:
            headers.pop(generator.choice(list(headers)))


def _mutated_line(method: str, path: str, generator: random.Random) -> tuple[str, str]:
    match generator.randrange(4):
        case 0:
            return generator.choice(_METHODS), path
        case 1:
            return method, path + generator.choice(["/", "/..", "%00", "?a=b", "%2e%2e", "/%ff", "é", " x", "/infer"])
        case 2:
            return method, "/" + "".join(generator.choice("v2models/:%?#.~encoder") for _ in range(30))
        case _:
            return method, re.sub(r"[a-z]", lambda _: generator.choice("abcxyz/%"), path, count=3)


@dataclass(kw_only=True)
class FuzzOutcome:
    """What a server did with many broken requests."""

    statuses: Counter[str] = field(default_factory=Counter)
    """Of answers; ``closed`` where the connection was closed without one."""
    hangs: list[bytes] = field(default_factory=list)
    """Requests that were neither answered nor closed in time."""
    wrong_answers: int = 0
    """Good requests in between that were answered differently than before."""


def fuzz(target: Target, *, requests: int, seed: int, check_every: int = 50, timeout: float = 15) -> FuzzOutcome:
    """Send broken requests, each on a connection of its own, and good ones in between.

    Args:
        target: the server.
        requests: how many broken ones.
        seed: of their choice.
        check_every: a good request after so many.
        timeout: seconds for an answer.
    """
    generator = random.Random(seed)
    outcome = FuzzOutcome()
    expected = _good_answer(target)
    for number in range(requests):
        request = mutated(generator)
        status = _status_of(target, request, timeout)
        outcome.statuses[status] += 1
        if status == "hang":
            outcome.hangs.append(request)
        if number % check_every == check_every - 1:
            outcome.wrong_answers += _good_answer(target) != expected
    outcome.wrong_answers += _good_answer(target) != expected
    return outcome


def _good_answer(target: Target) -> Any:
    status, headers, body = target.ask("POST", INFER, infer_body())
    return status, [round(value, 3) for value in json_of(body, headers)["outputs"][0]["data"]]


def _status_of(target: Target, request: bytes, timeout: float) -> str:
    host, _, port = target.address.partition(":")
    deadline = time.monotonic() + timeout
    with socket.create_connection((host, int(port)), timeout) as connection:
        answer = b""
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while b"\r\n" not in answer and time.monotonic() < deadline:
                if not (chunk := connection.recv(65_536)):
                    return "closed"
                answer = (answer + chunk).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
        except TimeoutError:
            return "hang"
        except OSError:
            return "closed"
    found = re.match(rb"HTTP/1\.1 (\d{3})", answer)
    return found[1].decode() if found else "hang" if not answer else "no HTTP"
