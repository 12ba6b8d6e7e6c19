"""Texts match their grammar as a whole, however they are decoded, and have the law they should."""

import itertools
import json
import math
import random
import re
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import tokenizers as hub
import torch
from tests import bpe, tiny
from tests.constraints.babbler import CPU, Babbler, CheapNoise
from tests.constraints.patterns import PATTERNS

from ssdlm import SSDLM, DecodeConfig, classifier_guide, cli
from ssdlm.constraints.grammatical import grammatical
from ssdlm.denoiser import RowDenoiser
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.engine.schedule import Batch, Job
from ssdlm.tokenizer import Tokenizer, load_tokenizer

BYTE_PATTERNS = [
    "\u65e5\u672c\u8a9e?",
    "[\u00e9\u00e8]{1,3}",
    "[^\\x00-\\x7f]{2}",
    r"\W*",
    "\U0001f600+",
]
DOCS = Path(__file__).resolve().parents[2] / "docs" / "constraints.md"


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    return tmp_path / "caches" / "ssdlm" / "grammars"


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grammar")
    return [tiny.tokenizer(), load_tokenizer(bpe.write_gpt2(folder / "gpt2"))]


@pytest.fixture(scope="module")
def block():
    return SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=18, B=(6,), T=4))


@pytest.fixture(scope="module")
def encoder():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=18, B=(6,), T=4))


def random_options(rng: random.Random) -> dict:
    """Decoding options of every kind."""
    options = {
        "length": rng.randint(12, 15),
        "B": rng.randint(1, 12),
        "T": rng.choice([1, 2, 5]),
        "projection": rng.choice(["greedy", "sampling", "multi_hot"]),
        "top_p": rng.choice([0.0, 0.5, 0.95, 1.0]),
        "rule": rng.choice(["renoise", "adaptive", "ddpm"]),
        "rho": rng.choice([0.0, 0.5, 1.0]),
        "grid": rng.choice(["uniform", "warped", "staggered", "sliding"]),
        "width": rng.choice([0.5, 2.0, 6.0]),
        "returns": rng.choice(["logits", "w_0"]),
        "never_end": rng.random() < 0.5,
        "stop_at_end": rng.random() < 0.5,
    }
    options["early_exit"] = options["grid"] != "sliding" and rng.random() < 0.3
    if options["returns"] == "logits" and rng.random() < 0.2:
        options["projection"] = "mean"
    return options


@pytest.mark.parametrize("which", [0, 1], ids=["letters", "bytes"])
@pytest.mark.parametrize("part", range(2))
@pytest.mark.usefixtures("unchecked")
def test_texts_match_in_random_cases(tokenizers, monkeypatch, which, part):
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    tokenizer, patterns = tokenizers[which], PATTERNS + BYTE_PATTERNS * which
    ended = 0
    for number, pattern in list(enumerate(patterns))[part::2]:
        rng = random.Random(f"{which} {part} {number}")
        options = random_options(rng)
        tempting = rng.choice(["ab ba", "aaaa", "c.\n", "the river", ""])
        babbler = Babbler(tokenizer.V, rng.randrange(2**30), tokenizer.encode(tempting))
        babbler.is_steady = options["early_exit"]
        # As the model's own, what has no effect beside the others is not refused.
        model = SSDLM(babbler, tokenizer, DecodeConfig().change(**options))
        for made in model.generate(["a"], seed=number, regex=pattern):
            assert re.fullmatch(pattern, made.text), (pattern, made.text, options)
            assert tokenizer.end_of_text not in made.tokens
            assert len(made.tokens) <= options["length"]
            ended += len(made.tokens) < options["length"]
    assert ended > 2


@pytest.mark.parametrize("mode", ["diffusion", "autoregressive", "speculative"])
def test_every_mode_is_held_to_a_grammar(block, mode):
    for pattern in ("[ab]{2,5}c", "", "(dog|cat)( (dog|cat))*", "a{18}"):
        for made in block.generate("the", regex=pattern, mode=mode, num_samples=3):
            assert re.fullmatch(pattern, made.text)


