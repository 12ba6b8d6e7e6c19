"""Masks made on the device allow what placements allow, token by token."""

import json
import pickle
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests import bpe, tiny
from tests.constraints.patterns import PATTERNS
from torch.autograd.profiler import profile

from ssdlm.constraints import table_pool
from ssdlm.constraints.automaton import Automaton, DenseTable
from ssdlm.constraints.grammar_mask import GrammarMask
from ssdlm.constraints.grammar_table import table_key, tabulate
from ssdlm.constraints.placement import Placement, TokenConstraint, place_words
from ssdlm.constraints.words import ConstraintCompiler, TextConstraint, Wanted
from ssdlm.tokenizer import load_tokenizer

CPU = torch.device("cpu")
PADDING = 6
SCHEMAS = [
    {"type": "boolean"},
    {"enum": ["a", "bc", None]},
    {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
    {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]},
]
WORDS = [
    {"must_not": ("a", "e b")},
    {"must_not": ("the", "river", "ab")},
    {"must_not": ("dog",), "end_at_sentence": True},
    {"end_at_sentence": True},
    {"must_not": ("b",), "regex": "[a-c ]+"},
]


@pytest.fixture(scope="module")
def compilers(tmp_path_factory):
    gpt2 = load_tokenizer(bpe.write_gpt2(tmp_path_factory.mktemp("masks") / "gpt2"))
    # Ids beyond the tokenizer's may be part of a model's vocabulary.
    return {
        "letters": ConstraintCompiler(tiny.tokenizer(), V=tiny.V, max_len=None),
        "bytes": ConstraintCompiler(gpt2, V=gpt2.V + 3, max_len=None),
    }


def compiled(compiler, length: int, *, stop_at_end: bool = True, **asked) -> Placement:
    return compiler.compile(Wanted(TextConstraint(**asked), (), length, stop_at_end))


def grammars(compiler, rng: random.Random) -> list[Placement]:
    """Every kind of free constraint, at lengths that are sometimes just long enough."""
    schemas = SCHEMAS if compiler.V > tiny.V else SCHEMAS[:1]  # the letters lack quotes
    asked = [{"regex": pattern} for pattern in PATTERNS]
    asked += [{"json_schema": json.dumps(schema)} for schema in schemas]
    asked += WORDS
    found = []
    for one in asked:
        length = rng.choice([12, 13, 16, 30])
        has_grammar = "regex" in one or "json_schema" in one
        found.append(
            compiled(compiler, length, **one, stop_at_end=has_grammar or rng.random() < 0.5)
        )
    return found


class Twin:
    """The plain way: each slot's placement, asked on the host."""

    def __init__(self, num_slots: int, V: int) -> None:
        self.num_slots, self.V = num_slots, V
        self.texts: dict[int, tuple[Placement, int, int]] = {}

    def join(self, placements, slots) -> None:
        self.leave(slots)
        for slot, placement in zip(slots, placements, strict=True):
            if placement is not None:
                self.texts[slot] = placement, placement.constraint.automaton.start, 0

    def leave(self, slots) -> None:
        for slot in slots:
            self.texts.pop(slot, None)

    def advance(self, tokens, active) -> None:
        for slot, (placement, state, position) in self.texts.items():
            if active[slot]:
                state = placement.step(state, position, int(tokens[slot]))
                self.texts[slot] = placement, state, position + 1

    def is_full(self, slot: int) -> bool:
        if slot not in self.texts:
            return False
        placement, _, position = self.texts[slot]
        return position == placement.constraint.length

    def allowed(self) -> torch.Tensor:
        """The masks, with nothing allowed where a text is full."""
        masks = np.ones((self.num_slots, self.V), dtype=bool)
        for slot, (placement, state, position) in self.texts.items():
            masks[slot] = False
            if not self.is_full(slot):
                legal = placement.legal_tokens(state, position)
                masks[slot, : len(legal)] = legal
        return torch.from_numpy(masks)


def compare(mask: GrammarMask, twin: Twin) -> torch.Tensor:
    """Return the masks of all slots, which must be the twin's where texts have room."""
    allowed, wanted = mask.allowed(), twin.allowed()
    assert allowed.dtype == torch.bool and allowed.shape == wanted.shape
    for slot in range(twin.num_slots):
        assert allowed[slot].any()
        if not twin.is_full(slot):
            assert torch.equal(allowed[slot], wanted[slot]), slot
    return allowed


