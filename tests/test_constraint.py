"""What is demanded of a text holds, whatever the network says and however it is decoded."""

import random
import re
from dataclasses import dataclass, field

import pytest
import torch

from ssdlm import SSDLM, DecodeConfig
from ssdlm.tokenizer import load_tokenizer
from tests import bpe, tiny

K, CPU = 5.0, torch.device("cpu")
LETTERS = "abAB"
SIGNS = [" ", ".", "!", "\n", "'", "-"]


@dataclass
class Cache:
    context: torch.Tensor


@dataclass
class Babbler:
    """A denoiser that says random things, some of them insistently: a text it has in mind."""

    V: int
    seed: int = 0
    wanted: list[int] = field(default_factory=list)
    is_steady: bool = False
    """Whether it wants the same from the first row for a while, so that this one is done early."""
    calls: int = 0
    K: float = K
    max_len: int | None = None
    device: torch.device = CPU

    def prefill(self, context):
        return Cache(context)

    def extend(self, cache, block):
        return Cache(torch.cat((cache.context, block), 1))

    def denoise(self, cache, w_t, progress):
        self.seed += 1
        generator = torch.Generator().manual_seed(self.seed)
        logits = 3 * torch.randn(w_t.shape, generator=generator)
        for place in range(w_t.shape[1] if self.wanted else 0):
            logits[:, place, self.wanted[(self.seed // 3 + place) % len(self.wanted)]] += 9
            if self.is_steady:
                logits[0, place, self.wanted[(self.calls // 5 + place) % len(self.wanted)]] += 90
        self.calls += 1
        return logits


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("constraint")
    return [tiny.tokenizer(), load_tokenizer(bpe.write_gpt2(folder / "gpt2"))]


def pattern(word: str) -> str:
    """A word on its own: what stands beside its letters continues no word."""
    before = r"(?<!\w)" if re.match(r"\w", word) else ""
    after = r"(?!\w)" if re.search(r"\w\Z", word) else ""
    return before + re.escape(word) + after


def check(model: SSDLM, made, *, length, must=(), must_not=(), suffix="", pin=None, **options):
    """Assert all that was asked for, on the text itself."""
    tokenizer = model.tokenizer
    for word in must:
        assert re.search(pattern(word), made.text), (word, made.text)
    whole = tokenizer.decode([*model.context(made.prompt), *made.tokens])
    start = len(tokenizer.decode(model.context(made.prompt)))
    for word in must_not:
        assert not re.search(pattern(word), made.text, re.I), (word, made.text)
        for match in re.finditer(f"(?=({pattern(word)}))", whole, re.I):
            assert match.end(1) <= start, (word, whole)
    assert made.text.endswith(suffix)
    for place, text in (pin or {}).items():
        tokens = tokenizer.encode(text)
        assert made.tokens[place : place + len(tokens)] == tokens
    total = length + len(tokenizer.encode(suffix))
    if options.get("end_at_sentence"):
        assert re.search(r"[.!?]['\")\]\u2019\u201d]*\s*\Z", made.text), made.text
    elif not options.get("stop_at_end"):
        assert len(made.tokens) == total
    assert len(made.tokens) <= total
    if options.get("stop_at_end"):
        assert tokenizer.end_of_text not in made.tokens


def random_word(rng: random.Random) -> str:
    word = "".join(rng.choices(LETTERS, k=rng.randint(1, 3)))
    if rng.random() < 0.15:
        word = rng.choice([f"{word} {rng.choice(LETTERS)}", f"{word}.", f"-{word}", f"{word}'s"])
    return word


def random_text(rng: random.Random, size: int) -> str:
    return "".join(rng.choices([*LETTERS, *SIGNS], k=size))


def random_case(rng: random.Random) -> dict:
    """Constraints and decoding options of every kind."""
    length = rng.randint(1, 24)
    case = {
        "length": length,
        "B": rng.randint(1, 12),
        "T": rng.choice([1, 2, 3, 4, 12]),
        "projection": rng.choice(["greedy", "sampling", "multi_hot"]),
        "top_p": rng.choice([0.0, 0.5, 0.95, 1.0]),
        "rule": rng.choice(["renoise", "adaptive", "ddpm"]),
        "rho": rng.choice([0.0, 0.5, 1.0]),
        "grid": rng.choice(["uniform", "staggered"]),
        "width": rng.choice([0.5, 2.0, 6.0]),
        "returns": rng.choice(["logits", "w_0"]),
        "early_exit": rng.random() < 0.3,
        "stop_at_end": rng.random() < 0.3,
        "end_at_sentence": rng.random() < 0.3,
    }
    if case["returns"] == "logits" and rng.random() < 0.2:
        case["projection"] = "mean"
    if rng.random() < 0.5:
        case["must"] = [random_word(rng) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        case["must_not"] = [random_word(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.25:
        case["suffix"] = random_text(rng, rng.randint(1, 5)) + rng.choice(["", "."])
    if rng.random() < 0.25:
        case["pin"] = {rng.randrange(length): random_text(rng, rng.randint(1, 3))}
    return case


@dataclass
class CheapNoise:
    """Noise for cases in which only the number of them matters."""

    seeds: torch.Tensor

    def generator(self, block, step):
        return torch.Generator().manual_seed(int(self.seeds[0]) % 2**31 + 1000 * block + step)

    def normal(self, *, block, step, B, V):
        return torch.randn(len(self.seeds), B, V, generator=self.generator(block, step))

    def uniform(self, *, block, step, B):
        return torch.rand(len(self.seeds), B, generator=self.generator(block, step))


@pytest.mark.parametrize("which", [0, 1], ids=["letters", "bytes"])
@pytest.mark.parametrize("part", range(3))
def test_demands_hold_in_random_cases(tokenizers, monkeypatch, which, part):
    monkeypatch.setattr("ssdlm.api.RowNoise", CheapNoise)
    tokenizer = tokenizers[which]
    written = 0
    for number in range(50):
        rng = random.Random(f"{which} {part} {number}")
        case = random_case(rng)
        tempting = " ".join([*case.get("must_not", []), *case.get("must", [])])
        tempting += random_text(rng, 3)
        babbler = Babbler(tokenizer.V, rng.randrange(2**30), tokenizer.encode(tempting))
        babbler.is_steady = case["early_exit"]
        model = SSDLM(babbler, tokenizer, DecodeConfig())
        size = rng.choice([0, 1, 4])
        prompts = [random_text(rng, size) for _ in range(2)]
        try:
            texts = model.generate(prompts, seed=number, **case)
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        written += 1
        for made in texts:
            check(model, made, **case)
    assert written > 25
