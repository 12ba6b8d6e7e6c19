"""Texts of a decode batch are those of the reference loop, whoever comes and goes."""

from dataclasses import replace

import pytest
import torch
from tests import tiny

from ssdlm import SSDLM, classifier_guide
from ssdlm.denoiser.padded import PaddedEncoder
from ssdlm.denoiser.slots import Slots
from ssdlm.diffusion.autoregressive import Choice, generate_chain
from ssdlm.diffusion.grid import Sliding, Staggered, Tilted, Uniform, Warped
from ssdlm.diffusion.noise import RowNoise
from ssdlm.diffusion.projection import Truncation, sampling
from ssdlm.diffusion.sampler import Strategy, generate
from ssdlm.diffusion.sliding import slide
from ssdlm.engine.batch import Entry, Traits
from ssdlm.engine.controls import Controls
from ssdlm.engine.path import Path, num_open
from ssdlm.engine.programs.chain import Chain
from ssdlm.engine.programs.encoder import EncoderWindow
from ssdlm.engine.programs.guided import GuidedWindow
from ssdlm.engine.programs.window import MOST_PASSES, Window
from ssdlm.options import GenerateOptions

CONTEXTS = [(3, 1, 4, 1, 5, 9), (2, 7), (1,)]


def row(number, **settings):
    context = CONTEXTS[number % len(CONTEXTS)]
    usual = {"top_p": 0.9, "temperature": 1.0, "suppressed": -1, "length": 100}
    return Entry(context, seed=100 + number, **usual | settings)


def tokens_of(batch):
    """Return the tokens of a batch's texts, by slot."""
    return {slot: text.tokens for slot, text in batch.texts().items()}


def plain(denoiser, one, width, length=8, pace=1):
    """Return a row's tokens by the plain loop."""
    evidence = getattr(denoiser, "denoiser", denoiser).evidence
    cut = Truncation(evidence, one.top_p, one.temperature)
    never = (one.suppressed,) if one.suppressed >= 0 else ()
    strategy = Strategy(Uniform(1), sampling(5.0, 1.0), truncate=cut, returns="w_0", suppress=never)
    noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
    size, path = [length], Sliding(pace * length, width)
    *_, last = slide(denoiser, context, strategy, path, blocks=size, B=size, noise=noise)
    return last.tokens[0].tolist()


each_network = pytest.mark.parametrize("make", [tiny.block, tiny.llama, tiny.adapted])


@pytest.mark.parametrize(
    ("make", "width", "pace"),
    [
        (tiny.block, 1.0, 1),
        (tiny.block, 2.0, 1),
        (tiny.block, 3.5, 1),
        (tiny.block, 1.0, 2),
        (tiny.block, 4.0, 2),
        (tiny.block, 3.0, 3),
        (tiny.llama, 1.0, 1),
        *((tiny.adapted, width, pace) for width in (1.0, 2.0, 4.0) for pace in (1, 2)),
    ],
)
def test_texts_of_a_batch_are_those_of_the_plain_loop(make, width, pace):
    denoiser = make()
    batch = Window(denoiser, Path.sliding(width, pace), num_slots=3, capacity=64)
    rows = [row(0), row(1, top_p=1.0, temperature=0.7), row(2, top_p=0.5, suppressed=11)]
    batch.join(rows, [2, 0, 1])
    batch.run(8 * pace)
    texts = tokens_of(batch)
    for one, slot in zip(rows, (2, 0, 1), strict=True):
        assert texts[slot] == plain(denoiser, one, width, pace=pace)
    assert list(batch.texts()[0].when) == [pace * place for place in range(1, 9)]


@pytest.mark.parametrize(
    ("make", "width", "pace"),
    [
        (tiny.block, 1.0, 1),
        (tiny.block, 3.0, 1),
        (tiny.block, 3.0, 2),
        (tiny.llama, 1.0, 1),
        (tiny.adapted, 1.0, 2),
        (tiny.adapted, 3.0, 2),
    ],
)
def test_texts_join_and_leave_between_passes(make, width, pace):
    denoiser = make()
    batch = Window(denoiser, Path.sliding(width, pace), num_slots=2, capacity=64)
    first, second, third = row(0), row(1), row(2)
    with torch.no_grad():
        batch.join([first], [0])
        batch.run(3)
        batch.join([second], [1])
        assert batch.passes_for(2) == (2 if pace == 1 else 3)  # the first has begun a token
        batch.run(5 * pace)
        assert tokens_of(batch)[1] == plain(denoiser, second, width, 5, pace)
        batch.leave([1])
        batch.run(1)
        batch.join([third], [1])
        batch.run(4 * pace)
        count = (4 + 9 * pace) // pace
        assert tokens_of(batch)[0] == plain(denoiser, first, width, count, pace)
        batch.leave([0])
        batch.run(2 * pace)
    assert tokens_of(batch)[1] == plain(denoiser, third, width, 6, pace)