def step(mask: GrammarMask, twin: Twin, rng: random.Random) -> torch.Tensor:
    """Draw a legal token in each slot, but take it in where there is room, and not always."""
    allowed = compare(mask, twin)
    tokens = torch.tensor([rng.choice(row.nonzero()[:, 0].tolist()) for row in allowed])
    slots = range(twin.num_slots)
    active = torch.tensor([int(rng.random() < 0.8 and not twin.is_full(slot)) for slot in slots])
    mask.advance(tokens, active)
    twin.advance(tokens, active)
    return active


@pytest.mark.parametrize("name", ["letters", "bytes"])
@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.nightly)])
def test_grammar_mask_matches_placements(compilers, name, seed):
    """Random walks through every grammar side by side."""
    rng, compiler = random.Random(f"{name} {seed}"), compilers[name]
    placements = [*grammars(compiler, rng), None]
    num_slots, V = len(placements), compiler.V + PADDING
    mask, twin = GrammarMask(num_slots, V, CPU), Twin(num_slots, V)
    slots = rng.sample(range(num_slots), num_slots)
    mask.join(placements, slots)
    twin.join(placements, slots)
    assert not mask.needs_host
    moves = 0
    while not all(twin.is_full(slot) for slot in twin.texts):
        moves += int(step(mask, twin, rng).sum())
    assert moves >= 12 * num_slots
    compare(mask, twin)  # a full text's mask is not empty
    assert mask.version == 0


def test_texts_come_and_go(compilers):
    compiler, rng = compilers["bytes"], random.Random(5)
    placements, num_slots = [*grammars(compiler, rng), None], 7
    mask, twin = GrammarMask(num_slots, compiler.V, CPU), Twin(num_slots, compiler.V)
    done = {"join": 0, "leave": 0}
    for _ in range(150):
        step(mask, twin, rng)
        kind = rng.choice([*done, ""])
        some = rng.sample(range(num_slots), rng.randint(1, 3))
        if kind == "join":
            chosen = [rng.choice(placements) for _ in some]
            mask.join(chosen, some)
            twin.join(chosen, some)
        elif kind == "leave":
            mask.leave(some)
            twin.leave(some)
        if kind:
            done[kind] += len(twin.texts) > 2
        assert set(mask.tables) == set(twin.texts)
    assert min(done.values()) > 15


def test_a_slot_that_is_left_allows_all_tokens(compilers):
    mask = GrammarMask(2, tiny.V, CPU)
    assert mask.allowed().all()
    mask.join([compiled(compilers["letters"], 8, regex="a+")], [1])
    assert mask.allowed()[1].sum() == 1
    mask.leave([1])
    assert mask.allowed().all()


def test_padding_is_not_allowed_after_the_end_of_the_text_either(compilers):
    compiler = compilers["letters"]
    mask = GrammarMask(1, tiny.V + PADDING, CPU)
    mask.join([compiled(compiler, 8, regex="")], [0])
    assert mask.allowed()[0].nonzero().tolist() == [[compiler.tokenizer.end_of_text]]
    mask.advance(torch.tensor([compiler.tokenizer.end_of_text]), torch.tensor([1]))
    assert mask.allowed()[0].tolist() == [True] * tiny.V + [False] * PADDING


def test_equal_grammars_share_a_table(compilers):
    compiler = compilers["letters"]
    one = compiled(compiler, 12, regex="[ab]+c")
    same = (
        pickle.loads(pickle.dumps(one)),
        compiled(compiler, 16, regex="[ab]+c"),
        one.after([0], 11),
    )
    others = compiled(compiler, 12, regex="[ab]+d"), compiled(compiler, 17, regex="[ab]+c")
    mask = GrammarMask(6, tiny.V, CPU)
    mask.join([one, *same], range(4))
    assert len(mask.pool.stored) == 1
    mask.join(others, [4, 5])
    assert len(mask.pool.stored) == 3


@pytest.mark.parametrize("part", ["accepts", "hangs", "next_state"])
def test_other_rules_make_another_table(compilers, part):
    placement = compiled(compilers["letters"], 12, must_not=("ab",))
    automaton = placement.constraint.automaton
    changed = {
        "accepts": ~automaton.accepts,
        "hangs": ~automaton.hangs,
        "next_state": DenseTable(automaton.next_state.array[:, ::-1]),
    }
    other = replace(automaton, **{part: changed[part]})
    moved = replace(placement, constraint=replace(placement.constraint, automaton=other))
    assert table_key(moved) != table_key(placement)