def test_guessing_ahead_changes_no_text(block):
    pattern = "[a-f]{2,9} [a-f]+"
    one, other = (
        block.generate("the", regex=pattern, mode=mode, num_samples=4)
        for mode in ("autoregressive", "speculative")
    )
    assert [text.text for text in one] == [text.text for text in other]


@pytest.mark.usefixtures("unchecked")
def test_a_row_with_its_own_grammar_does_not_depend_on_its_batch(block, encoder):
    prompts = ["the river", "the movie", "a dog", "so it goes"]
    each = {"regex": ["[a-c]+", "", "(no|yes)!?", ".{18}"], "must_not": [["b"], [], ["yes"], []]}
    for model in (block, encoder):
        for grid in ("uniform", "staggered"):
            together = model.generate(prompts, **each, grid=grid, seed=5)
            for row, prompt in enumerate(prompts):
                mine = {name: values[row] for name, values in each.items()}
                assert model.generate(prompt, **mine, grid=grid, seed=5) == together[row]
                assert re.fullmatch(mine["regex"], together[row].text)


def test_a_window_writes_what_whole_blocks_do(block, monkeypatch):
    """Only the window's logits are asked for where nothing stands behind it."""
    options = {"regex": "[a-e ]{2,}", "grid": "staggered", "width": 2.0, "T": 12, "num_samples": 3}
    fast = block.generate("the", **options)
    assert block.denoiser.has_windows
    monkeypatch.setattr(block.denoiser, "has_windows", False)
    plain = block.generate("the", **options)
    assert [text.text for text in fast] == [text.text for text in plain]


@pytest.mark.parametrize("width", [1.0, 3.0])
@pytest.mark.parametrize("asked", [{"regex": "[a-e ]{2,}"}, {"must_not": ["a", "e b"]}])
def test_a_window_slides_through_constrained_texts_in_one_pass_each(
    block, monkeypatch, width, asked
):
    """Reading and denoising in one pass gives what both give after each other."""
    options = asked | {"grid": "sliding", "width": width, "T": 6, "num_samples": 3}
    fast = block.generate("the", **options)
    monkeypatch.delattr(BlockDenoiser, "read_and_denoise")
    plain = block.generate("the", **options)
    assert [text.text for text in fast] == [text.text for text in plain]
    for text in fast:
        num_tokens = min(len(text.tokens) + 1, 18)  # with its end, where it has one
        assert text.passes_per_token * len(text.tokens) == pytest.approx(num_tokens)


def test_what_must_stand_somewhere_keeps_the_window_within_its_block(block):
    (free,) = block.requests(["the"], {"grid": "sliding", "must_not": ["a"]})
    (held,) = block.requests(["the"], {"grid": "sliding", "must": ["dog"]})
    assert free.slides
    assert not held.slides
    assert free.batch_key() != held.batch_key()


def test_control_and_words_go_beside_a_grammar(encoder, tmp_path):
    guide = classifier_guide(tiny.save_classifier(tmp_path / "classifier"), "positive")
    pattern = "[a-z]+( [a-z]+)*"
    made = encoder.generate("the", control=guide, lam=500.0, regex=pattern)
    assert re.fullmatch(pattern, made.text)
    made = encoder.generate("the", regex=pattern, must=["dog"], must_not=["a", "e"], length=18)
    assert re.fullmatch(pattern, made.text) and " dog" in made.text
    assert not set(made.text.split()) & {"a", "e"}
    made = encoder.generate("the", regex="[a-d]{5}(end)?", suffix="end", length=5)
    assert re.fullmatch("[a-d]{5}end", made.text)
    made = encoder.generate("the", regex="[ab]+", pin={3: "b"})
    assert re.fullmatch("[ab]{3}b[ab]*", made.text)


