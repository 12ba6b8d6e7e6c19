"""Causal language models on layers of ours beside transformers' generate, by shape, random weights.

    python benchmarks/causal.py [--shapes smollm2,1.7b,8b] [--batches 1,256] [--device cuda]

Each row has tokens per second, milliseconds a pass, and how long reading all weights would take at
`--bandwidth`. Texts are of 64 tokens after 5, drawn from a nucleus of 0.9, medians of three.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from ssdlm import SSDLM, GenerateOptions
from ssdlm.config import CausalConfig
from ssdlm.denoiser.llama import LlamaDenoiser

LENGTH = 64
SMOL = {"D": 576, "num_layers": 30, "num_heads": 9, "num_kv_heads": 3, "head_size": 64}
SHAPES = {
    "smollm2": CausalConfig(V=49152, hidden=1536, max_len=2048, is_tied=True, **SMOL),
    "1.7b": CausalConfig(
        V=49152, D=2048, num_layers=24, num_heads=32, num_kv_heads=32, head_size=64, hidden=8192,
        max_len=2048, is_tied=True,
    ),
    "8b": CausalConfig(
        V=128256, D=4096, num_layers=32, num_heads=32, num_kv_heads=8, head_size=128,
        hidden=14336, max_len=2048,
    ),
    "tiny": CausalConfig(
        V=300, D=64, num_layers=2, num_heads=4, num_kv_heads=2, head_size=16, hidden=96,
        max_len=256, is_tied=True,
    ),
}  # fmt: skip


def prompts(count: int) -> list[list[int]]:
    """Return prompts of five tokens."""
    return [[5 + number % 50, 7, 9, 11, 13 + number % 7] for number in range(count)]


def seconds(write: Callable[[int], Any], device: torch.device) -> float:
    """Return the median time of three runs, after one that gets everything ready."""
    times = []
    for seed in range(4):
        began = time.perf_counter()
        write(seed)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return median(times[1:])


def ours(config: CausalConfig, device: torch.device, dtype: torch.dtype) -> SSDLM:
    """Return a model of ours with random weights."""
    torch.manual_seed(0)
    with torch.device(device):
        denoiser = LlamaDenoiser(config).to(dtype)
    for weight in denoiser.parameters():
        weight.data.normal_(0, 0.02) if weight.dim() > 1 else weight.data.fill_(1.0)
    return SSDLM(denoiser, None, GenerateOptions(mode="autoregressive", top_p=0.9))


def theirs(config: CausalConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """Return the same model of transformers."""
    from transformers import LlamaConfig, LlamaForCausalLM

    own = LlamaConfig(
        vocab_size=config.V,
        hidden_size=config.D,
        intermediate_size=config.hidden,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_size,
        tie_word_embeddings=config.is_tied,
    )
    return LlamaForCausalLM(own).to(device, dtype).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", default="smollm2,1.7b,8b")
    parser.add_argument("--batches", default="1,256")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bandwidth", type=float, default=4.8, help="TB/s of the device")
    args = parser.parse_args()
    device = torch.device(args.device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    for shape in args.shapes.split(","):
        model = ours(SHAPES[shape], device, dtype)
        size = sum(weight.nbytes for weight in model.denoiser.parameters())
        print(f"{shape}: weights read in {size / args.bandwidth / 1e9:.3f} ms", flush=True)
        for batch in map(int, args.batches.split(",")):
            asked = prompts(batch)
            took = seconds(
                lambda seed, m=model, a=asked: m.generate(
                    a, length=LENGTH, seed=seed, batch_size=len(a)
                ),
                device,
            )
            told = f"{batch * LENGTH / took:.0f} tokens/s, {took / LENGTH * 1e3:.3f} ms a pass"
            print(f"  ours, {batch} at a time: {told}", flush=True)
        if shape not in ("smollm2", "tiny"):
            continue
        other = theirs(SHAPES[shape], device, dtype)
        how = {"do_sample": True, "top_p": 0.9, "top_k": 0, "pad_token_id": 0}
        how |= {"max_new_tokens": LENGTH, "min_new_tokens": LENGTH}
        for batch in map(int, args.batches.split(",")):
            ids = torch.tensor(prompts(batch), device=device)
            took = seconds(lambda _, o=other, i=ids, h=how: o.generate(i, **h), device)
            print(
                f"  transformers, {batch} at a time: {batch * LENGTH / took:.0f} tokens/s",
                flush=True,
            )


if __name__ == "__main__":
    main()
