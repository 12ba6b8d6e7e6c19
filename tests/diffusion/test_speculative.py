"""Guesses change how many passes a text takes, and nothing else."""

from __future__ import annotations

import pytest
import torch
from tests import tiny
from tests.diffusion.test_autoregressive import EvenAfterOdd

from ssdlm import SSDLM
from ssdlm.diffusion.autoregressive import Choice, Place, generate_chain
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.speculative import Speculation, WordsAlone, generate_speculative, tree_of

TIE = 1e-4
"""Two texts may part where the two best perturbed log-probabilities are so close."""


def chain(denoiser, context, choice, *, length, seed, places=()):
    """The text by the plain chain."""
    noise = RowNoise(torch.tensor([seed], device=denoiser.device))
    context = torch.tensor([context], device=denoiser.device)
    steps = generate_chain(denoiser, context, choice, blocks=[length], noise=noise, places=places)
    return list(steps)[-1].tokens[0].tolist()


def guessed(denoiser, context, choice, *, nodes, blocks, seed, place=None, **rest):
    """The text by guesses, and its steps."""
    noise = RowNoise(torch.tensor([seed], device=denoiser.device))
    tree, alone = tree_of(nodes), WordsAlone(denoiser)
    speculation = Speculation(denoiser, choice, noise, tree, alone, sum(blocks), place)
    context = torch.tensor([context], device=denoiser.device)
    steps = list(generate_speculative(speculation, context, blocks=blocks, **rest))
    return [token for step in steps if step.is_last for token in step.tokens[0].tolist()], steps


def assert_same(denoiser, context, choice, fast, plain, *, seed):
    """Assert that two texts are one, or part where two tokens were as good; return the tokens."""
    if fast == plain:
        return len(plain)
    at = next(i for i in range(len(plain)) if fast[i] != plain[i])
    whole = torch.tensor([[*context, *plain[:at]]], device=denoiser.device)
    nothing = denoiser.prefill(whole[:, :0])
    g = choice.draw(
        RowNoise(torch.tensor([seed], device=denoiser.device)), position=at, V=denoiser.V
    )
    logits = denoiser.next_logits(nothing, whole)[:, -1]
    scores = choice.perturbed(logits, None if g is None else g[:, 0])[0]
    gap = float(scores[plain[at]] - scores[fast[at]])
    print(f"a tie after {at} tokens: {plain[at]} or {fast[at]}, {gap:.1e} apart")
    assert abs(gap) < TIE
    return at


@pytest.mark.parametrize(
    ("choice", "trees"),
    [
        (Choice(), (1, 6, 32)),
        (Choice(top_p=0.8, temperature=0.7, suppress=(63,)), (6, 32)),
        (Choice(is_greedy=True), (32,)),
    ],
    ids=["all", "nucleus", "greedy"],
)
def test_the_text_is_the_chains_token_for_token_for_every_tree(choice, trees, unchecked):
    denoiser, context, blocks, seed = tiny.block(), [3, 4, 5], [50] * 7, 1
    plain = chain(denoiser, context, choice, length=350, seed=seed)
    for nodes in trees:
        fast, steps = guessed(denoiser, context, choice, nodes=nodes, blocks=blocks, seed=seed)
        assert assert_same(denoiser, context, choice, fast, plain, seed=seed) > 250
        assert sum(step.num_passes for step in steps) < 350


def test_the_built_in_model_writes_the_same_in_fewer_passes(unchecked):
    model = SSDLM.from_pretrained("builtin:mini", device="cpu")
    prompts = ["The movie was", "In the early"]
    plain = model.generate(prompts, mode="autoregressive", length=50)
    fast = model.generate(prompts, mode="speculative", draft_nodes=8, length=50)
    for request, one, other in zip(model.requests(prompts), fast, plain, strict=True):
        choice = Choice(0.9, suppress=(model.tokenizer.end_of_text,))
        context, seed = request.context, request.noise_seed
        assert_same(model.denoiser, context, choice, one.tokens, other.tokens, seed=seed)
        assert one.passes_per_token < 0.7
    assert all(text.passes_per_token == 1 for text in plain)


