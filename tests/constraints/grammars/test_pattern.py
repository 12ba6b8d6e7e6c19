"""A pattern's machine accepts what `re.fullmatch` does, or less where it says so."""

import itertools
import random
import re

import pytest
from tests.constraints.grammars.machines import accepts, random_texts

from ssdlm.constraints.grammars.machine import TooLarge
from ssdlm.constraints.grammars.pattern import read_pattern
from ssdlm.constraints.grammars.utf8 import ByteMachine, byte_machine, intersection

TEXTS = ["".join(t) for size in range(5) for t in itertools.product("ab\n\u00e9", repeat=size)]
ATOMS = ["a", "b", ".", r"\n", "[ab]", "[^a]", "^", "$", "(?m:^)", "(?m:$)", r"\A", r"\Z", r"\w"]
ATOMS += ["\u00e9", "(?i:A)", "", "\u0100", "(?s:.)", r"[^\w]", "(?a:\\w)", "(?P<name>a)"]
REPEATS = ["*", "+", "?", "{2}", "{0,2}", "{1,}", "*?", "{0}", "{,2}", "??"]


def machine_of(pattern: str) -> ByteMachine:
    return byte_machine(read_pattern(pattern))


def random_pattern(rng: random.Random, depth: int) -> str:
    chance = rng.random()
    if depth == 0 or chance < 0.35:
        return rng.choice(ATOMS)
    one, other = (random_pattern(rng, depth - 1).replace("?P<name>", "?:") for _ in range(2))
    if chance < 0.6:
        return one + other
    if chance < 0.75:
        return f"(?:{one}|{other})"
    return f"(?:{one}){rng.choice(REPEATS)}"


@pytest.mark.parametrize("part", range(4))
def test_it_accepts_what_fullmatch_does(part):
    rng, seen = random.Random(part), {True: 0, False: 0}
    for _ in range(18):
        pattern = random_pattern(rng, 4)
        machine, compiled = machine_of(pattern), re.compile(pattern)
        for text in TEXTS:
            expected = compiled.fullmatch(text) is not None
            assert accepts(machine, text) is expected, (pattern, text)
            seen[expected] += 1
    assert min(seen.values()) > 50


@pytest.mark.parametrize(
    "pattern",
    [
        r"[0-9]{4}-[01]\d-[0-3]\d",
        r"(?i)caf\u00e9|stra\u00dfe|kelvin",
        r"(?i)[^k]{3}",
        r"[^\W\d_]+",
        r"\W\D\S",
        r"\u65e5\u672c(\u8a9e)?",
        "[\u4e00-\u9fff]{2,4}",
        r"\U0001f600+|\x41\101\0",
        r"\N{SNOWMAN}?\t",
        r"(?x) a  b # a comment",
        r"(?s:.)(?-i:x)",
        "[]a-]{2}",
        r"[\]\\^-]+",
        r"a{,3}b{0}c{2,}",
        r"x{,}y",
        "(|a|ab)(c|bcd)(d*)",
        "(a|ab)(c|bcd)",
        r"\$\{[a-z]+\}",
        "a{1,2",
        "(?P<year>\\d\\d)?(?:(?#note)z)",
        r"(((((a)b)c)d)e)*",
        r"\w{2,5}\s\S+",
        r"[^\n]*\n[^\n]*",
        "\u0e01-\u0e5b|[\U0001f600-\U0001f64f]",
    ],
)
def test_what_it_writes_matches(pattern):
    machine, rng = machine_of(pattern), random.Random(0)
    texts = random_texts(machine, rng)
    for text in texts:
        assert re.fullmatch(pattern, text), text
    assert len(set(texts)) > 1 or pattern in ("(?x) a  b # a comment", "a{1,2")


