"""A model repository for Triton, written as a whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from deploy.backends.exact_weights import may_saturate
from deploy.backends.unsigned_activations import use_unsigned_activations
from deploy.files import atomic_folder
from deploy.graphs.graph_info import TOKENIZER_FILE
from deploy.graphs.graph_structure import external_files
from deploy.serving.model_signature import ModelSignature
from deploy.serving.text_model import why_no_texts
from deploy.triton.config_text import CONFIG_FILE, ModelConfig, to_text
from deploy.triton.model_configs import ANSWER, TEXTS, TOKENIZER, TextFacts, graph_config, text_configs
from deploy.triton.repository_manifest import MANIFEST_FILE, RepositoryManifest, hash_files
from deploy.triton.repository_rules import Finding, check_repository
from deploy.triton.repository_settings import GPU_RUNTIMES, RepositorySettings
from deploy.triton.runtime_options import GRAPH_FILE, plan_file, set_runtime
from deploy.triton.sources import TritonSource, graph_signature

_PYTHON_MODELS = Path(__file__).parent / "python_models"
Check = Callable[[Path], list[Finding]]


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenRepository:
    """What came of it."""

    folder: Path
    models: tuple[str, ...]
    notes: tuple[str, ...]
    """What a person should know."""


def write_repository(
    source: TritonSource, settings: RepositorySettings, out: Path, *, force: bool, last_check: Check | None = None
) -> WrittenRepository:
    """Write a repository that has passed the rules, and a load by the real Triton where one is given.

    Args:
        source: what to serve.
        settings: how.
        out: folder of the repository.
        force: replace an earlier repository there; never anything else.
        last_check: tries the finished folder before it takes its place.

    Raises:
        FileExistsError: ``out`` exists, without ``force`` or with something else in it.
        ValueError: the repository cannot be made of these, or breaks a rule.
    """
    refuse_existing_folder(out, source, force=force)
    notes: list[str] = []
    with atomic_folder(out) as folder:
        signature, longest = _signature(source, settings)
        config = graph_config(signature, settings, longest=longest, smallest=_bounds(source, "min"))
        is_quantized = any(node.op_type == "QuantizeLinear" for node in source.structure.graph.node)
        set_runtime(config, settings, is_quantized=is_quantized, engines=source.engines)
        configs = [config, *_texts(source, signature, settings, longest, notes)]
        for entry in configs:
            _write_config(folder, entry, settings.version)
        _write_model(folder / settings.name / str(settings.version), source, settings)
        _write_text_files(folder, configs[1:], source, settings)
        manifest = RepositoryManifest(
            model=settings.name,
            runtime=settings.runtime,
            graph_sha256=source.graph_sha256,
            longest=longest,
            engines=_engine_facts(source),
            files=hash_files(folder),
        )
        (folder / MANIFEST_FILE).write_text(manifest.to_json(), encoding="utf-8")
        findings = check_repository(folder) or (last_check(folder) if last_check else [])
        if findings:
            raise ValueError(f"{findings[0]}" + (f" (and {len(findings) - 1} more)" if len(findings) > 1 else ""))
    notes += _runtime_notes(settings, signature, can_saturate=is_quantized and may_saturate(source.structure))
    return WrittenRepository(folder=out, models=tuple(entry.name for entry in configs), notes=tuple(notes))


def refuse_existing_folder(out: Path, source: TritonSource, *, force: bool) -> None:
    """Guard what is there: only an earlier repository is ever replaced, and never one that is read.

    Raises:
        FileExistsError: something is there.
        NotADirectoryError: a file is there.
        ValueError: what is read lies in there.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; expected a folder to write the repository to")
    if any(out.iterdir()) and not (out / MANIFEST_FILE).is_file():
        raise FileExistsError(f"{out} holds something that is no repository of quietformer; name another folder")
    if any(out.iterdir()) and not force:
        raise FileExistsError(f"{out} exists; pass --force to replace it")
    read = [source.graph, *(engine.folder for engine in source.engines)]
    if inside := [path for path in read if path.resolve().is_relative_to(out.resolve())]:
        raise ValueError(f"{inside[0]}, which is read, lies in {out}; give the output another name")


def _signature(source: TritonSource, settings: RepositorySettings) -> tuple[ModelSignature, int | None]:
    """Tensors, with the rows of one run, and the longest row in tokens."""
    batches = [sizes[0] for sizes in _bounds(source, "max").values()]
    signature = graph_signature(
        source.structure, max_batch_size=min([settings.max_batch_size, *batches]), name=source.graph.name
    )
    if settings.runtime == "openvino" and signature.max_batch_size:
        # Triton's OpenVINO backend fixes the graph at max_batch_size rows and would pad every run to as many.
        signature = replace(
            signature,
            max_batch_size=0,
            inputs=tuple(replace(spec, shape=signature.full_shape(spec)) for spec in signature.inputs),
            outputs=tuple(replace(spec, shape=signature.full_shape(spec)) for spec in signature.outputs),
        )
    lengths = [sizes[1] for sizes in _bounds(source, "max").values() if len(sizes) == 2]
    known = source.info.length or source.info.max_length if source.info and source.info.reads == "tokens" else None
    return signature, min([*lengths, *([known] if known else [])], default=None)