@each_network
def test_chains_of_a_batch_are_the_plain_chain(make):
    denoiser = make()
    batch = Chain(denoiser, num_slots=3, capacity=256)
    plain = {"length": 8, "top_p": 0.9}
    rows = [
        row(number, **plain | own)
        for number, own in enumerate(({}, {"top_p": 0.0}, {"temperature": 0.7, "suppressed": 11}))
    ]
    batch.join(rows, [1, 2, 0])
    batch.run(8)
    texts = tokens_of(batch)
    for text in batch.texts().values():
        assert list(text.when) == sorted(text.when)
        assert text.when[0] == 1
    for one, slot in zip(rows, (1, 2, 0), strict=True):
        never = (one.suppressed,) if one.suppressed >= 0 else ()
        choice = Choice(one.top_p, one.temperature, never, is_greedy=one.top_p == 0)
        noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
        *_, last = generate_chain(denoiser, context, choice, blocks=[8], noise=noise)
        assert texts[slot] == last.tokens[0].tolist()


@pytest.mark.parametrize(
    ("make", "width", "pace"),
    [(tiny.block, 1.0, 1), (tiny.block, 2.0, 1), (tiny.block, 2.0, 2), (tiny.adapted, 3.0, 1)],
)
@pytest.mark.parametrize(
    ("gradient", "num_layers"),  # of one layer a guide need not read a text again
    [
        *(("logits", 1), ("words", 1), ("fudge", 1), ("words", 2)),
        *(pytest.param(name, 2, marks=pytest.mark.nightly) for name in ("logits", "fudge")),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_guided_texts_of_a_batch_are_those_of_the_plain_loop(
    make, width, pace, gradient, num_layers, tmp_path
):
    folder = tiny.save_classifier(tmp_path, num_hidden_layers=num_layers)
    denoiser = make()
    controls = Controls(denoiser, None)
    control = (f"{folder}=positive", f"{folder}!=neutral")
    lam = (9.0,) if gradient == "fudge" else ()
    words = {"threshold": 0.5, "plausible": 0.2}
    options = GenerateOptions(control=control, gradient=gradient, lam=lam, **words)
    room = controls.room(options)
    assert controls.fits_graph(options, room) and not controls.fits_graph(options, room + 1)
    assert room == 62  # between the special tokens
    path = Path.sliding(width, pace)
    batch = GuidedWindow(denoiser, path, controls, options, num_slots=3, capacity=64)
    assert len(batch.growing) == (2 if num_layers == pace == 1 else 0)
    rows = [row(0), row(1, top_p=1.0, temperature=0.7), row(2, top_p=0.5, suppressed=11)]
    batch.join(rows, [2, 0, 1])
    batch.run(3 * pace)
    batch.leave([0])
    batch.join([rows[1]], [0])
    batch.run(8 * pace)
    texts = tokens_of(batch)
    assert texts[0] == plain(controls.apply(options), rows[1], width, 8, pace)
    assert texts[2] == plain(controls.apply(options), rows[0], width, 11, pace)
    assert texts[2] != plain(denoiser, rows[0], width, 11, pace)
    assert texts[1] == plain(controls.apply(options), rows[2], width, 11, pace)


@pytest.mark.parametrize("returns", ["logits", "w_0"])
def test_whole_blocks_of_a_batch_are_those_of_the_plain_loop(returns):
    denoiser, T, B = tiny.encoder(), 7, 6
    traits = Traits(ends_likely=returns == "logits")
    batch = EncoderWindow(denoiser, Uniform(T)(B), traits, B=B, num_slots=2, capacity=60)
    rows = [
        row(0, length=12),
        row(1, top_p=0.0, length=8),
        row(2, top_p=1.0, suppressed=11, length=4),
    ]

    done = written(batch, rows)
    expected = {}
    for one in rows:
        strategy = Strategy(Uniform(T), sampling(5.0, one.top_p), returns=returns)
        expected[one] = in_blocks(denoiser, one, strategy, B)
    assert {one: text.tokens for one, text in zip(rows, done, strict=True)} == expected
    assert list(done[0].when) == [T] * B + [2 * T] * B


def in_blocks(denoiser, one, strategy, B):
    """Return a row's tokens by the plain loop over blocks."""
    strategy = replace(strategy, suppress=(one.suppressed,) if one.suppressed >= 0 else ())
    noise, context = RowNoise(torch.tensor([one.seed])), torch.tensor([one.context])
    blocks = [min(B, one.length - start) for start in range(0, one.length, B)]
    steps = generate(denoiser, context, strategy, blocks=blocks, noise=noise)
    return torch.cat([step.tokens for step in steps if step.is_last], 1)[0].tolist()


def written(batch, rows):
    """Return the texts of three rows in two slots: one comes late, and one when a slot is free."""
    batch.join(rows[:1], [1])
    batch.run(3)
    batch.join(rows[1:2], [0])  # it is three steps behind the other
    done, waiting, numbers = {}, [rows[2]], {id(one): number for number, one in enumerate(rows)}
    while batch.entries:
        batch.run(batch.passes_for(1))
        for slot, text in batch.texts().items():
            entry = batch.entries[slot]
            if len(text.tokens) == entry.length:
                done[numbers[id(entry)]] = text
                batch.leave([slot])
                if waiting:
                    batch.join([waiting.pop()], [slot])
    return [done[number] for number in range(3)]


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (tiny.block, Uniform(7)),
        (tiny.block, Warped(5)),
        (tiny.block, Staggered(9, 2.5)),
        (tiny.block, Staggered(6, 1.0)),
        (tiny.block, Staggered(4, 2.0)),
        (tiny.block, Tilted(9, 2.5)),
        (tiny.adapted, Uniform(7)),
        (tiny.adapted, Warped(5)),
        (tiny.adapted, Tilted(7, 1.0)),
        (tiny.adapted, Tilted(9, 5.0)),
    ],
)
def test_blocks_of_any_path_in_a_batch_are_those_of_the_plain_loop(make, path):
    denoiser, B = make(), 6
    batch = Window(denoiser, Path.of_block(path(B), B), num_slots=2, capacity=64)
    rows = [
        row(0, length=18),
        row(1, top_p=0.5, temperature=0.7, length=6),
        row(2, top_p=1.0, suppressed=11, length=12),
    ]
    done = written(batch, rows)
    for one, text in zip(rows, done, strict=True):
        cut = Truncation(denoiser.evidence, one.top_p, one.temperature)
        strategy = Strategy(path, sampling(5.0, 1.0), truncate=cut, returns="w_0")
        assert text.tokens == in_blocks(denoiser, one, strategy, B)
    passes = path.T + 1  # the context's too
    assert list(done[2].when) == [passes] * B + [2 * passes] * B


