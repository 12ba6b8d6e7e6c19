"""Particles: weighed by any scorer, resampled when few carry the weight, each text by itself."""

import itertools
import json
import math
import random
import re
import signal
from collections import Counter
from dataclasses import replace

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, Scorer, cli
from ssdlm.denoiser.slots import Slots
from ssdlm.engine.controls import Controls
from ssdlm.engine.particles import (
    Particle,
    Swarms,
    common_start,
    effective,
    normalised,
    systematic,
)
from ssdlm.engine.requests import Request
from ssdlm.engine.schedule import Job, Schedule

PROMPTS = ["the river", "a movie", "no"]


@pytest.fixture(scope="module")
def model():
    options = DecodeConfig(length=6, B=(3,), T=3, grid="sliding", width=1.0, returns="w_0")
    return SSDLM(tiny.block(), tiny.tokenizer(), options)


@pytest.fixture(scope="module")
def encoder():
    return SSDLM(
        tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=12, B=(6,), T=4, never_end=True)
    )


@pytest.fixture
def one_minute():
    """A test that hangs fails after a minute."""

    def give_up(*_):
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def vowels(texts):
    """Log-scores for those who like vowels."""
    return [float(sum(letter in "aeiouAEIOU" for letter in text)) for text in texts]


def total(texts):
    return sum(vowels([text.text for text in texts]))


def test_a_function_of_texts_steers(model):
    plain = model.generate(PROMPTS)
    steered = model.generate(PROMPTS, control=vowels, particle_step=2)
    assert total(steered) > 1.5 * total(plain)


def test_a_text_does_not_depend_on_the_others(model):
    options = {"control": [vowels], "particles": 3, "particle_step": 2, "num_samples": 2}
    together = model.generate(PROMPTS, **options)
    for number, prompt in enumerate(PROMPTS):
        assert model.generate([prompt], **options) == together[2 * number : 2 * number + 2]
    assert together[0].text != together[1].text


@pytest.mark.parametrize("batch_size", [2, 7])
def test_nor_on_how_many_go_together(model, monkeypatch, batch_size):
    options = {"control": vowels, "particles": 3, "particle_step": 4, "seed": 3}
    alone = [model.generate(prompt, **options) for prompt in PROMPTS]
    # As where there is a GPU: several texts, and several particles of each, at a time.
    monkeypatch.setattr(type(model.engine), "batch_size", lambda self, options: batch_size)
    schedule = model.engine.schedule(most_jobs=batch_size)
    requests = model.requests(PROMPTS, options)
    jobs = [schedule.submit(request) for request in requests]
    found = {}
    while len(found) < len(jobs):
        for job in schedule.turn():
            if (text := model.engine.finish(job)) is not None:
                found[job.request.number] = text
    for number, text in enumerate(alone):
        assert found[number] == text


def test_passes_of_all_particles_count(model):
    made = model.generate("no", control=vowels, particles=6, particle_step=3)
    assert made.passes_per_token * len(made.tokens) == 6 * 6
    assert made.calls == 6 * 3


def test_blocks_are_weighed_where_no_window_slides(encoder):
    asked = []

    def score(texts):
        asked.append(texts)
        return vowels(texts)

    plain = encoder.generate(PROMPTS[0])
    steered = encoder.generate(PROMPTS[0], control=score, particles=6)
    assert vowels([steered.text]) > vowels([plain.text])
    sizes = {len(text) - len(PROMPTS[0]) for texts in asked[1:] for text in texts}
    assert sizes == {6, 12}
    options = {"control": vowels, "B": (4, 5), "length": 11, "particles": 2}
    together = encoder.generate(PROMPTS[:2], **options)
    assert together[1] == encoder.generate(PROMPTS[1], **options)


