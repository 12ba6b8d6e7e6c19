"""The paper's perplexity: batched as one by one, torn boundaries, what is left out."""

import math

import numpy as np
import pytest
import torch
from tests.closeness import NETWORK, assert_close
from tests.evaluate.tiny_judge import MAX_LEN, hearing, save_judge

from ssdlm.evaluate import perplexity
from ssdlm.evaluate.judge import load_judge
from ssdlm.evaluate.perplexity import Surprise, batches, surprise, token_nlls
from ssdlm.evaluate.samples import Pool, Sample


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def judge(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return load_judge(save_judge(folder, request.param), "cpu")


def pools_of(texts):
    return [Pool(prompt, tuple(Sample(t, None) for t in samples)) for prompt, samples in texts]


TEXTS = pools_of(
    [
        ("the cat", [" sat", " ran over the hill and far away", ""]),
        ("A much longer prompt, the length of which differs", [" a b", "!"]),
        ("wor", ["ld", "k"]),
        ("x", [" y z"]),
    ]
)


def one_by_one(judge, text):
    """Loss of a whole text as transformers gives it, times its number of predictions."""
    ids = judge.tokenizer.encode(text, return_tensors="pt")
    if ids.shape[1] < 2:
        return 0.0, ids.shape[1]
    with torch.no_grad():
        return float(judge.model(ids, labels=ids).loss.double()) * (ids.shape[1] - 1), ids.shape[1]


def test_batched_matches_one_by_one(judge):
    found = surprise(TEXTS, judge)
    row = 0
    for pool in TEXTS:
        prompt_nll, prompt_tokens = one_by_one(judge, pool.prompt)
        for sample in pool.samples:
            nll, tokens = one_by_one(judge, pool.prompt + sample.text)
            assert_close(float(found.nll[row]), nll - prompt_nll, roundings=NETWORK, size=nll)
            assert found.tokens[row] == tokens - prompt_tokens
            row += 1
    assert row == len(found.nll)


def test_batch_size_changes_nothing(judge, monkeypatch):
    together = surprise(TEXTS, judge)
    monkeypatch.setattr(perplexity, "TOKENS_PER_BATCH", {"cpu": 1})
    alone = surprise(TEXTS, judge)
    assert_close(together.nll.tolist(), alone.nll.tolist(), roundings=NETWORK)
    assert together.tokens.tolist() == alone.tokens.tolist()


def test_a_boundary_torn_by_retokenising_is_counted_as_the_authors_do(judge):
    # "rl" is one token, so "wor" + "ld" has one token more than "wor", not two.
    found = surprise(pools_of([("wor", ["ld"])]), judge)
    assert found.tokens.tolist() == [1]
    whole, _ = one_by_one(judge, "world")
    prompt, _ = one_by_one(judge, "wor")
    assert_close(float(found.nll[0]), whole - prompt, roundings=NETWORK, size=whole)


def test_an_empty_prompt_leaves_the_first_token_unscored(judge):
    found = surprise(pools_of([("", ["abc"])]), judge)
    assert found.tokens.tolist() == [2]
    assert_close(float(found.nll[0]), one_by_one(judge, "abc")[0], roundings=NETWORK)


def test_a_text_longer_than_the_judge_reads_is_refused_not_cut(judge):
    with pytest.raises(ValueError, match=f"at most {MAX_LEN}, and cutting it") as error:
        surprise(pools_of([("x", ["y" * MAX_LEN])]), judge)
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_finite_is_refused(judge, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "logsumexp", lambda logits, dim: logits[..., 0] * math.nan)
    with pytest.raises(ValueError, match="not finite"):
        surprise(TEXTS, judge)


def test_judging_says_nothing_of_its_own(judge, monkeypatch, caplog):
    monkeypatch.setattr(judge.tokenizer, "model_max_length", 1)
    monkeypatch.setattr(judge.tokenizer, "deprecation_warnings", {})
    with hearing(caplog.handler):
        surprise(TEXTS, judge)
    assert caplog.messages == []


def test_progress_counts_every_text(judge):
    seen = []
    token_nlls(judge, [[1, 2, 3], [4, 5]], lambda done, total: seen.append((done, total)))
    assert seen[-1] == (2, 2)


def test_batches_hold_every_index_once_within_the_budget():
    sequences = [[0] * length for length in (5, 1, 9, 3, 3, 20, 0)]
    found = list(batches(sequences, budget=12))
    assert sorted(index for batch in found for index in batch) == [0, 1, 2, 3, 4, 5]
    assert all(
        len(batch) == 1 or len(batch) * max(len(sequences[i]) for i in batch) <= 12
        for batch in found
    )


SCORES = Surprise(
    nll=np.array([math.log(2), 2 * math.log(4), 5 * math.log(1e4), 0.0]),
    tokens=np.array([1, 2, 5, 0]),
    prompt_index=np.array([0, 0, 1, 2]),
)


def test_micro_perplexity_by_hand():
    nats = math.log(2) + 2 * math.log(4) + 5 * math.log(1e4)
    assert SCORES.micro(np.ones(3)) == pytest.approx(math.exp(nats / 8))
    assert SCORES.micro(np.array([1.0, 0.0, 0.0])) == pytest.approx(2 ** (5 / 3))


def test_macro_perplexity_leaves_out_ten_thousand_and_more_and_the_silent():
    assert SCORES.macro(np.ones(3)) == pytest.approx((2 + 4) / 2)
    assert SCORES.kept.tolist() == [True, True, False, False]


def test_perplexity_of_nothing_is_undefined():
    assert math.isnan(SCORES.macro(np.array([0.0, 1.0, 1.0])))
    assert math.isnan(SCORES.micro(np.array([0.0, 0.0, 1.0])))