def ended_by_parity(V: int) -> Placement:
    """Texts of an even number of tokens; with an odd one left there is no way to finish."""
    next_state = np.zeros((3, V), dtype=np.int32)
    next_state[1, 1::2], next_state[2, ::3] = 2, 1
    accepts = np.array([False, True, False])
    automaton = Automaton(
        DenseTable(next_state),
        accepts,
        hangs=np.zeros(3, dtype=bool),
        without_sentence_end=np.arange(3),
        is_boundary=np.zeros(V, dtype=bool),
        end_of_text=None,
        start=1,
        sentences=None,
    )
    placement = place_words(TokenConstraint(automaton, 8, {}, ()), ())
    assert placement is not None and placement.is_feasible
    return placement


def test_what_has_no_table_is_read_on_the_host(compilers):
    """Automata that are too large, required words, and texts that more room makes impossible."""
    compiler, rng = compilers["bytes"], random.Random(3)
    large = compiled(compiler, 30, regex=r"\w+( \w+)*\.")
    words = compiled(compiler, 20, must=("river", "dog"), must_not=("a",), end_at_sentence=True)
    parity = ended_by_parity(compiler.V)
    small = compiled(compiler, 30, regex="[ab]{2,}")
    num_slots, V = 6, compiler.V + PADDING
    mask, twin = GrammarMask(num_slots, V, CPU, max_entries=200), Twin(num_slots, V)
    assert not words.is_free
    for one in (mask, twin):
        one.join([large, words, parity, small, None], range(5))
    assert mask.needs_host and set(mask.on_host) == {0, 1, 2}
    every = torch.ones(num_slots, dtype=torch.int64)
    for _ in range(30):
        allowed = compare(mask, twin)
        tokens = [rng.choice(row.nonzero()[:, 0].tolist()) for row in allowed]
        full = [slot for slot in twin.texts if twin.is_full(slot)]
        if full:
            mask.leave(full)
            twin.leave(full)
        mask.advance(torch.tensor(tokens), every)
        mask.read(tokens)
        twin.advance(tokens, every)
    assert set(mask.on_host) == {0}
    mask.leave([0])
    assert not mask.needs_host


def test_numbers_that_do_not_fit_make_no_table():
    """Tables are int16: states and tokens beyond that are read on the host."""
    parity, length = ended_by_parity(4), 1 << 15
    automaton = replace(parity.constraint.automaton, accepts=np.array([False, True, True]))
    for size in (8, length):
        placement = place_words(TokenConstraint(automaton, size, {}, ()), ())
        assert placement is not None
        assert (tabulate(placement, 1000) is None) == (size == length)
    for num_states in (3, length):
        table = DenseTable(np.full((num_states, 4), num_states - 1))
        every = np.ones(num_states, dtype=bool)
        many = replace(automaton, next_state=table, accepts=every, hangs=~every, cache={})
        placement = place_words(TokenConstraint(many, 8, {}, ()), ())
        assert placement is not None
        assert (tabulate(placement, 1 << 20) is None) == (num_states == length)


def test_a_grammar_gets_its_table_when_others_have_left(compilers):
    one, other = (compiled(compilers["letters"], 8, regex=pattern) for pattern in ("a+b", "b+a"))
    size = tabulate(one, 1000).next_state.size
    mask = GrammarMask(2, tiny.V, CPU, max_entries=2 * size)
    mask.join([one, other], [0, 1])
    assert set(mask.tables) == {0} and set(mask.on_host) == {1}
    assert mask.allowed().sum(1).tolist() == [1, 1]
    mask.leave([0])
    mask.join([other], [1])
    assert set(mask.tables) == {1} and not mask.needs_host
    assert mask.allowed().sum(1).tolist() == [tiny.V, 1]


def test_a_pool_grows_by_a_new_version_and_keeps_its_tables(compilers, monkeypatch):
    monkeypatch.setattr(table_pool, "FIRST_ENTRIES", 64)
    compiler, rng = compilers["letters"], random.Random(1)
    patterns = [f"[{letter}-z]{{{number},}}!" for number, letter in enumerate("abcdefgh", 1)]
    placements = [compiled(compiler, 16, regex=pattern) for pattern in patterns]
    mask, twin = GrammarMask(8, tiny.V, CPU), Twin(8, tiny.V)
    versions = []
    for slot, placement in enumerate(placements):
        mask.join([placement], [slot])
        twin.join([placement], [slot])
        step(mask, twin, rng)
        versions.append(mask.version)
    assert versions == sorted(versions) and 1 < versions[-1] < 8
    assert versions[-1] == mask.version
    mask.join(placements, range(8))  # they are all there
    assert mask.version == versions[-1]


