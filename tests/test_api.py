"""A model as its users hold it."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from ssdlm import SSDLM, DecodeConfig, classifier_guide
from ssdlm.diffusion.projection import Truncation, nucleus
from ssdlm.engine.strategy import strategy_for, strategy_of
from tests import tiny

OPTIONS = {"length": 7, "B": 3, "T": 6}


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(B=(6,), T=6))


@pytest.fixture(scope="module")
def block():
    return SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(B=(6,), T=6))


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    return classifier_guide(tiny.save_classifier(tmp_path_factory.mktemp("api") / "c"), "positive")


def test_one_prompt_gives_one_generation_and_several_a_list(model):
    one = model.generate("the river", **OPTIONS)
    assert one.prompt == "the river"
    assert len(one.tokens) == 7
    assert one.text == model.tokenizer.decode(one.tokens)
    assert one.calls == 6
    several = model.generate(["a", "the river"], **OPTIONS)
    assert [generation.prompt for generation in several] == ["a", "the river"]
    assert several[1] == one


def test_a_row_does_not_depend_on_its_batch(model):
    prompts = ["the river", "a", "", "the movie", "no", "to", "the river had"]
    together = model.generate(prompts, seed=3, **OPTIONS)
    for prompt, expected in zip(prompts, together, strict=True):
        assert model.generate(prompt, seed=3, **OPTIONS) == expected
    assert model.generate(prompts, seed=3, batch_size=2, **OPTIONS) == together
    assert model.generate(prompts[::-1], seed=3, **OPTIONS) == together[::-1]


def test_a_hundred_random_rows_are_the_same_in_any_company(model):
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(0, 9, (100,), generator=generator).tolist()
    prompts = [torch.randint(64, (size,), generator=generator).tolist() for size in sizes]
    order = torch.randperm(100, generator=generator).tolist()
    options = {"length": 1, "T": 1}
    together = model.generate(prompts, seed=list(range(100)), batch_size=50, **options)
    shuffled = model.generate([prompts[i] for i in order], seed=order, batch_size=3, **options)
    assert [text.tokens for text in shuffled] == [together[i].tokens for i in order]


def test_controlled_rows_do_not_depend_on_their_batch_either(model, guide):
    prompts = ["the river", "the movie", "a"]
    options = OPTIONS | {"control": guide, "lam": 50.0}
    together = model.generate(prompts, **options)
    assert [model.generate(prompt, **options) for prompt in prompts] == together
    assert together != model.generate(prompts, **OPTIONS)


def test_rows_under_two_controls_do_not_depend_on_their_batch(model, tmp_path):
    folder = tiny.save_classifier(tmp_path / "c")
    options = OPTIONS | {"control": [f"{folder}=positive:60", f"{folder}!=neutral:40"]}
    together = model.generate(["the river", "the movie", "a"], num_samples=2, **options)
    for i, prompt in enumerate(["the river", "the movie", "a"]):
        assert model.generate([prompt], num_samples=2, **options) == together[2 * i : 2 * i + 2]
    assert together != model.generate(["the river", "the movie", "a"], num_samples=2, **OPTIONS)


def test_a_control_may_be_given_as_text(model, tmp_path):
    folder = tiny.save_classifier(tmp_path / "c")
    guide = classifier_guide(folder, "positive", lam=70.0)
    expected = model.generate("the river", control=guide, **OPTIONS)
    assert model.generate("the river", control=f"{folder}=positive:70", **OPTIONS) == expected
    assert model.generate("the river", control=guide, lam=70.0, **OPTIONS) == expected


def test_control_raises_the_classifiers_own_verdict(model, guide):
    log_prob = model.fit(guide)

    def verdict(**options):
        texts = model.generate(["the"] * 8, seed=list(range(8)), length=6, T=10, **options)
        blocks = torch.tensor([text.tokens for text in texts])
        context = torch.tensor([model.context("the")] * 8)
        sure = 1000.0 * torch.nn.functional.one_hot(blocks, tiny.V).float()
        return log_prob(context, sure).mean().item()

    assert verdict(control=guide, lam=2000.0) > verdict() + 0.1


def test_the_authors_averaged_control_depends_on_the_batch_and_says_so(model, guide):
    options = OPTIONS | {"control": guide, "lam": 300.0, "reduction": "mean"}
    doubled = model.generate(["a", "b"], **options | {"lam": 600.0})
    assert model.generate("a", **options).tokens == doubled[0].tokens


def test_seeds_and_samples_differ_and_repeat(model):
    texts = model.generate("the", num_samples=3, **OPTIONS)
    assert [text.sample for text in texts] == [0, 1, 2]
    assert len({tuple(text.tokens) for text in texts}) == 3
    assert texts[0].tokens == model.generate("the", **OPTIONS).tokens
    assert model.generate("the", seed=1, **OPTIONS).tokens != texts[0].tokens
    both = model.generate(["the", "the"], seed=[0, 1], **OPTIONS)
    assert both[1].tokens == model.generate("the", seed=1, **OPTIONS).tokens


def test_streaming_ends_where_generating_does(model):
    drafts = list(model.stream("the river", **OPTIONS))
    assert len(drafts) == 3 * 6
    assert drafts[-1].text == model.generate("the river", **OPTIONS).text
    assert drafts[-1].text.startswith(drafts[-1].settled)
    assert {draft.block for draft in drafts} == {0, 1, 2}


def test_an_empty_prompt_works_with_and_without_a_tokenizer(model):
    assert len(model.generate("", **OPTIONS).tokens) == 7
    bare = SSDLM(tiny.encoder())
    (text,) = bare.generate([[]], **OPTIONS)
    assert len(text.tokens) == 7
    assert text.text == " ".join(map(str, text.tokens))


def test_a_prompt_longer_than_the_model_keeps_its_end(model):
    long = "ab" * 100
    assert len(model.generate(long, **OPTIONS).tokens) == 7


def test_blocks_may_differ_in_length(model):
    calls = [draft.step.tokens.shape[1] for draft in model.stream("a", length=10, B=[2, 5], T=1)]
    assert calls == [2, 5, 3]


def test_a_text_can_end_at_end_of_text(model):
    end = model.tokenizer.end_of_text
    for seed in range(20):
        whole = model.generate("the", seed=seed, length=12, B=4, T=2)
        cut = model.generate("the", seed=seed, length=12, B=4, T=2, stop_at_end=True)
        stop = whole.tokens.index(end) if end in whole.tokens else 12
        assert cut.tokens == whole.tokens[:stop]


def test_a_text_need_not_end(model):
    end, options = model.tokenizer.end_of_text, {"length": 12, "B": 4, "T": 2, "num_samples": 24}
    free, bound = (
        model.generate(["the"], never_end=never_end, **options) for never_end in (False, True)
    )
    assert any(end in text.tokens for text in free)
    assert not any(end in text.tokens for text in bound)
    both = model.generate(["the"], never_end=True, stop_at_end=True, **options)
    assert any(len(text.tokens) < 12 for text in both)


@pytest.mark.parametrize("projection", ["greedy", "sampling", "multi_hot", "mean"])
@pytest.mark.parametrize("rule", ["renoise", "adaptive", "ddpm", "ddpm_simplified"])
def test_every_strategy_writes(model, projection, rule):
    kept = {"rho": 0.5} if rule == "renoise" else {}
    text = model.generate("the", projection=projection, rule=rule, **kept, **OPTIONS)
    assert len(text.tokens) == 7


class Untempered(Truncation):
    """A nucleus of the network's share, which has no temperature."""

    def __call__(self, logits, w_t, progress):
        inside = nucleus(logits - self.evidence(w_t, progress), self.top_p)
        return logits.masked_fill(~inside, -torch.inf)


