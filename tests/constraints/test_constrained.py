"""What is demanded of a text holds, whatever the network says and however it is decoded."""

import json
import random
import re

import pytest
import torch
from tests import bpe, tiny
from tests.constraints.babbler import Babbler, CheapNoise

from ssdlm import SSDLM, DecodeConfig, classifier_guide, cli
from ssdlm.config import BlockConfig
from ssdlm.constraints.constrained import constrained
from ssdlm.constraints.placement import Placement
from ssdlm.denoiser import Denoiser, RowDenoiser
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.options import known_options
from ssdlm.tokenizer import load_tokenizer

LETTERS = ["abAB", "abAB\u00e9"]
"""What random words are made of, for either tokenizer."""
SIGNS = [" ", ".", "!", "\n", "'", "-"]


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
    if options.get("stop_at_end") or options.get("never_end"):
        assert tokenizer.end_of_text not in made.tokens


def random_word(rng: random.Random, letters: str) -> str:
    word = "".join(rng.choices(letters, k=rng.randint(1, 3)))
    if rng.random() < 0.15:
        word = rng.choice([f"{word} {rng.choice(letters)}", f"{word}.", f"-{word}", f"{word}'s"])
    return word


def random_text(rng: random.Random, letters: str, size: int) -> str:
    return "".join(rng.choices([*letters, *SIGNS], k=size))


def random_case(rng: random.Random, letters: str) -> dict:
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
        "grid": rng.choice(["uniform", "warped", "staggered"]),
        "width": rng.choice([0.5, 2.0, 6.0]),
        "returns": rng.choice(["logits", "w_0"]),
        "early_exit": rng.random() < 0.3,
        "stop_at_end": rng.random() < 0.3,
        "end_at_sentence": rng.random() < 0.3,
        "never_end": rng.random() < 0.5,
    }
    if case["returns"] == "logits" and rng.random() < 0.2:
        case["projection"] = "mean"
    if rng.random() < 0.5:
        case["must"] = [random_word(rng, letters) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.8:
        case["must_not"] = [random_word(rng, letters) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.25:
        case["suffix"] = random_text(rng, letters, rng.randint(1, 5)) + rng.choice(["", "."])
    if rng.random() < 0.25:
        case["pin"] = {rng.randrange(length): random_text(rng, letters, rng.randint(1, 3))}
    return case


@pytest.mark.parametrize("which", [0, 1], ids=["letters", "bytes"])
@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("unchecked")
def test_demands_hold_in_random_cases(tokenizers, monkeypatch, which, part):
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    tokenizer, letters = tokenizers[which], LETTERS[which]
    written = 0
    for number in range(50):
        rng = random.Random(f"{which} {part} {number}")
        case = random_case(rng, letters)
        tempting = " ".join([*case.get("must_not", []), *case.get("must", [])])
        tempting += random_text(rng, letters, 3)
        babbler = Babbler(tokenizer.V, rng.randrange(2**30), tokenizer.encode(tempting))
        babbler.is_steady = case["early_exit"]
        # As the model's own, what has no effect beside the others is not refused.
        own = {name: value for name, value in case.items() if known_options()[name].is_stored}
        rest = {name: value for name, value in case.items() if name not in own}
        size = rng.choice([0, 1, 4])
        prompts = [random_text(rng, letters, size) for _ in range(2)]
        try:
            model = SSDLM(babbler, tokenizer, DecodeConfig().change(**own))
            texts = model.generate(prompts, seed=number, **rest)
        except ValueError as error:
            assert "\n" not in str(error)
            continue
        written += 1
        for made in texts:
            check(model, made, **case)
    assert written > 25


@pytest.fixture(scope="module")
def encoder():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=18, B=(6,), T=4))


@pytest.fixture(scope="module")
def block():
    torch.manual_seed(0)
    denoiser = BlockDenoiser(BlockConfig(V=64, D=32, num_layers=2, num_heads=2))
    for weight in denoiser.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return SSDLM(denoiser.requires_grad_(False), tiny.tokenizer(), DecodeConfig(length=18, T=4))


