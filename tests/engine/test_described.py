"""Descriptions: the logits behind one lead those without, in every program, loop and front."""

import json
from dataclasses import replace

import pytest
import torch
from tests import causal, graphs, tiny
from tests.engine.test_programs import written
from tests.engine.test_shaping import SLIDING, STAGGERED, UNIFORM, plain

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli import main
from ssdlm.denoiser.encoder import EncoderDenoiser
from ssdlm.denoiser.slots import Slots
from ssdlm.engine.chat import chat_text
from ssdlm.engine.describing import TOLD
from ssdlm.tokenizer import Tokenizer

TEMPLATE = """{% for m in messages %}-{{ m.role }}- {{ m.content }}
{% endfor %}{% if add_generation_prompt %}-assistant-
{% endif %}"""
LETTER = {"control_by": "a formal letter", "control_by_weight": 2.5}
NARROW = {"grid": "sliding", "T": 6, "B": 6, "width": 1.0}
WINDOW = SLIDING | {"width": 1.0}
PATHS = {
    "window": (tiny.llama, WINDOW),
    "cool window": (tiny.llama, WINDOW | {"temperature": 0.7, "top_k": 9}),
    "greedy window": (tiny.llama, NARROW | {"projection": "greedy"}),
    "penalties": (tiny.llama, WINDOW | {"presence_penalty": 2.0, "logit_bias": {5: 3.0}}),
    "grammar": (tiny.llama, WINDOW | {"regex": "[a-e ]{8,}"}),
    "forbidden word": (tiny.llama, WINDOW | {"must_not": ["a"]}),
    "guide": (tiny.llama, WINDOW | {"control": "GUIDE", "gradient": "words"}),
    "window of an adapter": (tiny.adapted, SLIDING | {"width": 3.0, "T": 12}),
    "blocks of an adapter": (tiny.adapted, UNIFORM | {"B": 4}),
    "gap of an adapter": (tiny.adapted, UNIFORM | {"suffix": " abc"}),
    "words": (tiny.block, UNIFORM | {"must": ["fed", "b a"]}),
    "staggered": (tiny.block, STAGGERED),
    "wide window": (tiny.block, SLIDING | {"width": 3.0, "T": 12}),
}
PATHS["gap of an adapter"][1].pop("B")


def talker():
    """Return a tokenizer of characters with a chat template."""
    return Tokenizer(tiny.tokenizer().backend, {"chat_template": TEMPLATE})


def model_of(make=tiny.llama):
    options = GenerateOptions(length=12, top_p=0.9, seed=3) if make is not tiny.llama else OPTIONS
    return SSDLM(make(), talker(), options)


OPTIONS = GenerateOptions(length=12, top_p=0.9, seed=3).change(**WINDOW)