@pytest.mark.parametrize("cut_from", ["logits", "network"])
def test_a_temperature_of_one_leaves_texts_as_they_were(block, cut_from, monkeypatch):
    options = {"length": 4, "B": 4, "T": 4, "num_samples": 3, "nucleus": cut_from, "top_p": 0.7}
    cool, plain, told = (
        block.generate(["the river"], **options | given)
        for given in ({"temperature": 0.3}, {}, {"temperature": 1.0})
    )

    def strategy_without(decoding, denoiser):
        if cut_from == "logits":
            return strategy_for(decoding, K=denoiser.K)
        whole = strategy_for(replace(decoding, top_p=1.0), K=denoiser.K)
        return replace(whole, truncate=Untempered(denoiser.evidence, 0.7))

    monkeypatch.setattr("ssdlm.engine.plain.strategy_of", strategy_without)
    assert block.generate(["the river"], **options) == plain == told != cool


def test_a_temperature_leaves_the_nucleus_where_it_was(block):
    kinds = {"logits": (0.7, 1.0, 0.5), "network": (1.0, 0.7, 0.5)}
    for name, expected in kinds.items():
        settings = DecodeConfig(nucleus=name, top_p=0.7, temperature=0.5)
        strategy = strategy_of(settings, block.denoiser)
        truncate = strategy.truncate
        assert (strategy.project.top_p, truncate.top_p, truncate.temperature) == expected


