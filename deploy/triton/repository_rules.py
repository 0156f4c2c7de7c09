"""What must hold in a repository before Triton sees it: the text of every configuration, and the rules that a parser lacks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.files import sha256_file
from deploy.graphs.graph_structure import external_files, read_structure
from deploy.serving.model_signature import FREE
from deploy.serving.wire_types import config_type
from deploy.triton.config_text import CONFIG_FILE, KINDS, TYPE_NAMES, ModelConfig, read_config
from deploy.triton.ensemble_rules import check_ensemble
from deploy.triton.repository_manifest import RepositoryManifest
from deploy.triton.sources import graph_signature


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One broken rule."""

    model: str
    message: str

    def __str__(self) -> str:
        return f"{self.model}: {self.message}"


def check_repository(folder: Path) -> list[Finding]:
    """Every broken rule of a repository, whether or not quietformer wrote it.

    Raises:
        NotADirectoryError: no such folder.
    """
    if not folder.is_dir():
        raise NotADirectoryError(f"{folder} is no folder; expected a model repository")
    findings, configs = [], {}
    for model in sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")):
        try:
            configs[model.name] = read_config(model / CONFIG_FILE)
        except (ValueError, FileNotFoundError) as error:
            findings.append(Finding(model=model.name, message=str(error)))
    if not configs and not findings:
        findings.append(Finding(model=folder.name, message="holds no model"))
    try:
        manifest = RepositoryManifest.load(folder)
    except ValueError as error:
        manifest = None
        findings.append(Finding(model=folder.name, message=str(error)))
    for name, config in configs.items():
        findings += [Finding(model=name, message=text) for text in _model_messages(folder / name, config, manifest)]
        findings += [Finding(model=name, message=text) for text in check_ensemble(config, configs)]
    if manifest is not None:
        findings += [Finding(model=folder.name, message=text) for text in _changed_files(folder, manifest)]
    return findings


def _model_messages(folder: Path, config: ModelConfig, manifest: RepositoryManifest | None) -> Iterator[str]:
    if config.name != folder.name:
        yield f"name is '{config.name}'; Triton expects the folder's name, '{folder.name}'"
    if config.max_batch_size < 0:
        yield f"max_batch_size is {config.max_batch_size}; expected 0 or more"
    for side in (config.input, config.output):
        if not side:
            yield f"declares no {'input' if side is config.input else 'output'}"
        for tensor in side:
            if not tensor.dims:
                yield f"tensor '{tensor.name}' has no dims"
            elif any(size == 0 or size < FREE for size in tensor.dims):
                yield f"tensor '{tensor.name}' has dims {list(tensor.dims)}; expected positive sizes or -1"
    yield from _batching_messages(config)
    versions = sorted(int(path.name) for path in folder.iterdir() if path.is_dir() and _is_version(path.name))
    if not versions:
        yield "has no version folder; expected 1, 2, …"
    wanted = list(config.version_policy.specific.versions)
    if missing := [version for version in wanted if version not in versions]:
        yield f"version {missing[0]} is to be served and not there; there are {', '.join(map(str, versions))}"
    for version in versions:
        for file in _needed_files(config):
            if not (folder / str(version) / file).is_file():
                yield f"{version}/{file} is missing"
            elif file.endswith(".onnx"):
                yield from _graph_messages(folder / str(version) / file, config)
    yield from _warm_up_messages(config)
    if manifest is not None and config.name == manifest.model:
        yield from _profile_messages(config, manifest)


def _is_version(name: str) -> bool:
    return name.isdecimal() and not name.startswith("0")


def _needed_files(config: ModelConfig) -> list[str]:
    if config.platform == "ensemble":
        return []
    if config.backend == "tensorrt":
        return sorted(set(config.cc_model_filenames.values())) or [config.default_model_filename or "model.plan"]
    usual = {"python": "model.py", "onnxruntime": "model.onnx", "openvino": "model.xml"}
    return [file] if (file := config.default_model_filename or usual.get(config.backend, "")) else []


def _batching_messages(config: ModelConfig) -> Iterator[str]:
    if not config.HasField("dynamic_batching"):
        return
    if not config.max_batch_size:
        yield "dynamic_batching needs max_batch_size of at least 1"
    for size in config.dynamic_batching.preferred_batch_size:
        if not 0 < size <= config.max_batch_size:
            yield f"preferred_batch_size {size} is not between 1 and max_batch_size {config.max_batch_size}"