def test_a_gradient_steers_beside_what_weighs(model):
    def no_q(context, logits):
        return -logits.log_softmax(-1)[..., 16].sum(-1)

    both = [no_q, vowels]
    weighed = model.generate("no", control=vowels, particles=4)
    steered = model.generate("no", control=both, lam=50.0, gradient="simplex", particles=4)
    assert steered.tokens != weighed.tokens
    idle = model.generate("no", control=both, lam=0.0, particles=4)
    assert idle.tokens == weighed.tokens  # the function of logits weighs nothing


def test_texts_with_words_to_place_are_weighed_at_their_end(model):
    made = model.generate("no", must=["dog"], control=vowels, particles=4, nucleus="logits")
    assert "dog" in made.text
    matched = model.generate("no", regex="[a-e]{4,6}", control=vowels, particles=4)
    assert re.fullmatch("[a-e]{4,6}", matched.text)


def test_a_text_may_end_early(model):
    first = model.generate("no", control=vowels, particles=3, particle_step=2).text
    made = model.generate("no", control=vowels, particles=3, particle_step=2, stop=first[2:4])
    assert first[2:4] not in made.text


@pytest.mark.parametrize("seed", range(5))
def test_a_text_ends_where_resampling_leaves_only_particles_that_have_ended(
    model, one_minute, seed
):
    options = {"seed": seed, "particles": 4, "length": 30, "B": 4}
    matched = model.generate("the river", regex="[a-z ]+", T=5, **options)
    assert re.fullmatch("[a-z ]+", matched.text)
    brief = Scorer(lambda texts: [-float(len(text)) for text in texts], reads="continuation")
    stopped = model.generate("no", control=brief, stop=list("aehmnot"), T=4, **options)
    assert not set("aehmnot") & set(stopped.text)
    assert stopped.finish_reason == "stop"


def test_what_is_impossible_is_not_chosen(model):
    def no_e(texts):
        return [-math.inf if "e" in text else 0.0 for text in texts]

    made = model.generate("no", control=no_e, particles=8, particle_step=2, num_samples=2)
    assert not any("e" in text.text for text in made)


@pytest.mark.parametrize("grid", ["sliding", "staggered"])
def test_particles_fork_and_read_no_token_twice(model, monkeypatch, grid):
    """A particle goes on in a slot that has read its text, whichever was resampled."""
    rows, copies, read, copy = [], [], Slots.read, Slots.copy

    def counted(slots, x, behind, *rest):
        rows.append(x.shape[0] * x.shape[1])
        return read(slots, x, behind, *rest)

    def copied(slots, source, target, length):
        copies.append((source, target))
        return copy(slots, source, target, length)

    options = {"grid": grid, "width": 1.0, "T": 4, "B": 4, "length": 16}
    options |= {"particle_step": 4} if grid == "sliding" else {}
    own = options | {"control": vowels, "particles": 4, "particle_weight": 5.0, "returns": "w_0"}
    apart = None
    with monkeypatch.context() as patch:  # as if nothing were kept
        patch.setattr(Job, "is_kept", property(lambda job: False, lambda job, value: None))
        apart = model.generate("no dog", nucleus="network", top_p=0.9, **own)
    monkeypatch.setattr(Slots, "read", counted)
    monkeypatch.setattr(Slots, "copy", copied)
    text = model.generate("no dog", nucleus="network", top_p=0.9, **own)
    assert text.tokens == apart.tokens
    prompt = len(model.context("no dog")) - 1
    passes = 16 * 2 if grid == "sliding" else 16 * 5 + 16  # word and open rows; blocks once more
    assert sum(rows) == 4 * (prompt + passes)
    assert copies  # some were resampled


def test_where_every_particle_is_impossible_an_error_says_so(model):
    def never(texts):
        return [-math.inf for _ in texts]

    class Streamer:
        def put(self, tokens):
            raise AssertionError("there is no text")

        end = put

    for options in ({}, {"particle_step": 2}, {"best_of": 2}, {"streamer": Streamer()}):
        with pytest.raises(ValueError, match="all 8 particles after 'no' score -inf by") as e:
            model.generate("no", control=[vowels, never], **options)
        assert "vowels, never" in str(e.value)
        assert "\n" not in str(e.value)
    assert model.generate("no", control=never, particle_weight=0.0).text


