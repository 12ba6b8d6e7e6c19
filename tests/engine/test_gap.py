"""A gap of unknown length: every length is written, the likeliest per token is kept."""

import json
from dataclasses import replace

import pytest
import torch
from tests import causal, tiny

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli import main
from ssdlm.diffusion.grid import BeforeGiven, Staggered, Uniform
from ssdlm.diffusion.likelihood import text_nll, texts_nll
from ssdlm.engine.choosing import GAP_SHARE, doubles_word
from ssdlm.engine.requests import Request
from ssdlm.options import MOST_LENGTHS, GenerateOptions
from ssdlm.values import Gap

SUFFIX = " end."
OWN = DecodeConfig(length=7, B=(4,), T=3)


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.block(), tiny.tokenizer(), OWN)


def by_hand(model, prompt, lengths, **options):
    """The text of the best length, each written and rated on its own; and what all took."""
    texts = [model.generate(prompt, length=one, suffix=SUFFIX, **options) for one in lengths]
    context = model.context(prompt)
    rated = [text_nll(model.denoiser, context, text.tokens) for text in texts]
    return texts[rated.index(min(rated))], texts


def test_the_kept_length_is_the_best_of_a_loop_over_lengths(model):
    kept = set()
    for seed in range(3):
        best, texts = by_hand(model, "the river", range(2, 6), seed=seed)
        found = model.generate("the river", gap=(2, 5), suffix=SUFFIX, seed=seed)
        assert (found.tokens, found.text, found.seed) == (best.tokens, best.text, seed)
        assert found.calls == sum(text.calls + 1 for text in texts)
        passes = sum(text.passes_per_token * len(text.tokens) + 1 for text in texts)
        assert found.passes_per_token * len(best.tokens) == pytest.approx(passes)
        kept.add(len(best.tokens))
    assert len(kept) > 1, "or one length would do"


def test_samples_and_candidates_of_each_length_are_those_without_a_gap(model):
    options = {"num_samples": 2, "best_of": 3, "seed": 5}
    by_length = [model.generate("a", length=one, suffix=SUFFIX, **options) for one in (3, 4, 5)]
    found = model.generate("a", gap="3-5", suffix=SUFFIX, **options)
    assert [text.sample for text in found] == [0, 1]
    for text, rivals in zip(found, zip(*by_length, strict=True), strict=True):
        best = min(rivals, key=lambda one: text_nll(model.denoiser, (0,), one.tokens))
        assert text.tokens == best.tokens
        # Its rivals count their own ratings already, and the candidates are one choice here.
        assert text.calls == sum(one.calls for one in rivals)


def test_a_gap_of_one_length_is_that_length(model):
    assert model.generate("a", gap=(4, 4), suffix=SUFFIX) == model.generate(
        "a", length=4, suffix=SUFFIX
    )


def test_each_prompt_may_have_its_own_and_the_order_stays(model):
    prompts, gaps = ["the river", "a", "no"], [(2, 4), "5-6", [3, 3]]
    found = model.generate(prompts, gap=gaps, suffix=SUFFIX)
    alone = [
        model.generate(prompt, gap=gap, suffix=SUFFIX)
        for prompt, gap in zip(prompts, gaps, strict=True)
    ]
    assert found == alone
    assert [text.prompt for text in found] == prompts