def test_a_low_temperature_makes_texts_alike(block):
    def distinct(temperature):
        options = {"length": 3, "T": 4, "top_p": 1.0, "temperature": temperature}
        texts = block.generate(["the"], num_samples=6, **options)
        return len({tuple(text.tokens) for text in texts})

    assert distinct(0.01) < distinct(1.0) == 6


def test_a_warped_grid_writes_a_text_of_its_own(block):
    even, warped = (
        block.generate(["the river"], num_samples=2, grid=grid, **OPTIONS)
        for grid in ("uniform", "warped")
    )
    assert {len(text.tokens) for text in warped} == {7}
    assert [text.calls for text in warped] == [text.calls for text in even]
    assert [text.tokens for text in warped] != [text.tokens for text in even]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"length": 0}, "length=0 is out of range; write 1 to 1000000 tokens"),
        ({"B": 0}, "B=0 is out of range"),
        ({"B": [4, -1]}, "B=4,-1 is out of range"),
        ({"B": 65}, "B=65 is longer than the model's 64 positions; lower B"),
        ({"T": 0}, "T=0 is out of range; use 1 to 1000000 steps"),
        ({"top_p": 1.1}, "top_p=1.1 is out of range; use 0 (greedy) to 1"),
        ({"top_p": float("nan")}, "top_p=nan is out of range"),
        (
            {"temperature": 0.0},
            "temperature=0.0 is out of range; use 0.01 to 100, such as 0.9, or projection=greedy",
        ),
        ({"temperature": -0.5}, "temperature=-0.5 is out of range"),
        ({"temperature": float("nan")}, "temperature=nan is out of range"),
        ({"temperature": float("inf")}, "temperature=inf is out of range"),
        ({"temperature": 0.5}, "temperature=0.5 needs a network that reads evidence, a Block"),
        ({"nucleus": "network"}, "nucleus=network needs a network that reads evidence, a Block"),
        ({"projection": "even"}, "projection='even' is unknown; choose one of greedy, sampling"),
        ({"rule": "ddim"}, "rule='ddim' is unknown; choose one of renoise"),
        ({"T": 10**12}, "T=1000000000000 is out of range"),
        ({"length": 10**20}, "is out of range; write 1 to 1000000 tokens"),
        ({"T": 2.5}, "T=2.5 is not a whole number"),
        ({"B": 2.5}, "B=2.5 is not a block length such as 25"),
        ({"B": [3, "4"]}, "B=[3, '4'] is not a block length"),
        ({"length": "3"}, "length='3' is not a whole number"),
        ({"seed": -1}, "seed=-1 is out of range; use a whole number from 0 to 2**63 - 1"),
        ({"seed": 2**63}, "is out of range; use a whole number from 0 to 2**63 - 1"),
        ({"rho": 2.0}, "rho=2.0 is out of range"),
        ({"grid": "log"}, "grid='log' is unknown; choose one of uniform, warped, tilted"),
        ({"width": 0.0}, "width=0.0 is out of range; use more than 0 and at most"),
        ({"returns": "x"}, "returns='x' is unknown"),
        ({"num_samples": 0}, "num_samples=0 is out of range; write 1 to 1000000 texts per"),
        ({"best_of": 0}, "best_of=0 is out of range; choose among 1 to 1000000 texts"),
        ({"best_of": -2}, "best_of=-2 is out of range"),
        ({"best_of": 2}, "best_of=2 needs a model with a context stream (a BlockDenoiser)"),
        ({"seed": [1, 2]}, "seed=[1, 2] is not one for each of 1 prompts; give one each"),
        ({"control": str, "lam": float("inf")}, "lam=inf is out of range; use 0 (no control)"),
        ({"lam": [1.0]}, "lam=1.0 weighs nothing; give control, or leave it out"),
    ],
)
def test_bad_options_are_refused_by_value_and_remedy(model, options, message):
    with pytest.raises(ValueError) as caught:
        model.generate("the", **{"length": 70, **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("guided_json", "use json_schema"),
        ("guided_choice", r"use regex, with \| between the choices"),
        ("structured_outputs", "use json_schema, regex or grammar"),
        ("max_completion_tokens", "use length"),
        ("ignore_eos", "use never_end"),
        ("xyzzy", r"see help\(GenerateOptions\)$"),
    ],
)
def test_words_of_other_libraries_are_answered_with_ours(model, name, remedy):
    with pytest.raises(TypeError, match=rf"generate\(\) has no argument '{name}'; {remedy}"):
        model.generate("the", **{name: 1})


