"""A guide of one layer that keeps what it has read says what it would after reading all."""

import pytest
import torch
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm.guidance import gradient, load_guide
from ssdlm.guidance.gradient import logit_gradient, next_gain
from ssdlm.guidance.growing import GrowingGuide, can_grow
from ssdlm.guidance.padding import PaddedGuide

NOTHING = torch.empty(4, 0, dtype=torch.int64)
TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [7, 8], [11, 3, 5, 8]]


def fitted(folder, kind="roberta", control="=positive"):
    path = tiny.save_classifier(folder, kind, num_hidden_layers=1)
    return load_guide(f"{path}{control}").fit(V=tiny.V)


def grown(guide, texts, num_known, *, N, kind=GrowingGuide):
    """Return a guide that has read the first tokens of texts, and then each of the others."""
    growing = kind(guide, torch.zeros(N, dtype=torch.int64))
    known = [text[:num_known] for text in texts]
    width = max(map(len, known))
    ids = torch.tensor([text + [0] * (width - len(text)) for text in known])
    counts = torch.tensor([len(text) for text in known])
    growing.join(ids, counts, torch.arange(len(texts)))
    growing.lengths[: len(texts)] = counts
    for place in range(num_known, max(map(len, texts))):
        active, tokens = torch.zeros(N, dtype=torch.int64), torch.full((N, 1), 63)
        for slot, text in enumerate(texts):
            if place < len(text):
                active[slot], tokens[slot] = 1, text[place]
        growing.lengths.add_(active)
        growing.read(tokens, active)
    return growing


@pytest.mark.parametrize("kind", ["roberta", "bert"])
@pytest.mark.parametrize("W", [1, 3])
@pytest.mark.parametrize("num_known", [1, 2, 8])
def test_it_says_what_a_guide_says_that_reads_all_again(kind, W, num_known, tmp_path):
    guide = fitted(tmp_path, kind)
    growing = grown(guide, TEXTS, num_known, N=4)  # one slot has no text
    logits = 3 * torch.randn(4, W, tiny.V, generator=torch.Generator().manual_seed(0))
    found = growing(NOTHING, logits)
    gradients = logit_gradient(growing, NOTHING, logits)
    for slot, text in enumerate(TEXTS):
        context, own = torch.tensor([text]), logits[slot : slot + 1]
        assert_close(found[slot], guide(context, own)[0], roundings=NETWORK)
        assert_close(gradients[slot], logit_gradient(guide, context, own)[0], roundings=NETWORK)


def test_padded_guides_have_the_gradient_that_autograd_finds(tmp_path):
    guide = fitted(tmp_path, control="!=neutral")
    logits = 3 * torch.randn(1, 2, tiny.V, generator=torch.Generator().manual_seed(1))
    context = torch.tensor([TEXTS[0]])
    padded = PaddedGuide(guide, torch.tensor([len(TEXTS[0])]))
    gradient = logit_gradient(padded, context, logits)
    assert_close(gradient, logit_gradient(guide, context, logits), roundings=NETWORK)


def test_a_text_that_comes_to_a_slot_is_read_from_its_own_beginning(tmp_path):
    guide = fitted(tmp_path)
    growing = grown(guide, TEXTS, 2, N=3)
    fresh = grown(guide, TEXTS[::-1], 4, N=3)
    growing.join(torch.tensor([TEXTS[2]]), torch.tensor([4]), torch.tensor([0]))
    assert_close(growing.seen.scores[0], fresh.seen.scores[0])
    assert_close(growing.seen.values[0], fresh.seen.values[0])


def test_guides_of_more_layers_or_without_a_frame_do_not_grow(tmp_path):
    path = tiny.save_classifier(tmp_path / "one", num_hidden_layers=1)
    assert can_grow(load_guide(f"{path}=positive"))
    assert not can_grow(load_guide(f"{path}=positive", has_special_tokens=False))
    assert not can_grow(load_guide(f"{path}=positive", sees="block"))
    deep = tiny.save_classifier(tmp_path / "two", num_hidden_layers=2)
    assert not can_grow(load_guide(f"{deep}=positive"))
    assert can_grow(load_guide("sentiment=positive"))  # as the package's own do


def test_what_candidates_would_make_of_a_text_is_what_they_do_make_of_it(tmp_path):
    guide = fitted(tmp_path)
    tokens = torch.randint(tiny.V, (len(TEXTS), 6), generator=torch.Generator().manual_seed(0))
    found = grown(guide, TEXTS, 2, N=len(TEXTS)).candidates(NOTHING, tokens)
    for text, some, row in zip(TEXTS, tokens, found, strict=True):
        context = torch.tensor([text])
        padded = PaddedGuide(guide, torch.tensor([len(text)])).candidates(context, some[None])
        assert_close(row, padded[0], roundings=NETWORK)
        logits = 3 * torch.randn(1, 1, tiny.V, generator=torch.Generator().manual_seed(1))
        gain = next_gain(guide, context, logits)  # of all: there are fewer than 200
        assert_close(row, gain[0, 0, some], roundings=NETWORK)


def test_beyond_the_likeliest_tokens_all_count_as_the_worst_of_these(tmp_path, monkeypatch):
    guide = fitted(tmp_path)
    logits = torch.arange(tiny.V).float().view(1, 1, -1)
    whole = next_gain(guide, torch.tensor([TEXTS[0]]), logits)
    monkeypatch.setattr(gradient, "CANDIDATES", 5)
    cut = next_gain(guide, torch.tensor([TEXTS[0]]), logits)
    assert_close(cut[..., -5:], whole[..., -5:], roundings=NETWORK)
    assert (cut[..., :-5] == cut[..., -5:].min()).all()