def test_logits_of_a_wide_window_are_the_same_to_the_bit_in_any_company(monkeypatch):
    model, prompts = SSDLM.from_pretrained("builtin:mini", device="cpu"), ["The river", *"abcdefg"]
    pick, seen = Window.pick, []
    monkeypatch.setattr(Window, "pick", lambda own: seen.append(own.logits[0].clone()) or pick(own))
    for count in (1, 8):
        model.generate(prompts[:count], length=2, width=8.0, seed=5, batch_size=count)
    half = len(seen) // 2
    assert half > 1 and all(map(torch.equal, seen[:half], seen[half:]))


def test_a_fork_has_read_what_its_source_has_though_slots_grow_meanwhile():
    found = []
    for capacity in (64, 14):  # the second makes room when the forks join
        batch = Chain(tiny.block(), num_slots=2, capacity=capacity)
        batch.join([row(0, length=4)], [0])
        batch.run(4)
        context = (*CONTEXTS[0], *batch.texts()[0].tokens)
        batch.leave([0])
        entries = [replace(row(0, length=8), context=context, seed=seed) for seed in (7, 8)]
        batch.join(entries, [1, 0], [0, 0])
        batch.run(8)
        found.append(tokens_of(batch))
    assert batch.slots.capacity > 14
    assert found[0] == found[1]


