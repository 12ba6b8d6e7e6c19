"""How likely texts are: exactly what decoding draws from."""

import json
import math

import pytest
import torch
from tests import causal, tiny

from ssdlm import SSDLM
from ssdlm.cli import main


@pytest.fixture(scope="module", params=["block", "llama"])
def model(request, tmp_path_factory):
    if request.param == "block":
        return SSDLM(tiny.block(), tiny.tokenizer())
    return SSDLM.from_pretrained(causal.save(tmp_path_factory.mktemp("llama"), "llama"))


def test_a_score_is_the_sum_of_each_next_token(model):
    one = model.score("ran home", prompt="the dog ")
    context, tokens = model.context("the dog "), model.tokenizer.encode("ran home")
    assert (one.text, one.tokens) == ("ran home", tokens)
    denoiser, ids, found = model.engine.chains.denoiser, list(context), []
    for token in tokens:
        logits, _ = denoiser.read_next(denoiser.prefill(torch.zeros(1, 0).long()), tensor(ids))
        found.append(float(logits[0].log_softmax(-1)[token]))
        ids.append(token)
    assert one.logprobs == pytest.approx(found, abs=1e-4)
    assert one.logprob == pytest.approx(sum(found), abs=1e-3)
    assert one.perplexity == pytest.approx(math.exp(-sum(found) / len(found)), rel=1e-4)


def tensor(ids):
    return torch.tensor([ids])


def test_all_next_tokens_together_are_certain(model):
    after = model.score([[token] for token in range(model.denoiser.V)], prompt="the dog")
    assert math.fsum(math.exp(one.logprob) for one in after) == pytest.approx(1, abs=1e-4)


def test_a_first_token_has_no_probability_where_nothing_begins_a_text(model):
    one = model.score("ab")
    has_start = bool(model.context(""))
    assert [value is None for value in one.logprobs] == [not has_start, False]
    empty = model.score("", prompt="ab")
    assert (empty.logprobs, empty.logprob) == ([], 0) and math.isnan(empty.perplexity)


def test_what_cannot_be_rated_is_refused_in_one_line(tmp_path):
    with pytest.raises(ValueError, match="score needs a model with a context stream"):
        SSDLM(tiny.encoder(), tiny.tokenizer()).score("a")
    model = SSDLM.from_pretrained(causal.save(tmp_path, "llama"))
    with pytest.raises(ValueError, match=r"tokens are more than are read at once \(\d+\)"):
        model.score("a" * 5000)
    block = SSDLM(tiny.block(), tiny.tokenizer())
    with pytest.raises(ValueError, match=r"tokens are more than are read at once \(4096\)"):
        block.score("a" * 5000)
    with pytest.raises(ValueError, match=r"^text .* is not UTF-8"):
        model.score("\ud800")
    for texts in (None, 5, b"x", {"a": 1}):
        with pytest.raises(ValueError, match="is not a text or a list of texts; give one") as error:
            model.score(texts)
        assert f"texts={texts}" in str(error.value)
    with pytest.raises(ValueError, match=r"^text 5 is of the wrong type; a text is a string or"):
        model.score(["a", 5])


def test_the_command_line_rates(tmp_path, capsys):
    model = SSDLM(tiny.block(), tiny.tokenizer())
    model.save_pretrained(tmp_path)
    assert main(["score", "the dog", "a cat", "--model", str(tmp_path), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = model.score(["the dog", "a cat"])
    for line, one in zip(lines, expected, strict=True):
        # Bits depend on the number of threads, and on busy cores the command takes one.
        assert line["logprobs"] == pytest.approx(one.logprobs, rel=1e-5)
    assert main(["score", "", "--prompt", "a", "--model", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] is None
    assert main(["score", "", "--prompt", "a", "--model", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing to score, 0 tokens: \n"
    assert main(["score", "a cat", "--prompt", "the dog", "--model", str(tmp_path)]) == 0
    one = model.score("a cat", prompt="the dog")
    said = f"perplexity {one.perplexity:.2f}, log p {one.logprob:.2f}, 5 tokens: a cat\n"
    assert capsys.readouterr().out == said
