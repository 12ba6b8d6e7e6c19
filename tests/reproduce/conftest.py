"""Models, a judge and prompts of toy size, for every table."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch
from tests import tiny
from tests.evaluate.tiny_judge import save_judge

from ssdlm import SSDLM, DecodeConfig
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.reproduce.scale import MINI, SCALES

TOY_STORIES = (
    "steps=2", "batch=2", "micro_batch=2", "share_c=2", "precision=fp32",
    "validate_sequences=0", "tensorboard=false",
)  # fmt: skip
TOY = replace(
    MINI,
    name="toy",
    models=(),
    judge="",
    features=("judge",),
    resamples=20,
    B=3,
    lengths=(3, 6),
    num_prompts=4,
    num_samples=2,
    top_p=(0.0, 0.9),
    T=(2,),
    samplers=("top_p=0.9", "typical_p=0.95"),
    free_top_p=(0.5,),
    seeds=(1, 2),
    calls=(2, 3),
    blocks=(2, 3),
    stories=3,
    story_length=6,
    story_init="",
    story_train=TOY_STORIES,
    story_T=(2,),
    story_top_p=(0.5,),
    story_features=("judge",),
    control_lengths=(4,),
    control_samples=2,
    control_T=(2,),
    control_top_p=(0.9,),
    lams=(0.0, 100.0),
    own_top_p=(0.9,),
    own_lams=(0.0, 2.0),
    own_particles=(1,),
    scorer_particles=(),
)
"""A few texts of a few tokens by random models: `--scale toy`."""
SCALES["toy"] = TOY

WORDS = ("the river", "a small house", "no one there", "to be or not")


@dataclass(frozen=True)
class Toy:
    """Folders and files, as the command line names them."""

    ours: str
    paper: str
    judge: str
    prompts: dict[int, str]

    def arguments(self, *lengths: int) -> list[str]:
        """Return the arguments of `reproduce` for these lengths."""
        files = [f"--prompts={length}={self.prompts[length]}" for length in lengths]
        sizes = f"lengths={','.join(map(str, lengths))}"
        models = [f"--model=ours={self.ours}", f"--model=paper={self.paper}"]
        models += [f"--model=autoregressive={self.ours}", f"--model=builtin={self.ours}"]
        return ["--scale", "toy", "--set", f"judge={self.judge}", sizes, *files, *models]


@pytest.fixture(scope="session")
def toy(tmp_path_factory) -> Toy:
    """A BlockDenoiser `ours`, an EncoderDenoiser `paper`, a `judge`, prompts with gold."""
    root, decoding = tmp_path_factory.mktemp("toy"), DecodeConfig(length=6, B=(3,), T=2)
    torch.manual_seed(0)
    block = BlockDenoiser(BlockConfig(V=tiny.V, D=16, num_layers=1, num_heads=2, B=3))
    own = replace(decoding, grid="staggered", width=1.0, nucleus="network", returns="w_0")
    SSDLM(block, tiny.tokenizer(), own).save_pretrained(root / "ours")
    SSDLM(tiny.encoder(), tiny.tokenizer(), decoding).save_pretrained(root / "paper")
    (root / "judge").mkdir()
    save_judge(root / "judge")
    files = {length: root / f"prompts-{length}.jsonl" for length in (3, 6)}
    for length, path in files.items():
        lines = [gold(words[:length]) for words in WORDS]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    names = {length: str(path) for length, path in files.items()}
    return Toy(*(str(root / name) for name in ("ours", "paper", "judge")), names)


def gold(prompt: str) -> dict:
    """A prompt, and its letters turned round as what people would write."""
    text = prompt[::-1]
    return {"prompt": prompt, "gold": text, "gold_tokens": tiny.tokenizer().encode(text)}