def _bounds(source: TritonSource, which: str) -> dict[str, list[int]]:
    """A bound of every input that all engines keep: the greatest ``min``, the least ``max``."""
    found: dict[str, list[int]] = {}
    choose = max if which == "min" else min
    for engine in source.engines:
        for name, shapes in engine.report.profile.items():
            earlier = found.get(name, shapes[which])
            found[name] = [choose(pair) for pair in zip(earlier, shapes[which], strict=True)]
    return found


def _texts(
    source: TritonSource, signature: ModelSignature, settings: RepositorySettings, longest: int | None, notes: list[str]
) -> list[ModelConfig]:
    if not settings.texts:
        return []
    names = tuple(spec.name for spec in signature.inputs)
    reason = why_no_texts(source.info, names, has_tokenizer=source.tokenizer is not None)
    if reason is not None or source.info is None or longest is None:
        notes.append(f"{settings.name}{TEXTS}: left out, {reason}")
        return []
    shortest = max((sizes[1] for sizes in _bounds(source, "min").values() if len(sizes) == 2), default=1)
    return text_configs(signature, settings, TextFacts(info=source.info, longest=longest, shortest=shortest))


def _write_config(folder: Path, config: ModelConfig, version: int) -> None:
    (folder / config.name / str(version)).mkdir(parents=True)
    (folder / config.name / CONFIG_FILE).write_text(to_text(config), encoding="utf-8")


def _write_model(folder: Path, source: TritonSource, settings: RepositorySettings) -> None:
    if settings.runtime == "tensorrt":
        for engine in source.engines:
            for capability in engine.report.compute_capabilities:
                shutil.copyfile(engine.file, folder / plan_file(capability))
        return
    model = onnx.ModelProto()
    model.CopyFrom(source.structure)
    if settings.runtime in GPU_RUNTIMES or not use_unsigned_activations(model):
        shutil.copyfile(source.graph, folder / GRAPH_FILE)
    else:  # the same numbers in the types that x86 integer kernels are made for
        (folder / GRAPH_FILE).write_bytes(model.SerializeToString(deterministic=True))
    for location in external_files(source.structure):
        shutil.copyfile(source.graph.parent / location, folder / location)


def _write_text_files(
    folder: Path, configs: list[ModelConfig], source: TritonSource, settings: RepositorySettings
) -> None:
    if not configs or source.tokenizer is None:
        return
    for suffix, file in ((TOKENIZER, "tokenizer_model.py"), (ANSWER, "answer_model.py")):
        shutil.copyfile(_PYTHON_MODELS / file, folder / (settings.name + suffix) / str(settings.version) / "model.py")
    shutil.copyfile(source.tokenizer, folder / (settings.name + TOKENIZER) / str(settings.version) / TOKENIZER_FILE)
    # An empty folder is what an ensemble has for a version; version control and archives lose those.
    (folder / (settings.name + TEXTS) / str(settings.version) / ".keep").touch()


def _engine_facts(source: TritonSource) -> list[dict[str, object]]:
    return [
        {
            "files": [plan_file(capability) for capability in engine.report.compute_capabilities],
            "compute_capabilities": engine.report.compute_capabilities,
            "tensorrt": engine.report.version,
            "profile": engine.report.profile,
            "sha256": engine.report.engine_sha256,
        }
        for engine in source.engines
    ]


def _runtime_notes(settings: RepositorySettings, signature: ModelSignature, *, can_saturate: bool) -> list[str]:
    notes = []
    if settings.response_cache:
        notes.append("the response cache also needs the server's --cache-config=local,size=BYTES")
    if settings.runtime == "tensorrt":
        notes.append("a plan loads only on the GPUs and with the version of TensorRT in quietformer.json")
    if settings.runtime == "onnxruntime-tensorrt":
        notes.append(
            f"engines are built when the server starts and kept in {settings.engine_cache}: mount a volume there"
        )
    if settings.runtime in ("onnxruntime", "openvino") and can_saturate:
        notes.append(
            "on x86 without an 8-bit dot product (VNNI) this runtime's integer sums saturate, and Triton cannot switch that "
            "off: 'quantize --reduce-range' avoids it, and 'quietformer serve' is exact there"
        )
    if settings.runtime == "openvino" and signature.max_batch_size == 0:
        notes.append(
            "requests are not joined into batches: Triton's OpenVINO backend would pad each to max_batch_size rows"
        )
    return notes