def test_what_a_network_says_is_kept_where_it_matches():
    tokenizer = tiny.tokenizer()
    wanted = "it was a dog of ours"
    logits = 8 * torch.nn.functional.one_hot(torch.tensor([tokenizer.encode(wanted)]), 64).float()
    model = SSDLM(Babbler(64), tokenizer, DecodeConfig(length=20, B=(20,), T=3))
    model.denoiser.denoise = lambda cache, w_t, progress: logits
    assert model.generate("", regex="[a-z ]{20}").text == wanted
    assert model.generate("", regex="it was a (cat|dog) of [a-z]*").text == wanted
    assert model.generate("", regex="it was a (cat|cow).*").text[:12] != wanted[:12]


def test_streaming_ends_where_generating_does(block):
    *_, last = block.stream("the", regex="[a-c]{3}", seed=2)
    assert last.text == block.generate("the", regex="[a-c]{3}", seed=2).text


# The law.


LETTERS = "abc"
END = 3


def letters_tokenizer() -> Tokenizer:
    backend = hub.Tokenizer(hub.models.BPE({char: n for n, char in enumerate(LETTERS)}, []))
    backend.add_special_tokens(["<|endoftext|>"])
    backend.decoder = hub.decoders.Fuse()
    return Tokenizer(backend)


@dataclass
class Exact(RowDenoiser):
    """A network that knows its law: tokens that are independent, or a chain of them."""

    first: torch.Tensor
    """The law of each position (B, V), or of the first token of a chain (V,)."""
    moves: torch.Tensor | None = None
    """The law of a chain's next token (V, V)."""
    V: int = 4
    K: float = 5.0
    device: torch.device = CPU

    def prefill(self, context):
        return Babbler(self.V).prefill(context)

    def extend(self, cache, block):
        return Babbler(self.V).extend(cache, block)

    def denoise(self, cache, w_t, progress):
        if self.moves is None:
            return self.first.log().expand(w_t.shape)
        rows, law = [], self.moves[cache.context[0, -1]]  # a chain begins behind an a
        for index in range(
            w_t.shape[1]
        ):  # what is known of a position: its left neighbour, or less
            rows.append(law.log())
            is_clean = bool(progress[0, index] == 0)
            law = self.moves[w_t[0, index].argmax()] if is_clean else law @ self.moves
        return torch.stack(rows).expand(w_t.shape)


def random_law(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(shape, generator=generator)).softmax(-1)


def text_of(tokens) -> str:
    ended = list(tokens).index(END) if END in tokens else len(tokens)
    return "".join(LETTERS[token] for token in tokens[:ended])


def given_a_match(law: dict[tuple, float], pattern: str) -> dict[str, float]:
    """The law of texts that match, from that of all sequences of tokens."""
    found: Counter = Counter()
    for tokens, chance in law.items():
        if re.fullmatch(pattern, text_of(tokens)):
            found[text_of(tokens)] += chance
    return {text: chance / sum(found.values()) for text, chance in found.items()}


def distance(one: dict[str, float], other: dict[str, float]) -> float:
    """The total variation between two laws."""
    return sum(abs(one.get(text, 0) - other.get(text, 0)) for text in {*one, *other}) / 2


def sampled(model: SSDLM, count: int, **options) -> dict[str, float]:
    texts = model.generate("a", num_samples=count, top_p=1.0, returns="w_0", **options)
    return {text: number / count for text, number in Counter(one.text for one in texts).items()}


