"""An autoregressive model beside ours, through `transformers`' own generation.

api, checkpoint -> [autoregressive] -> reproduce

A BlockDenoiser's context stream is a causal language model. Here it gets the interface of one, with
a key/value cache, so that top-p, typical sampling and the rest are those of `transformers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

from ssdlm.denoiser.attention import attend
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.denoiser.layer import norm, project, update
from ssdlm.diffusion.noise import mix
from ssdlm.engine.requests import Generation, Written
from ssdlm.engine.writers import KeywordWriter
from ssdlm.shapes import Tensor, Tokens
from ssdlm.storage import checkpoint
from ssdlm.storage.builtin import is_builtin
from ssdlm.storage.hub import for_transformers
from ssdlm.tokenizer import Tokenizer, load_tokenizer

SAMPLERS = ("top_p", "typical_p", "top_k", "temperature")
"""What `transformers` draws by; without any of them the likeliest token is taken."""


def context_stream(
    denoiser: BlockDenoiser, ids: Tokens, past: Any = None, attention: Tensor | None = None
) -> Tensor:
    """Return the hidden states of tokens that follow a cache's, which takes them in.

    `attention` (N, C + S) is 0 at padding; a position always sees itself, lest it see nothing.
    """
    num_past = 0 if past is None else past.get_seq_length()
    places = torch.arange(num_past, num_past + ids.shape[1], device=denoiser.device)
    seen = torch.arange(num_past + ids.shape[1], device=denoiser.device)
    mask = (seen <= places.unsqueeze(1)).unsqueeze(0)
    if attention is not None:
        mask = mask & (attention[:, None, :].bool() | (seen == places.unsqueeze(1)))
    x, rotary = denoiser.embed(ids), denoiser.rotary(places)
    for number, layer in enumerate(denoiser.transformer_layers()):
        query, key, value = project(x, rotary, layer.qkv, layer.num_heads)
        if past is not None:
            key, value = past.update(key, value, number)
        attended = attend(query, key, value, mask.unsqueeze(1))
        x = update(x, attended, layer.out, layer.up, layer.down)
    return norm(x)


@cache
def causal_lm_class() -> Any:
    """Return the class of context streams, made when first asked for: `transformers` is heavy."""
    from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
    from transformers.modeling_outputs import CausalLMOutputWithPast

    class ContextStreamConfig(PretrainedConfig):
        model_type = "ssdlm-context-stream"

        def __init__(self, V: int = 0, num_layers: int = 0, **rest: Any) -> None:
            self.vocab_size, self.num_hidden_layers = V, num_layers
            super().__init__(**rest)

    class ContextStreamLM(PreTrainedModel, GenerationMixin):
        """The context stream of a BlockDenoiser as a causal language model."""

        config_class = ContextStreamConfig
        _supports_sdpa = True

        def __init__(self, denoiser: BlockDenoiser) -> None:
            own = denoiser.config
            super().__init__(ContextStreamConfig(own.V, own.num_layers))
            self.denoiser = denoiser

        def forward(
            self,
            input_ids: Any = None,
            attention_mask: Any = None,
            past_key_values: Any = None,
            logits_to_keep: int = 0,
            **rest: Any,
        ) -> CausalLMOutputWithPast:
            """Return next-token logits; `logits_to_keep` asks for those of the last tokens."""
            hidden = context_stream(self.denoiser, input_ids, past_key_values, attention_mask)
            logits: Any = self.denoiser.to_logits(hidden[:, -logits_to_keep:])
            return CausalLMOutputWithPast(logits=logits, past_key_values=past_key_values)

    return ContextStreamLM


def as_causal_lm(denoiser: BlockDenoiser) -> Any:
    """Return a denoiser's context stream as a `PreTrainedModel` that can `generate`."""
    return causal_lm_class()(denoiser)


