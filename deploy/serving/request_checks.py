"""Whether a request fits a model, looked at before it joins a batch: nobody else's request fails because of it."""

from __future__ import annotations

import numpy as np

from deploy.backends.base import IDS_NAME, check_finite, check_ids, check_mask, check_shapes
from deploy.graphs.feed_types import MASK_NAME
from deploy.graphs.graph_info import GraphInfo
from deploy.serving.faults import invalid
from deploy.serving.inference_messages import InferRequest
from deploy.serving.model_signature import FREE, ModelSignature
from deploy.serving.wire_types import datatype_of


def check_request(request: InferRequest, signature: ModelSignature, model: str) -> int:
    """Names, types, ranks, sizes and the batch of a request.

    Returns:
        Rows of the request; 1 for a model without a batch axis.

    Raises:
        RequestFaultError: names what does not fit, and what was expected.
    """
    known = [spec.name for spec in signature.inputs]
    if unknown := [name for name in request.inputs if name not in known]:
        raise invalid(f"unexpected input '{unknown[0]:.80}' for model '{model}'; it takes {', '.join(known)}")
    if missing := [name for name in known if name not in request.inputs]:
        raise invalid(f"input '{missing[0]}' is missing for model '{model}'; it takes {', '.join(known)}")
    for wanted in request.outputs:
        if wanted.name not in signature.output_names:
            names = ", ".join(signature.output_names)
            raise invalid(f"unexpected output '{wanted.name:.80}' for model '{model}'; it gives {names}")
    batches = set()
    for spec in signature.inputs:
        array = request.inputs[spec.name]
        given = datatype_of(array.dtype)
        if given != spec.datatype:
            raise invalid(f"input '{spec.name}' of model '{model}' is {given}; expected {spec.datatype}")
        expected = signature.full_shape(spec)
        if array.ndim != len(expected) or any(
            wanted_size not in (FREE, size) for size, wanted_size in zip(array.shape, expected, strict=True)
        ):
            raise invalid(
                f"input '{spec.name}' of model '{model}' has shape {list(array.shape)}; expected {list(expected)}"
            )
        if array.size == 0:
            raise invalid(f"input '{spec.name}' of model '{model}' is empty: shape {list(array.shape)}")
        batches.add(array.shape[0] if signature.max_batch_size else 1)
    if len(batches) > 1:
        raise invalid(f"inputs of model '{model}' have different batches: {sorted(batches)}")
    rows = batches.pop()
    if rows > max(1, signature.max_batch_size):
        raise invalid(f"batch {rows} is above the {signature.max_batch_size} rows that model '{model}' takes")
    return rows


def check_values(
    inputs: dict[str, np.ndarray], shapes: dict[str, tuple[int | str, ...]], info: GraphInfo | None
) -> None:
    """Sizes that must agree, positions, vocabulary, marks, and numbers that are finite.

    Args:
        inputs: tensors that passed :func:`check_request`.
        shapes: of the backend.
        info: of the graph; None where it says nothing of its model.

    Raises:
        RequestFaultError: names what does not fit.
    """
    try:
        check_shapes(inputs, shapes)
        if info is not None and info.reads == "tokens" and IDS_NAME in inputs:
            check_ids(inputs[IDS_NAME], info)
        if info is not None and MASK_NAME in inputs:
            check_mask(inputs[MASK_NAME])
        check_finite(inputs)
    except ValueError as error:
        raise invalid(str(error)) from error
