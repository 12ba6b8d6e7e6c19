"""Texts in a lane are, token for token, those of the plain loop, whoever comes and goes."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM
from ssdlm.diffusion.autoregressive import Choice, generate_chain
from ssdlm.diffusion.grid import Sliding, Staggered, Uniform, Warped
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Truncation, sampling
from ssdlm.diffusion.sampler import Strategy, generate
from ssdlm.diffusion.sliding import slide
from ssdlm.diffusion.speculative import WordsAlone
from ssdlm.engine.block_lane import MOST_PASSES
from ssdlm.engine.controls import Controls
from ssdlm.engine.encoder_lane import EncoderLane
from ssdlm.engine.guided_lane import GuidedLane
from ssdlm.engine.lanes import ChainLane, Row, SlidingLane
from ssdlm.engine.tree_lane import SpeculativeLane
from ssdlm.engine.window_lane import WindowLane
from ssdlm.options import GenerateOptions

CONTEXTS = [(3, 1, 4, 1, 5, 9), (2, 7), (1,)]


def row(number, **settings):
    context = CONTEXTS[number % len(CONTEXTS)]
    usual = {"top_p": 0.9, "temperature": 1.0, "never": -1}
    return Row(context, seed=100 + number, **usual | settings)


def plain(denoiser, one, width, length=8):
    """Return a row's tokens by the plain loop."""
    evidence = getattr(denoiser, "denoiser", denoiser).evidence
    cut = Truncation(evidence, one.top_p, one.temperature)
    never = (one.never,) if one.never >= 0 else ()
    strategy = Strategy(Uniform(1), sampling(5.0, 1.0), truncate=cut, returns="w_0", suppress=never)
    noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
    size = [length]
    *_, last = slide(
        denoiser, context, strategy, Sliding(length, width), blocks=size, B=size, noise=noise
    )
    return last.tokens[0].tolist()


@pytest.mark.parametrize("width", [1.0, 2.0, 3.5])
def test_texts_of_a_lane_are_those_of_the_plain_loop(width):
    denoiser = tiny.block()
    lane = SlidingLane(denoiser, width=width, num_slots=3, capacity=64)
    rows = [row(0), row(1, top_p=1.0, temperature=0.7), row(2, top_p=0.5, never=11)]
    lane.join(rows, [2, 0, 1])
    lane.run(8)
    texts = [text.tokens for text in lane.read()]
    for one, slot in zip(rows, (2, 0, 1), strict=True):
        assert texts[slot] == plain(denoiser, one, width)


@pytest.mark.parametrize("width", [1.0, 3.0])
def test_texts_join_and_leave_between_passes(width):
    denoiser = tiny.block()
    lane = SlidingLane(denoiser, width=width, num_slots=2, capacity=64)
    first, second, third = row(0), row(1), row(2)
    with torch.no_grad():
        lane.join([first], [0])
        lane.run(3)
        lane.join([second], [1])
        lane.run(5)
        assert lane.read()[1].tokens == plain(denoiser, second, width, 5)
        lane.leave([1])
        lane.run(1)
        lane.join([third], [1])
        lane.run(3)
        assert lane.read()[0].tokens == plain(denoiser, first, width, 12)
        lane.leave([0])
        lane.run(3)
    assert lane.read()[1].tokens == plain(denoiser, third, width, 6)


@pytest.mark.parametrize("draft_nodes", [0, 1, 5, 16])
def test_chains_of_a_lane_are_the_plain_chain(draft_nodes):
    denoiser, sizes = tiny.block(), {"num_slots": 3, "capacity": 256}
    lane = ChainLane(denoiser, **sizes)
    if draft_nodes:
        table = WordsAlone(denoiser)
        table.fill_all()
        pairs = table.table @ denoiser.head.T
        lane = SpeculativeLane(denoiser, draft_nodes=draft_nodes, pairs=pairs, **sizes)
    plain = {"length": 8, "top_p": 0.9}
    rows = [
        row(number, **plain | own)
        for number, own in enumerate(({}, {"top_p": 0.0}, {"temperature": 0.7, "never": 11}))
    ]
    lane.join(rows, [1, 2, 0])
    lane.run(8)
    texts = [text.tokens for text in lane.read()]
    for text in lane.read():
        assert text.when == sorted(text.when)
        assert text.when[0] == 1
    for one, slot in zip(rows, (1, 2, 0), strict=True):
        never = (one.never,) if one.never >= 0 else ()
        choice = Choice(one.top_p, one.temperature, never, is_greedy=one.top_p == 0)
        noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
        *_, last = generate_chain(denoiser, context, choice, blocks=[8], noise=noise)
        assert texts[slot] == last.tokens[0].tolist()


