"""Texts by a drafter's guesses are those of the chain, whatever it guesses."""

import pytest
import torch
from tests import tiny
from tests.engine.test_programs import row, tokens_of

from ssdlm import SSDLM
from ssdlm.denoiser.drafter import base_of, read_texts
from ssdlm.diffusion.noise import RowNoise
from ssdlm.engine.batch import Traits
from ssdlm.engine.programs.chain import Chain
from ssdlm.engine.programs.drafted import Drafted
from ssdlm.ops.counters import gumbel, gumbel_at
from ssdlm.options import GenerateOptions

MODELS = [tiny.block, tiny.llama, tiny.adapted]


def batch_of(denoiser, **sizes):
    return Drafted(denoiser, tiny.drafter(base_of(denoiser)), 4, **sizes)


def model_of(make, **loading):
    denoiser = make()
    options = GenerateOptions(B=(8,), T=8, length=16, mode="speculative")
    find = lambda: tiny.drafter(base_of(denoiser))  # noqa: E731
    return SSDLM(denoiser, tiny.tokenizer(), options, find_drafter=find, **loading)


@pytest.mark.parametrize("make", MODELS)
def test_texts_of_a_random_drafter_are_those_of_the_chain(make):
    denoiser, sizes = make(), {"num_slots": 3, "capacity": 64}
    settings = {}, {"top_p": 0.0}, {"temperature": 0.7, "suppressed": 11, "top_p": 0.3}
    rows = [row(number, length=20, **own) for number, own in enumerate(settings)]
    batch, chain = batch_of(denoiser, **sizes), Chain(denoiser, **sizes)
    for one in (batch, chain):
        one.join(rows, [1, 2, 0])
        one.run(20)
    assert {slot: tokens[:20] for slot, tokens in tokens_of(chain).items()} == tokens_of(batch)
    for text in batch.texts().values():
        assert text.when[0] == 1
        assert text.when == sorted(text.when)


@pytest.mark.parametrize("make", MODELS)
def test_guesses_are_those_of_the_network_that_is_trained(make):
    denoiser = make()
    batch, one = batch_of(denoiser, num_slots=1, capacity=64), row(0, length=20)
    drafter = tiny.drafter(base_of(denoiser))
    batch.join([one], [0])
    for _ in range(3):
        batch.run(1)
        written, guesses = tokens_of(batch)[0], batch.guesses[0].tolist()
        assert guesses[0] == written[-1]
        tokens = torch.tensor([[*one.context, *written, *guesses[1:]]])
        anchor = len(one.context) + len(written) - 1
        rows = drafter(
            tokens,
            read_texts(drafter.network, tokens, drafter.config.reads),
            torch.tensor([anchor]),
        )
        g = RowNoise(torch.tensor([one.seed])).gumbel(position=len(written), V=tiny.V, count=4)
        assert (drafter.logits(rows[0, 0]) + g[0]).argmax(-1).tolist() == guesses[1:]


def test_right_guesses_save_passes():
    denoiser = tiny.llama()
    batch, one = batch_of(denoiser, num_slots=1, capacity=64), row(0, length=20)
    chain = Chain(denoiser, num_slots=1, capacity=64)
    chain.join([one], [0])
    chain.run(30)
    known = tokens_of(chain)[0]
    batch.join([one], [0])
    for _ in range(4):
        done = int(batch.done[0])
        batch.guesses[0, 1:] = torch.tensor(known[done : done + 4])
        batch.run(1)
    assert tokens_of(batch)[0] == known[:20]
    assert batch.texts()[0].when == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("make", MODELS)
def test_texts_with_grammars_are_those_of_the_chain_and_guesses_obey_them(
    make, on_host, monkeypatch
):
    if on_host:
        monkeypatch.setattr("ssdlm.constraints.grammar_mask.tabulate", lambda *_: None)
    model = model_of(make)
    each = [
        {"regex": "[a-e]{3} (b|cd)*", "seed": 1, "length": 16},
        {"regex": "a{0,3}", "seed": 2, "top_p": 0.6, "length": 16},
        {"seed": 3, "length": 16},
        {"regex": "(ab){6}", "seed": 4, "length": 12},
    ]
    requests = [model.requests(["a dog"], own)[0] for own in each]
    rows, slots = model.engine.runners.entries(requests), [2, 0, 3, 1]
    sizes = {"num_slots": 4, "capacity": 64, "traits": Traits(is_masked=True)}
    batch, chain = batch_of(model.denoiser, **sizes), Chain(model.denoiser, **sizes)
    for one in (batch, chain):
        one.join(rows, slots)
        one.run(16)
    known = tokens_of(chain)
    for request, slot in zip(requests, slots, strict=True):
        count = request.options.length
        assert tokens_of(batch)[slot] == known[slot][:count]
    # One token alone is legal each time: guesses that obey are right, the first ones but by chance.
    assert batch.texts()[1].when.count(2) == (1 if on_host else 5)


