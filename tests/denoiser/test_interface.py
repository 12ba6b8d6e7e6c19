"""The paper's denoiser over masked LMs of two families."""

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.denoiser import row_by_row
from ssdlm.denoiser.encoder import EncoderDenoiser, block_logits, block_logits_of_all, masked_lm

KINDS = ["roberta", "bert"]


def noisy(N=2, B=4, V=tiny.V, seed=0):
    return 5.0 * torch.randn(N, B, V, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("C", [0, 1, 7])
def test_logits_cover_the_block_alone(kind, C):
    denoiser = tiny.encoder(kind)
    cache = denoiser.prefill(torch.full((2, C), 3))
    assert denoiser.denoise(cache, noisy(), torch.tensor(0.5)).shape == (2, 4, tiny.V)


@pytest.mark.parametrize("kind", KINDS)
def test_head_on_the_block_matches_head_on_all(kind):
    denoiser = tiny.encoder(kind)
    embeddings = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(0))
    parts = [
        f(denoiser.backbone, embeddings, num_context=5) for f in (block_logits, block_logits_of_all)
    ]
    assert_close(*parts, roundings=NETWORK)


def test_a_backbone_without_a_known_head_is_run_whole():
    settings = {"model_type": "electra", "vocab_size": 40, "embedding_size": 32} | tiny.SIZES
    denoiser = EncoderDenoiser.from_masked_lm(masked_lm(settings)).eval()
    cache = denoiser.prefill(torch.tensor([[3, 4]]))
    assert denoiser.denoise(cache, noisy(1, 3, 40), torch.tensor(0.1)).shape == (1, 3, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_w_diff_starts_as_a_copy_of_the_word_embeddings(kind):
    denoiser = tiny.encoder(kind)
    assert torch.equal(denoiser.simplex_embed.weight.T, denoiser.words.weight)
    assert denoiser.simplex_embed.weight.data_ptr() != denoiser.words.weight.data_ptr()


def test_a_clean_simplex_of_great_scale_reads_as_its_token():
    denoiser = tiny.encoder()
    torch.nn.init.zeros_(denoiser.time_embed.weight)
    torch.nn.init.zeros_(denoiser.time_embed.bias)
    ids = torch.tensor([[5, 9, 11]])
    w_t = 1000.0 * torch.nn.functional.one_hot(ids, tiny.V).float()
    logits = denoiser.denoise(denoiser.prefill(torch.tensor([[7, 8]])), w_t, torch.tensor(0.5))
    plain = denoiser.backbone(torch.tensor([[7, 8, 5, 9, 11]])).logits[:, 2:]
    assert_close(logits, plain, roundings=NETWORK)


def test_progress_may_be_one_number_one_a_row_or_one_a_position():
    denoiser, w_t = tiny.encoder(), noisy()
    cache = denoiser.prefill(torch.tensor([[3], [4]]))
    one = denoiser.denoise(cache, w_t, torch.tensor(0.3))
    for shape in ((2,), (2, 4)):
        same = denoiser.denoise(cache, w_t, torch.full(shape, 0.3))
        assert_close(same, one, roundings=NETWORK)
    other = denoiser.denoise(cache, w_t, torch.tensor([0.3, 0.9]))
    assert_close(other[0], one[0], roundings=NETWORK)
    assert (other[1] - one[1]).abs().max() > 0.01


def test_extending_a_cache_is_reading_the_longer_context():
    denoiser = tiny.encoder()
    grown = denoiser.extend(denoiser.prefill(torch.tensor([[3, 4]])), torch.tensor([[5]]))
    fresh = denoiser.prefill(torch.tensor([[3, 4, 5]]))
    assert torch.equal(grown.context, fresh.context)
    assert torch.equal(grown.embeddings, fresh.embeddings)


def test_the_longest_input_leaves_out_robertas_padding_positions():
    assert tiny.encoder("roberta", max_len=64).max_len == 64
    assert tiny.encoder("bert", max_len=64).max_len == 64
    denoiser = tiny.encoder("roberta", max_len=10)
    cache = denoiser.prefill(torch.zeros(1, 6, dtype=torch.long))
    assert denoiser.denoise(cache, noisy(1), torch.tensor(0.5)).isfinite().all()


def test_rows_go_alone_on_a_cpu():
    seen = []

    def forward(a, b):
        seen.append(len(a))
        return a + b

    a, b = torch.randn(3, 2), torch.randn(3, 2)
    assert torch.equal(row_by_row(forward, a, b), a + b)
    assert seen == [1, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_steps_of_training_lower_the_loss(kind):
    denoiser = tiny.encoder(kind).train().requires_grad_(True)
    tokens = torch.randint(tiny.V, (8, 10), generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.AdamW(denoiser.parameters(), lr=3e-3)
    progress = torch.linspace(0.1, 0.9, 8)
    losses = []
    for step in range(30):
        z = torch.randn(8, 4, tiny.V, generator=torch.Generator().manual_seed(step))
        loss = denoiser.one_block(tokens[:, :6], tokens[:, 6:], progress, z=z)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("kind", KINDS)
def test_half_precision_answers_in_full(kind):
    denoiser, w_t = tiny.encoder(kind), noisy()
    context = torch.tensor([[3], [4]])
    whole = denoiser.denoise(denoiser.prefill(context), w_t, torch.tensor(0.5))
    denoiser = denoiser.to(torch.bfloat16)
    half = denoiser.denoise(denoiser.prefill(context), w_t, torch.tensor(0.5))
    assert half.dtype == torch.float32
    assert (half - whole).abs().max() < 0.1 * whole.abs().max()
