"""Metadata, configuration, statistics and index as the protocol words them: plain values for JSON and for protobuf."""

from __future__ import annotations

from typing import Any

from deploy.serving.batcher import BatchingSettings
from deploy.serving.inference_statistics import Duration
from deploy.serving.model_repository import IndexEntry
from deploy.serving.served_model import ServedModel
from deploy.serving.wire_types import config_type

SERVER_NAME = "quietformer"
EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "statistics",
    "parameters",
    "schedule_policy",
)
"""Of the protocol, as Triton names them."""
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")


def server_metadata(version: str) -> dict[str, Any]:
    """Of the server."""
    return {"name": SERVER_NAME, "version": version, "extensions": list(EXTENSIONS)}


def model_metadata(model: ServedModel) -> dict[str, Any]:
    """Inputs and outputs, with the batch axis."""
    signature = model.signature
    sides = {
        side: [
            {"name": spec.name, "datatype": spec.datatype, "shape": list(signature.full_shape(spec))} for spec in specs
        ]
        for side, specs in (("inputs", signature.inputs), ("outputs", signature.outputs))
    }
    return {"name": model.name, "versions": [model.version], "platform": model.platform, **sides}


def model_config(model: ServedModel, batching: BatchingSettings, instances: int) -> dict[str, Any]:
    """Triton's model configuration of a model."""
    signature = model.signature
    microseconds = int(batching.queue_timeout * 1e6)
    config: dict[str, Any] = {
        "name": model.name,
        "platform": model.platform,
        "backend": SERVER_NAME,
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": signature.max_batch_size,
        "input": [
            {"name": spec.name, "data_type": config_type(spec.datatype), "dims": list(spec.shape)}
            for spec in signature.inputs
        ],
        "output": [
            {"name": spec.name, "data_type": config_type(spec.datatype), "dims": list(spec.shape)}
            for spec in signature.outputs
        ],
        "instance_group": [{"name": model.name, "kind": "KIND_AUTO", "count": instances}],
        "parameters": {key: {"string_value": value} for key, value in model.facts.items()},
    }
    if signature.max_batch_size:
        config["dynamic_batching"] = {
            "max_queue_delay_microseconds": int(batching.queue_delay * 1e6),
            "default_queue_policy": {
                "timeout_action": "REJECT",
                "default_timeout_microseconds": microseconds,
                "allow_timeout_override": True,
                "max_queue_size": batching.max_queue_size,
            },
        }
    return config


def model_statistics(model: ServedModel) -> dict[str, Any]:
    """Counts and durations of a model."""
    found = model.statistics
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": found.last_inference_ms,
        "inference_count": found.inference_count,
        "execution_count": found.execution_count,
        "inference_stats": {
            "success": _duration(found.success),
            "fail": _duration(found.fail),
            **{stage: _duration(getattr(found, stage)) for stage in _STAGES},
            "cache_hit": _duration(Duration()),
            "cache_miss": _duration(Duration()),
        },
        "batch_stats": [
            {"batch_size": rows, **{stage: _duration(getattr(batch, stage)) for stage in _STAGES[1:]}}
            for rows, batch in sorted(found.batches.items())
        ],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}


def index_entry(entry: IndexEntry) -> dict[str, str]:
    """A line of the repository index."""
    line = {"name": entry.name, "version": entry.version, "state": "READY" if entry.ready else "UNAVAILABLE"}
    return line | ({"reason": entry.reason} if entry.reason else {})