def test_who_comes_and_who_leaves_is_seen_within_a_long_block():
    path = Path.of_block(Uniform(1000)(6), 6)
    batch = Window(tiny.block(), path, num_slots=2, capacity=64)
    batch.join([row(0, length=6)], [0])
    assert batch.passes_for(6) == MOST_PASSES
    batch.run(3)
    batch.clock = 990  # as if
    assert batch.passes_for(6) == 10


@each_network
@pytest.mark.parametrize("kind", ["sliding", "guided", "chain"])
def test_texts_of_a_batch_are_held_to_their_grammars_as_in_the_plain_loop(make, kind, tmp_path):
    options = {"length": 12, "B": (12,), "T": 12, "grid": "sliding", "width": 1.0, "returns": "w_0"}
    if kind == "guided":
        options["control"] = f"{tiny.save_classifier(tmp_path)}=positive"
    if kind == "chain":
        options = {"length": 12, "mode": "autoregressive"}
    model = SSDLM(make(), tiny.tokenizer(), GenerateOptions())
    each = [
        options | {"regex": "[a-e]{3} (b|cd)*", "seed": 1},
        options | {"regex": "a{0,3}", "seed": 2, "top_p": 0.6},
        options | {"seed": 3},
        options | {"regex": ".{12}", "seed": 4, "projection": "greedy"}
        if kind == "sliding"
        else options | {"regex": ".{12}", "seed": 4},
    ]
    requests = [model.requests(["a dog"], own)[0] for own in each]
    engine, traits = model.engine, Traits(is_masked=True, is_strict=True)
    sizes = {"num_slots": 4, "capacity": 64, "traits": traits}
    if kind == "guided":
        own, controls = requests[0].options, engine.controls
        batch = GuidedWindow(model.denoiser, Path.sliding(1.0, 1), controls, own, **sizes)
    elif kind == "sliding":
        batch = Window(model.denoiser, Path.sliding(1.0, 1), **sizes)
    else:
        batch = Chain(model.denoiser, **sizes)
    slots = [2, 0, 3, 1]
    rows = engine.runners.entries(requests)
    if kind == "guided":  # as on a GPU, where guides are within the graph
        rows = [
            replace(row, chooser=None, placement=one.placement)
            for row, one in zip(rows, requests, strict=True)
        ]
    batch.join(rows[:3], slots[:3])
    batch.run(12)
    batch.leave([2])
    batch.join(rows[3:], slots[3:])
    batch.join(rows[:1], [2])  # another text may take a slot
    texts = tokens_of(batch)
    batch.leave([0, 3])
    batch.run(12)
    texts, end = texts | tokens_of(batch), model.tokenizer.end_of_text
    for request, slot in zip(requests, slots, strict=True):
        *_, last = engine.steps([request])
        wanted = last.tokens[0].tolist()
        assert texts[slot][: len(wanted)] == wanted
        assert len(wanted) == 12 or wanted[-1] == end
    assert end in texts[0]


def first_letters(context, logits):
    """Return how likely the first tokens are, after what a text has."""
    return logits.log_softmax(-1)[..., :4].logsumexp(-1).sum(-1) + 0 * context.sum()


STAGGERED = {"grid": "staggered", "T": 9, "width": 3.0}
UNIFORM = {"grid": "uniform", "T": 5}
STEERED_OR_PLACED = {
    "staggered": STAGGERED | {"control": "GUIDE"},
    "uniform": UNIFORM | {"control": "GUIDE", "gradient": "logits"},
    "two guides": STAGGERED | {"control": ("GUIDE", first_letters), "gradient": "words"},
    "function": {"control": first_letters, "gradient": "logits", "lam": 3.0},
    "function, wide": {"control": first_letters, "width": 3.0, "gradient": "simplex", "lam": 3.0},
    "block alone": STAGGERED | {"control": "GUIDE", "sees": "block"},
    "band": {"control": "GUIDE", "band": (0.3, 0.9), "width": 3.0},
    "band in blocks": STAGGERED | {"control": "GUIDE", "band": (0.3, 0.9)},
    "word": {"must": ["fed"]},
    "words": STAGGERED | {"must": ["fed", "b a"]},
    "moving words": {"grid": "uniform", "T": 9, "must": ["fed", "b a"]},
    "pin": STAGGERED | {"pin": {3: "e", 8: "ab"}, "stop_at_end": False},
    "suffix": {"suffix": " abc", "length": 6},
    "suffix and word": STAGGERED | {"suffix": " abc", "length": 6, "must": ["c"]},
    "guided word": {"must": ["fed"], "control": "GUIDE", "gradient": "words"},
    "word and function": STAGGERED | {"must": ["fed"], "control": first_letters, "lam": 3.0},
    "gap in blocks": UNIFORM | {"suffix": " abc", "length": 6},
    "guided gap": UNIFORM | {"suffix": " abc", "length": 6, "control": "GUIDE"},
    "pin in blocks": UNIFORM | {"pin": {3: "e", 8: "ab"}, "stop_at_end": False},
}


