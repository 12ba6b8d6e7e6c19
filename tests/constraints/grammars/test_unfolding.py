"""A context-free grammar's machine has its texts and no others; lark, which is not used, agrees."""

import random
from itertools import product

import pytest
from benchmarks.context_free import GRAMMARS, LARK
from tests.constraints.grammars.machines import accepts, random_texts

from ssdlm.constraints.grammars.notation import read_grammar
from ssdlm.constraints.grammars.unfolding import MOST_LEVELS, Unfolding
from ssdlm.constraints.grammars.utf8 import in_bytes

SMALL = {
    "left": ('start: start "," item | item\nitem: "a" | "b"', "ab,"),
    "right": ('start: item "," start | item\nitem: "a" | "b"', "ab,"),
    "both sides": ('start: start "+" start | "(" start ")" | "a"', "a+()"),
    "indirect left": ('start: b "a" | "b"\nb: start "c" | "a"', "abc"),
    "hidden left": ('start: e start "a" | "b"\ne: "c" |', "abc"),
    "empty and cyclic": ('start: x\nx: x x | y | "a" x "b" |\ny: x', "ab"),
    "counting": ('start: "a" start "b" | "c"', "abc"),
    "palindromes": ('start: "a" start "a" | "b" start "b" | "a" | "b" |', "ab"),
    "two rules": ('start: "a" b | "c"\nb: "b" start "b" | "c" start', "abc"),
    "tail after a loop": ('start: start "a" | "b" t\nt: "c" start | "a"', "abc"),
    "repeats": ('start: ("a" "b"?)~2..3 ["c"] ("a" | "c")+', "abc"),
    "ignored": ('start: "(" start* ")"\n%ignore "a"\n%ignore /b+/', "ab()"),
    "terminals": ('start: A+ "b"i\nA: "a".."b" | /c C?/ix', "abcC"),
    "alias and marks": ('?start: a -> x\n | "c" // one\n!a.2: "a" a | "b" # two', "abc"),
}


def machine_of(grammar: str, most_states: int = 2048):
    return in_bytes(*Unfolding(read_grammar(grammar, is_narrow=False), most_states).run())


def parser_of(grammar: str):
    lark = pytest.importorskip("lark")
    parser = lark.Lark(grammar, parser="earley", lexer="dynamic_complete")

    def parses(text: str) -> bool:
        try:
            parser.parse(text)
        except lark.exceptions.LarkError:
            return False
        return True

    return parses


@pytest.mark.parametrize("name", SMALL)
def test_short_texts_are_those_that_lark_parses(name):
    grammar, letters = SMALL[name]
    machine, parses = machine_of(grammar), parser_of(grammar)
    texts = ["".join(one) for size in range(6) for one in product(letters, repeat=size)]
    found = {text for text in texts if accepts(machine, text)}
    assert found == {text for text in texts if parses(text)} and found


@pytest.mark.parametrize("name", LARK)
def test_random_texts_are_parsed_by_lark(name):
    machine, parses = machine_of(LARK[name], 200), parser_of(LARK[name])
    texts = {text for text in random_texts(machine, random.Random(0), 30) if len(text) < 60}
    for text in sorted(texts)[:8]:
        assert parses(text), text
        assert accepts(machine, text)


def test_gbnf_means_what_lark_means():
    lark = 'start: "[" [value ("," value)~0..2] "]"\nvalue: /[a-c]/ | start | "\\u00e9"'
    gbnf = 'root ::= "[" (v ("," v){0,2})? "]" # a list\nv ::= [a-c] | root | "\\u00e9"'
    one, other = machine_of(lark), machine_of(gbnf)
    assert (one.table == other.table).all() and (one.accepts == other.accepts).all()
    assert accepts(one, "[a,[\u00e9],[[b]]]") and not accepts(one, "[a,b,c,a]")


def test_what_needs_no_counting_is_whole_and_the_rest_goes_many_levels_deep():
    for grammar in ('start: start start | "a"', 'start: "a" b | "c"\nb: "b" start | "d"'):
        unfolding = Unfolding(read_grammar(grammar, is_narrow=False), 2048)
        unfolding.run()
        assert unfolding.is_exact
    brackets = Unfolding(read_grammar('start: "(" start ")" | "x"', is_narrow=False), 2048)
    machine = in_bytes(*brackets.run())
    assert not brackets.is_exact
    depth = max(n for n in range(40) if accepts(machine, "(" * n + "x" + ")" * n))
    assert MOST_LEVELS - 1 <= depth <= MOST_LEVELS + 1
    assert accepts(machine_of(GRAMMARS["json"], 1000), '{"a":[{"b":[1]}]}')


def test_a_machine_that_grows_has_fewer_levels():
    small, large = (machine_of(GRAMMARS["json"], size) for size in (200, 1000))
    assert 100 < len(small.table) < len(large.table) < 1500
    assert accepts(small, "[1]") and not accepts(small, "[[1]]") and accepts(large, "[[1]]")
