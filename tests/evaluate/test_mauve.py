"""MAUVE of histograms by hand, features batched as alone, the score against the library's."""

import os
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.closeness import NETWORK, assert_close
from tests.evaluate.tiny_judge import hearing, save_judge

from ssdlm.evaluate import mauve as module
from ssdlm.evaluate.judge import is_encoder, load_encoder, load_judge
from ssdlm.evaluate.mauve import area, features, mauve, pool_states
from ssdlm.evaluate.samples import Pool, Sample

WORDS = ["the", "a", "cat", "dog", "ran", "sat", "over", "under", "hill", "tree", "far", "near"]


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    return load_judge(save_judge(tmp_path_factory.mktemp("gpt2")), "cpu")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return load_encoder(save_judge(tmp_path_factory.mktemp("bert"), "bert"), "cpu")


def texts(number, seed, words=WORDS):
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(words, size=6)) for _ in range(number)]


def pools_of(prompts, continuations):
    return [
        Pool(prompt, (Sample(" " + text, None),))
        for prompt, text in zip(prompts, continuations, strict=True)
    ]


def test_equal_histograms_score_one():
    assert area(np.array([3.0, 1.0]), np.array([6.0, 2.0])) == pytest.approx(1.0)


def test_disjoint_histograms_score_what_the_integral_says():
    # x = (1 - w)^5 and y = w^5: the area is 5 B(6, 5) = 1 / 252, here by 27 points.
    assert area(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == pytest.approx(1 / 252, rel=0.05)


def test_the_score_falls_as_histograms_part_and_is_symmetric():
    near = area(np.array([5.0, 5.0]), np.array([6.0, 4.0]))
    far = area(np.array([5.0, 5.0]), np.array([9.0, 1.0]))
    assert 1 > near > far > 0
    assert far == pytest.approx(area(np.array([9.0, 1.0]), np.array([5.0, 5.0])))


def test_features_in_a_batch_match_those_alone(judge, encoder):
    some = [*texts(3, seed=0), "x", "the longest text of them all by far"]
    for model in (judge, encoder):
        together, _ = features(some, model)
        alone = np.concatenate([features([text], model)[0] for text in some])
        assert_close(together, alone, roundings=NETWORK)


def test_a_model_gives_its_last_token_and_minilm_the_mean(judge, encoder):
    assert not is_encoder(judge)
    assert is_encoder(encoder)
    last, _ = features(["abc"], encoder)
    mean, _ = features(["abc"], replace(encoder, name="minilm"))
    ids = torch.tensor(encoder.encode(["abc"]))
    with torch.no_grad():
        states = encoder.model(input_ids=ids).last_hidden_state[0]
    assert_close(last[0], states[-1], roundings=NETWORK)
    assert_close(mean[0], states.mean(0), roundings=NETWORK)
    states = torch.tensor([[[1.0], [3.0], [9.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert pool_states(states, mask, mean=False).tolist() == [[3.0]]
    assert pool_states(states, mask, mean=True).tolist() == [[2.0]]


def test_texts_are_cut_at_the_authors_length_and_counted(judge, monkeypatch):
    monkeypatch.setattr(module, "MAX_TEXT_TOKENS", 5)
    cut, number = features(["abcdefgh", "abc"], judge)
    whole, _ = features(["abcde", "abc"], judge)
    assert_close(cut, whole, roundings=NETWORK)
    assert number == 1


@pytest.mark.parametrize("kind", ["judge", "encoder"])
@pytest.mark.parametrize("length", [10, 256])
def test_the_score_is_the_librarys_for_the_same_texts(kind, length, request, monkeypatch):
    library, model = pytest.importorskip("mauve"), request.getfixturevalue(kind)
    monkeypatch.setattr(module, "MAX_TEXT_TOKENS", length)
    prompts = [f"{index}:" for index in range(40)]
    gold, pools = pools_of(prompts, texts(40, seed=4)), pools_of(prompts, texts(40, seed=5))
    whole = [[pool.prompt + pool.samples[0].text for pool in some] for some in (gold, pools)]
    sizes = {"max_text_length": length, "featurize_model_name": model.name, "verbose": False}
    theirs = library.compute_mauve(p_text=whole[0], q_text=whole[1], device_id=-1, **sizes)
    ours = mauve(pools, gold, model)
    assert ours.score == pytest.approx(theirs.mauve, abs=1e-6)
    assert (ours.num_cut > 0, ours.limit) == (length == 10, min(length, model.max_len))


def test_reading_says_nothing_of_its_own(judge, monkeypatch, caplog):
    monkeypatch.setattr(judge.tokenizer, "model_max_length", 1)
    monkeypatch.setattr(judge.tokenizer, "deprecation_warnings", {})
    with hearing(caplog.handler):
        features(texts(2, seed=0), judge)
    assert caplog.messages == []


def test_few_texts_make_no_library_write_to_the_terminal(judge, capfd):
    pytest.importorskip("mauve")
    prompts = [f"the {i}" for i in range(20)]
    machine, human = (pools_of(prompts, texts(20, seed)) for seed in (1, 2))
    mauve(machine, human, judge)
    os.write(2, b"mine\n")
    assert capfd.readouterr().err.splitlines() == ["mine"]


def test_a_text_without_tokens_is_refused(judge):
    with pytest.raises(ValueError, match="empty"):
        features(["abc", ""], judge)


def test_the_score_tells_texts_apart_and_has_a_bucket_for_ten_texts(judge):
    pytest.importorskip("mauve")
    prompts = [f"{index}:" for index in range(60)]
    gold = pools_of(prompts, texts(60, seed=1))
    alike = mauve(pools_of(prompts, texts(60, seed=2)), gold, judge)
    other = mauve(pools_of(prompts, texts(60, seed=3, words=["zzz", "qqq"])), gold, judge)
    assert 1 >= alike.score > 0.8 > other.score > 0
    assert alike.num_buckets == 6
    assert alike.human.sum() == alike.machine.sum() == 60
    assert alike.resampled(np.ones(60)) > other.resampled(np.ones(60))


def test_the_area_is_that_of_the_library_for_the_same_histograms(judge):
    library = pytest.importorskip("mauve")
    generator = np.random.default_rng(0)
    p_features = generator.normal(size=(80, 4))
    q_features = generator.normal(loc=0.7, size=(120, 4))
    result = library.compute_mauve(p_features=p_features, q_features=q_features)
    assert 0.05 < result.mauve < 0.95
    assert area(result.p_hist, result.q_hist) == pytest.approx(result.mauve, abs=1e-9)


def test_a_missing_library_says_how_to_get_it(monkeypatch, judge):
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(ValueError, match=r"ssdlm\[eval\]"):
        mauve([], [], judge)
