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