def test_blocks_are_told_one_by_one_and_every_pass_once():
    denoiser, context = tiny.block(), [3, 4]
    whole, steps = guessed(denoiser, context, Choice(), nodes=8, blocks=[40], seed=1)
    passes = len(steps)
    assert passes == sum(step.num_passes for step in steps) < 40
    for blocks in ([1] * 40, [2, 3, 35], [39, 1]):
        tokens, steps = guessed(denoiser, context, Choice(), nodes=8, blocks=blocks, seed=1)
        assert tokens == whole
        assert sum(step.num_passes for step in steps) == passes
        lasts = [step for step in steps if step.is_last]
        assert [step.tokens.shape[1] for step in lasts] == blocks
        assert [step.block for step in lasts] == list(range(len(blocks)))
        assert all(step.t == blocks[step.block] - step.tokens.shape[1] for step in steps)


def test_a_text_ends_at_its_end_also_in_the_middle_of_a_pass():
    denoiser, context, blocks = tiny.block(), [3, 4], [7, 7, 7, 7]
    whole, _ = guessed(denoiser, context, Choice(), nodes=16, blocks=blocks, seed=2)
    for token in sorted(set(whole))[::3]:
        cut, steps = guessed(
            denoiser, context, Choice(), nodes=16, blocks=blocks, seed=2, end_of_text=token
        )
        assert cut == whole[: whole.index(token) + 1]
        assert steps[-1].is_last


def test_rules_hold_as_they_do_without_guesses():
    denoiser, context, choice = tiny.block(), [3, 4], Choice(top_p=0.9)
    place = Place(EvenAfterOdd(), 0)
    plain = chain(denoiser, context, choice, length=60, seed=4, places=[place])
    fast, _ = guessed(denoiser, context, choice, nodes=16, blocks=[60], seed=4, place=place)
    assert fast == plain


@pytest.mark.parametrize("settings", [{"is_shifted": False}, {"has_evidence": False}], ids=str)
def test_a_model_of_another_form_guesses_too(settings):
    denoiser = tiny.block(**settings)
    plain = chain(denoiser, [3, 4], Choice(), length=60, seed=4)
    fast, _ = guessed(denoiser, [3, 4], Choice(), nodes=8, blocks=[60], seed=4)
    assert_same(denoiser, [3, 4], Choice(), fast, plain, seed=4)


def test_a_vocabulary_smaller_than_a_trees_width_does_no_harm():
    denoiser = tiny.block(V=3)
    plain = chain(denoiser, [1, 2], Choice(), length=40, seed=4)
    assert guessed(denoiser, [1, 2], Choice(), nodes=64, blocks=[40], seed=4)[0] == plain


@pytest.mark.parametrize("nodes", [1, 2, 5, 16, 32, 64, 256])
def test_a_tree_has_its_nodes_by_depth_each_below_a_better_one(nodes):
    tree = tree_of(nodes)
    assert len(tree.parents) == len(tree.ranks) == nodes + 1
    assert tree.parents[0] == -1
    for depth, level in enumerate(tree.levels[1:], 1):
        above = tree.levels[depth - 1]
        for node in range(level.start, level.stop):
            assert above.start <= tree.parents[node] < above.stop
            siblings = [n for n in range(nodes + 1) if tree.parents[n] == tree.parents[node]]
            assert [tree.ranks[n] for n in siblings] == list(range(len(siblings)))
    assert tree.levels[-1].stop == nodes + 1
    assert tree.m == len(tree.levels) >= 2


def test_words_alone_are_read_once_in_any_company():
    denoiser = tiny.block()
    some, whole = WordsAlone(denoiser), WordsAlone(denoiser)
    first = some[torch.tensor([5, 9, 5])]
    whole.fill_all()
    assert torch.equal(first[0], first[2])
    assert bool(whole.is_known.all()) and int(some.is_known.sum()) == 2
    torch.testing.assert_close(first, whole[torch.tensor([5, 9, 5])], rtol=1e-4, atol=1e-5)