def test_an_unknown_argument_is_answered_with_the_one_to_use(model):
    with pytest.raises(TypeError, match=r"generate\(\) has no argument 'steps'; use T, the diff"):
        model.generate("the", steps=5)
    with pytest.raises(TypeError, match=r"stream\(\) has no argument 'lenght'; the nearest is"):
        model.stream("the", lenght=5)


def test_a_whole_set_of_options_may_be_given_at_once(model):
    options = model.options.change(length=4, seed=3)
    assert model.generate("the", options=options) == model.generate("the", length=4, seed=3)
    assert len(model.generate("the", options=options, length=5).tokens) == 5


@pytest.mark.parametrize("width", [0.5, 3.0])
def test_a_window_writes_and_its_rows_are_independent_too(model, width):
    options = OPTIONS | {"grid": "staggered", "width": width}
    together = model.generate(["the", "sea", "a"], **options)
    assert [model.generate(text.prompt, **options) for text in together] == together
    assert together[0].tokens != model.generate("the", **OPTIONS).tokens


def test_bad_prompts_are_refused(model):
    with pytest.raises(ValueError, match="there are no prompts"):
        model.generate([])
    with pytest.raises(ValueError, match=r"reach outside 0\.\.63"):
        model.generate([[3, 64]])
    with pytest.raises(ValueError, match="is not UTF-8"):
        model.generate("caf\udce9")
    with pytest.raises(ValueError, match="this checkpoint has no tokenizer"):
        SSDLM(tiny.encoder()).generate("the")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompt", [None, 5, [1.5], ["the"], [None]])
def test_a_prompt_of_another_type_is_refused_by_name(model, prompt):
    said = f"prompt {prompt!r} is of the wrong type; a prompt is a string or a list of token ids"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        model.generate(["the", prompt])


@pytest.mark.usefixtures("unchecked")
def test_a_prompt_that_is_no_list_either_is_refused(model):
    for prompts in (None, 5, [1, 2]):
        with pytest.raises(ValueError, match="a prompt is a string or a list of token ids"):
            model.generate(prompts)


@pytest.mark.usefixtures("unchecked")
def test_numbers_and_arrays_of_numpy_and_torch_are_taken(model, guide):
    options = {
        "length": 5,
        "B": [3, 2],
        "top_p": 0.5,
        "control": [guide, guide],
        "lam": [50.0, 60.0],
    }
    expected = model.generate(["the", "a"], seed=[3, 4], band=[0.0, 0.5], must=["b"], **options)
    arrays = {
        "length": np.int64(5),
        "B": np.array([3, 2]),
        "top_p": torch.tensor(0.5),
        "lam": np.array([50, 60], dtype=np.float32),
        "seed": torch.tensor([3, 4]),
        "band": np.array([0.0, 0.5]),
        "must": np.array(["b"]),
        "stop_at_end": np.bool_(False),
        "num_samples": np.uint8(1),
    }
    found = model.generate(np.array(["the", "a"]), **options | arrays)
    assert found == expected
    assert {type(text.prompt) for text in found} == {str}
    alone = model.generate("the", length=5, seed=np.int64(3), control=guide, lam=np.float32(50))
    assert alone == model.generate("the", length=5, seed=3, control=guide, lam=50.0)
    ids = model.context("the")
    for prompt in (ids, np.array(ids), torch.tensor(ids)):
        assert list(model.stream(prompt, length=4))[-1].text == model.generate("the", length=4).text


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    "kind", [set, frozenset, dict.fromkeys, lambda ids: {}.fromkeys(ids).keys()]
)
def test_what_has_no_order_is_no_prompt_and_no_list_of_prompts(model, kind):
    for prompts in (kind(["the", "a"]), [kind([1, 2])]):
        for call in (model.generate, model.stream):
            with pytest.raises(ValueError, match="a prompt is a string or a list of token ids"):
                call(prompts, length=4)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc"), iter([1, 2]), [True], [[1, 2]]])
def test_bytes_iterators_and_truths_are_no_token_ids(model, prompt):
    with pytest.raises(ValueError, match="a prompt is a string or a list of token ids"):
        model.generate([prompt], length=4)