def test_named_classes_are_those_of_re_or_fewer():
    characters = [chr(code) for code in (*range(0x3000), *range(0xA000, 0xD800), 0x1D7D8, 0x1F600)]
    for pattern in (r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", ".", r"[\w.]", r"[^\d]", r"[\s\d]"):
        compiled, machine = re.compile(pattern), machine_of(pattern)
        is_narrower = pattern in (r"\d", r"\s", r"[\s\d]")
        for character in characters:
            expected = compiled.fullmatch(character) is not None
            expected = expected and not (is_narrower and not character.isascii())
            expected = expected and not (is_narrower and "\x1c" <= character <= "\x1f")
            assert accepts(machine, character) is expected, (pattern, character)


def test_a_narrow_class_has_no_rare_characters():
    wide, narrow = (byte_machine(read_pattern(r"\w", is_narrow=n)) for n in (False, True))
    for character in "a\u00e9\u0430\u05d0":
        assert accepts(wide, character) and accepts(narrow, character)
    assert accepts(wide, "\u65e5") and not accepts(narrow, "\u65e5")
    assert len(narrow.table) < len(wide.table) / 5


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("(?=a)b", "a lookahead (?=...)"),
        ("a(?!b)", "a lookahead (?!...)"),
        ("(?<=a)b", "a lookbehind (?<=...)"),
        ("(?<!a)b", "a lookbehind (?<!...)"),
        ("(?!)", "a lookahead (?!...)"),
        (r"(a)\1", "a backreference"),
        ("(?P<x>a)(?P=x)", "a backreference"),
        ("(a)?(?(1)b|c)", "a conditional group"),
        (r"\bword", r"a word boundary \b"),
        (r"\Bword", r"a word boundary \B"),
    ],
)
def test_what_no_automaton_does_is_refused_by_name(pattern, name):
    with pytest.raises(ValueError, match=re.escape(name)) as caught:
        read_pattern(pattern)
    assert "\n" not in str(caught.value) and pattern.replace("\\", "\\\\") in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [("a*+", "possessive|multiple repeat"), ("(?>a)", "atomic|unknown extension")],
)
def test_groups_that_never_give_back_are_refused(pattern, names):
    with pytest.raises(ValueError, match=names):
        read_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "[z-a]",
        "a**",
        r"\p{L}",
        "a(?i)b",
        "a{2,1}",
        "(?P<1>a)",
        "\\",
        "a{99999999999}",
        "[a",
        "[b-\n]",
        "(" * 101 + "a" + ")" * 101,
        "(" * 5000 + "a" + ")" * 5000,
    ],
)
def test_what_does_not_compile_is_refused_in_one_line(pattern):
    with pytest.raises(ValueError, match="does not compile") as caught:
        read_pattern(pattern)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("pattern", ["(a|b)*a(a|b){25}", "(a{1000}){1000}", r"\w{1000}"])
def test_what_explodes_is_stopped(pattern):
    with pytest.raises(TooLarge):
        machine_of(pattern)


def test_few_states_that_take_long_are_stopped_too(monkeypatch):
    monkeypatch.setattr("ssdlm.constraints.grammars.machine.MOST_WORK", 1 << 16)
    with pytest.raises(TooLarge, match="65536 steps"):
        machine_of("(a?b?){60}")


def test_repeats_of_what_may_be_absent_do_not_explode():
    for pattern, longest in (("(a?){1000}", 1000), ("(a*){1000}", None), ("(a{0,2}){30}", 60)):
        machine = machine_of(pattern)
        assert accepts(machine, "") and accepts(machine, "a" * (longest or 5000))
        assert longest is None or not accepts(machine, "a" * (longest + 1))


def test_a_thousand_repeats_are_counted():
    machine = machine_of(r"[0-9]{1000}")
    assert accepts(machine, "7" * 1000)
    assert not accepts(machine, "7" * 999) and not accepts(machine, "7" * 1001)


@pytest.mark.parametrize("pattern", ["a^b", "[^\\s\\S]", "$a", "a\\Ab", r"(?:a\Z)b"])
def test_some_patterns_match_nothing(pattern):
    assert not machine_of(pattern).accepts.any()


def test_two_machines_at_once():
    both = intersection(machine_of("[ab]*"), machine_of("(..)*"))
    for text in TEXTS:
        expected = re.fullmatch("[ab]*", text) and re.fullmatch("(..)*", text)
        assert accepts(both, text) is bool(expected), text
