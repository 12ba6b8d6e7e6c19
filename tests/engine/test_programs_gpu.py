"""Captured passes on a GPU: at float32 the plain loop's texts, and the same in any company."""

from dataclasses import replace

import pytest
import torch
from tests import causal, tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM
from ssdlm.bench.sizes import Size, random_weights
from ssdlm.config import AdapterConfig
from ssdlm.denoiser.adapted import AdaptedDenoiser
from ssdlm.denoiser.drafter import base_of
from ssdlm.denoiser.llama import LlamaDenoiser
from ssdlm.engine.programs import guided
from ssdlm.guidance import load_guide
from ssdlm.options import GenerateOptions

pytestmark = pytest.mark.gpu
PROMPTS = ["The movie was", "I had never seen a film as good as this one in years", "Once", "It is"]
SLIDING = {"grid": "sliding", "T": 25, "B": 25}
BIASED = {"logit_bias": {16: -100.0, 300: 3.0}, "presence_penalty": 0.7, "frequency_penalty": 0.4}
CUT = {"top_k": 30, "min_p": 0.02}
TOLD = {"control_by": "a formal letter", "control_by_weight": 2.0}
SENTENCES = r"(( [a-z]+){3,8}\.){2,6}"


def plain(model, prompts, **changes):
    """Return texts by the plain loop, those of equal prompts' lengths together."""
    groups, texts = {}, {}
    for request in model.requests(prompts, changes):
        groups.setdefault(request.batch_key(), []).append(request)
    for group in groups.values():
        blocks = [step.tokens for step in model.engine.steps(group) if step.is_last]
        rows = torch.cat(blocks, 1).tolist()
        if "regex" in changes:  # a text ends where it says so
            ends = model.tokenizer.end_of_text
            rows = [row[: row.index(ends)] if ends in row else row for row in rows]
        texts |= {request.number: row for request, row in zip(group, rows, strict=True)}
    return [texts[number] for number in range(len(prompts))]


def fewer_commas(context, logits):
    """Return how unlikely a token is: a function of a user."""
    return -logits.log_softmax(-1)[..., 16].sum(-1) + 0 * context.sum()


@pytest.fixture(scope="module")
def exact():
    model = SSDLM.from_pretrained("builtin:mini", device="cuda", dtype="float32")
    model.tokenizer.settings["chat_template"] = (
        "{% for m in messages %}{{ m.content }} {% endfor %}"
    )
    return model