@pytest.mark.parametrize("width", [1.0, 2.0])
@pytest.mark.parametrize("gradient", ["logits", "words"])
@pytest.mark.parametrize("num_layers", [1, 2])  # of one layer a guide need not read a text again
def test_guided_texts_of_a_lane_are_those_of_the_plain_loop(width, gradient, num_layers, tmp_path):
    folder = tiny.save_classifier(tmp_path, num_hidden_layers=num_layers)
    denoiser = tiny.block()
    controls = Controls(denoiser, None)
    control = (f"{folder}=positive", f"{folder}!=neutral")
    options = GenerateOptions(control=control, gradient=gradient, threshold=0.5)
    assert controls.lane_key(options) is not None
    room = controls.room(options)
    assert room == 62  # between the special tokens
    steering = partial(controls.steer_padded, options)
    lane = GuidedLane(denoiser, steering, room=room, width=width, num_slots=3, capacity=64)
    assert len(lane.growing) == (2 if num_layers == 1 else 0)
    rows = [row(0), row(1, top_p=1.0, temperature=0.7), row(2, top_p=0.5, never=11)]
    lane.join(rows, [2, 0, 1])
    lane.run(3)
    lane.leave([0])
    lane.join([rows[1]], [0])
    lane.run(8)
    texts = [text.tokens for text in lane.read()]
    assert texts[0] == plain(controls.apply(options), rows[1], width)
    assert texts[2] == plain(controls.apply(options), rows[0], width, 11)
    assert texts[2] != plain(denoiser, rows[0], width, 11)
    assert texts[1] == plain(controls.apply(options), rows[2], width, 11)


@pytest.mark.parametrize("returns", ["logits", "w_0"])
def test_whole_blocks_of_a_lane_are_those_of_the_plain_loop(returns):
    denoiser, T, B = tiny.encoder(), 7, 6
    lane = EncoderLane(
        denoiser, Uniform(T)(B), B=B, returns_logits=returns == "logits", num_slots=2, capacity=60
    )
    rows = [row(0, length=12), row(1, top_p=0.0, length=8), row(2, top_p=1.0, never=11, length=4)]

    done = written(lane, rows)
    expected = {}
    for one in rows:
        strategy = Strategy(Uniform(T), sampling(5.0, one.top_p), returns=returns)
        expected[one] = in_blocks(denoiser, one, strategy, B)
    assert {one: text.tokens for one, text in done.items()} == expected
    assert done[rows[0]].when == [T] * B + [2 * T] * B


def in_blocks(denoiser, one, strategy, B):
    """Return a row's tokens by the plain loop over blocks."""
    strategy = replace(strategy, suppress=(one.never,) if one.never >= 0 else ())
    noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
    blocks = [min(B, one.length - start) for start in range(0, one.length, B)]
    steps = generate(denoiser, context, strategy, blocks=blocks, noise=noise)
    return torch.cat([step.tokens for step in steps if step.is_last], 1)[0].tolist()


def written(lane, rows):
    """Return the texts of three rows in two slots: one comes late, and one when a slot is free."""
    lane.join(rows[:1], [1])
    lane.run(3)
    lane.join(rows[1:2], [0])  # it is three steps behind the other
    done, waiting = {}, [rows[2]]
    while lane.texts:
        lane.run(lane.passes_for(1))
        for slot, text in enumerate(lane.read()):
            if slot in lane.texts and len(text.tokens) == lane.texts[slot].row.length:
                done[lane.texts[slot].row] = text
                lane.leave([slot])
                if waiting:
                    lane.join([waiting.pop()], [slot])
    return done


@pytest.mark.parametrize(
    "path", [Uniform(7), Warped(5), Staggered(9, 2.5), Staggered(6, 1.0), Staggered(4, 2.0)]
)
def test_blocks_of_any_path_in_a_lane_are_those_of_the_plain_loop(path):
    denoiser, B = tiny.block(), 6
    lane = WindowLane(denoiser, path(B), B=B, num_slots=2, capacity=64)
    rows = [
        row(0, length=18),
        row(1, top_p=0.5, temperature=0.7, length=6),
        row(2, top_p=1.0, never=11, length=12),
    ]
    done = written(lane, rows)
    for one in rows:
        cut = Truncation(denoiser.evidence, one.top_p, one.temperature)
        strategy = Strategy(path, sampling(5.0, 1.0), truncate=cut, returns="w_0")
        assert done[one].tokens == in_blocks(denoiser, one, strategy, B)
    passes = path.T + 1  # the context's too
    assert done[rows[2]].when == [passes] * B + [2 * passes] * B


