"""The adapter to lm-evaluation-harness, over a stand-in for its class of models."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from tests import causal, tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM, DecodeConfig
from ssdlm.config import BlockConfig
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.diffusion import likelihood, noise
from ssdlm.evaluate.lm_eval import register
from ssdlm.evaluate.lm_eval.__main__ import main
from ssdlm.evaluate.lm_eval.adapter import adapter
from ssdlm.evaluate.lm_eval.scoring import Scorer
from ssdlm.evaluate.lm_eval.writing import cut, decoding_of
from ssdlm.ops import counters


class StandIn:
    """What lm_eval's own class does when a model is made."""

    def __init__(self) -> None:
        self.rank = 0


@dataclass
class Request:
    args: tuple[Any, ...]


def block_model() -> SSDLM:
    torch.manual_seed(0)
    config = BlockConfig(V=tiny.V, D=16, num_layers=1, num_heads=2, B=4)
    denoiser = BlockDenoiser(config).eval().requires_grad_(False)
    torch.nn.init.normal_(denoiser.head, std=0.5)
    return SSDLM(denoiser, tiny.tokenizer(), DecodeConfig(length=8, B=(4,), T=3))


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, str]:
    root = tmp_path_factory.mktemp("models")
    block_model().save_pretrained(root / "block")
    SSDLM(tiny.encoder(), tiny.tokenizer()).save_pretrained(root / "encoder")
    return {name: str(root / name) for name in ("block", "encoder")}


@pytest.fixture
def open_model(folders):
    """How lm_eval makes the model, with arguments of its own."""

    def make(kind: str = "block", **options: Any) -> Any:
        return adapter(StandIn)(
            folders[kind], device="cpu", batch_size="3", max_batch_size=None, **options
        )

    return make


def requests(*args: tuple[Any, ...]) -> list[Request]:
    return [Request(one) for one in args]


TEXTS = [("the cat ", "sat"), ("", "on a mat"), ("a", " b"), ("where is it? ", "here, of course")]


def test_the_exact_likelihood_is_the_context_streams_own(open_model):
    lm, model = open_model(), block_model()
    found = lm.loglikelihood(requests(*TEXTS))
    for (context, continuation), (log_prob, is_greedy) in zip(TEXTS, found, strict=True):
        end = [model.tokenizer.end_of_text] if not context else []
        ids = torch.tensor([[*end, *model.tokenizer.encode(context + continuation)]])
        nll = likelihood.next_token_nll(model.denoiser, ids)[0]
        spaces = len(context) - len(context.rstrip())
        scored = nll[-len(continuation) - spaces :]
        assert_close(log_prob, -float(scored.sum()), roundings=NETWORK)
        assert is_greedy is False


def test_the_likeliest_continuation_is_told_as_greedy(open_model):
    lm = open_model()
    model = lm.scorer.model
    ids = model.tokenizer.encode("the cat")
    for _ in range(3):
        cache = model.denoiser.prefill(torch.tensor([ids[:0]], dtype=torch.long))
        ids.append(int(model.denoiser.next_logits(cache, torch.tensor([ids]))[0, -1].argmax()))
    (score,) = lm.scorer.exact([(ids[:-3], ids[-3:])])
    assert score.is_greedy
    (score,) = lm.scorer.exact([(ids[:-3], [*ids[-3:-1], (ids[-1] + 1) % tiny.V])])
    assert not score.is_greedy


def test_the_bound_is_that_of_the_blocks_with_draws_that_all_texts_share(open_model):
    scorer = open_model(likelihood="bound", points=3, samples=2, seed=5, greedy_T=2).scorer
    context, continuation = scorer.pair("the cat", " sat on")
    total = 0.0
    for number, start in enumerate(range(0, len(continuation), 4)):
        block = torch.tensor([continuation[start : start + 4]])
        seen = torch.tensor([context + continuation[:start]])
        for sample in range(2):
            seeds = torch.tensor([noise.mix(5, sample)])

            def draw(k, seeds=seeds, number=number, block=block):
                return counters.normal(seeds, block=number, step=k, B=block.shape[1], V=tiny.V)

            measure = likelihood.one_block(scorer.model.denoiser, seen, block, draw)
            rule = likelihood.gauss_legendre(3)
            total -= float(likelihood.bound(measure, likelihood.parallel(), rule).sum()) / 2
    ((_, score),) = scorer.scores([(context, continuation)])
    assert_close(score.log_prob, total, roundings=NETWORK)
    assert scorer.bound(context, continuation) == score.log_prob


@pytest.mark.parametrize("options", [{}, {"likelihood": "bound", "points": 2, "greedy_T": 1}])
def test_a_whole_text_is_the_sum_of_its_pieces(open_model, options):
    lm = open_model(max_length=8, **options)
    text = "it was late, and we sat"
    pieces = lm.scorer.pieces(text)
    assert [token for _, piece in pieces for token in piece] == lm.scorer.tokenizer.encode(text)
    assert {len(piece) for _, piece in pieces[:-1]} == {4}
    whole, short = lm.loglikelihood_rolling(requests((text,), ("it",)))
    expected = sum(score.log_prob for _, score in lm.scorer.scores(pieces))
    assert_close(whole, expected, roundings=NETWORK)
    assert_close(short, lm.loglikelihood(requests(("", "it")))[0][0], roundings=NETWORK)