def _graph_messages(path: Path, config: ModelConfig) -> Iterator[str]:
    try:
        structure = read_structure(path)
        signature = graph_signature(structure, max_batch_size=max(1, config.max_batch_size), name=path.name)
    except ValueError as error:
        yield str(error)
        return
    for location in external_files(structure):
        if not (path.parent / location).is_file():
            yield f"{path.name} keeps weights in {location}, which is not beside it"
    if config.max_batch_size and not signature.max_batch_size:
        yield f"max_batch_size is {config.max_batch_size} and {path.name} has no free first axis; expected 0"
        return
    for side, specs in (("input", signature.inputs), ("output", signature.outputs)):
        declared = {tensor.name: tensor for tensor in getattr(config, side)}
        if unknown := sorted(set(declared) - {spec.name for spec in specs}):
            yield f"{path.name} has no {side} '{unknown[0]}'; it has {', '.join(spec.name for spec in specs)}"
        for spec in specs:
            if spec.name not in declared:
                if side == "input":
                    yield f"input '{spec.name}' of {path.name} is not declared"
                continue
            tensor = declared[spec.name]
            if TYPE_NAMES[tensor.data_type] != config_type(spec.datatype):
                yield f"{side} '{spec.name}' is {TYPE_NAMES[tensor.data_type]}; in {path.name} {config_type(spec.datatype)}"
            own = spec.shape if config.max_batch_size or not signature.max_batch_size else (FREE, *spec.shape)
            if not _fits(list(tensor.dims), list(own)):
                yield f"{side} '{spec.name}' has dims {list(tensor.dims)}; in {path.name} {list(own)}"


def _fits(declared: list[int], own: list[int]) -> bool:
    return len(declared) == len(own) and all(
        FREE in (one, other) or one == other for one, other in zip(declared, own, strict=True)
    )


def _warm_up_messages(config: ModelConfig) -> Iterator[str]:
    tensors = {tensor.name: tensor for tensor in config.input}
    for sample in config.model_warmup:
        if sample.batch_size > max(1, config.max_batch_size):
            yield f"warm-up '{sample.name}' has {sample.batch_size} rows; max_batch_size is {config.max_batch_size}"
        if odd := sorted(set(sample.inputs) ^ set(tensors)):
            yield f"warm-up '{sample.name}' and the inputs differ in '{odd[0]}'"
            continue
        for name, entry in sample.inputs.items():
            if entry.data_type != tensors[name].data_type or not _fits(list(entry.dims), list(tensors[name].dims)):
                yield f"warm-up '{sample.name}' does not fit input '{name}'"


def _profile_messages(config: ModelConfig, manifest: RepositoryManifest) -> Iterator[str]:
    """Shapes that are to run, against the optimization profiles of the plans."""
    on_cpu = [group for group in config.instance_group if group.kind == KINDS["KIND_CPU"]]
    if config.backend == "tensorrt" and on_cpu:
        yield "TensorRT plans run on GPUs; instance_group has KIND_CPU"
    for engine in manifest.engines:
        for name, shapes in engine["profile"].items():
            low, high = shapes["min"], shapes["max"]
            where = f"the profile of {engine['files'][0]}"
            if config.max_batch_size > high[0]:
                yield f"max_batch_size is {config.max_batch_size}; {where} ends at {high[0]} rows"
            if config.max_batch_size and low[0] > 1:
                yield f"{where} begins at {low[0]} rows of '{name}'; Triton sends single rows too"
            ran = [(f"warm-up '{entry.name}'", entry.batch_size, list(entry.inputs[name].dims))
                   for entry in config.model_warmup if name in entry.inputs]  # fmt: skip
            ran += [("a CUDA graph", spec.batch_size, list(spec.input[name].dim))
                    for spec in config.optimization.cuda.graph_spec if name in spec.input]  # fmt: skip
            for what, rows, sizes in ran:
                full = [rows, *sizes] if config.max_batch_size else sizes
                if len(full) != len(low) or not all(a <= b <= c for a, b, c in zip(low, full, high, strict=True)):
                    yield f"{what} has {'x'.join(map(str, full))} of '{name}', outside of {where}"


def _changed_files(folder: Path, manifest: RepositoryManifest) -> Iterator[str]:
    for name, sha256 in manifest.files.items():
        file = folder / name
        if not file.is_file():
            yield f"{name} is missing"
        elif sha256_file(file) != sha256:
            yield f"{name} is not the file that was written; write the repository again"