def test_who_comes_and_who_leaves_is_seen_within_a_long_block():
    lane = WindowLane(tiny.block(), Uniform(1000)(6), B=6, num_slots=2, capacity=64)
    lane.join([row(0, length=6)], [0])
    assert lane.passes_for(6) == MOST_PASSES
    lane.run(3)
    lane.texts[0].passes = 990  # as if
    assert lane.passes_for(6) == 10


@pytest.mark.parametrize("kind", ["sliding", "guided", "chain"])
def test_texts_of_a_lane_are_held_to_their_grammars_as_in_the_plain_loop(kind, tmp_path):
    options = {"length": 12, "B": (12,), "T": 12, "grid": "sliding", "width": 1.0, "returns": "w_0"}
    if kind == "guided":
        options["control"] = f"{tiny.save_classifier(tmp_path)}=positive"
    if kind == "chain":
        options = {"length": 12, "mode": "autoregressive"}
    model = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions())
    each = [
        options | {"regex": "[a-e]{3} (b|cd)*", "seed": 1},
        options | {"regex": "a{0,3}", "seed": 2, "top_p": 0.6},
        options | {"seed": 3},
        options | {"regex": ".{12}", "seed": 4, "projection": "greedy"}
        if kind == "sliding"
        else options | {"regex": ".{12}", "seed": 4},
    ]
    requests = [model.requests(["a dog"], own)[0] for own in each]
    engine, sizes = model.engine, {"num_slots": 4, "capacity": 64, "is_held": True}
    if kind == "guided":
        own, controls = requests[0].options, engine.controls
        steering, room = partial(controls.steer_padded, own), controls.room(own)
        lane = GuidedLane(model.denoiser, steering, room=room, width=1.0, **sizes)
    elif kind == "sliding":
        lane = SlidingLane(model.denoiser, width=1.0, **sizes)
    else:
        lane = ChainLane(model.denoiser, **sizes)
    slots = [2, 0, 3, 1]
    rows = engine.fleet.rows(requests)
    lane.join(rows[:3], slots[:3])
    lane.run(12)
    lane.leave([2])
    lane.join(rows[3:], slots[3:])
    lane.join(rows[:1], [2])  # another text may take a slot
    lane.leave([0, 3])
    lane.run(12)
    texts, end = [text.tokens for text in lane.read()], model.tokenizer.end_of_text
    for request, slot in zip(requests, slots, strict=True):
        *_, last = engine.steps([request])
        wanted = last.tokens[0].tolist()
        assert texts[slot][: len(wanted)] == wanted
        assert len(wanted) == 12 or wanted[-1] == end
    assert end in texts[0]


def test_which_requests_with_a_grammar_a_lane_takes():
    model = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions())
    fleet = model.engine.fleet
    fleet.is_used = True  # as on a GPU
    usual = {"grid": "sliding", "width": 1.0, "T": 25, "returns": "w_0", "regex": "[a-c]*"}

    def kind(**own):
        return fleet.kind_of(model.requests(["a"], usual | own)[0])

    held = kind()
    assert held is not None and held.is_held
    plain = fleet.kind_of(model.requests(["a"], usual | {"regex": None})[0])
    assert plain is not None and not plain.is_held
    chain = fleet.kind_of(model.requests(["a"], {"mode": "autoregressive", "regex": "a*"})[0])
    assert chain is not None and chain.is_held
    assert kind(width=2.0) is None
    assert kind(suffix="cab", length=5) is None
    assert kind(must=["cab"], regex="[a-c ]*") is None
    forbidden = usual | {"regex": None, "must_not": ["b"]}
    assert fleet.kind_of(model.requests(["a"], forbidden)[0]) is None
    (request,) = model.requests(["a"], usual)
    assert fleet.kind_of(replace(request, branch=(0, 1))) is None  # a particle's worth is kept
    assert fleet.kind_of(replace(request, is_watched=True)) is None
