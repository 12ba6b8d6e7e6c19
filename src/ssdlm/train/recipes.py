"""Whole runs by name: each function returns a full config.  config -> [recipes] -> loop

`ssdlm train --recipe NAME key=value ...` starts from one of these and changes what is named.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from difflib import get_close_matches

from ssdlm.config import AdapterConfig, BlockConfig, Config, DataConfig, EncoderConfig, TrainConfig
from ssdlm.values import renamed


def paper_large() -> Config:
    """The paper's model: RoBERTa-large, one block of each sequence, the authors' optimiser.

    24 sequences per pass share a context length, as in the authors' code. They computed in fp16 on
    32 V100s; `precision=bf16` needs no loss scaling on newer machines.
    """
    return Config(
        model=EncoderConfig(K=5.0, B=25, T=5000),
        data=DataConfig(max_len=200, shift=False),
        train=TrainConfig(
            steps=100_000,
            batch=6144,
            micro_batch=24,
            seed=2022,
            objective="one_block",
            share_c=24,
            levels="uniform",
            stratify=False,
            optimizer="adamw",
            lr=1e-4,
            beta1=0.9,
            beta2=0.999,
            eps=1e-6,
            weight_decay=0.01,
            decay_rule="authors",
            clip=0.0,
            schedule="linear",
            warmup=2000,
            precision="fp16",
            init="roberta-large",
            log_every=100,
            validate_every=5000,
            save_every=1000,
            decode_T=1000,
        ),
    )


def paper_rocstories() -> Config:
    """The paper's comparison with Diffusion-LM (appendix C): BERT-base on ROCStories.

    What the appendix does not say is as in `paper_large`.
    """
    large = paper_large()
    return replace(
        large,
        data=replace(large.data, max_len=100),
        train=replace(
            large.train, steps=20_000, batch=512, init="bert-base-uncased", decode_T=2500
        ),
    )


def mini() -> Config:
    """A BlockDenoiser of 34M parameters (V = 8,192) for one GPU in under an hour."""
    return Config(
        model=BlockConfig(V=0, D=512, num_layers=8, num_heads=8, B=25),
        data=DataConfig(max_len=200),
        train=TrainConfig(
            steps=20_000,
            batch=256,
            block_lengths=(25, 25, 10, 5),
            context_share=0.4,
            own_share=0.1,
            ramp_share=0.6,
            optimizer="muon",
            lr=4e-3,
            muon_lr=0.02,
            weight_decay=0.01,
            schedule="wsd",
            cooldown=0.4,
            warmup=200,
            ema=0.999,
            precision="bf16",
            compile=True,
            log_every=50,
            validate_every=2000,
            validate_sequences=256,
            save_every=0,
            save_seconds=120.0,
        ),
    )


def large() -> Config:
    """A BlockDenoiser of 1.3 billion parameters (V = 50,265), in shards on several GPUs.

    Learning rates are those of `mini`, lowered for the width. One step of it was taken on a GPU,
    and no more.
    """
    own = mini()
    return Config(
        model=BlockConfig(V=0, D=2048, num_layers=22, num_heads=16, B=25),
        data=DataConfig(max_len=1000),
        train=replace(
            own.train,
            steps=100_000,
            batch=512,
            micro_batch=8,
            lr=1e-3,
            muon_lr=0.01,
            warmup=2000,
            ema=0.9999,
            recompute=True,
            sharding="fsdp",
            save_every=1000,
            save_seconds=0.0,
        ),
    )


def paper_mini() -> Config:
    """The paper's recipe at the size of `mini`: an encoder from random weights, for one GPU.

    One block of each sequence, t drawn evenly, AdamW; batch, learning rate and data are for minutes
    instead of days. A rate of 5e-4 after 100 steps left it at word frequencies (docs/log.md).
    """
    large, own = paper_large(), mini()
    backbone = {
        "model_type": "roberta",
        "vocab_size": 0,
        "hidden_size": 512,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "intermediate_size": 2048,
        "max_position_embeddings": 258,
        "type_vocab_size": 1,
        "pad_token_id": 1,
    }
    return Config(
        model=replace(large.model, backbone=backbone),
        data=own.data,
        train=replace(
            large.train,
            steps=own.train.steps,
            batch=own.train.batch,
            micro_batch=128,
            share_c=128,
            lr=1.5e-4,
            beta2=0.98,
            clip=1.0,
            schedule="wsd",
            cooldown=own.train.cooldown,
            warmup=400,
            precision="bf16",
            compile=True,
            init="",
            log_every=50,
            validate_every=2000,
            save_every=0,
            save_seconds=120.0,
            decode_T=200,
        ),
    )


def autoregressive() -> Config:
    """An autoregressive model for comparison with `mini`: its context stream alone, no noise."""
    own = mini()
    model, train = own.model, own.train
    return Config(replace(model, block_weight=0.0), own.data, replace(train, context_share=0.0))


def adapt() -> Config:
    """An adapter that teaches a causal language model to diffuse; `init` names the model.

    A sequence of 257 tokens gives 256 rows, as a word comes before the first.
    """
    return Config(
        model=AdapterConfig(),
        data=DataConfig(max_len=257),
        train=TrainConfig(
            steps=20_000,
            batch=256,
            block_lengths=(8, 16, 16, 32),
            own_share=0.15,
            ramp_share=0.33,
            noise_share=0.07,
            gap_share=0.10,
            lr=1e-3,
            weight_decay=0.0,
            schedule="wsd",
            cooldown=0.4,
            warmup=100,
            ema=0.999,
            precision="bf16",
            compile=True,
            log_every=20,
            validate_every=0,
            validate_sequences=64,
            save_every=0,
            save_seconds=60.0,
            tensorboard=False,
            decode_T=32,
        ),
    )


def tiny() -> Config:
    """A toy that trains on two CPU cores in under a minute, even with a vocabulary of 50,257."""
    return Config(
        model=BlockConfig(V=0, D=64, num_layers=2, num_heads=2, B=8),
        data=DataConfig(max_len=32),
        train=TrainConfig(
            steps=24,
            batch=4,
            lr=3e-3,
            weight_decay=0.0,
            schedule="linear",
            warmup=4,
            log_every=1,
            validate_every=0,
            validate_sequences=2,
            validate_points=6,
            save_every=0,
            save_seconds=2.0,
            tensorboard=False,
            decode_T=20,
        ),
    )


RECIPES: dict[str, Callable[[], Config]] = {
    recipe.__name__: recipe
    for recipe in (
        paper_large,
        paper_rocstories,
        paper_mini,
        large,
        mini,
        autoregressive,
        adapt,
        tiny,
    )
}
EARLIER_NAMES = {"twin": "autoregressive"}
"""Names that recipes had before; they still work, with a warning."""


def recipe(name: str) -> Config:
    """Return the config of a recipe, or raise a ValueError that lists them."""
    if name in EARLIER_NAMES:
        name = renamed("recipe", name, EARLIER_NAMES[name], until="0.4")
    if name not in RECIPES:
        close = get_close_matches(name, RECIPES, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"there is no recipe {name!r}; {hint}the recipes are {', '.join(RECIPES)}")
    return RECIPES[name]()