@pytest.mark.parametrize("pattern", ["(ab|c)*", "a*b?c{2,}", "(a|b)(a|c)*b|", "c(a|b){0,3}c"])
def test_independent_positions_are_drawn_from_the_law_given_a_match(pattern):
    """By messages from the end to the start, one draw is exact."""
    B = 4
    laws = random_law(B, 4, seed=len(pattern))
    sequences = list(itertools.product(range(4), repeat=B))
    law = {one: math.prod(laws[i, t].item() for i, t in enumerate(one)) for one in sequences}
    model = SSDLM(Exact(laws), letters_tokenizer(), DecodeConfig(length=B, B=(B,), T=1))
    (request,) = model.requests(["a"], {"regex": pattern})
    denoiser = grammatical(model.denoiser, [request.placement], ends_as_drawn=True)
    cache = denoiser.prefill(torch.tensor([[0]]))
    logits = denoiser.denoise(cache, torch.zeros(1, B, 4), torch.tensor(1.0))
    drawn: Counter = Counter()
    for tokens in sequences:
        chances = []

        def follow(index, rows, one, tokens=tokens, chances=chances):
            chances.append(one[0].double().softmax(-1)[tokens[index]].item())
            return torch.tensor([tokens[index]])

        if re.fullmatch(pattern, text_of(tokens)):
            denoiser.prediction.walk(logits, follow)
            drawn[text_of(tokens)] += math.prod(chances)
    wanted = given_a_match(law, pattern)
    assert len(wanted) > 2
    assert sum(drawn.values()) == pytest.approx(1, abs=1e-5)
    assert distance(dict(drawn), wanted) < 1e-5


def test_texts_drawn_at_once_have_the_law_given_a_match(monkeypatch):
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    pattern, B = "(ab|c)*", 4
    laws = random_law(B, 4, seed=3)
    law = {
        one: math.prod(laws[i, t].item() for i, t in enumerate(one))
        for one in itertools.product(range(4), repeat=B)
    }
    model = SSDLM(Exact(laws), letters_tokenizer(), DecodeConfig(length=B, B=(B,), T=1))
    found = sampled(model, 200, regex=pattern)
    assert distance(found, given_a_match(law, pattern)) < 0.1
    # Leaving out what cannot be finished, and no more, would be far off.
    assert distance(masked_law(model, pattern, lambda done: laws[len(done)]), found) > 0.15


CHAIN = torch.tensor(
    [[0.50, 0.30, 0.15, 0.05], [0.20, 0.30, 0.40, 0.10], [0.60, 0.20, 0.10, 0.10], [0.25] * 4]
)
"""The law of the next token after a, b, c and the end, for the figure in the docs."""
CHAIN_START = torch.tensor([0.5, 0.3, 0.15, 0.05])
CHAIN_PATTERN, CHAIN_LENGTH = "a+b|c(a|b)*c", 6


def next_law(done: tuple[int, ...]) -> torch.Tensor:
    return CHAIN[done[-1]] if done else CHAIN_START


def sequence_law(length: int) -> dict[tuple, float]:
    law = {(): 1.0}
    for _ in range(length):
        law = {
            (*done, token): chance * next_law(done)[token].item()
            for done, chance in law.items()
            for token in range(4)
        }
    return law


def masked_law(model: SSDLM, pattern: str, next_law, weights: Counter | None = None):
    """The law of masking from left to right; `weights` gets each text's chance times its mass."""
    (request,) = model.requests(["a"], {"regex": pattern})
    placement, found = request.placement, Counter()
    todo = [((), placement.constraint.automaton.start, 1.0, 0.0)]
    while todo:
        done, state, chance, log_mass = todo.pop()
        if len(done) == placement.constraint.length:
            found[text_of(done)] += chance
            if weights is not None:
                weights[text_of(done)] += chance * math.exp(log_mass)
            continue
        legal = placement.legal_tokens(state, len(done))
        law = next_law(done)
        mass = math.log(law[torch.from_numpy(legal)].sum())
        for token in legal.nonzero()[0].tolist():
            after = placement.step(state, len(done), token)
            share = chance * law[token].item() / math.exp(mass)
            todo.append(((*done, token), after, share, log_mass + mass))
    return dict(found)


def chain_model(length: int = CHAIN_LENGTH) -> SSDLM:
    config = DecodeConfig(length=length, B=(length,), T=length)
    return SSDLM(Exact(CHAIN_START, CHAIN), letters_tokenizer(), config)