@pytest.mark.parametrize(
    "changes",
    [
        SLIDING | {"width": 1.0} | TOLD,
        SLIDING | {"width": 3.0, "temperature": 0.8} | TOLD | CUT,
        SLIDING | {"width": 1.0, "control": ["sentiment=positive"]} | TOLD | BIASED,
        SLIDING | {"width": 1.0, "regex": SENTENCES} | TOLD,
        {"grid": "uniform", "T": 12, "B": 10} | TOLD,
        SLIDING | {"width": 1.0},
        SLIDING | {"width": 1.0, "temperature": 0.7, "top_p": 1.0},
        SLIDING | {"width": 1.0, "projection": "greedy"},
        SLIDING | {"width": 2.0},
        SLIDING | {"width": 4.5, "top_p": 0.6},
        SLIDING | {"width": 4.0, "T": 50},
        SLIDING | {"width": 2.0, "T": 50, "control": ["sentiment=positive"]},
        SLIDING | {"width": 1.0, "control": ["sentiment=positive"]},
        SLIDING | {"width": 1.0, "control": ["sentiment=negative", "tense=past"]},
        SLIDING | {"width": 2.0, "control": ["tense=present"], "gradient": "simplex"},
        SLIDING | {"width": 1.0, "regex": SENTENCES},
        SLIDING | {"width": 1.0, "regex": SENTENCES, "control": ["sentiment=positive"]},
        SLIDING | {"width": 1.0, "control": [fewer_commas], "lam": 2.0, "gradient": "words"},
        SLIDING | {"width": 1.0, "must": ["water", "old"]},
        {"pin": {3: " water", 40: " and so"}, "must": ["bridge"], "control": ["tense=past"]},
        {"suffix": " And that was the end."},
        {"grid": "uniform", "T": 12, "B": 10, "must": ["water"]},
        {
            "grid": "staggered",
            "T": 40,
            "B": 25,
            "control": ["tense=past", fewer_commas],
            "lam": 2.0,
        },
        {"grid": "staggered", "T": 40, "B": 25, "control": ["tense=past"], "band": (0.2, 0.9)},
        {"grid": "staggered", "T": 40, "B": 25, "width": 6.0},
        {"grid": "staggered", "T": 25, "B": 25, "width": 1.0, "temperature": 0.8},
        {"grid": "warped", "T": 20, "B": 20, "top_p": 0.8},
        {"grid": "tilted", "T": 40, "B": 20, "width": 5.0},
        {"grid": "uniform", "T": 12, "B": 10},
        {"grid": "uniform", "T": 12, "B": 10, "nucleus": "logits", "returns": "logits"},
        {"grid": "warped", "T": 20, "B": 20, "projection": "greedy"},
        {"mode": "autoregressive"},
        {"mode": "autoregressive", "regex": SENTENCES},
        {"mode": "autoregressive", "top_p": 1.0, "temperature": 1.3},
        {"mode": "autoregressive", "do_sample": False},
        SLIDING | {"width": 3.0} | BIASED,
        SLIDING | {"width": 3.0, "temperature": 0.8} | CUT,
        SLIDING | {"width": 1.0} | BIASED | CUT,
        SLIDING | {"width": 1.0, "control": ["sentiment=positive"]} | BIASED | CUT,
        SLIDING | {"width": 1.0, "regex": SENTENCES} | BIASED | CUT,
        {"grid": "staggered", "T": 40, "B": 25, "width": 6.0} | BIASED | CUT,
        {"grid": "uniform", "T": 12, "B": 10, "must": ["water"]} | BIASED | CUT,
        {"mode": "autoregressive", "temperature": 0.8} | BIASED | CUT,
        {"mode": "autoregressive", "regex": SENTENCES} | BIASED | CUT,
    ],
)
def test_texts_are_those_of_the_plain_loop_over_thousands_of_tokens(exact, changes):
    prompts = [f"{prompt} {number}" for number in range(6) for prompt in PROMPTS]
    changes = changes | {"length": 100}
    if "do_sample" in changes or "projection" in changes:
        prompts = PROMPTS
    exact.engine.runners.idle.clear()
    fast = [text.tokens for text in exact.generate(prompts, **changes)]
    slow = plain(exact, prompts, **changes)
    parted = [
        number for number, pair in enumerate(zip(fast, slow, strict=True)) if pair[0] != pair[1]
    ]
    # Sums in another order: a draw within a rounding of a boundary may fall on its other side.
    print(changes, "texts that part:", parted, "of", len(prompts))
    # A block that is drawn as a whole is drawn in every pass; a weight multiplies roundings.
    share = 6 if changes.get("grid") in ("uniform", "warped") else 12
    assert len(parted) <= len(prompts) // (share - 2 * ("control_by" in changes))
    assert exact.engine.runners.idle


@pytest.mark.parametrize("count", [1, 3, 8])
def test_contexts_are_read_alike_with_a_graph_and_before_there_is_one(exact, count):
    groups = [[f"{PROMPTS[at % 4]} {at + turn}" for at in range(count)] for turn in range(3)]
    changes = SLIDING | {"width": 1.0, "length": 40}
    exact.engine.runners.idle.clear()
    fast = [[text.tokens for text in exact.generate(group, **changes)] for group in groups]
    (batch,) = exact.engine.runners.idle.values()
    assert any(name.startswith("contexts") for name in batch.graphs.graphs)
    slow = [plain(exact, group, **changes) for group in groups]
    both = [pair for own in zip(fast, slow, strict=True) for pair in zip(*own, strict=True)]
    assert sum(one != other for one, other in both) <= len(both) // 12


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    folder = causal.save_adapted(tmp_path_factory.mktemp("adapted"))
    return SSDLM.from_pretrained(folder, device="cuda", dtype="float32")


