"""Agreement of a written graph with the PyTorch model it came from, in ONNX Runtime, at shapes it was not traced at.

The reference is the checkpoint's own model on its ordinary attention path, not the lowered copy: what lowering and
tracing may have changed is inside the measured difference. Outputs at padded positions mean nothing and are left out:
there a model with large activations differs from itself in float64 by more than the tolerance.

Legend: B batch, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from deploy.measuring.bench_report import shape_text
from export.pixel_interface import PixelInterface
from export.tracing import GraphInterface

TOLERANCE = 1e-4
"""Largest absolute difference in float32 that an export may have, where outputs reach 10 at most."""
_LARGE_OUTPUT = 10.0
"""Beyond, the allowed difference grows with the largest output: a hundred thousandth of it."""
FLOAT16_TOLERANCE = 5e-3
"""Largest difference that a float16 graph may have, as a share of the largest output."""
_SEED = 20
_MOST_TOKENS = 2048
"""Of one comparison: the logits of so many tokens over a large vocabulary already take 400 MB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parity:
    """One measured agreement."""

    batch: int
    length: int | None
    """Tokens; None where the input has none."""
    max_difference: float
    """Largest absolute difference of the outputs, padded positions left out."""
    max_output: float
    """Largest absolute output of the PyTorch model there."""

    def __str__(self) -> str:
        """For people: ``3x33: 4.8e-07``, or ``batch 3: 4.8e-07``."""
        shape = f"batch {self.batch}" if self.length is None else f"{self.batch}x{self.length}"
        return f"{shape}: {self.max_difference:.1e}"


def parity_shapes(interface: GraphInterface | PixelInterface) -> tuple[tuple[int, int | None], ...]:
    """Three shapes (B, T) other than the traced one.

    Where the length is dynamic the longest input is among them, of a model with very many positions one of 2,048 tokens.
    Images have no T.
    """
    if isinstance(interface, PixelInterface):
        return interface.parity_shapes()
    if interface.length is not None:
        return tuple((batch, interface.length) for batch in (1, 3, 5))
    longest = min(interface.max_length, _MOST_TOKENS)
    return (1, min(7, longest)), (3, min(33, longest)), (max(1, min(4, _MOST_TOKENS // longest)), longest)


def random_feeds(
    interface: GraphInterface | PixelInterface,
    shape: tuple[int, int | None],
    *,
    vocab_size: int,
    pad_token_id: int,
    seed: int = _SEED,
) -> dict[str, np.ndarray]:
    """Random pixels, or random token ids; every row has a token.

    The first row is full, the second ends in padding, the third begins with it, and later ones are padded on both sides.

    Args:
        interface: names and types of the inputs.
        shape: B and T.
        vocab_size: ids are drawn below it.
        pad_token_id: what padded positions hold.
        seed: the same feeds for the same seed and shape.

    Returns:
        One array (B, T) per input of the graph, in the graph's integer type.
    """
    batch, length = shape
    if isinstance(interface, PixelInterface):
        return interface.random_feeds(batch, seed=seed)
    assert length is not None
    generator = np.random.default_rng((seed, batch, length))
    lengths_B = generator.integers(1, length + 1, size=batch)
    lengths_B[0] = length
    starts_B = generator.integers(0, length - lengths_B + 1)
    starts_B[1:2], starts_B[2:3] = 0, length - lengths_B[2:3]
    places_BT = np.arange(length)[None, :] - starts_B[:, None]
    mask_BT = (places_BT >= 0) & (places_BT < lengths_B[:, None])
    ids_BT = np.where(mask_BT, generator.integers(0, vocab_size, size=mask_BT.shape), pad_token_id)
    arrays = {
        "input_ids": ids_BT,
        "attention_mask": mask_BT,
        "token_type_ids": generator.integers(0, 2, size=mask_BT.shape),
    }
    dtype = np.int32 if interface.ids == torch.int32 else np.int64
    return {name: arrays[name].astype(dtype) for name in interface.inputs}


def check_parity(
    path: Path,
    model: PreTrainedModel,
    interface: GraphInterface | PixelInterface,
    *,
    vocab_size: int,
    pad_token_id: int,
    float16: bool = False,
) -> tuple[Parity, ...]:
    """Compare a graph with the model at :func:`parity_shapes`.

    Args:
        path: the written graph.
        model: the checkpoint's model, float32, in evaluation mode.
        interface: of the graph.
        vocab_size: token ids are drawn below it.
        pad_token_id: what padded positions hold.
        float16: the graph computes in float16; its difference is judged relative to the largest output.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: a difference above :func:`allowed_difference`, or an output that is not finite;
            names the shape and the difference.
    """
    session = open_session(path)
    results = []
    for shape in parity_shapes(interface):
        feeds = random_feeds(interface, shape, vocab_size=vocab_size, pad_token_id=pad_token_id)
        (actual,) = session.run([interface.output], feeds)
        expected = reference_output(model, feeds, interface)
        difference = _largest_difference(actual, expected, feeds.get("attention_mask"))
        largest = float(np.abs(expected).max())
        result = Parity(batch=shape[0], length=shape[1], max_difference=difference, max_output=largest)
        allowed = allowed_difference(largest, float16=float16)
        if not difference <= allowed:
            raise ValueError(
                f"the graph and PyTorch disagree at {shape_text(result.batch, result.length)}: largest absolute "
                f"difference of {interface.output} is {difference:.3g}, allowed is {allowed:g}"
            )
        results.append(result)
    return tuple(results)


def allowed_difference(largest: float, *, float16: bool) -> float:
    """Largest absolute difference that passes.

    Args:
        largest: absolute output of the PyTorch model. Logits of a decoder whose stream holds values in the thousands reach 30
            and carry rounding in proportion.
        float16: whether the graph computes in float16.
    """
    return FLOAT16_TOLERANCE * largest if float16 else TOLERANCE * max(1.0, largest / _LARGE_OUTPUT)


def _largest_difference(actual: np.ndarray, expected: np.ndarray, mask_BT: np.ndarray | None) -> float:
    """NaN where ``actual`` is not finite, padded positions included."""
    if not np.isfinite(actual).all():
        return float("nan")
    differences = np.abs(actual - expected)
    if mask_BT is not None and differences.shape[:2] == mask_BT.shape and differences.ndim == 3:
        differences = differences[mask_BT == 1]
    return float(differences.max())


def reference_output(
    model: PreTrainedModel, feeds: dict[str, np.ndarray], interface: GraphInterface | PixelInterface
) -> np.ndarray:
    """The model's own output for ``feeds``, float32."""
    with torch.no_grad():
        tensors = {
            name: torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.int64))
            for name, array in feeds.items()
        }
        outputs = model(**tensors, return_dict=True)
    output: np.ndarray = getattr(outputs, interface.output).numpy()
    return output


def open_session(path: Path) -> Any:
    """An ONNX Runtime session on the CPU.

    Raises:
        ImportError: ONNX Runtime is not installed.
        ValueError: this ONNX Runtime does not accept the graph, for example because its opset is too new for it.
    """
    try:
        import onnxruntime  # noqa: PLC0415  # heavy, and only the check after an export needs it
    except ImportError as error:
        raise ImportError("the check after an export needs ONNX Runtime; pip install 'quietformer[export]'") from error
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its error types share no base of their own
        raise ValueError(f"ONNX Runtime {onnxruntime.__version__} refuses the graph: {error}") from error