def test_a_row_with_its_own_demands_does_not_depend_on_its_batch(encoder, block):
    prompts = ["the river", "the movie", "a dog", "so it goes"]
    each = {
        "must": [["cat"], [], ["old dog", "mill"], ["x"]],
        "must_not": [["e"], ["x", "X"], [], ["a"]],
        "suffix": ["", " end.", "", " END."],
        "pin": [{}, {3: "why"}, {0: "-"}, {}],
    }
    for model in (encoder, block):
        for grid in ("uniform", "staggered"):
            options = {"seed": 5, "grid": grid}
            together = model.generate(prompts, **each, **options)
            for row, prompt in enumerate(prompts):
                mine = {name: values[row] for name, values in each.items()}
                alone = model.generate(prompt, **mine, **options)
                assert alone == together[row]
                check(model, alone, length=18, **mine)


@pytest.mark.parametrize("returns", ["logits", "w_0"])
def test_where_all_is_legal_the_short_way_writes_the_same(block, monkeypatch, returns):
    asked = [
        {"suffix": " end."},
        {"pin": {3: "why"}, "B": 5},
        {"must": ["-"], "B": 6},  # no letter, and so no boundary after it
    ]
    options = {"grid": "staggered", "returns": returns, "seed": 3}
    requests = [block.requests(["ab"], one | options)[0] for one in asked]
    assert all(request.placement.allows_all for request in requests)
    short = [block.generate("ab", **one, **options) for one in asked]
    monkeypatch.setattr(Placement, "allows_all", False)
    assert short == [block.generate("ab", **one, **options) for one in asked]
    monkeypatch.undo()
    for one in ({"must": ["cat"]}, {"must_not": ["e"]}, {"pin": {3: "a"}, "stop_at_end": True}):
        (request,) = block.requests(["ab"], one | options)
        assert not request.placement.allows_all


def test_asking_for_nothing_changes_nothing(encoder):
    plain = encoder.generate("the river")
    assert encoder.generate("the river", must=[], must_not=(), suffix="", pin={}) == plain


def test_a_word_goes_where_the_network_wants_it():
    tokenizer = tiny.tokenizer()
    wanted = "it was a dog of ours"
    model = SSDLM(Babbler(64, wanted=[]), tokenizer, DecodeConfig())

    def denoise(cache, w_t, progress):
        return 8 * torch.nn.functional.one_hot(torch.tensor([tokenizer.encode(wanted)]), 64).float()

    model.denoiser.denoise = denoise
    options = {"length": 20, "B": 20, "T": 3}
    assert model.generate("", must=["dog"], **options).text == wanted
    assert model.generate("", must=["cow"], **options).text != wanted
    assert model.generate("", must_not=["a dog", "of"], **options).text[:11] == wanted[:11]


def test_what_is_pinned_is_clean_to_the_network(block):
    seen = []
    inner = block.denoiser

    class Spy(RowDenoiser):
        V, K, max_len, device = inner.V, inner.K, inner.max_len, inner.device
        prefill, extend = inner.prefill, inner.extend

        def denoise(self, cache, w_t, progress):
            seen.append((w_t, progress))
            return inner.denoise(cache, w_t, progress)

    (request,) = block.requests(["ab"], {"length": 5, "suffix": " yes"})

    class Plain(Denoiser):
        V, K, max_len, device = inner.V, inner.K, inner.max_len, inner.device
        prefill, extend, denoise = inner.prefill, inner.extend, Spy.denoise

    for kind in (Spy, Plain):
        seen.clear()
        denoiser = constrained(kind(), [request.placement])
        cache = denoiser.prefill(torch.tensor([block.context("ab")]))
        logits = denoiser.denoise(cache, torch.randn(1, 9, 64), torch.tensor(0.9))
        w_t, progress = seen[0]
        suffix = block.tokenizer.encode(" yes")
        assert w_t[0, 5:].argmax(-1).tolist() == logits[0, 5:].argmax(-1).tolist() == suffix
        assert set(w_t[0, 5:].unique().tolist()) == {-inner.K, inner.K}
        if kind is Spy:
            assert progress.tolist() == [pytest.approx([0.9] * 5 + [0.0] * 4)]
        else:
            assert progress.dim() == 0