def controls_of(own):
    """What the texts of some options are steered by."""
    control = own.get("control", ())
    return control if isinstance(control, tuple) else (control,)


ADAPTED = "uniform", "function", "function, wide", "band", "gap in blocks", "guided gap"
ADAPTED += ("pin in blocks",)
"""Those in which nothing at a block's beginning is certain before the rest."""


STEERED = {name: (tiny.block, own, 1) for name, own in STEERED_OR_PLACED.items()}
STEERED |= {f"adapted {name}": (tiny.adapted, STEERED_OR_PLACED[name], 1) for name in ADAPTED}
STEERED |= {
    f"{name}, two layers": (make, own, 2)
    for name, (make, own, _) in STEERED.items()
    if "GUIDE" in controls_of(own)
}


@pytest.mark.parametrize(("make", "own", "layers"), STEERED.values(), ids=STEERED)
def test_what_a_graph_steers_or_places_is_as_in_the_plain_loop(
    make, own, layers, tmp_path, monkeypatch
):
    control = controls_of(own)
    guide = f"{tiny.save_classifier(tmp_path, num_hidden_layers=layers)}=positive"
    model = SSDLM(make(), tiny.tokenizer(), GenerateOptions())
    if control:
        own = own | {"control": tuple(guide if one == "GUIDE" else one for one in control)}
    own = {"length": 12, "T": 6, "grid": "sliding", "returns": "w_0", "nucleus": "network"} | own
    own |= {} if "suffix" in own else {"B": 6}
    own |= {} if own["grid"] == "uniform" else {"width": 1.0} | own
    asked = [model.requests([prompt], own | {"seed": 3})[0] for prompt in ("a dog", "bed", "ee")]
    runners = model.engine.runners
    monkeypatch.setattr(runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    key = runners.key_of(asked[0])
    assert key is not None and not key.has_choosers
    assert key.program == ("guided" if control else "window")
    done = written(runners.build(key, asked[0], 2), runners.entries(asked))
    for request, text in zip(asked, done, strict=True):
        steps = [step.tokens[0].tolist() for step in model.engine.steps([request]) if step.is_last]
        wanted = [token for block in steps for token in block]
        assert text.tokens[: len(wanted)] == wanted
        if control:
            free = replace(request, options=request.options.change(control=()), reads_block=False)
            plain = [step.tokens[0].tolist() for step in model.engine.steps([free]) if step.is_last]
            assert wanted != [token for block in plain for token in block]


def test_a_key_that_is_known_is_the_one_that_is_found(monkeypatch):
    def controlled(context, logits):
        return logits.log_softmax(-1)[..., 4].sum((1, 2))

    model = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(B=(6,), T=6, length=12))
    runners = model.engine.runners
    monkeypatch.setattr(runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    own = {"returns": "w_0", "nucleus": "network"}
    calls = [own, own | {"control": (controlled,)}, {}, own | {"must_not": ["e"]}]
    prompts = ["a", "a dog", "a dog ran " * 30]
    groups = [model.requests(prompts, {"grid": "sliding", "width": 1.0} | one) for one in calls]
    asked = [one for several in zip(*groups, strict=True) for one in several]  # by turns
    asked += [replace(one, is_watched=True) for one in asked]
    asked += [replace(one, keeps_states=True) for one in asked if one.is_watched]
    asked += [replace(one, branch=(0, 1)) for one in groups[0]] + [*groups[0], *groups[1]]
    keys = [runners.key_of(one) for one in asked]
    assert keys == [runners.find_key(one) for one in asked]
    assert len(set(keys)) > 8 and None in keys


def test_gaps_whose_windows_move_at_another_pace_are_not_in_one_batch():
    def model():
        options = GenerateOptions(grid="sliding", T=6, length=4, suffix="cab", nucleus="network")
        return SSDLM(tiny.block(), tiny.tokenizer(), options.change(returns="w_0", top_p=0.9))

    both = model()
    for B, passes in ((6, 4), (3, 8), (6, 4)):
        text = both.generate("a dog", B=B)
        assert text == model().generate("a dog", B=B)
        assert text.calls == 1 + passes and text.written.program == "window"


def test_guides_of_other_weights_are_not_in_one_batch(tmp_path):
    guide = classifier_guide(tiny.save_classifier(tmp_path / "c"), label="positive")
    model = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions(B=(6,), T=6, length=12))

    def key(**own):
        asked = {"control": guide, "gradient": "words"} | own
        options = model.requests(["a"], asked)[0].options
        return model.engine.controls.graph_key(options)

    assert key() == key(seed=1, top_p=0.5)
    # Beside particles less of a guide will do, unless it is said how much.
    others = [key(**own) for own in ({"particles": 4}, {"lam": 2.5}, {"threshold": 1.5})]
    assert len({key(), *others}) == 4
    assert key(lam=2.5, particles=4) == key(lam=2.5)