def test_masking_from_left_to_right_is_not_the_law_given_a_match_and_the_page_says_how_far():
    wanted = given_a_match(sequence_law(CHAIN_LENGTH), CHAIN_PATTERN)
    far = distance(masked_law(chain_model(), CHAIN_PATTERN, next_law), wanted)
    assert far > 0.05
    assert f"total variation is {far:.2f}" in " ".join(DOCS.read_text(encoding="utf-8").split())


def test_the_allowed_mass_turns_masking_into_the_law_given_a_match():
    weights: Counter = Counter()
    masked_law(chain_model(), CHAIN_PATTERN, next_law, weights)
    total = sum(weights.values())
    weighted = {text: weight / total for text, weight in weights.items()}
    assert distance(weighted, given_a_match(sequence_law(CHAIN_LENGTH), CHAIN_PATTERN)) < 1e-5


@pytest.mark.parametrize("grid", ["staggered", "sliding"])
def test_a_window_of_one_position_masks_from_left_to_right(monkeypatch, grid):
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    model = chain_model(length=3)
    found = sampled(model, 150, regex=CHAIN_PATTERN, grid=grid, width=1.0)
    masked = masked_law(model, CHAIN_PATTERN, next_law)
    assert distance(found, masked) < 0.1


def worth(model: SSDLM, pattern: str, count: int) -> list[tuple[list[int], float]]:
    """The tokens of some particles, and what the engine says they are worth."""
    (first,) = model.requests(["a"], {"regex": pattern, "top_p": 1.0, "returns": "w_0"})
    found = []
    for number in range(count):
        batch, job = Batch(1, model.engine.steps), Job(replace(first, branch=(0, number)))
        batch.join([job])
        while len(job.tokens) < model.options.length and END not in job.tokens:
            batch.turn()
        found.append((job.tokens, job.log_weight))
    return found


@pytest.mark.parametrize("grid", ["staggered", "sliding"])
@pytest.mark.parametrize("B", [4, 2], ids=["a block", "blocks"])
def test_a_particle_is_weighed_by_the_mass_that_each_token_was_left(grid, B):
    config = DecodeConfig(length=4, B=(B,), T=B, grid=grid, width=1.0)
    model = SSDLM(Exact(CHAIN_START, CHAIN), letters_tokenizer(), config)
    (request,) = model.requests(["a"], {"regex": CHAIN_PATTERN})
    placement = request.placement
    for tokens, log_weight in worth(model, CHAIN_PATTERN, 4):
        state, expected = placement.constraint.automaton.start, 0.0
        for position, token in enumerate(tokens):
            legal = torch.from_numpy(placement.legal_tokens(state, position))
            expected += math.log(next_law(tuple(tokens[:position]))[legal].sum())
            state = placement.step(state, position, token)
        assert log_weight == pytest.approx(expected, abs=1e-4)
        assert log_weight < -0.1


def test_what_is_drawn_at_once_is_worth_its_chance_to_match_whatever_it_is():
    laws, pattern = random_law(4, 4, seed=3), "(ab|c)*"
    chances = [
        math.prod(laws[i, t].item() for i, t in enumerate(one))
        for one in itertools.product(range(4), repeat=4)
        if re.fullmatch(pattern, text_of(one))
    ]
    model = SSDLM(Exact(laws), letters_tokenizer(), DecodeConfig(length=4, B=(4,), T=1))
    for _, log_weight in worth(model, pattern, 4):
        assert log_weight == pytest.approx(math.log(sum(chances)), abs=1e-4)


def test_particles_match_and_go_on_where_they_are(monkeypatch):
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    config = DecodeConfig(length=6, B=(2,), T=2, grid="staggered", width=1.0, returns="w_0")
    model = SSDLM(Exact(CHAIN_START, CHAIN), letters_tokenizer(), config)
    options = {"regex": CHAIN_PATTERN, "top_p": 1.0, "particles": 3}
    for text in model.generate("a", num_samples=5, **options):
        assert re.fullmatch(CHAIN_PATTERN, text.text)
    (request,) = model.requests(["a"], options)
    later = request.placement.after([0, 0], 2)
    start = request.placement.read(request.placement.constraint.automaton.start, 0, [0, 0])
    assert later.constraint.automaton.start == start
    for position in range(2):
        found, wanted = later.legal_tokens(start, position), request.placement
        assert (found == wanted.legal_tokens(start, position + 2)).all()