class AutoregressiveLM:
    """A causal language model and its tokenizer, which writes as `SSDLM` does."""

    def __init__(self, model: Any, tokenizer: Tokenizer) -> None:
        self.model = model
        self.tokenizer = tokenizer

    @classmethod
    def from_pretrained(
        cls, name_or_path: str | Path, *, device: str = "auto", dtype: str = "float32"
    ) -> AutoregressiveLM:
        """Open the context stream of a checkpoint of ours, or any causal LM of the Hub."""
        target, folder = checkpoint.resolve_device(device), Path(name_or_path)
        if is_builtin(name_or_path):
            folder = checkpoint.find(name_or_path)
        if checkpoint.is_ours(folder):
            denoiser = checkpoint.load_denoiser(folder, device=device, dtype=dtype)
            if not isinstance(denoiser, BlockDenoiser):
                raise ValueError(f"{folder} has no context stream; give a BlockDenoiser's folder")
            return cls(as_causal_lm(denoiser).eval(), load_tokenizer(folder))
        source = for_transformers(str(folder))
        from transformers import AutoModelForCausalLM

        model: Any
        try:
            model = AutoModelForCausalLM.from_pretrained(source, dtype=getattr(torch, dtype))
        except (OSError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(
                f"{name_or_path} cannot be loaded as a causal language model ({reason}); "
                "give a folder or a Hub id such as gpt2-medium"
            ) from error
        return cls(model.to(target).eval(), load_tokenizer(name_or_path))

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def check(
        self,
        prompts: str | Sequence[str],
        *,
        length: int = 50,
        seed: int = 0,
        num_samples: int = 1,
        **options: Any,
    ) -> dict[str, Any]:
        """Return what `transformers` is asked for; all bad input is refused here."""
        for name in options:
            if name not in SAMPLERS:
                raise ValueError(f"there is no option {name!r}; there are {', '.join(SAMPLERS)}")
        if not prompts or min(length, num_samples) < 1 or seed < 0:
            raise ValueError("give prompts, a length and num_samples from 1 on, a seed from 0 on")
        # As in the authors' baselines: no text ends before its length. `transformers` would add
        # a top_k of 50 to every way of sampling.
        asked = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": bool(options)}
        asked |= {"top_k": 0} if options else {}
        end = self.tokenizer.end_of_text
        return asked | {"pad_token_id": end, "eos_token_id": end} | options

    def generate(
        self,
        prompts: str | Sequence[str],
        *,
        length: int = 50,
        seed: int = 0,
        num_samples: int = 1,
        batch_size: int = 32,
        **options: Any,
    ) -> list[Generation]:
        """Continue prompts; `num_samples` continuations of each, prompt by prompt."""
        prompts = [prompts] if isinstance(prompts, str) else list(prompts)
        asked = self.check(prompts, length=length, seed=seed, num_samples=num_samples, **options)
        rows = [
            (prompt, tuple(self.encode(prompt)), sample)
            for prompt in prompts
            for sample in range(num_samples)
        ]
        how = Written(self.device.type, "transformers", why="another library writes it")
        written: dict[int, Generation] = {}
        for indices in equal_lengths([ids for _, ids, _ in rows], batch_size):
            tokens = self.draw([rows[index][1:] for index in indices], seed, asked)
            for index, new in zip(indices, tokens, strict=True):
                prompt, ids, sample = rows[index]
                text = self.tokenizer.decode_after(ids, new)
                written[index] = Generation(
                    prompt, text, new, seed, sample, calls=length, passes_per_token=1.0, written=how
                )
        return [written[index] for index in range(len(rows))]

    def writer(
        self, *, num_samples: int = 1, batch_size: int = 32, **options: Any
    ) -> KeywordWriter:
        """Return what continues the lines of a file of prompts."""
        return KeywordWriter(self, options, num_samples, batch_size)

    def encode(self, prompt: str) -> list[int]:
        """Return a prompt's ids; an empty text begins after an end-of-text token."""
        return self.tokenizer.encode(prompt) if prompt else [self.tokenizer.end_of_text]

    @torch.no_grad()
    def draw(
        self, rows: Sequence[tuple[tuple[int, ...], int]], seed: int, asked: dict[str, Any]
    ) -> list[list[int]]:
        """Return the new tokens of rows that go together; their seed is drawn from all of them."""
        ids = torch.tensor([ids for ids, _ in rows], device=self.device)
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            torch.manual_seed(mix(seed, *(number for ids, n in rows for number in (n, *ids))))
            whole = self.model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
        return whole[:, ids.shape[1] :].tolist()


def equal_lengths(contexts: Sequence[Sequence[int]], size: int) -> list[list[int]]:
    """Return numbers of contexts that can go together: equally long, at most `size`."""
    by_length: dict[int, list[int]] = {}
    for index, ids in enumerate(contexts):
        by_length.setdefault(len(ids), []).append(index)
    return [
        indices[start : start + size]
        for indices in by_length.values()
        for start in range(0, len(indices), size)
    ]