def test_a_line_of_a_file_may_have_its_own(capsys, model, tmp_path):
    folder, source, target = tmp_path / "model", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    model.save_pretrained(folder)
    lines = [
        {"prompt": "a", "suffix": SUFFIX},
        {"prompt": "b", "suffix": SUFFIX, "gap": "5-6"},
        {"prompt": "c", "suffix": SUFFIX, "gap": [4, 5]},
        {"prompt": "d", "suffix": SUFFIX, "length": 9},
    ]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--model", folder, "--input", source, "--output", target, "--gap", "2-4"]
    assert main(["generate", *map(str, words)]) == 0
    capsys.readouterr()
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    asked = [{"gap": (2, 4)}, {"gap": (5, 6)}, {"gap": (4, 5)}, {"length": 9}]
    expected = [
        model.generate(line["prompt"], suffix=SUFFIX, **own)
        for line, own in zip(lines, asked, strict=True)
    ]
    assert [(row["text"], row["calls"]) for row in rows] == [
        (text.text, text.calls) for text in expected
    ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 6}, "length=6 and gap=2-4 are two ways to say how long a gap is"),
        ({"length": 4}, "length=4 and gap=2-4 are two ways"),
        ({"max_new_tokens": 3}, "length=3 and gap=2-4 are two ways"),
        ({"length": 3, "gap": ["2-4"]}, "length=3 and gap=2-4 are two ways"),
        ({"suffix": ""}, "gap=2-4 is what a suffix follows; give suffix, or length in its place"),
        ({"gap": "4-2"}, "gap='4-2' is not two lengths such as 8-16, the shorter one first"),
        ({"gap": (4, 2)}, "gap=(4, 2) is not two lengths"),
        ({"gap": 5}, "gap=5 is not two lengths"),
        ({"gap": "5"}, "gap='5' is not two lengths"),
        ({"gap": "a-b"}, "gap='a-b' is not two lengths"),
        ({"gap": (1.0, 2)}, "gap=(1.0, 2) is not"),
        ({"gap": (0, 2)}, "gap=0-2 is out of range; a gap has 1 to"),
        ({"gap": (1, MOST_LENGTHS + 1)}, f"has {MOST_LENGTHS + 1} lengths to try, and"),
        ({"mode": "autoregressive", "suffix": ""}, "gap=2-4 is the diffusion's"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(unchecked, model, given, message):
    with pytest.raises(ValueError) as caught:
        model.generate("a", **{"gap": "2-4", "suffix": SUFFIX} | given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_length_and_gap_together_end_a_command_with_one_line(capsys, model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    words = ["generate", "a", "--model", str(tmp_path / "model"), "--suffix", SUFFIX]
    assert main([*words, "--gap", "2-4", "--length", "3"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: length=3 and gap=2-4") and err.count("\n") == 1


def test_a_model_that_cannot_rate_texts_has_no_gaps():
    encoder = SSDLM(tiny.encoder(), tiny.tokenizer(), OWN)
    with pytest.raises(ValueError, match="gap=2-4 needs a model with a context stream"):
        encoder.generate("a", gap="2-4", suffix=SUFFIX)


def test_a_stream_shows_one_length(model):
    with pytest.raises(ValueError, match="gap has 3 lengths: a stream shows one text"):
        model.stream("a", gap="2-4", suffix=SUFFIX)
    *_, last = model.stream("a", gap="4-4", suffix=SUFFIX)
    assert last.text == model.generate("a", length=4, suffix=SUFFIX).text


def test_of_length_and_gap_the_later_one_is_meant():
    wide = GenerateOptions(gap=Gap(2, 4))
    assert (wide.length, list(wide.lengths), wide.num_candidates) == (4, [2, 3, 4], 3)
    assert wide.change(length=9) == GenerateOptions(length=9)
    assert GenerateOptions(length=9).change(gap="2-4") == wide
    assert wide.change(gap=(5, 6), best_of=2, num_samples=3).num_rows == 12
    with pytest.raises(ValueError, match="length=9 and gap=2-4"):
        GenerateOptions(length=9, gap=Gap(2, 4))


def test_options_with_a_gap_survive_json():
    wide = GenerateOptions(gap=Gap(2, 4), suffix="x")
    assert GenerateOptions(length=9).change(**json.loads(json.dumps(wide.to_json()))) == wide


def test_requests_of_one_length_can_share_a_batch(model):
    requests: list[Request] = list(model.requests(["a", "b"], {"gap": "2-4", "suffix": SUFFIX}))
    kinds = [request.batch_key() for request in requests]
    assert len(requests) == 6
    assert [kinds.index(kind) for kind in kinds] == [0, 1, 2, 0, 1, 2]


@pytest.mark.parametrize(("T", "passes"), [(4, 6), (8, 12), (2, 3)])
def test_a_sliding_window_spends_its_passes_on_the_gap(T, passes):
    sliding = DecodeConfig(B=(4,), T=T, grid="sliding", width=1.0)
    model = SSDLM(tiny.block(), tiny.tokenizer(), sliding)
    for suffix in (".", " and so it ends."):
        text = model.generate("a", length=6, suffix=suffix)
        assert text.text.endswith(suffix)
        assert text.calls == passes + 1, "those of 6 positions, and one to read the prompt"


def test_what_follows_a_gap_is_no_part_of_the_path():
    path = Staggered(5, 2.0)
    grid, own = BeforeGiven(path, 3)(7), path(4)
    assert torch.equal(grid.progress[:, :4], own.progress)
    assert torch.equal(grid.progress[:, 4:], own.progress[:, 3:].expand(-1, 3))
    assert torch.equal(BeforeGiven(Uniform(5), 3)(7).progress, Uniform(5)(7).progress)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    return SSDLM.from_pretrained(causal.save_adapted(tmp_path_factory.mktemp("adapted")))


def test_of_an_adapter_s_fills_that_is_kept_after_which_the_right_side_is_likely(adapted):
    prompt, asked = "the river", {"suffix": SUFFIX, "length": 4, "T": 4}
    context, chosen = adapted.context(prompt), set()
    for seed in range(4):
        best = adapted.generate(prompt, best_of=5, seed=seed, **asked)
        rivals = adapted.generate([prompt], num_samples=5, seed=seed, **asked)

        def worth(one):
            (nll,) = texts_nll(adapted.denoiser, context, [one.tokens])
            return (GAP_SHARE * nll[:4].sum() + nll[4:].sum()) / (GAP_SHARE * 4 + len(nll) - 4)

        assert best.tokens == min(rivals, key=worth).tokens
        plain = min(rivals, key=lambda one: text_nll(adapted.denoiser, context, one.tokens))
        chosen.add(plain.tokens == best.tokens)
    assert False in chosen, "or the mean over gap and suffix would do"


def test_a_fill_that_doubles_a_word_is_taken_last(adapted):
    (request, *_) = adapted.engine.prepare(
        ["the river"], [adapted.options.change(suffix=" ran", length=4, grid="warped")]
    )
    (text,), encode = adapted.generate(["the river"], length=8), adapted.tokenizer.encode
    fills = [f"{fill} ran" for fill in (" ran", " dog", " riv", "bran")]
    texts = [replace(text, tokens=encode(fill), text=fill) for fill in fills]
    worth = adapted.engine.rate([(request, one) for one in texts])
    assert [one > 1000 for one in worth] == [True, False, False, False]


@pytest.mark.parametrize(
    ("left", "right", "is_doubled"),
    [
        ("the men", " men sat", True),
        ("the Men ", "men", True),
        ("the men,", " men", False),
        ("the men", "men sat", False),
        ("women", " men", False),
        ("", "men", False),
        ("7", " 7", False),
    ],
)
def test_a_word_is_doubled_if_nothing_but_spaces_is_between(left, right, is_doubled):
    assert doubles_word(left + right, len(left)) is is_doubled