# What is refused, and what is kept.


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"regex": "a{19}"}, "takes at least 19 tokens, and there is room for 18; raise length"),
        ({"regex": "7"}, "matches no text that this tokenizer can write"),
        ({"regex": "a^b"}, "matches no text at all"),
        ({"regex": "("}, "does not compile"),
        ({"regex": r"(a)\1"}, "a backreference"),
        ({"regex": "(a|b)*a(a|b){25}"}, "needs more than 8192 states; make it simpler"),
        ({"regex": "a", "json_schema": {"type": "null"}}, "two grammars for one text"),
        ({"regex": "a", "stop": ["a"]}, "stop would cut a text that matches regex"),
        ({"regex": "a", "end_at_sentence": True}, "end_at_sentence would cut a text"),
        ({"regex": 3}, "regex=3 is not a text"),
        ({"regex": "red|blue", "must_not": ["red", "blue"]}, "or none without must_not"),
        ({"regex": "[a-c]*", "must": ["dog"]}, "drop or change one"),
        ({"regex": "[a-c]*", "suffix": "z"}, "drop or change one"),
        ({"json_schema": 3}, "json_schema=3 is not a JSON schema"),
        ({"json_schema": " "}, "is not a JSON schema"),
        ({"json_schema": "/no/such.json"}, "json_schema=/no/such.json cannot be read"),
        ({"json_schema": "{broken"}, "is not JSON"),
        ({"json_schema": {"type": "integer", "minimum": 10**20}}, "no number"),
    ],
)
def test_what_cannot_be_written_is_refused_before_anything_is(block, options, words):
    with pytest.raises(ValueError, match=re.escape(words)) as caught:
        block.requests(["the"], options)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_rewrites_its_text_is_refused():
    backend = hub.Tokenizer(hub.models.WordPiece({"a": 0, "[SEP]": 1, "[UNK]": 2}))
    backend.decoder = hub.decoders.WordPiece()
    model = SSDLM(Babbler(3), Tokenizer(backend), DecodeConfig(length=4, T=2))
    with pytest.raises(ValueError, match="this one's decoder rewrites it"):
        model.generate("a", regex="a+")


def test_a_tokenizer_that_drops_the_first_space_needs_a_prompt():
    backend = hub.Tokenizer(hub.models.BPE({"\u2581": 0, "a": 1}, []))
    backend.add_special_tokens(["</s>"])
    backend.decoder = hub.decoders.Metaspace()
    model = SSDLM(Babbler(3), Tokenizer(backend), DecodeConfig(length=4, T=2))
    assert model.generate([[1]], regex=" a")[0].text == " a"
    with pytest.raises(ValueError, match="regex needs a prompt"):
        model.generate([[]], regex=" a")


def test_a_prompt_that_ends_inside_a_character_changes_nothing(tokenizers):
    tokenizer = tokenizers[1]
    spellings = tokenizer.token_bytes()
    half = spellings.index("\u65e5".encode()[:1])
    model = SSDLM(Babbler(tokenizer.V), tokenizer, DecodeConfig(length=9, T=2))
    for pattern in ("\u65e5+", "[^a]*", "a"):
        for made in model.generate([[half], [half, half]], regex=pattern):
            assert re.fullmatch(pattern, made.text), made.text


def anew(model):
    """Return a model as another process would open it: it has compiled nothing yet."""
    return SSDLM(model.denoiser, model.tokenizer, model.options)


