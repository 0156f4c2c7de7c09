"""Rules of ensembles: every tensor of a step is made before it is read, and is what the models say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from deploy.serving.model_signature import FREE
from deploy.triton.config_text import TYPE_NAMES, ModelConfig


def check_ensemble(config: ModelConfig, configs: Mapping[str, ModelConfig]) -> Iterator[str]:
    """Messages about one configuration; none where it is no ensemble.

    Args:
        config: to look at.
        configs: of the whole repository.
    """
    if config.platform != "ensemble":
        return
    if not config.ensemble_scheduling.step:
        yield "is an ensemble without steps"
    known: dict[str, Any] = {tensor.name: tensor for tensor in config.input}
    for step in config.ensemble_scheduling.step:
        if step.model_name not in configs:
            yield f"step '{step.model_name}' is no model of this repository; there are {', '.join(configs)}"
            return
        model = configs[step.model_name]
        if config.max_batch_size > model.max_batch_size:
            yield f"max_batch_size is {config.max_batch_size}; step '{model.name}' takes {model.max_batch_size}"
        inputs = {tensor.name: tensor for tensor in model.input}
        outputs = {tensor.name: tensor for tensor in model.output}
        if missing := sorted(set(inputs) ^ set(step.input_map)):
            yield f"step '{model.name}' and its input_map differ in '{missing[0]}'"
        for name, tensor in step.input_map.items():
            if tensor not in known:
                yield f"step '{model.name}' reads '{tensor}', which nothing before it makes"
            elif name in inputs:
                yield from _same(known[tensor], inputs[name], f"'{tensor}' and input '{name}' of '{model.name}'")
        for name, tensor in step.output_map.items():
            if name not in outputs:
                yield f"step '{model.name}' has no output '{name}'; it has {', '.join(outputs)}"
            else:
                known[tensor] = outputs[name]
    for tensor in config.output:
        if tensor.name not in known:
            yield f"no step makes output '{tensor.name}'"
        else:
            yield from _same(known[tensor.name], tensor, f"output '{tensor.name}' and what makes it")


def _same(first: Any, second: Any, what: str) -> Iterator[str]:
    if first.data_type != second.data_type:
        yield f"{what} differ in type: {TYPE_NAMES[first.data_type]}, {TYPE_NAMES[second.data_type]}"
    sizes = list(first.dims), list(second.dims)
    if len(sizes[0]) != len(sizes[1]) or any(
        FREE not in pair and pair[0] != pair[1] for pair in zip(*sizes, strict=True)
    ):
        yield f"{what} differ in dims: {sizes[0]}, {sizes[1]}"
