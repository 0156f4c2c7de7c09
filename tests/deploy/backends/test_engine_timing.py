"""Times of queries on a stand-in of the driver, whose device clock moves by known costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploy.backends.cuda_stream import CudaError
from deploy.backends.engine_builder import build_engine
from deploy.backends.engine_timing import IN_FLIGHT
from deploy.backends.tensorrt_gpu import TensorRtBackend
from deploy.graphs.shapes import Shapes
from tests.deploy.calibrated import quantized
from tests.deploy.encoder_graph import feeds
from tests.deploy.runtime_doubles import HostDriver, add_runtime, use_gpu
from tests.deploy.tensorrt_doubles import make_double


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> HostDriver:
    """A machine with a GPU and TensorRT 11.4."""
    driver, module = HostDriver(), make_double("11.4.0.106")
    add_runtime(module, driver)
    use_gpu(monkeypatch, driver, module)
    return driver


@pytest.fixture
def engine(driver: HostDriver, tmp_path: Path) -> Iterator[TensorRtBackend]:
    """The small encoder in INT8, built and opened."""
    shapes: Shapes = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 8))
    build_engine(
        quantized(tmp_path, "tensorrt"),
        tmp_path / "engine",
        backend="tensorrt",
        min_shapes=shapes,
        opt_shapes=shapes,
        max_shapes=dict.fromkeys(shapes, (4, 24)),
    )
    with TensorRtBackend(tmp_path / "engine") as backend:
        yield backend
    assert not driver.memory
    assert driver.calls.count("cuEventCreate") == driver.calls.count("cuEventDestroy_v2")
    assert driver.calls.count("cuGraphInstantiateWithFlags") == driver.calls.count("cuGraphExecDestroy")


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_each_part_of_a_query_is_timed_by_the_device(
    driver: HostDriver, engine: TensorRtBackend, cuda_graph: bool
) -> None:
    inputs = feeds(batch=2, length=9, seed=0)
    with engine.timer(inputs, cuda_graph=cuda_graph) as timer:
        launches = driver.calls.count("cuGraphLaunch")
        turn = timer.per_request(0.01)
        assert driver.calls.count("cuGraphLaunch") - launches == (len(turn.queries) if cuda_graph else 0)
        for query in turn.queries:
            # Three inputs at 0.25 ms each, one output at 0.125 ms.
            assert (query.h2d, query.compute, query.d2h) == pytest.approx((0.75, 2.0, 0.125), rel=1e-5)
            assert query.latency == pytest.approx(2.875, rel=1e-5)
            assert query.host is not None
            assert query.host >= query.enqueue
        ahead = timer.back_to_back(0.0)
        assert len(ahead.queries) == IN_FLIGHT
        assert {query.host for query in ahead.queries} == {None}
        assert [query.compute for query in ahead.queries] == pytest.approx([2.0] * IN_FLIGHT, rel=1e-4)


def test_a_timed_engine_still_answers_right(engine: TensorRtBackend) -> None:
    first, second = feeds(batch=2, length=9, seed=0), feeds(batch=2, length=9, seed=1)
    expected = engine.infer(second)
    with engine.timer(first, cuda_graph=True) as timer:
        timer.per_request(0.0)
    found = engine.infer(second)
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)


def test_feeds_outside_of_the_range_are_refused(engine: TensorRtBackend) -> None:
    with pytest.raises(ValueError, match="has shape 5x8; the engine was built for 1x8 to 4x24"):
        engine.timer(feeds(batch=5, length=8, seed=0), cuda_graph=False)


def test_an_engine_that_fails_to_start_is_told_with_the_words_of_the_library(
    driver: HostDriver, engine: TensorRtBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_context", _Refusing(engine))
    with pytest.raises(CudaError, match="TensorRT did not run the engine: no reason given"):
        engine.infer(feeds(batch=1, length=8, seed=0))


class _Refusing:
    """A context whose engine does not start."""

    def __init__(self, engine: TensorRtBackend) -> None:
        self._context = vars(engine)["_context"]

    def __getattr__(self, name: str) -> object:
        return (lambda stream: False) if name == "execute_async_v3" else getattr(self._context, name)


@pytest.mark.gpu
def test_times_of_a_device_are_positive_and_add_up(tmp_path: Path) -> None:
    """On the GPU at hand: the device's part of a query fits into the host's."""
    from tests.deploy.real_engine import build_here, engine_backend

    with TensorRtBackend(
        build_here(quantized(tmp_path, "tensorrt"), tmp_path / "engine"), backend=engine_backend()
    ) as engine:
        for cuda_graph in (False, True):
            with engine.timer(feeds(batch=2, length=9, seed=0), cuda_graph=cuda_graph) as timer:
                for query in timer.per_request(0.2).queries:
                    assert min(query.h2d, query.compute, query.d2h, query.enqueue) > 0
                    assert query.host is not None
                    assert query.latency <= query.host * 1.05
                assert len(timer.back_to_back(0.2).queries) % IN_FLIGHT == 0
