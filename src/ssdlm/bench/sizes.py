"""Models to measure, by the name of their size.  denoiser, api -> [sizes] -> decode

`mini` as it is is the model that comes with the package. All others have random weights, which are
as fast as trained ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ssdlm.api import SSDLM
from ssdlm.bench.original import OriginalNetwork
from ssdlm.config import BlockConfig, EncoderConfig
from ssdlm.denoiser import DenoiserModule
from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import sampling
from ssdlm.ops.nucleus import suppress
from ssdlm.options import GenerateOptions
from ssdlm.storage.builtin import DEFAULT_MODEL, generation_config
from ssdlm.storage.checkpoint import build

ENCODER_STEPS = 50
"""T of an encoder where none is given: its steps are all alike, so few are enough."""
POSITIONS = 512
"""What a RoBERTa has room for; there is more where it is needed."""


@dataclass(frozen=True)
class Size:
    """The shape of a network."""

    V: int
    D: int
    num_layers: int
    num_heads: int
    denoiser: str = "encoder"
    """The family that is measured where none is named."""

    def block(self) -> BlockConfig:
        """Return the configuration of a BlockDenoiser of this shape."""
        return BlockConfig(V=self.V, D=self.D, num_layers=self.num_layers, num_heads=self.num_heads)

    def encoder(self, max_len: int) -> EncoderConfig:
        """Return the configuration of a RoBERTa of this shape, with room for so many tokens."""
        backbone = {
            "model_type": "roberta",
            "vocab_size": self.V,
            "hidden_size": self.D,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "intermediate_size": 4 * self.D,
            "max_position_embeddings": max(POSITIONS, max_len) + 2,  # they begin at 2
            "type_vocab_size": 1,
            "layer_norm_eps": 1e-5,
        }
        return EncoderConfig(backbone)


SIZES = {
    "mini": Size(8192, 512, 8, 8, "block"),
    "roberta-base": Size(50265, 768, 12, 12),
    "roberta-large": Size(50265, 1024, 24, 16),
    "tiny": Size(211, 32, 2, 2),
}
DENOISERS = ("encoder", "block")


def random_weights(
    config: BlockConfig | EncoderConfig, device: torch.device, dtype: torch.dtype
) -> DenoiserModule:
    """Return a denoiser with the same random weights every time, made where they are used."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices), torch.device(device):
        torch.manual_seed(0)
        denoiser = build(config)
        for weight in denoiser.parameters():
            if weight.dim() > 1:  # those that begin at 0 would make every token alike
                weight.data.normal_(std=0.02)
    return denoiser.to(device=device, dtype=dtype).eval().requires_grad_(False)


def random_model(
    size: str,
    denoiser: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    max_len: int,
    deterministic: bool = False,
) -> SSDLM:
    """Return a model of a size with random weights, and the options that it would be used with."""
    shape = SIZES[size]
    if denoiser == "block":
        network = random_weights(shape.block(), device, dtype)
        options = GenerateOptions().change(**generation_config(DEFAULT_MODEL))
    else:
        network = random_weights(shape.encoder(max_len), device, dtype)
        options = GenerateOptions(T=ENCODER_STEPS)
    if device.type == "cpu":
        network.store_for_cpu()
    return SSDLM(network, None, options, deterministic=deterministic)


def original_network(size: str, device: torch.device, *, max_len: int) -> OriginalNetwork:
    """Return an encoder of a size in float32, with random weights, as the authors' loop has it."""
    network = random_weights(SIZES[size].encoder(max_len), device, torch.float32)
    assert isinstance(network, EncoderDenoiser)
    return OriginalNetwork(network.backbone, network.simplex_embed, network.time_embed)


def prompts_for(model: SSDLM, *, batch: int, context: int) -> list[list[int]]:
    """Return prompts, as ids: a trained model's own texts, else random ones."""
    if model.tokenizer is None:
        source = torch.Generator().manual_seed(0)
        return torch.randint(model.denoiser.V, (batch, context), generator=source).tolist()
    return own_texts(model, model.tokenizer.end_of_text, batch=batch, length=context)


@torch.no_grad()
def own_texts(model: SSDLM, start: int, *, batch: int, length: int) -> list[list[int]]:
    """Return what the context stream writes after an end of text, token by token."""
    denoiser, device = model.engine.chains.denoiser, model.device
    noise = RowNoise(torch.arange(batch, device=device))
    draw = sampling(denoiser.K, model.options.top_p).draw
    texts = torch.full((batch, 1), start, device=device)
    cache = denoiser.prefill(texts[:, :0])
    for place in range(length):
        latest = texts[:, -1:]
        logits = suppress(denoiser.next_logits(cache, latest), (start,))
        cache = denoiser.extend(cache, latest)
        new = draw(logits, noise.uniform(block=0, step=place, B=1))
        texts = torch.cat((texts, new), 1)
    return texts[:, 1:].tolist()