def test_weights_that_carry_scores_beyond_all_numbers_are_refused(model):
    def huge(texts):
        return [1e308 for _ in texts]

    with pytest.raises(ValueError, match=r"^particle_weight \(1e\+06 for huge\) times a score is"):
        model.generate("no", control=huge, particle_weight=1e6)


def test_particles_that_are_impossible_for_now_may_become_texts(model):
    def long(texts):
        return [0.0 if len(text) > 7 else -math.inf for text in texts]

    options = {"particle_step": 2, "never_end": True}
    assert len(model.generate("no", control=long, **options).text) == 6


def test_the_command_line_says_that_every_particle_is_impossible(tmp_path, capsys):
    options = DecodeConfig(length=4, B=(2,), T=2)
    SSDLM(tiny.block(), tiny.tokenizer(), options).save_pretrained(tmp_path / "model")
    folder = tiny.save_stranger(tmp_path / "c", impossible="high")
    control = ["--control", f"{folder}=high", "--particles", "3"]
    capsys.readouterr()
    assert cli.main(["generate", "no", "--model", str(tmp_path / "model"), *control]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert f"all 3 particles after 'no' score -inf by {folder}=high" in said.err


def test_a_scorer_may_read_the_continuation_alone(model):
    seen = []

    def score(texts):
        seen.extend(texts)
        return vowels(texts)

    model.generate("no", control=Scorer(score, reads="continuation"), particles=2)
    assert not any(text.startswith("no") for text in seen[2:])


class Chain(Schedule):
    """A schedule that writes a Markov chain of three letters in no time: its law is known.

    Texts that do not match are never written: a token after which none could is left out, and the
    mass of the others is what a particle is worth, as under a grammar.
    """

    rows = ((0.6, 0.3, 0.1), (0.2, 0.5, 0.3), (0.3, 0.3, 0.4))

    def __init__(self, length, matches=lambda tokens: True):
        self.jobs, self.length = [], length
        texts = itertools.product(range(3), repeat=length)
        self.texts = [tokens for tokens in texts if matches(tokens)]
        self.starts = {tokens[:end] for tokens in self.texts for end in range(length + 1)}

    def submit(self, request, look_every=None, parent=None):
        self.jobs.append(Job(request))
        return self.jobs[-1]

    def turn(self):
        jobs, self.jobs = self.jobs, []
        for job in jobs:
            draw, done = random.Random(job.request.noise_seed), job.request.context[1:]
            for _ in range(job.request.options.length):
                row = self.rows[(0, *done)[-1]]
                legal = [token for token in range(3) if (*done, token) in self.starts]
                job.log_weight += math.log(sum(row[token] for token in legal))
                done += tuple(draw.choices(legal, [row[token] for token in legal]))
            job.tokens = list(done[len(job.request.context) - 1 :])
            job.passes, job.is_over = [1], True
        return jobs

    def law(self, score=lambda tokens: 0.0):
        """Return the law of texts that match, tilted by a score."""
        chances = {
            tokens: math.exp(score(tokens))
            * math.prod(self.rows[a][b] for a, b in itertools.pairwise((0, *tokens)))
            for tokens in self.texts
        }
        return {tokens: p / sum(chances.values()) for tokens, p in chances.items()}

    def distance(self, n, law, options, count=400):
        """Return how far texts out of n particles are from a law."""
        controls = Controls(tiny.block(), None)
        swarms = Swarms(count, n, self, lambda job: job, controls)
        jobs = [Job(Request("", (0,), options, sample=index)) for index in range(count)]
        swarms.join(jobs)
        while not all(len(job.tokens) == self.length for job in jobs):
            swarms.turn()
        found = Counter(tuple(job.tokens) for job in jobs)
        return sum(abs(p - found[tokens] / count) for tokens, p in law.items()) / 2


def ones(texts):
    return [1.5 * text.count("1") for text in texts]


PIECES = DecodeConfig(length=4, B=(4,), T=4, grid="sliding", particle_step=2)


@pytest.mark.nightly
@pytest.mark.parametrize("potential", ["difference", "maximum"])
def test_the_law_tends_to_the_tilted_one_as_particles_are_more(unchecked, potential):
    control = Scorer(ones, reads="continuation")
    chain, options = Chain(4), PIECES.change(control=control, particle_potential=potential)
    law = chain.law(lambda tokens: 1.5 * tokens.count(1))
    distances = [chain.distance(n, law, options) for n in (1, 4, 16)]
    assert distances == sorted(distances, reverse=True)
    assert distances[0] > 0.4
    assert distances[-1] < 0.2  # what so many draws are off by themselves


def test_the_law_tends_to_that_given_a_match_as_particles_are_more(unchecked):
    """Left out from left to right, illegal tokens leave another law; weights make up for it."""
    chain = Chain(4, lambda tokens: tokens.count(2) == 2)
    assert len(chain.texts) == 24
    distances = [chain.distance(n, chain.law(), PIECES) for n in (1, 4, 16)]
    assert distances[0] > 0.2
    assert distances[0] > 1.5 * distances[1] > 1.5 * distances[2]
    assert distances[2] < 0.1  # what so many draws are off by themselves


def test_a_classifier_of_another_vocabulary_steers_by_particles(model, tmp_path):
    folder = tiny.save_stranger(tmp_path / "c")
    options = {"control": f"{folder}=high:6", "num_samples": 2}
    steered = model.generate("no", **options)
    (way,) = model.engine.controls.ways(model.options.change(**options))
    assert (way.title, way.weight) == ("particles", 6.0)
    assert "lacks 1 of the model's 64 tokens (such as '2')" in way.why
    plain = model.generate("no", num_samples=2)
    assert way.scorer is not None
    scores = [sum(way.scorer(["no" + one.text for one in texts])) for texts in (plain, steered)]
    assert scores[1] > scores[0]
    assert all(text.passes_per_token == 8 for text in steered)


def test_ways_are_chosen_and_said(model, tmp_path):
    folder = tiny.save_classifier(tmp_path / "c")
    controls = model.engine.controls

    def ways(**options):
        chosen = model.options.change(**options)
        return [way.title for way in controls.ways(chosen)], controls.num_particles(chosen)

    def gradient(context, logits):
        return logits[..., 0].sum(-1)

    named = f"{folder}=positive"
    assert ways(control=named) == (["gradient"], 1)
    assert ways(control=named, particles=4) == (["both"], 4)
    assert ways(control=vowels) == (["particles"], 8)
    assert ways(control=[named, vowels, gradient]) == (["gradient", "particles", "gradient"], 8)
    assert ways() == ([], 1)


def test_beside_particles_a_gradient_need_not_steer_alone(model, tmp_path):
    named = f"{tiny.save_classifier(tmp_path / 'c')}=positive"

    def lam(**options):
        (way,) = model.engine.controls.ways(model.options.change(**options))
        return way.lam

    alone = lam(control=named)
    assert lam(control=named, particles=4) == pytest.approx(0.8 * alone)
    assert lam(control=named, particles=4, lam=7.0) == 7.0
    assert lam(control=f"{named}:6", particles=4) == 6.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"particles": 4}, "particles=4 would weigh nothing; give control"),
        ({"particles": 1, "control": vowels}, "particles=1 cannot be steered by vowels; use 2"),
        (
            {"particles": 4, "control": lambda context, logits: logits[..., 0].sum(-1)},
            "a function of logits, which has a gradient and reads no texts",
        ),
        ({"particle_weight": [1, 2], "control": vowels}, "has 2 values for 1 control"),
        (
            {"particle_weight": 4, "control": lambda context, logits: logits[..., 0].sum(-1)},
            "steers by its gradient; give particles",
        ),
        ({"particles": 5000, "control": vowels}, "particles=5000 is out of range"),
        ({"control": lambda texts: [math.nan for _ in texts]}, "returned nan"),
        ({"control": lambda texts: [0.0]}, "returned 1 scores for 2 texts"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(model, options, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        model.requests("no", options)


def test_there_is_no_draft_to_show(model):
    with pytest.raises(ValueError, match="particles=8 are weighed against each other"):
        list(model.stream("no", control=vowels))


def test_a_model_without_a_tokenizer_has_no_texts_to_score():
    model = SSDLM(tiny.block())
    with pytest.raises(ValueError, match="vowels reads texts, and this model has no tokenizer"):
        model.generate([[1, 2]], control=vowels, length=3)


def test_streamers_get_the_tokens_that_all_particles_share(model):
    class Streamer:
        tokens = ()

        def put(self, tokens):
            self.tokens += tuple(tokens.tolist())

        def end(self):
            self.is_ended = True

    streamer = Streamer()
    made = model.generate("no", control=vowels, particles=3, streamer=streamer)
    assert list(streamer.tokens) == made.tokens
    assert streamer.is_ended


def test_weights_and_their_number():
    weights = normalised([0.0, math.log(3), -math.inf])
    assert weights == pytest.approx([0.25, 0.75, 0.0])
    assert effective(weights) == pytest.approx(1.6)
    assert normalised([-math.inf, -math.inf]) == [0.5, 0.5]


def test_potentials_by_hand():
    """Scores 2, 1, 4: differences add up to the last score, maxima to 2 + 2 + 4."""
    by_difference, by_maximum = Particle(), Particle()
    for score in (2.0, 1.0, 4.0):
        by_difference.take(score, is_maximum=False)
        by_maximum.take(score, is_maximum=True)
    assert by_difference.log_weight == 4.0
    assert by_maximum.log_weight == 8.0
    assert replace(by_maximum, base=3.0, worth=-1.0).log_weight == 4.0


def test_systematic_resampling_gives_each_its_share():
    weights = [0.5, 0.3, 0.2, 0.0]
    for u in (0.01, 0.5, 0.99):
        counts = Counter(systematic(weights, u, 10))
        assert [counts[index] for index in range(4)] == [5, 3, 2, 0]
    assert systematic([0.4, 0.6], 0.3, 1) == [0]
    assert systematic([0.4, 0.6], 0.5, 1) == [1]


def test_what_all_begin_with():
    assert common_start([(1, 2, 3), (1, 2), (1, 2, 4)]) == [1, 2]
    assert common_start([(5, 6)]) == [5, 6]


def test_the_command_line_weighs_and_tells(tmp_path, capsys):
    denoiser, options = tiny.block(), DecodeConfig(length=4, B=(2,), T=2)
    SSDLM(denoiser, tiny.tokenizer(), options).save_pretrained(tmp_path / "model")
    folder = tiny.save_classifier(tmp_path / "c")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "no"}\n{"prompt": "a movie", "particles": 4}\n')
    model = ["--model", str(tmp_path / "model"), "--control", f"{folder}=positive:100"]
    paths = ["--input", str(prompts), "--output", str(tmp_path / "out.jsonl")]
    assert cli.main(["generate", *model, *paths, "--particles", "3"]) == 0
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [line["passes_per_token"] / 4 for line in lines] == pytest.approx([3 * 6 / 16, 6 / 4])
    assert f"scorer {folder}: " in capsys.readouterr().err
    assert cli.main(["explain", *model, "--particles", "3"]) == 0
    said = capsys.readouterr().out
    assert "gradient (logits, lambda 100) and 3 particles (weight 8); it knows all 64" in said
    assert cli.main(["explain", *model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["controls"][0]["way"] == "gradient"
