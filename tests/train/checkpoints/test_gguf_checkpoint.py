"""GGUF files as checkpoints: a small one written by hand, and the real SmolLM2."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM, LlamaModel, PreTrainedModel

from tests.train.decoders import VOCABULARY, tiny_llama
from train.checkpoints.checkpoint import checkpoint_sha256, load, load_tokenizer_file, resolve_checkpoint, save
from train.checkpoints.checkpoint_files import positions_of, read_config_file, weight_files
from train.checkpoints.gguf_checkpoint import gguf_tensor_shapes
from train.checkpoints.tokenizer_file import tokenizer_file

_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def _write_gguf(path: Path, model: PreTrainedModel, *, without: str = "") -> None:
    """A Llama in the layout of llama.cpp, whose rotary pairs are neighbours, so rows of queries and keys are reordered."""
    config, heads = model.config, {"attn_q": 4, "attn_k": 2}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["<s>", "</s>", *(chr(ord("!") + index) for index in range(VOCABULARY - 3)), "AB"])
    writer.add_token_merges(["A B"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)

    def add(name: str, tensor: torch.Tensor) -> None:
        if name != without:
            writer.add_tensor(name, np.ascontiguousarray(tensor.detach().numpy()))

    weights = model.state_dict()
    add("token_embd.weight", weights["model.embed_tokens.weight"])
    add("output_norm.weight", weights["model.norm.weight"])
    for index in range(config.num_hidden_layers):
        for name, short in _NAMES.items():
            weight = weights[f"model.layers.{index}.{name}.weight"]
            if short in heads:
                halves = weight.reshape(heads[short], 2, -1, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
            add(f"blk.{index}.{short}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    _write_gguf(path, tiny_llama())
    return path


def test_a_gguf_file_loads_as_the_causal_model_it_holds(gguf_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, original = load(gguf_file), tiny_llama()
    assert isinstance(model, LlamaForCausalLM)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in original.state_dict().items())
    ids = torch.arange(8)[None]
    assert torch.equal(model(input_ids=ids).logits, original(input_ids=ids).logits)
    assert capfd.readouterr() == ("", "")


def test_its_bare_model_loads_too(gguf_file: Path) -> None:
    bare = load(gguf_file, head="none")
    assert isinstance(bare, LlamaModel)
    original = tiny_llama().base_model.state_dict()
    assert all(torch.equal(weight, original[name]) for name, weight in bare.state_dict().items())


def test_it_is_saved_as_a_checkpoint_folder_with_its_tokenizer(gguf_file: Path, tmp_path: Path) -> None:
    model, folder = load(gguf_file), tmp_path / "checkpoint"
    save(model, folder, source=gguf_file)
    again = load(folder)
    assert all(torch.equal(again.state_dict()[name], weight) for name, weight in model.state_dict().items())
    assert "quantization_config" not in read_config_file(folder)
    vocabulary = json.loads(load_tokenizer_file(folder).read_text())["model"]["vocab"]
    assert vocabulary["AB"] == VOCABULARY - 1
    with tokenizer_file(gguf_file) as written:
        assert written.read_bytes() == load_tokenizer_file(folder).read_bytes()
    assert not written.exists()
    with tokenizer_file(folder) as own:
        assert own == load_tokenizer_file(folder)


def test_a_folder_or_package_with_one_gguf_file_names_it(
    gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert resolve_checkpoint(str(gguf_file)) == resolve_checkpoint(str(gguf_file.parent)) == gguf_file
    package = tmp_path / "tiny_gguf_package"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    (package / "model.gguf").write_bytes(gguf_file.read_bytes())
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve_checkpoint("package:tiny_gguf_package") == package / "model.gguf"
    (package / "other.gguf").write_bytes(gguf_file.read_bytes())
    with pytest.raises(ValueError, match=r"holds several GGUF files \(model.gguf, other.gguf\); name one"):
        resolve_checkpoint(str(package))


def test_its_facts_are_those_of_the_file(gguf_file: Path) -> None:
    config = read_config_file(gguf_file)
    assert (config["model_type"], config["num_hidden_layers"], positions_of(config)) == ("llama", 2, 64)
    assert weight_files(gguf_file) == [gguf_file]
    shapes = gguf_tensor_shapes(gguf_file)
    assert shapes["blk.1.attn_k.weight"] == [16, 32]
    assert sum(math.prod(shape) for shape in shapes.values()) == tiny_llama().num_parameters()
    assert len(checkpoint_sha256(gguf_file)) == 64


def test_a_missing_weight_and_a_damaged_file_are_refused_by_name(gguf_file: Path, tmp_path: Path) -> None:
    _write_gguf(tmp_path / "part.gguf", tiny_llama(), without="blk.1.ffn_up.weight")
    with pytest.raises(ValueError, match=r"part.gguf lacks 1 weights of LlamaForCausalLM.*layers.1.mlp.up_proj.weight"):
        load(tmp_path / "part.gguf")
    (tmp_path / "cut.gguf").write_bytes(gguf_file.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"cut.gguf is not a GGUF file that can be read"):
        load(tmp_path / "cut.gguf")


def test_a_missing_package_names_the_extra(gguf_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(gguf_file.read_bytes())
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "gguf" else find_spec(name, *a))
    with pytest.raises(ImportError, match=r"pip install 'quietformer\[gguf\]'"):
        load(copy)


def test_a_tokenizer_inside_is_no_file_of_its_own(gguf_file: Path) -> None:
    with pytest.raises(ValueError, match="holds its tokenizer inside; save it as a checkpoint folder"):
        load_tokenizer_file(gguf_file)
