"""A checkpoint as an ONNX graph: lowered, traced, cleaned, named, written, and checked before it replaces anything.

The graph of a model that reads images has the input ``pixel_values`` (batch, 3, height, width) of a static size and the output
``last_hidden_state`` (batch, tokens, hidden) or ``logits`` (batch, classes); ``preprocessor_config.json`` lies beside it.

The graph of one that reads tokens has inputs ``input_ids``, ``attention_mask`` and, where the model tells token types apart, ``token_type_ids``
(batch, length), and one output: ``last_hidden_state`` (batch, length, hidden) of a bare model, ``logits`` of a masked or
causal language model (batch, length, vocabulary) or of a classifier (batch, classes). Of a decoder it is one whole forward
pass, for scoring and embedding text: the graph has no cache of keys and values. ``tokenizer.json`` lies beside it, and
:class:`deploy.graphs.graph_info.GraphInfo` inside it. The same checkpoint and options give the same bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import onnx_ir as ir

from deploy.files import refuse_existing, write_atomically
from deploy.graphs.graph_writing import checked_before_replacing
from deploy.graphs.model_hash import model_sha256
from export.checkpoint_facts import integer_type
from export.checks import check_attention, check_interface, check_mask, check_operators
from export.graph_cleanup import clean_up, lower_opset
from export.graph_files import to_proto
from export.graph_names import name_everything
from export.graph_source import graph_source
from export.half_precision import half_graph
from export.lowering import LoweredModel, Lowering, lower, undo_chunking
from export.parity import Parity, check_parity
from export.pixel_interface import PixelInterface
from export.tracing import MODEL_SCOPE, GraphInterface, trace
from train.checkpoints.checkpoint import checkpoint_sha256, load

OPSETS = range(17, 24)
"""Accepted operator sets. ``Gelu`` is one operator from 20 on; below it is written out."""


Dtype = Literal["float32", "float16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportReport:
    """What was written and how it compared with PyTorch."""

    path: Path
    sha256: str
    """Of the graph with its weights."""
    opset: int
    nodes: int
    parity: tuple[Parity, ...]
    """One per shape that was compared."""
    dtype: Dtype
    seconds: float

    def __str__(self) -> str:
        """One line for people."""
        agreement = ", ".join(str(parity) for parity in self.parity)
        return (
            f"{self.dtype}, {self.nodes} nodes, opset {self.opset}, in {self.seconds:.1f} s; "
            f"largest difference from PyTorch at {agreement}"
        )


def export_checkpoint(
    checkpoint: Path,
    out: Path,
    *,
    length: int | None = None,
    lowering: Lowering = "folded",
    opset: int = 20,
    ids: Literal["int64", "int32"] = "int64",
    dtype: Dtype = "float32",
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> ExportReport:
    """Export a checkpoint to ONNX.

    Args:
        checkpoint: folder, as :func:`train.checkpoints.checkpoint.load` reads it, with a ``tokenizer.json`` or what says how images are
            prepared (:mod:`deploy.data.image_preprocessing`).
        out: the graph to write; ``tokenizer.json`` goes beside it.
        length: static length in tokens; by default the length is dynamic. The batch always is, the size of images never.
        lowering: ``folded`` puts scales into weights, ``literal`` writes clipped softmax and gates as defined.
        opset: 17 to 23.
        ids: type of every input.
        dtype: ``float16`` writes the float16 form (:mod:`export.half_precision`) of the graph that ``float32`` writes.
            Calibration needs the latter, by whose hash the former knows it.
        force: replace existing files.
        progress: told what is being done, in a few words.

    Raises:
        FileNotFoundError: no checkpoint, or one without a tokenizer or preprocessing of images.
        FileExistsError: ``out``, or another model's ``tokenizer.json`` (``preprocessor_config.json``) beside it, exists and ``force`` is not set.
        ImportError: ONNX Runtime or onnxscript is not installed.
        ValueError: an option out of range, a length above the model's positions, a model that cannot be exported, or a
            graph that fails one of the three checks; then nothing was replaced.
    """
    started = time.monotonic()
    say = progress or (lambda _text: None)
    integers = integer_type(ids)
    if dtype not in get_args(Dtype):
        raise ValueError(f"unknown dtype '{dtype}'; known are {', '.join(get_args(Dtype))}")
    if opset not in OPSETS:
        raise ValueError(f"opset is {opset}; expected {OPSETS.start} to {OPSETS.stop - 1}")
    if out.parent.resolve() == checkpoint.resolve():
        raise ValueError(f"{out} is inside the checkpoint, whose files would be replaced; give another folder")
    refuse_existing(out, force=force)
    say("reading the checkpoint")
    model = load(checkpoint)
    undo_chunking(model)
    source = graph_source(model, checkpoint, length=length, ids=integers)
    companion = out.with_name(source.companion)
    if not (companion.is_file() and companion.read_bytes() == source.companion_content):
        refuse_existing(companion, force=force)
    interface = source.interface
    say("tracing")
    lowered = lower(model, lowering=lowering)
    proto = to_proto(_graph(lowered, interface, opset))
    info = replace(
        source.info,
        lowering=lowering,
        attention=lowered.settings.to_dict(),
        checkpoint_sha256=checkpoint_sha256(checkpoint),
    )
    info.write(proto)
    check_attention(proto.graph, lowered)
    check_mask(proto.graph, lowered, interface)
    if dtype == "float16":
        say("converting to float16")
        proto = half_graph(proto, info)
    with checked_before_replacing(proto, out) as written:
        say("checking against PyTorch")
        check_operators(written)
        check_interface(proto.graph, interface)
        parity = check_parity(
            written,
            model,
            interface,
            vocab_size=info.vocab_size,
            pad_token_id=info.pad_token_id,
            float16=dtype == "float16",
        )
        write_atomically(companion, source.companion_content)
    return ExportReport(
        path=out,
        sha256=model_sha256(out),
        opset=opset,
        nodes=len(proto.graph.node),
        parity=parity,
        dtype=dtype,
        seconds=time.monotonic() - started,
    )


def _graph(lowered: LoweredModel, interface: GraphInterface | PixelInterface, opset: int) -> ir.Model:
    model = trace(lowered.model, interface, opset=opset)
    clean_up(model)
    name_everything(model, root=MODEL_SCOPE)
    if opset < model.opset_imports[""]:
        lower_opset(model, opset)
    return model
