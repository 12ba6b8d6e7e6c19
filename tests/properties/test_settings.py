"""Settings that nobody meant, in Python, on the command line and in recipes."""

import json

import numpy as np
import pytest
from tests import tiny

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import example, given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tests.properties.odd import JSON, TEXTS, VALUES, answer  # noqa: E402

from ssdlm import SSDLM, DecodeConfig, GenerateOptions, cli  # noqa: E402
from ssdlm.config import BlockConfig, Config  # noqa: E402
from ssdlm.options import known_options  # noqa: E402
from ssdlm.settings import from_json, override, to_json  # noqa: E402
from ssdlm.storage.parts import Shard  # noqa: E402
from ssdlm.train.recipes import RECIPES, recipe  # noqa: E402

NAMES = st.sampled_from([*known_options(), "max_new_tokens", "do_sample"])
LONG = {"length", "num_samples", "T", "best_of", "batch_size", "width", "B", "max_new_tokens"}
LONG.add("particles")
"""What makes a text take long when it is large: drawn small, or absurd."""


@given(changes=st.dictionaries(st.one_of(NAMES, st.text(max_size=8)), VALUES, max_size=3))
@example(changes={"top_p": "0.9"})
@example(changes={"seed": np.int64(3)})
@example(changes={"seed": None})
@example(changes={"num_samples": "2"})
@example(changes={"batch_size": None})
@example(changes={"lam": np.float32(5)})
@example(changes={"stop_at_end": "false"})
@example(changes={"must": 0.0})
@example(changes={"lam": 3.0})
def test_any_options_are_taken_or_refused_by_name(changes, has_time, unchecked):
    if has_time():
        found = answer(lambda: GenerateOptions().change(**changes))
        if isinstance(found, GenerateOptions):
            stored = json.loads(json.dumps(found.to_json()))
            assert GenerateOptions().change(**stored) == found
        elif len(changes) == 1:
            assert repr(next(iter(changes)))[1:-1] in str(found)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    own = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=2, B=(2,), T=2))
    own.save_pretrained(folder)
    return own, folder


def is_quick(name: str, value: object) -> bool:
    """Tell whether a value of an option makes no long text."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else 0
    return name not in LONG or not 12 < abs(number) < 10**15


@given(name=NAMES, value=VALUES, prompts=st.one_of(VALUES, st.just("a")))
@example(name="seed", value=1, prompts={"a": 1})
@example(name="seed", value=1, prompts={"a"})
@example(name="top_p", value="0.9", prompts="a")
@example(name="pin", value={0: "\ud800"}, prompts="a")
def test_any_call_writes_or_is_refused_in_a_line(name, value, prompts, has_time, model, unchecked):
    if has_time() and is_quick(name, value):
        answer(lambda: model[0].generate(prompts, **{"length": 2, "T": 2, name: value}))


@given(
    words=st.lists(
        st.tuples(NAMES, st.one_of(st.integers(-2, 9).map(str), TEXTS)), min_size=1, max_size=2
    ),
    prompt=st.text(max_size=9),
)
@example(words=[("stop_at_end", "false")], prompt="")
@example(words=[("length", "99999999999999999999")], prompt="a")
def test_any_command_line_ends_in_texts_or_one_line(words, prompt, has_time, model, capsys):
    if not has_time():
        return
    given_ = [f"--{name.replace('_', '-')}={value}" for name, value in words]
    command = ["generate", prompt, "--model", str(model[1]), "--device", "cpu", "--T", "2"]
    try:
        code = cli.main([*command, "--length", "2", *given_])
    except SystemExit as ended:
        code = ended.code
    said = capsys.readouterr().err
    assert code in (0, 2)
    assert code == 0 or (said.count("\n") == 1 and said.startswith("error: ")), said


FIELDS = sorted(
    {
        f"{section}.{name}"
        for make in RECIPES.values()
        for section, fields in to_json(make()).items()
        if isinstance(fields, dict)
        for name in fields
    }
)


@given(
    name=st.sampled_from(sorted(RECIPES)),
    field=st.one_of(st.sampled_from(FIELDS), st.text(max_size=8)),
    value=st.one_of(TEXTS, JSON.map(str)),
)
@example(name="tiny", field="data.max_len", value="1")
@example(name="tiny", field="train.beta1", value="1")
@example(name="tiny", field="train.steps", value="99999999999999999999")
@example(name="tiny", field="train.lr", value="nan")
@example(name="tiny", field="model.K", value="1e308")
def test_any_setting_of_a_recipe_is_taken_or_refused(name, field, value, has_time, unchecked):
    if has_time():
        found = answer(lambda: override(recipe(name), [f"{field}={value}"]))
        if isinstance(found, Config):
            stored = json.loads(json.dumps(to_json(found)))
            assert to_json(from_json(Config, stored)) == to_json(found)


@given(values=st.dictionaries(st.sampled_from([*vars(BlockConfig()), "other"]), JSON, max_size=4))
@example(values={"num_heads": -1})
@example(values={"D": 10**9})
@example(values={"K": 1e308})
def test_any_model_settings_are_taken_or_refused(values, has_time, unchecked):
    if has_time():
        found = answer(lambda: from_json(BlockConfig, values))
        assert isinstance(found, BlockConfig | ValueError)


@given(text=st.one_of(st.text(max_size=9), st.from_regex(r"\d{1,8}/\d{1,8}", fullmatch=True)))
@example(text="5/3")
@example(text="0/0")
def test_any_words_are_a_part_or_refused(text, has_time):
    if has_time():
        found = answer(lambda: Shard.parse(text))
        assert isinstance(found, ValueError) or 0 <= found.number < found.count


@given(total=st.integers(1, 500), count=st.integers(1, 60))
def test_parts_are_everything_once_and_in_order(total, count, has_time):
    if has_time() and count <= total:
        ranges = [Shard(number, count).share(total, "things") for number in range(count)]
        assert [i for one in ranges for i in one] == list(range(total))
        assert max(map(len, ranges)) - min(map(len, ranges)) <= 1
