"""A pass over words to check and blocks to draft: every row sees what it would see alone."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.diffusion.tree import tree_rows

PARENTS = (-1, 0, 0, 1, 1, 2, 3)
TOKENS = (9, 3, 4, 5, 6, 7, 8)
CONTEXT = [11, 12, 13, 14]
M = 3


def path_to(node):
    path = []
    while node >= 0:
        path, node = [node, *path], PARENTS[node]
    return path


def kinds():
    return [
        {},
        {"is_shifted": False},
        {"has_tied_simplex": False},
        {"has_evidence": False},
    ]


@pytest.fixture(params=kinds(), ids=str)
def denoiser(request):
    return tiny.block(**request.param)


def tree_pass(denoiser, **rest):
    rows = tree_rows(PARENTS, range(len(PARENTS)), m=M, **rest)
    cache = denoiser.prefill(torch.tensor([CONTEXT]))
    return cache, rows, denoiser.check_and_draft(cache, torch.tensor([TOKENS]), rows)


def test_a_row_says_what_the_context_stream_says_after_its_path(denoiser):
    cache, _, done = tree_pass(denoiser)
    for node in range(len(PARENTS)):
        words = torch.tensor([[TOKENS[n] for n in path_to(node)]])
        alone = denoiser.next_logits(cache, words)[0, -1]
        assert_close(done.logits[0, node], alone, roundings=NETWORK)


def test_a_draft_block_is_the_denoised_noise_behind_its_row(denoiser):
    if not denoiser.config.is_shifted:
        return  # there noise alone is read as 0, and what is normed are roundings
    _, _, done = tree_pass(denoiser)
    blocks = denoiser.to_logits(done.drafts[0].unflatten(0, (-1, M)))
    nothing = torch.zeros(1, M, denoiser.V)  # as evidence: noise alone
    for node in range(len(PARENTS)):
        whole = CONTEXT + [TOKENS[n] for n in path_to(node)]
        cache = denoiser.prefill(torch.tensor([whole]))
        alone = denoiser.denoise(cache, nothing, torch.tensor(1.0))[0]
        assert_close(blocks[node], alone, roundings=NETWORK)


def test_accepted_rows_make_the_cache_of_the_longer_context(denoiser):
    cache, _, done = tree_pass(denoiser)
    kept = torch.tensor(path_to(6))
    words = torch.tensor([TOKENS])[:, kept]
    grown = denoiser.accept(cache, words, done.keys_values.index_select(4, kept))
    fresh = denoiser.prefill(torch.cat((torch.tensor([CONTEXT]), words), 1))
    assert torch.equal(grown.context, fresh.context)
    assert_close(grown.keys_values, fresh.keys_values, roundings=NETWORK)


def test_words_before_the_root_are_read_and_say_nothing():
    denoiser = tiny.block()
    chain = tree_rows(range(-1, 3), [3], m=M, root=3)
    nothing = denoiser.prefill(torch.zeros(1, 0, dtype=torch.long))
    done = denoiser.check_and_draft(nothing, torch.tensor([CONTEXT]), chain)
    said = denoiser.next_logits(nothing, torch.tensor([CONTEXT]))
    assert done.logits.shape == (1, 1, denoiser.V)
    assert_close(done.logits, said[:, -1:], roundings=NETWORK)
    assert done.drafts.shape[1] == M
    assert done.keys_values.shape[4] == 4


def test_a_guess_adds_what_the_word_before_says_alone(denoiser):
    _, _, done = tree_pass(denoiser)
    draft, word = done.drafts[0, 1:2], torch.tensor([5])
    both = denoiser.guess_logits(draft, denoiser.after_alone(word)).log_softmax(-1)
    nothing = denoiser.prefill(torch.zeros(1, 0, dtype=torch.long))
    bigram = denoiser.next_logits(nothing, word[None])[0].log_softmax(-1)
    expected = denoiser.to_logits(draft).log_softmax(-1) + bigram - denoiser.log_unigram
    assert_close(both, expected.log_softmax(-1), roundings=NETWORK)