def test_an_encoder_answers_by_the_bound_alone(open_model):
    lm = open_model("encoder", points=2, greedy_T=1)
    ((log_prob, is_greedy),) = lm.loglikelihood(requests(("the cat", " sat")))
    assert log_prob < 0 and is_greedy is False
    assert lm.loglikelihood(requests(("the cat", " sat")))[0][0] == log_prob
    with pytest.raises(ValueError, match="use likelihood=bound"):
        open_model("encoder", likelihood="exact")


@pytest.mark.usefixtures("unchecked")
def test_an_adapter_has_its_language_models_likelihood_and_a_bound_of_its_own(tmp_path):
    made = adapter(StandIn), {"device": "cpu", "batch_size": "3", "max_batch_size": None}
    folder = causal.save_adapted(tmp_path)
    open_ = lambda path, **how: made[0](str(path), **made[1], **how)  # noqa: E731
    asked = requests(("the cat", " sat on a mat"), ("", "on"))
    exact = [log_prob for log_prob, _ in open_(folder).loglikelihood(asked)]
    assert exact == [one for one, _ in open_(tmp_path / "base").loglikelihood(asked)]
    lm = open_(folder, likelihood="bound", points=4, greedy_T=16)
    bounds = [log_prob for log_prob, _ in lm.loglikelihood(asked)]
    assert all(-1e4 < one < 0 for one in bounds) and bounds != exact
    context, continuation = lm.scorer.pair("the cat", " sat on a mat")
    assert len(continuation) < lm.scorer.B == 16
    whole = lm.scorer.block_bound(context, continuation, 0)
    assert lm.scorer.bound(context, continuation) == -whole


def test_what_greedy_decoding_writes_is_greedy(open_model):
    scorer = open_model(likelihood="bound", greedy_T=2).scorer
    context = scorer.tokenizer.encode("the cat")
    options = {"projection": "greedy", "top_p": 0.0, "T": 2, "length": 6, "B": 4, "seed": 0}
    (text,) = scorer.model.generate([context], **options)
    assert scorer.writes(context, text.tokens)
    assert not scorer.writes(context, text.tokens[::-1])


def test_texts_end_where_the_task_says(open_model):
    lm = open_model(T=2)
    whole, again = lm.generate_until(
        requests(*[("the cat", {"max_gen_toks": 10, "until": []})] * 2)
    )
    assert whole == again and len(whole) == 10
    stop = whole[5]
    asked = requests(
        ("the cat", {"max_gen_toks": 10, "until": [stop]}),
        ("a dog", {"max_gen_toks": 6, "until": "~", "do_sample": True, "top_p": 0.9}),
        ("", {"max_gen_toks": 5, "until": None, "temperature": 0.0}),
    )
    first, second, third = lm.generate_until(asked)
    assert first == whole[: whole.index(stop)]
    assert (len(second), len(third)) == (6, 5)
    assert lm.generate_until(asked) == [first, second, third]


def test_a_text_is_cut_at_the_first_of_its_ends():
    assert cut("one. two! three", ["!", "."]) == "one"
    assert cut("one", [".", ""]) == "one"


def test_unsupported_temperatures_are_refused():
    assert decoding_of({"do_sample": False, "temperature": 0.7})["projection"] == "greedy"
    assert decoding_of({"temperature": 1.0}) == {"projection": "sampling", "temperature": 1.0}
    with pytest.raises(ValueError, match=r"temperature=0\.7 is not supported"):
        decoding_of({"temperature": 0.7})


def test_bad_settings_are_refused(open_model):
    for options, told in (
        ({"likelihood": "best"}, "likelihood='best' is unknown"),
        ({"samples": 0}, "samples=0 is out of range"),
    ):
        with pytest.raises(ValueError, match=told):
            open_model(**options)
    with pytest.raises(ValueError, match="batch_size=auto is not a number"):
        adapter(StandIn)("nowhere", batch_size="auto")
    lm = open_model(max_length=4)
    with pytest.raises(ValueError, match="leaves no context in 4"):
        lm.loglikelihood(requests(("the cat", " sat on")))
    model = block_model()
    with pytest.raises(ValueError, match="no tokenizer"):
        Scorer(SSDLM(model.denoiser))


def test_old_context_is_dropped_where_there_is_no_room(open_model):
    lm = open_model(max_length=6)
    long, short = lm.loglikelihood(requests(("where is the cat", "s"), ("e cat", "s")))
    assert_close(long[0], short[0], roundings=NETWORK)


def test_without_lm_eval_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.api.model", None)
    with pytest.raises(ValueError, match=r"pip install 'ssdlm\[harness\]'"):
        register()
    with pytest.raises(SystemExit, match="error: the harness needs lm_eval"):
        main()