@pytest.mark.parametrize("make", MODELS)
def test_texts_are_the_same_with_all_that_one_may_ask(make):
    model = model_of(make)
    prompts = ["a dog", "the river had"]
    for options in (
        {"top_k": 5, "min_p": 0.02, "top_p": 1.0, "stop": ["a", "e"]},
        {"logit_bias": {5: 2.0}, "frequency_penalty": 0.3},
        {"regex": "[a-c]*"},
        {"never_end": True, "temperature": 1.3},
    ):
        guessed = [model.generate(one, **options) for one in prompts]
        plain = [model.generate(one, mode="autoregressive", **options) for one in prompts]
        assert [text.tokens for text in guessed] == [text.tokens for text in plain], options
        together = model.generate(prompts, **options)
        assert [text.tokens for text in together] == [text.tokens for text in plain], options
    assert model.generate("a dog").written.program == "drafted"


def test_explain_says_when_guesses_are_made():
    model = model_of(tiny.llama)
    found = model.explain("a dog")
    assert found.written.program == "drafted"
    assert found.notes == (
        "guesses are made for one text at a time; several together go token by token",
    )
    assert found.is_most
    assert model.explain("a dog", regex="[a-c]*").written.program == "drafted"
    for options in ({"logit_bias": {5: 1.0}}, {"stream": True}):
        (note,) = model.explain("a dog", **options).notes
        assert note.startswith("mode=speculative guesses nothing beside biases or penalties, and i")


@pytest.mark.parametrize("make", MODELS)
def test_without_a_drafter_the_chain_is_written_and_that_is_said(make):
    model = SSDLM(make(), tiny.tokenizer(), model_of(make).options)
    found = model.explain("a dog")
    assert (found.written.program, found.is_most) == ("chain", False)
    assert found.notes == (
        "mode=speculative guesses nothing, for there is no drafter beside the model: the text is "
        "written token by token, as by mode=autoregressive; `ssdlm train-drafter` trains one",
    )
    texts = model.generate(["a dog", "the river had"])
    plain = model.generate(["a dog", "the river had"], mode="autoregressive")
    assert texts == plain
    assert texts[0].written == found.written


def test_guesses_that_no_option_counts_any_more_are_ignored_with_a_warning():
    model = model_of(tiny.llama)
    until = "option draft_nodes has no effect: mode=speculative checks .* from 0.4 on"
    with pytest.warns(FutureWarning, match=until):
        found = model.generate("a dog", draft_nodes=8)
    assert found == model.generate("a dog") and found.written.program == "drafted"


def test_on_a_cpu_whose_checks_cost_more_than_they_save_there_are_no_guesses():
    model = model_of(tiny.block)
    model.denoiser.store_for_cpu()  # as a model that is opened
    found = model.explain("a dog")
    assert found.written.program == "chain"
    (note,) = found.notes
    assert note.startswith("mode=speculative guesses nothing on a CPU for this model")
    text = model.generate("a dog")
    assert text.tokens == model.generate("a dog", mode="autoregressive").tokens


def test_the_built_in_model_brings_its_drafter():
    model = SSDLM.from_pretrained("builtin:mini", device="cpu")
    drafter = model.engine.drafter
    assert drafter is not None
    assert drafter.config.num_guesses == 4
    head = model.denoiser.head
    head.data = head.data.contiguous()  # so that a CPU takes guesses, too
    asked = {"length": 40, "seed": 1, "never_end": True}
    guessed = model.generate("The movie was", mode="speculative", **asked)
    plain = model.generate("The movie was", mode="autoregressive", **asked)
    assert guessed.tokens == plain.tokens
    assert guessed.passes_per_token < 0.8  # by chance, next to none are right


def test_noise_of_a_few_tokens_is_that_of_all():
    seed, ids = torch.tensor([5 << 33 | 7]), torch.tensor([[0, 3, 60], [17, 61, 5]])
    whole = gumbel(seed, position=9, V=62, count=2)[0]
    assert torch.equal(gumbel_at(seed[0], first=9, ids=ids), whole.gather(1, ids))
