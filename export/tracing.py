"""From a lowered PyTorch model to a raw ONNX graph: one trace, the inputs and outputs named, the exporter kept quiet.

Legend: B batch, T tokens of the longest row.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import onnx_ir as ir
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from export.pixel_interface import PixelInterface
from export.traced_masks import BoundedMask, CausalMask, Positions

MODEL_SCOPE = "model"
"""Name under which the traced module holds the model; stripped from every name of the graph."""
LOWEST_TRACED_OPSET = 18
"""torch's exporter writes no older operators; 17 is reached by :func:`export.graph_cleanup.lower_opset`."""

_TRACED_BATCH = 2
_TRACED_LENGTH = 16
_NOISY_LOGGERS = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphInterface:
    """Names, types and sizes at the edge of the graph."""

    output: str
    """``last_hidden_state`` or ``logits``."""
    token_types: bool
    """Whether the model reads ``token_type_ids``."""
    ids: torch.dtype
    """Type of every input: int64 or int32."""
    max_length: int
    """Longest input in tokens."""
    length: int | None
    """Static length in tokens, None when dynamic."""
    causal: bool = False
    """Whether a token sees only itself and what is before it; its position then comes from the attention mask."""

    @property
    def inputs(self) -> tuple[str, ...]:
        """Input names, in the order of the graph's inputs."""
        return ("input_ids", "attention_mask", *(("token_type_ids",) if self.token_types else ()))

    @property
    def sizes(self) -> dict[str, list[int | str]]:
        """Sizes of each input of the graph, a name where a size is free."""
        return {name: ["batch", self.length or "length"] for name in self.inputs}

    @property
    def mask_sizes(self) -> list[int | str] | None:
        """Sizes of the mask that scores get, a name where a size is free."""
        length = self.length or "length"
        return ["batch", 1, length if self.causal else 1, length]

    @property
    def traced_shape(self) -> tuple[int, int]:
        """Batch and length of the example that is traced. Above 1, which torch would take for a constant."""
        return _TRACED_BATCH, self.length or min(_TRACED_LENGTH, self.max_length)

    def example(self) -> tuple[Tensor, ...]:
        """What is traced: ids of 0, and masks of 1."""
        example_BT = torch.zeros(self.traced_shape, dtype=self.ids)
        return tuple(example_BT + (name == "attention_mask") for name in self.inputs)

    def dynamic_shapes(self) -> tuple[dict[int, object], ...]:
        """Dimensions of each input that stay free."""
        dims: dict[int, object] = {0: torch.export.Dim("batch")}
        if self.length is None:
            dims[1] = torch.export.Dim("length", max=self.max_length)
        return (dims,) * len(self.inputs)

    def wrapped(self, model: PreTrainedModel) -> nn.Module:
        """The model behind this interface."""
        return TracedModel(model, self)


class TracedModel(nn.Module):
    """The model behind the graph's interface: token ids and masks in, one float tensor out."""

    def __init__(self, model: PreTrainedModel, interface: GraphInterface) -> None:
        super().__init__()
        self.model = model
        self.mask = CausalMask() if interface.causal else BoundedMask()
        self.positions = Positions()
        self.interface = interface

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None) -> Tensor:
        """The output named in the interface, float32."""
        mask = self.mask(attention_mask)
        if self.interface.causal:
            positions_BT = self.positions(attention_mask)
            outputs = self.model(
                input_ids=input_ids,
                attention_mask=mask,
                position_ids=positions_BT,
                use_cache=False,
                return_dict=True,
            )
        else:
            if token_type_ids is None:  # one type for all tokens: its embedding becomes a constant of the graph
                token_type_ids = torch.zeros(1, 1, dtype=torch.int64)
            outputs = self.model(
                input_ids=input_ids, attention_mask=mask, token_type_ids=token_type_ids, return_dict=True
            )
        output: Tensor = getattr(outputs, self.interface.output)
        return output


def trace(model: PreTrainedModel, interface: GraphInterface | PixelInterface, *, opset: int) -> ir.Model:
    """Trace a lowered model.

    The batch is always dynamic; the length of token inputs is where the interface gives none. The graph is what the exporter makes
    before any optimization; :mod:`export.graph_cleanup` and :mod:`export.graph_names` turn it into a readable one.

    Args:
        model: lowered by :func:`export.lowering.lower`, in evaluation mode.
        interface: names, types and sizes.
        opset: 17 to 23; below 18 the trace is made at 18.
    """
    with _quiet_exporter(), torch.no_grad():
        program = torch.onnx.export(
            interface.wrapped(model).eval(),
            interface.example(),
            dynamo=True,
            opset_version=max(opset, LOWEST_TRACED_OPSET),
            dynamic_shapes=interface.dynamic_shapes(),
            input_names=list(interface.inputs),
            output_names=[interface.output],
            optimize=False,
            verbose=False,
        )
    assert program is not None
    return program.model


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """Silence what the exporter says about itself: absent torchvision, its own deprecated calls, shared axis names."""
    loggers = [logging.getLogger(name) for name in _NOISY_LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"copyreg|torch\..*")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(torch|onnxscript|onnx_ir)\..*")
            warnings.filterwarnings("ignore", message="# The axis name: .* will not be used", category=UserWarning)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