def test_an_error_quotes_no_more_than_200_characters_of_a_prompt(model):
    with pytest.raises(ValueError) as caught:
        model.generate([[99] * 1000])
    assert len(str(caught.value)) < 300


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"avoid": "false"}, "avoid='false' is not true or false"),
        ({"has_special_tokens": "false"}, "has_special_tokens='false' is not true or false"),
        ({"lam": "5"}, "lam='5' is not a number"),
    ],
)
def test_a_guides_own_arguments_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        classifier_guide("sentiment", "positive", **options)


def test_a_model_moves_and_shows_itself_as_torch_modules_do(tmp_path):
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(B=(6,), T=6))
    expected = model.generate("the river", **OPTIONS)
    assert repr(model).startswith("SSDLM(BlockDenoiser, V=64, ")
    assert repr(model).endswith(" parameters in float32, on cpu)")
    assert model.to(torch.bfloat16) is model
    assert "in bfloat16, on cpu" in repr(model)
    assert "in float64" in repr(model.to("cpu", "float64"))
    model.save_pretrained(tmp_path)
    again = SSDLM.from_pretrained(tmp_path, device="cpu", dtype=torch.bfloat16)
    assert "in bfloat16, on cpu" in repr(again)
    moved = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(B=(6,), T=6)).to("cpu")
    assert moved.generate("the river", **OPTIONS) == expected
    with pytest.raises(ValueError, match="dtype='int3' is unknown; choose one of float32"):
        model.to(dtype="int3")
    with pytest.raises(ValueError, match="device='nowhere' is not there"):
        model.to("nowhere")


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("device_map", "use device, such as cuda or cpu"),
        ("torch_dtype", "use dtype"),
        ("load_in_8bit", "use a model that `ssdlm convert --quantise int8` wrote"),
        ("trust_remote_code", "no code of a model is ever run"),
        ("revison", "the nearest is revision"),
        ("top_p", "it is an argument of generate"),
        ("anything", "there are device, dtype, "),
    ],
)
def test_other_words_for_loading_are_answered(name, remedy):
    message = rf"from_pretrained\(\) has no argument '{name}'; {remedy}"
    with pytest.raises(TypeError, match=message):
        SSDLM.from_pretrained("builtin:mini", **{name: "auto"})


def test_a_revision_and_local_files_are_asked_of_the_hub(tmp_path, monkeypatch):
    asked = {}

    def snapshot_download(name, **options):
        asked.update(options, name=name)
        raise OSError("not here")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with pytest.raises(ValueError, match=r"the Hub did not give it \(not here\)"):
        SSDLM.from_pretrained("org/name", revision="v1", local_files_only=True)
    assert (asked["name"], asked["revision"], asked["local_files_only"]) == ("org/name", "v1", True)
    with pytest.raises(ValueError, match="revision='v1' is for models of the Hub"):
        SSDLM.from_pretrained("builtin:mini", revision="v1")


def test_a_tokenizer_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="the tokenizer has 64 tokens and the model 50"):
        SSDLM(tiny.encoder(V=50), tiny.tokenizer())


def test_words_are_not_promised_where_the_last_logits_are_cut(block):
    options = {"length": 3, "T": 2, "must_not": ["a"], "returns": "logits"}
    for cut in ({"nucleus": "network"}, {"temperature": 0.5}):
        with pytest.raises(ValueError, match=r"^must_not: with nucleus=network or a temperature"):
            block.generate(["the"], **options, **cut)
        block.generate(["the"], **options | {"returns": "w_0"}, **cut)


@pytest.mark.parametrize("cut", [{"nucleus": "network"}, {"temperature": 0.5}])
def test_the_remedies_for_words_and_the_mean_projection_work(block, cut):
    options = {"length": 3, "T": 2, "must_not": ["a"], "projection": "mean"} | cut
    remedy = "nucleus=logits and temperature=1"
    for returns in ("w_0", "logits"):
        with pytest.raises(ValueError, match=remedy) as caught:
            block.generate(["the"], returns=returns, **options)
        assert "use returns=w_0" not in str(caught.value)
    works = {"returns": "logits", "nucleus": "logits", "temperature": 1.0}
    assert len(block.generate(["the"], **options | works)) == 1


def test_a_stream_of_several_candidates_is_refused(block):
    with pytest.raises(ValueError, match="best_of=2: a stream shows one text"):
        next(block.stream("the", best_of=2))