def test_what_was_compiled_is_kept_on_disk(block, own_cache, monkeypatch):
    first = anew(block).generate("the", regex="[ab]{2,4}")
    (kept,) = own_cache.iterdir()
    monkeypatch.setattr("ssdlm.constraints.grammars.grammar.byte_machine", None)
    assert anew(block).generate("the", regex="[ab]{2,4}") == first
    kept.write_bytes(b"broken")
    with pytest.raises(TypeError):  # compiled anew, which was taken away
        anew(block).generate("the", regex="[ab]{2,4}")
    monkeypatch.undo()


def test_a_broken_or_unwritable_cache_is_no_error(block, own_cache):
    first = anew(block).generate("the", regex="[ab]{2,4}")
    (kept,) = own_cache.iterdir()
    kept.write_bytes(b"broken")
    assert anew(block).generate("the", regex="[ab]{2,4}") == first
    kept.unlink()
    own_cache.rmdir()
    own_cache.write_text("in the way", encoding="utf-8")
    assert anew(block).generate("the", regex="[ab]{2,4}") == first


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", None]}},
    "required": ["b"],
}


def test_a_schema_is_a_dictionary_or_a_file(tokenizers, tmp_path):
    tokenizer = tokenizers[1]
    model = SSDLM(Babbler(tokenizer.V, 1), tokenizer, DecodeConfig(length=40, T=2))
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    texts = [model.generate("a", json_schema=one, seed=3).text for one in (SCHEMA, path, str(path))]
    for text in texts:
        value = json.loads(text)
        assert value["b"] in ("x", None) and isinstance(value.get("a", True), bool)
    each = model.generate(["a", "b"], json_schema=[SCHEMA, {"const": 1}])
    assert each[1].text == "1"


def test_the_command_line_takes_grammars(tokenizers, tmp_path, capsys):
    folder = tmp_path / "model"
    block = SSDLM(tiny.block(V=tokenizers[1].V), tokenizers[1], DecodeConfig(length=30, T=2))
    block.save_pretrained(folder)
    words = ["generate", "the", "--model", str(folder), "--json", "--num-samples", "2"]
    assert cli.main([*words, "--regex", "[a-f]{2,4}"]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert re.fullmatch("[a-f]{2,4}", json.loads(line)["text"])
    assert cli.main([*words, "--regex", ""]) == 0
    assert [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()] == ["", ""]
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    assert cli.main([*words, "--json-schema", str(path)]) == 0
    for line in capsys.readouterr().out.splitlines():
        assert "b" in json.loads(json.loads(line)["text"])
    for bad in (["--regex", "a{99}", "--length", "9"], ["--json-schema", "nowhere.json"]):
        assert cli.main([*words, *bad]) == 2
        out, err = capsys.readouterr()
        assert not out and err.count("\n") == 1 and err.startswith("error: ")


def test_a_file_of_prompts_may_bring_grammars(block, tmp_path):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "texts.jsonl"
    lines = [{"prompt": "the", "regex": "[ab]+"}, {"prompt": "a", "json_schema": {"const": None}}]
    source.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    block.save_pretrained(tmp_path / "model")
    words = ["generate", "--model", str(tmp_path / "model"), "--input", str(source)]
    assert cli.main([*words, "--output", str(target)]) == 0
    made = [json.loads(line) for line in target.read_text(encoding="utf-8").splitlines()]
    assert re.fullmatch("[ab]+", made[0]["text"]) and made[1]["text"] == "null"


def test_messages_do_not_vanish_in_long_blocks():
    """Chances of 60 unlikely tokens are below what a float can hold."""
    B = 60
    laws = torch.tensor([[1e-12, 1e-12, 1 - 2e-12, 0.0]]).double().repeat(B, 1)
    denoiser = Exact((laws + 1e-30) / (laws + 1e-30).sum(-1, keepdim=True))
    model = SSDLM(denoiser, letters_tokenizer(), DecodeConfig(length=B, B=(B,), T=1))
    texts = model.generate("a", regex="[ab]{60}", num_samples=8, returns="w_0", top_p=1.0)
    shares = np.mean([text.text.count("a") / B for text in texts])
    assert 0.35 < shares < 0.65