@pytest.mark.parametrize(("make", "how"), PATHS.values(), ids=PATHS)
def test_texts_of_each_program_are_those_of_the_reference_loop(make, how, monkeypatch, tmp_path):
    model, own = model_of(make), LETTER | how
    if "control" in own:
        own["control"] = f"{tiny.save_classifier(tmp_path)}=positive"
    asked = [model.requests([prompt], own)[0] for prompt in ("a dog", "bed", "ee")]
    runners = model.engine.runners
    monkeypatch.setattr(runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    key = runners.key_of(asked[0])
    assert key is not None and key.traits.is_described
    done = written(runners.build(key, asked[0], 2), runners.entries(asked))
    differs = False
    for request, text in zip(asked, done, strict=True):
        wanted = plain(model, request)
        assert text.tokens[: len(wanted)] == wanted
        differs |= wanted != plain(model, replace(request, described=()))
    assert differs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A causal language model with a chat template."""
    folder = causal.save(tmp_path_factory.mktemp("described") / "m", "llama")
    talker().save(folder)
    return folder


@pytest.fixture(scope="module")
def model():
    return model_of()


@pytest.mark.parametrize("weight", [1.0, 2.5, -1.0])
@pytest.mark.parametrize("family", ["own", "gpt2"])
def test_greedy_text_follows_from_the_logits_behind_both_prompts(family, weight, model, tmp_path):
    if family == "gpt2":  # which the reference loop writes
        talker().save(causal.save(tmp_path, family))
        model = SSDLM.from_pretrained(tmp_path)
    told = chat_text(model.tokenizer, [{"role": "user", "content": TOLD.format("a poem")}])
    plain, behind = ([*model.context(text)] for text in ("a dog", told + "a dog"))
    expected = []
    for _ in range(10):
        rows = (torch.tensor([[*prompt, *expected]]) for prompt in (plain, behind))
        own, led = (model.denoiser.run_words(ids, None, 1)[0][0, 0] for ids in rows)
        expected.append(int((own + weight * (led - own)).argmax()))
    by = {"control_by": "a poem", "control_by_weight": weight, "stop_at_end": False}
    text = model.generate("a dog", projection="greedy", length=10, **by)
    assert text.tokens == expected
    assert text.passes_per_token == 2.0


@pytest.mark.parametrize(("make", "how"), [(tiny.llama, {}), (tiny.adapted, UNIFORM)])
def test_with_weight_1_an_empty_prompt_is_what_the_model_answers(make, how):
    model, more = model_of(make), how | {"projection": "greedy"}
    more.pop("nucleus", None), more.pop("returns", None)
    by = {"control_by": "a poem", "control_by_weight": 1.0} | more
    told = chat_text(model.tokenizer, [{"role": "user", "content": TOLD.format("a poem")}])
    asked = str(told) if make is tiny.llama else list(model.context(str(told)))
    if make is tiny.llama:  # one of several positions draws by noise of its own
        assert model.generate("", **by).tokens == model.generate(asked, **more).tokens
    assert model.generate("", **by).tokens != model.generate("", **more).tokens


def test_messages_get_it_in_the_user_s_last_turn(model):
    by = {"control_by": "a poem", "control_by_weight": 1.0, "projection": "greedy"}
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "oh"}]
    told = [{"role": "user", "content": "hi\n\nWrite a poem."}, said[1]]
    assert model.chat(said, **by).tokens == model.chat(told, projection="greedy").tokens
    alone = [{"role": "system", "content": "hi"}]
    told = [*alone, {"role": "user", "content": "Write a poem."}]
    assert model.chat(alone, **by).tokens == model.chat(told, projection="greedy").tokens


def test_a_text_is_its_own_in_any_company_and_of_any_fork(model):
    by = {"control_by": ["a poem", "a poem", "a formal letter"], "seed": 5}
    texts = model.generate(["a dog", "bed", "a dog"], **by, num_samples=3)
    assert texts[0] == model.generate("a dog", control_by="a poem", seed=5)
    assert texts[3] == model.generate("bed", control_by="a poem", seed=5)
    assert texts[6] == model.generate("a dog", control_by="a formal letter", seed=5)
    assert len({tuple(texts[place].tokens) for place in (0, 3, 6)}) == 3
    assert model.generate("a dog", **LETTER | {"control_by_weight": 0.0}).tokens == (
        model.generate("a dog").tokens
    )
    own = LETTER | {"control": lambda texts: [-text.count("e") for text in texts]}
    several = model.generate(["a dog", "bed"], **own, particles=4, particle_step=3)
    assert several[0] == model.generate("a dog", **own, particles=4, particle_step=3)
    assert several[0].passes_per_token == 8.0
    assert several[0].tokens != model.generate("a dog", **LETTER).tokens
    *_, last = model.stream("a dog", **LETTER)
    text = model.generate("a dog", **LETTER)
    assert (last.text, last.passes) == (text.text, 24)
    assert model.generate("a dog", **LETTER, best_of=2).tokens


def test_it_is_explained(model):
    told = model.explain("a dog", **LETTER)
    assert told.passes_per_token == 2.0
    (line,) = [one for one in str(told).splitlines() if one.startswith("control")]
    assert line.startswith("control a formal letter: description (weight 2.5); its logits")
    assert told.written == model.generate("a dog", **LETTER).written
    wide = model_of(tiny.adapted).explain("", **SLIDING | LETTER | {"width": 3.0}).written
    assert wide.program == "reference" and "open positions of this prompt start from" in wide.why


BAD = [
    ({"control_by": " "}, "control_by=' ' is not a description such as"),
    ({"control_by": ""}, "control_by='' is not a description"),
    ({"control_by": "a <|endoftext|>"}, r"control_by='a <\|endoftext\|>' has the special token <"),
    ({"control_by": "a \ud800"}, "is not UTF-8; save or type it as UTF-8"),
    ({"control_by": "x" * 300}, "a prompt of .* behind its description and length=12 are more th"),
    (
        {"control_by": "a", "control_by_weight": 11.0},
        "control_by_weight=11.0 is out of range; use -",
    ),
    ({"control_by": "a", "control_by_weight": float("nan")}, "control_by_weight=nan is out of ran"),
    ({"control_by_weight": 2.0}, "control_by_weight=2.0 weighs nothing; give control_by, or leave"),
    ({"control_by": "a", "mode": "autoregressive"}, "control_by=a is the diffusion's and does not"),
    ({"control_by": "a", "mode": "speculative"}, "control_by=a is the diffusion's and does not go"),
    ({"control_by": "a", "particles": 4}, "particles=4 would weigh nothing; give control or a gr"),
    ({"control_by": "a", "lam": 4.0}, "lam=4.0 weighs nothing; give control, or leave it out"),
    ({"control_by": ["a", "b"]}, "is not one for each of 1 prompts"),
]


@pytest.mark.parametrize(("given", "why"), BAD, ids=[why for _, why in BAD])
def test_bad_descriptions_are_refused_in_one_line(given, why, model):
    with pytest.raises(ValueError, match=why) as error:
        model.generate(["a dog"], **given)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("denoiser", "tokenizer", "why"),
    [
        (tiny.encoder(), talker(), "needs a language model, which a EncoderDenoiser is not; use"),
        (tiny.llama(), tiny.tokenizer(), "needs a chat template, and this model has none; use a"),
        (tiny.llama(), None, "needs a chat template, and this model has none; use a model made f"),
    ],
)
def test_models_that_cannot_follow_one_say_so(denoiser, tokenizer, why):
    own = GenerateOptions() if isinstance(denoiser, EncoderDenoiser) else OPTIONS
    model = SSDLM(denoiser, tokenizer, own)
    with pytest.raises(ValueError, match=f"control_by='a formal letter' {why}"):
        model.generate([[1, 2]], **LETTER)


def test_a_template_that_says_nothing_is_refused_and_a_full_stop_is_one(model):
    deaf = SSDLM(tiny.llama(), Tokenizer(tiny.tokenizer().backend, {"chat_template": "-"}), OPTIONS)
    with pytest.raises(ValueError, match="control_by='a poem' is not heard: the model's chat temp"):
        deaf.generate("a dog", control_by="a poem")
    texts = [model.generate("a dog", control_by=one).tokens for one in ("a poem", " a poem. ")]
    assert texts[0] == texts[1]


def test_spans_are_rewritten_by_a_description():
    model = model_of(tiny.adapted)
    own = UNIFORM | {"control_by": "a poem", "control_by_weight": 3.0}
    own.pop("B")
    plain, led = (
        model.rewrite("a dog runs far.", [(2, 5), (11, 14)], **one)[0]
        for one in ({name: own[name] for name in own if "by" not in name}, own)
    )
    assert plain.text != led.text and led.text.startswith("a ") and led.text.endswith(".")
    assert all(one.passes_per_token > 1 for one in led.generations)
    with pytest.raises(ValueError, match="the model sees 11 at a time beside 117 of control_by"):
        model.rewrite("a dog runs far and far away.", [(2, 25)], **own | {"control_by": "x" * 90})


def test_the_command_line_and_files_take_one(folder, tmp_path, capsys):
    model = SSDLM.from_pretrained(folder)
    expected = model.generate("a dog", **LETTER, length=6).text
    words = ["--model", str(folder), "--length", "6"]
    by = ["--control-by", "a formal letter", "--control-by-weight", "2.5"]
    assert main(["generate", "a dog", *words, *by]) == 0
    assert capsys.readouterr().out == f"a dog{expected}\n"
    prompts, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"prompt": "a dog"} | LETTER) + '\n{"prompt": "a dog"}\n')
    assert main(["generate", "--input", str(prompts), "--output", str(out), *words]) == 0
    texts = [json.loads(line)["text"] for line in out.read_text().splitlines()]
    assert texts == [expected, model.generate("a dog", length=6).text]
    capsys.readouterr()
    assert main(["explain", "a dog", *words, *by]) == 0
    assert "passes per token: 2" in capsys.readouterr().out
    assert main(["generate", "a dog", *words, "--control-by", " "]) == 2
    assert capsys.readouterr().err.startswith("error: control_by=' ' is not a description")


GRAPHS = [
    (tiny.llama, {}, ("a dog", "bed", "ee")),
    (tiny.llama, {}, ("", "a dog", "bed")),
    (tiny.block, UNIFORM | {"B": 4}, ("a", "a dog that ran", "bed")),
]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("make", "how", "prompts"), GRAPHS)
def test_slots_of_a_graph_have_their_copies(make, how, prompts, monkeypatch):
    """A GPU takes all slots, with a text or not, and reads padded contexts by graphs."""
    graphs.capture(monkeypatch)
    model = model_of(make)
    asked = [model.requests([prompt], LETTER | how)[0] for prompt in prompts]
    graphs.choose_as_on_a_gpu(monkeypatch, model)
    key = model.engine.runners.key_of(asked[0])
    batch = model.engine.runners.build(key, asked[0], 4)
    entries = model.engine.runners.entries(asked)
    batch.join(entries[:2], [3, 1])
    batch.run(4)
    batch.join(entries[2:], [0])
    while any(len(text.tokens) < 8 for text in batch.texts().values()):
        batch.run(1)
    for slot, request in zip((3, 1, 0), asked, strict=True):
        tokens = batch.texts()[slot].tokens
        assert tokens[:12] == plain(model, request)[: len(tokens)]
    assert "step" in batch.graphs.graphs and any("contexts" in name for name in batch.graphs.graphs)