def test_blocks_of_other_lengths_of_an_encoder_are_not_in_one_batch(monkeypatch):
    monkeypatch.setattr(PaddedEncoder, "takes", staticmethod(lambda denoiser: True))
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), GenerateOptions(B=(6,), T=4))
    key_of, built = model.engine.runners.key_of, []
    for length in (4, 12, 18):
        request = model.requests(["a dog"], {"length": length})[0]
        key = key_of(request)
        assert key is not None and key.program == "encoder"
        batch = model.engine.runners.build(key, request, 1)
        built.append((key._replace(capacity=0), batch.W))
    assert [W for _, W in built] == [4, 6, 6]
    assert built[0][0] != built[1][0] == built[2][0]


def test_which_requests_a_graph_writes_alone(monkeypatch):
    model = SSDLM(tiny.block(), tiny.tokenizer(), GenerateOptions())
    runners = model.engine.runners
    monkeypatch.setattr(runners, "is_gpu", True)
    monkeypatch.setattr(Slots, "has_kernels", lambda network: True)
    usual = {"grid": "sliding", "width": 1.0, "T": 25, "returns": "w_0", "regex": "[a-c]*"}

    def key(**own):
        return runners.key_of(model.requests(["a"], usual | own)[0])

    assert (key().traits.is_masked, key().has_choosers) == (True, False)
    assert (key(regex=None).traits.is_masked, key(regex=None).has_choosers) == (False, False)
    (chain,) = model.requests(["a"], {"mode": "autoregressive", "regex": "a*"})
    assert runners.key_of(chain)[0] == "chain" and runners.key_of(chain).traits.is_masked
    for own in (
        {"width": 2.0, "nucleus": "network", "top_p": 0.9},
        {"suffix": "cab", "length": 5, "nucleus": "network", "top_p": 0.9},
        {"must": ["cab"], "regex": "[a-c ]*", "nucleus": "network", "top_p": 0.9},
        {"regex": None, "must_not": ["b"], "width": 2.0, "nucleus": "network", "top_p": 0.9},
    ):
        assert key(**own).has_choosers and not key(**own).traits.is_masked
    assert key(regex=None, must_not=["b"]).traits.is_masked
    (request,) = model.requests(["a"], usual)
    assert runners.key_of(replace(request, branch=(0, 1))).has_choosers  # a particle is weighed
    watched = replace(request, is_watched=True)
    assert runners.key_of(watched).traits.is_watched and not runners.key_of(watched).has_choosers
    assert runners.key_of(replace(watched, keeps_states=True)).has_choosers


def test_windows_of_any_width_have_a_path_at_once():
    assert num_open(1000.0, 1) == 1000
    assert num_open(4.0, 10**6) == 0  # passes for a position, each with levels of its own
    path = Path.sliding(300.0, 2)
    assert path.levels.shape == (3, 300)
    rows = path.row(torch.arange(6)).tolist()
    assert rows == [0, 1, 2, 1, 2, 1]
    moves = list(Sliding(16, 300.0).moves([8], [8]))
    for number, row in enumerate(path.row(torch.arange(16)).tolist()):
        assert torch.allclose(path.levels[row], moves[number].levels.progress[1])
