"""A checkpoint's simulated W8A8, as something that maps feeds to outputs: what the integer graphs are checked against."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from train.checkpoints.checkpoint import load
from train.simulation.fake_quant import simulated
from train.simulation.quantization_places import ProfileName
from train.simulation.quantizer import RangeMethod, WeightRange

Arrays = Mapping[str, np.ndarray]
Infer = Callable[[Arrays], dict[str, np.ndarray]]


@contextmanager
def simulated_model(
    checkpoint: Path,
    batches: Sequence[Arrays],
    *,
    profile: ProfileName,
    method: RangeMethod,
    weights: WeightRange,
) -> Iterator[Infer]:
    """Round a PyTorch model as an integer graph is rounded, calibrated on the same batches.

    Args:
        checkpoint: checkpoint folder.
        batches: calibration inputs by name, int64 (batch, length).
        profile: whose sites are rounded.
        method: range of the activations.
        weights: range of the weights.

    Yields:
        A function from inputs by name to outputs by name, as a backend's ``infer``.

    Raises:
        FileNotFoundError: no such checkpoint.
        ValueError: it cannot be read, or a batch does not fit.
    """
    model = load(checkpoint)
    with simulated(model, [_tensors(batch) for batch in batches], profile=profile, method=method, weights=weights):

        def infer(feeds: Arrays) -> dict[str, np.ndarray]:
            with torch.inference_mode():
                outputs = model(**_tensors(feeds))
            return {name: value.numpy() for name, value in outputs.items() if isinstance(value, torch.Tensor)}

        yield infer


def _tensors(feeds: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in feeds.items()}