@pytest.mark.parametrize(
    "changes",
    [
        SLIDING | {"width": 1.0},
        SLIDING | {"width": 1.0, "T": 50},
        SLIDING | {"width": 2.0},
        SLIDING | {"width": 4.0},
        SLIDING | {"width": 4.0, "T": 50},
        SLIDING | {"width": 24.0, "T": 50},
        SLIDING | {"width": 4.0, "control": [fewer_commas], "lam": 20.0, "gradient": "simplex"},
        SLIDING | {"width": 4.0, "must_not": ["e", "t"]},
        SLIDING | {"width": 4.0, "regex": "[a-e]{3} (b|cd)*"},
        SLIDING | {"width": 1.0, "regex": "[a-e]{3} (b|cd)*"},
        {"grid": "uniform", "T": 12, "B": 10},
        {"grid": "warped", "T": 12, "B": 25},
        {"grid": "uniform", "T": 12, "B": 10, "pin": {3: "we", 18: "ab"}},
        {"grid": "uniform", "T": 12, "suffix": " ran."},
        {"mode": "autoregressive"},
    ],
)
def test_texts_of_an_adapted_model_are_those_of_the_plain_loop(adapted, changes):
    prompts = [f"{prompt} {letter}" for letter in "abcdef" for prompt in PROMPTS]
    usual = {"length": 50, "temperature": 2.0, "stop_at_end": "regex" in changes}
    changes, runners = usual | changes, adapted.engine.runners
    runners.idle.clear()
    texts = adapted.generate(prompts, **changes)
    slow = plain(adapted, prompts, **changes)
    parted = sum(one.tokens != other for one, other in zip(texts, slow, strict=True))
    print(changes, "texts that part:", parted, "of", len(prompts))
    assert parted <= len(prompts) // 12
    assert runners.idle and len({tuple(text.tokens) for text in texts}) > 12
    is_free = changes.keys().isdisjoint(("must_not", "control", "regex"))
    assert texts[0].written.is_captured or not is_free


@pytest.mark.parametrize("control", [["sentiment=positive"], ["sentiment=negative", "tense=past"]])
def test_guides_with_short_cuts_and_without_write_the_same(exact, control, monkeypatch):
    prompts = [f"{prompt} {number}" for number in range(6) for prompt in PROMPTS]
    changes = SLIDING | {"width": 1.0, "control": control, "length": 100}
    exact.engine.runners.idle.clear()
    short = [text.tokens for text in exact.generate(prompts, **changes)]
    monkeypatch.setattr(guided, "HAS_SHORT_CUTS", False)
    exact.engine.runners.idle.clear()
    long = [text.tokens for text in exact.generate(prompts, **changes)]
    exact.engine.runners.idle.clear()
    parted = sum(one != other for one, other in zip(short, long, strict=True))
    print(control, "texts that part:", parted, "of", len(prompts))
    assert parted <= len(prompts) // 12


@pytest.mark.parametrize("num_layers", [1, 2])
def test_guides_read_a_vocabulary_that_no_power_of_two_divides(num_layers, tmp_path):
    V = 5003
    config, device = Size(V, 128, 4, 4).block(), torch.device("cuda")
    model = SSDLM(random_weights(config, device, torch.float32), None, GenerateOptions())
    path = tiny.save_classifier(tmp_path, V=V, num_hidden_layers=num_layers, hidden_act="relu")
    guide = load_guide(f"{path}=positive", device="cuda")
    prompts = [list(range(3, 4 + length)) for length in (5, 12, 7, 1)]
    # Random weights find all tokens alike: among fewer, fewer draws fall between two of them.
    words = {"gradient": "words", "threshold": 0.5, "lam": 5.0, "top_p": 0.05, "returns": "w_0"}
    changes = SLIDING | words | {"width": 1.0, "length": 25, "control": [guide]}
    fast = [text.tokens for text in model.generate(prompts, **changes)]
    slow = plain(model, prompts, **changes)
    assert sum(one != other for one, other in zip(fast, slow, strict=True)) <= 1
    assert model.engine.runners.idle


@pytest.mark.parametrize(
    "changes",
    [
        SLIDING | {"width": 1.0},
        {"grid": "staggered", "T": 25, "B": 25},
        {"mode": "autoregressive"},
    ],
)
def test_deterministic_texts_do_not_depend_on_their_company(changes):
    model = SSDLM.from_pretrained("builtin:mini", device="cuda", deterministic=True)
    changes = changes | {"length": 100}
    crowd = [f"{prompt} {number}" for number in range(20) for prompt in PROMPTS]
    together = [text.tokens for text in model.generate(crowd, **changes)]
    for number in range(0, 80, 7):
        assert model.generate(crowd[number], **changes).tokens == together[number]
    some = [text.tokens for text in model.generate(crowd[30:41], **changes)]
    assert some == together[30:41]