def test_the_network_reads_what_stands_after_the_gap(block):
    texts = block.generate("ab", length=6, suffix=[" yes no"], num_samples=6)
    other = block.generate("ab", length=6, suffix=[" no yes"], num_samples=6)
    gaps = [[text.text[:6] for text in each] for each in (texts, other)]
    assert gaps[0] != gaps[1]


def test_streaming_ends_where_generating_does(encoder):
    options = {"must": ["dog"], "end_at_sentence": True, "stop_at_end": True, "seed": 2}
    *_, last = encoder.stream("the river", **options)
    assert last.text == encoder.generate("the river", **options).text


def test_control_and_constraints_go_together(encoder, tmp_path):
    guide = classifier_guide(tiny.save_classifier(tmp_path / "classifier"), "positive")
    asked = {"must": ["dog"], "must_not": ["a", "e"], "end_at_sentence": True}
    made = encoder.generate("the", control=guide, lam=500.0, **asked)
    check(encoder, made, length=18, **asked)
    assert made != encoder.generate("the", **asked)


def test_a_row_done_early_keeps_the_text_of_its_placement(tokenizers, monkeypatch):
    """Its network changes its mind afterwards, while another row goes on."""
    monkeypatch.setattr("ssdlm.engine.plain.RowNoise", CheapNoise)
    tokenizer = tokenizers[0]
    options = {"length": 16, "B": 8, "T": 12, "early_exit": True, "must": ["ab", "ba"]}
    for seed in range(10):
        wanted = tokenizer.encode(" ab ba. ")
        model = SSDLM(Babbler(64, seed, wanted, is_steady=True), tokenizer, DecodeConfig())
        for made in model.generate(["a", "b"], seed=seed, **options):
            check(model, made, **options)


@pytest.mark.parametrize("banned", ["stra\u00dfe", "STRASSE"])
@pytest.mark.parametrize("wanted", [" STRASSE.", " stra\u00dfe.", " Stra\u017fse."])
def test_case_forms_of_another_length_are_kept_out(tokenizers, banned, wanted):
    tokenizer = tokenizers[1]
    options, found = {"length": 24, "B": 24, "T": 2}, []
    for asked in ({}, {"must_not": [banned]}):
        babbler = Babbler(tokenizer.V, 0, tokenizer.encode(wanted), is_steady=True)
        text = SSDLM(babbler, tokenizer, DecodeConfig()).generate("a", **options, **asked).text
        found.append("strasse." in text.casefold())
    assert found == [True, False]


def test_a_model_with_more_logits_than_tokens_is_held_to_them_too():
    model = SSDLM(Babbler(70, wanted=[68, 69, 3]), tiny.tokenizer(), DecodeConfig())
    asked = {"must": ["dog"], "must_not": ["d", "c"], "end_at_sentence": True}
    for made in model.generate(["a"] * 5, seed=[*range(5)], length=12, B=5, T=3, **asked):
        check(model, made, length=12, **asked)


def test_the_command_line_takes_constraints(encoder, tmp_path, capsys):
    encoder.save_pretrained(tmp_path)
    words = ["generate", "the", "--model", str(tmp_path), "--length", "9", "--json"]
    words += ["--must", "cat", "--must-not", "e", "--must-not", "x", "--suffix", " so.", "--T", "3"]
    assert cli.main([*words, "--end-at-sentence"]) == 0
    text = json.loads(capsys.readouterr().out)["text"]
    assert re.search(r"\bcat\b", text[:9])
    assert text.endswith(" so.")
    assert cli.main([*words, "--must", "too long"]) == 2
    assert "raise length or drop a word" in capsys.readouterr().err
