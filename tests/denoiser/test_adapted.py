"""A language model with an adapter: its words' rows stay, its noisy rows read evidence."""

import pytest
import torch
from tests import tiny
from tests.tiny import adapted

from ssdlm.denoiser import adapter
from ssdlm.diffusion import schedule, simplex
from ssdlm.diffusion.noising import add_noise

TEXTS = torch.randint(tiny.V, (2, 20), generator=torch.Generator().manual_seed(5))
NOISE = torch.randn(2, 19, tiny.V, generator=torch.Generator().manual_seed(6))


def noised(tokens, progress, z):
    w_0 = simplex.to_logits(tokens, V=tiny.V, K=5.0)
    return add_noise(w_0, schedule.cosine(progress), K=5.0, z=z)


def furthest(one, other):
    return (one.log_softmax(-1) - other.log_softmax(-1)).abs().max().item()


def test_words_rows_are_the_language_models_to_the_bit():
    denoiser, model = adapted(), tiny.llama()
    empty = TEXTS[:, :0]
    own = denoiser.next_logits(denoiser.prefill(empty), TEXTS)
    assert torch.equal(own, model.next_logits(model.prefill(empty), TEXTS))


def test_before_training_a_row_of_noise_is_the_last_words_row():
    cache = adapted(is_new=True).prefill(TEXTS)
    for is_new, is_same in ((True, True), (False, False)):
        logits = adapted(is_new=is_new).adapted_logits(cache, NOISE[:, :1], torch.ones(2, 1))
        assert (furthest(logits[:, 0], cache.logits) < 1e-5) is is_same


def test_rows_of_a_new_adapter_see_no_evidence_of_their_own_but_their_neighbours():
    denoiser, levels = adapted(is_new=True), torch.full((2, 3), 0.3)
    cache, w_t = denoiser.prefill(TEXTS[:, :8]), noised(TEXTS[:, 8:11], levels, NOISE[:, :3])
    logits = denoiser.adapted_logits(cache, w_t, levels) - denoiser.evidence(w_t, levels)
    for place, row in ((2, slice(2, 3)), (0, slice(0, 1))):
        other = w_t.clone()
        other[:, place] = w_t[:, place].flip(-1)
        found = denoiser.adapted_logits(cache, other, levels) - denoiser.evidence(other, levels)
        # A row starts from the word before it: its own is read by its right neighbour alone.
        assert (furthest(found[:, row], logits[:, row]) < 1e-3) is (place == 2)


def test_where_nothing_after_a_position_has_evidence_its_logits_are_the_models():
    denoiser = adapted()
    cache, levels = denoiser.prefill(TEXTS[:, :8]), torch.tensor([[0.4, 1.0], [0.4, 0.9]])
    w_t = noised(TEXTS[:, 8:10], levels, NOISE[:, :2])
    logits, exact = denoiser.denoise(cache, w_t, levels), denoiser.evidence(w_t, levels)[:, 0]
    assert torch.equal(logits[0, 0], cache.logits[0] + exact[0])
    assert furthest(logits[1, 0], cache.logits[1] + exact[1]) > 1e-2
    one = denoiser.denoise(cache, w_t[:, :1], levels[:, :1])
    assert torch.equal(one[:, 0], cache.logits + exact)


def test_certain_words_at_the_left_are_context():
    denoiser, levels = adapted(), torch.tensor([[0.0, 0.0, 0.4, 0.6]]).expand(2, 4)
    w_t = noised(TEXTS[:, 8:12], levels, NOISE[:, :4])
    logits = denoiser.denoise(denoiser.prefill(TEXTS[:, :8]), w_t, levels)
    longer = denoiser.prefill(TEXTS[:, :10])
    assert furthest(logits[:, 2:], denoiser.denoise(longer, w_t[:, 2:], levels[:, 2:])) < 1e-4
    assert torch.equal(logits[:, :2].argmax(-1), TEXTS[:, 8:10])


def test_all_blocks_at_once_are_the_blocks_one_by_one():
    denoiser, levels = adapted(), torch.rand(2, 19, generator=torch.Generator().manual_seed(7))
    blocks = torch.tensor([0] * 7 + [1] * 5 + [2] * 7)
    together = denoiser.all_logits(TEXTS, levels, z=NOISE, blocks=blocks)
    for first, end in ((0, 7), (7, 12), (12, 19)):
        part, cache = slice(first, end), denoiser.prefill(TEXTS[:, : first + 1])
        w_t = noised(TEXTS[:, first + 1 : end + 1], levels[:, part], NOISE[:, part])
        assert (
            furthest(denoiser.adapted_logits(cache, w_t, levels[:, part]), together[:, part]) < 2e-3
        )


def test_the_loss_is_the_mean_over_all_tokens_but_the_first_and_moves_the_adapter_alone():
    denoiser = adapted().requires_grad_(True)
    levels, blocks = torch.full((2, 19), 0.5), torch.arange(19) // 6
    losses = denoiser(TEXTS, levels, z=NOISE, blocks=blocks)
    logits = denoiser.all_logits(TEXTS, levels, z=NOISE, blocks=blocks)
    mean = torch.nn.functional.cross_entropy(logits.flatten(0, 1), TEXTS[:, 1:].flatten())
    assert losses.total.item() == pytest.approx(mean.item(), rel=1e-5)
    losses.total.backward()
    assert all(weight.grad.norm() > 0 for weight in denoiser.parameters())
    assert all(weight.grad is None for weight in denoiser.model.parameters())
    assert not set(denoiser.model.state_dict()) & set(denoiser.state_dict())


def test_many_rows_and_few_are_multiplied_alike(monkeypatch):
    denoiser, levels, blocks = adapted(), torch.full((2, 19), 0.7), torch.arange(19) // 6
    few = denoiser.all_logits(TEXTS, levels, z=NOISE, blocks=blocks)
    monkeypatch.setattr(adapter, "MANY_ROWS", 2)
    many = denoiser.all_logits(TEXTS, levels, z=NOISE, blocks=blocks)
    assert furthest(few, many) < 1e-4


def test_the_model_goes_where_its_adapter_goes():
    assert adapted().to(torch.bfloat16).model.words.dtype == torch.bfloat16


def test_a_block_needs_a_word_before_it():
    denoiser = adapted()
    with pytest.raises(ValueError, match="0 words before a block"):
        denoiser.denoise(denoiser.prefill(TEXTS[:, :0]), NOISE[:, :2], torch.ones(2))