@pytest.mark.parametrize(
    "changes",
    [{}, {"projection": "greedy"}, {"top_p": 1.0, "temperature": 1.2}, {"regex": SENTENCES}],
)
def test_deterministic_guesses_change_no_token(changes):
    model = SSDLM.from_pretrained("builtin:mini", device="cuda", deterministic=True)
    drafter = tiny.drafter(base_of(model.denoiser)).cuda()
    model.engine.find_drafter = lambda: drafter
    crowd = [f"{prompt} {number}" for number in range(3) for prompt in PROMPTS]
    guessed = model.generate(crowd, mode="speculative", length=100, **changes)
    plain = model.generate(crowd, mode="autoregressive", length=100, **changes)
    assert [text.tokens for text in guessed] == [text.tokens for text in plain]
    assert guessed[0].written.program == "drafted"
    alone = model.generate(crowd[5], mode="speculative", length=100, **changes)
    assert alone.tokens == plain[5].tokens


def test_stop_strings_and_samples_go_through_batches(exact):
    texts = exact.generate(PROMPTS, **SLIDING, width=1.0, stop=["."], num_samples=3, length=75)
    assert len(texts) == 12
    assert all("." not in text.text for text in texts)
    assert {text.sample for text in texts} == {0, 1, 2}


def test_passes_are_counted_with_the_prompts(exact):
    text = exact.generate("The movie was", **SLIDING, width=1.0, length=50)
    assert text.passes_per_token == 51 / 50
    assert text.calls == 26


def test_batches_are_kept_and_their_number_is_bounded(exact):
    for length in (20, 200, 400, 900, 1500, 3000):
        exact.generate("The", **SLIDING, width=1.0, length=length, seed=1, stop_at_end=True)
    assert len(exact.engine.runners.idle) <= 4
    assert torch.cuda.memory_allocated() < 8 * 2**30


@pytest.mark.parametrize(
    "changes",
    [{}, {"projection": "greedy", "grid": "warped"}, {"top_p": 1.0, "returns": "w_0", "B": 7}],
)
def test_whole_blocks_of_an_encoder_are_those_of_the_plain_loop(changes):
    shape = Size(5003, 128, 4, 4)
    config, device = shape.encoder(200), torch.device("cuda")
    model = SSDLM(random_weights(config, device, torch.float32), None, GenerateOptions(T=12))
    prompts = [list(range(3, 4 + length)) for length in (5, 30, 5, 41)]
    changes = changes | {"length": 60}
    fast = [text.tokens for text in model.generate(prompts, **changes)]
    slow = plain(model, prompts, **changes)
    parted = sum(one != other for one, other in zip(fast, slow, strict=True))
    print(changes, "texts that part:", parted, "of", len(prompts))
    assert parted <= 1
    assert model.engine.runners.idle


def test_heads_of_a_width_that_no_kernel_takes_are_read_by_the_plain_body():
    tokens = torch.arange(24).view(2, 12)
    found = []
    for device in ("cpu", "cuda"):
        model, own = tiny.llama().to(device), tokens.to(device)
        found.append(model.next_logits(model.prefill(own[:, :5]), own[:, 5:]).cpu())
    assert_close(found[1], found[0], roundings=NETWORK)


def test_an_adapter_is_validated_under_autocast():
    from ssdlm.train.validation import measure

    model = LlamaDenoiser(replace(tiny.llama().config, head_size=16))
    adapter = AdaptedDenoiser(AdapterConfig(rank=3), model)
    for weight in (*model.parameters(), *adapter.parameters()):
        weight.data.normal_(0, 0.1)
    adapter, rows = adapter.to("cuda"), torch.arange(48, device="cuda").view(4, 12)
    with torch.autocast("cuda", torch.bfloat16):
        found = measure(adapter, rows, torch.arange(4, device="cuda"), points=2)
    assert found.isfinite().all()