def test_tables_without_a_text_make_place_for_others(compilers, monkeypatch):
    monkeypatch.setattr(table_pool, "FIRST_ENTRIES", 200)
    compiler, rng = compilers["letters"], random.Random(2)
    kept = compiled(compiler, 16, regex="[ab]+c?")
    mask, twin = GrammarMask(2, tiny.V, CPU), Twin(2, tiny.V)
    mask.join([kept], [0])
    twin.join([kept], [0])
    sizes = 0
    for letter in "abcdefghijklmnop":
        placement = compiled(compiler, 16, regex=f"{letter}{{3}}x*")
        sizes += tabulate(placement, 1000).next_state.size
        mask.join([placement], [1])
        twin.join([placement], [1])
        step(mask, twin, rng)
    assert sizes > 200
    assert mask.version == 0
    assert table_key(kept) in mask.pool.stored


def test_unused_tables_are_few(compilers, monkeypatch):
    monkeypatch.setattr(table_pool, "MAX_UNUSED", 3)
    mask = GrammarMask(1, tiny.V, CPU)
    placements = [compiled(compilers["letters"], 8, regex=letter) for letter in "abcdefgh"]
    mask.join(placements[:1], [0])
    first = mask.pool.stored[table_key(placements[0])]
    for placement in placements:
        mask.join(placements[:1], [0])  # the one used last is dropped last
        assert mask.pool.stored[table_key(placements[0])] is first
        mask.join([placement], [0])
    kept = [*placements[-3:-1], placements[0], placements[-1]]
    assert list(mask.pool.stored) == [table_key(placement) for placement in kept]


def test_a_pass_does_the_same_operations_whatever_the_texts_are(compilers):
    """No number is looked at and nothing is copied to the host, so that a graph can record it."""
    compiler, rng = compilers["letters"], random.Random(4)
    mask, twin = GrammarMask(3, tiny.V, CPU), Twin(3, tiny.V)
    recorded = []
    for placements in ([None] * 3, grammars(compiler, rng)[3:6]):
        mask.join(placements, range(3))
        twin.join(placements, range(3))
        for _ in range(2):
            tokens, active = twin.allowed().int().argmax(1), torch.tensor([1, 0, 1])
            with profile(record_shapes=True) as profiled:
                mask.allowed()
                mask.advance(tokens, active)
            twin.advance(tokens, active)
            events = profiled.function_events
            assert events is not None
            recorded.append([(event.name, event.input_shapes) for event in events])
    assert recorded[0] == recorded[1] == recorded[2] == recorded[3]
    names = {name for name, _ in recorded[0]}
    assert "aten::index_select" in names
    looks = {"item", "_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "is_nonzero"}
    assert not names & {f"aten::{look}" for look in looks}


@pytest.mark.gpu
def test_a_recorded_graph_matches_placements(compilers):
    rng, compiler = random.Random(6), compilers["bytes"]
    placements = [*grammars(compiler, rng), None]
    num_slots, V, device = len(placements), compiler.V + PADDING, torch.device("cuda")
    mask, twin = GrammarMask(num_slots, V, device), Twin(num_slots, V)
    mask.join(placements, range(num_slots))
    twin.join(placements, range(num_slots))
    tokens = torch.zeros(num_slots, dtype=torch.int64, device=device)
    active = torch.zeros_like(tokens)
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        mask.advance(tokens, active)
        mask.allowed()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        mask.advance(tokens, active)
        allowed = mask.allowed()
    graph.replay()  # nobody is active: the first masks
    for _ in range(30):
        wanted = twin.allowed()
        room = [slot for slot in range(num_slots) if not twin.is_full(slot)]
        assert torch.equal(allowed.cpu()[room], wanted[room])
        drawn = [rng.choice(row.nonzero()[:, 0].tolist() or [0]) for row in wanted]
        tokens.copy_(torch.tensor(drawn))
        active.copy_(torch.tensor([int(slot in room) for slot in range(num_slots)]))
        twin.advance(drawn, active.tolist())
        graph.replay()
    assert all(twin.is_full(slot) for slot in twin.texts)
