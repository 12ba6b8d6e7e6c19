"""One typed request: every generation setting once, and all that is made from it."""

import inspect
import json
import runpy
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from ssdlm import SSDLM, DecodeConfig, GenerateOptions
from ssdlm.cli import parser
from ssdlm.cli.flags import default_of, given_options
from ssdlm.options import (
    DO_SAMPLE,
    FORMER_NAMES,
    GROUPS,
    OTHER_NAMES,
    all_names,
    json_schema,
    known_options,
)
from ssdlm.values import OBJECT, check

ROOT = Path(__file__).resolve().parents[1]
OPTIONS = GenerateOptions()


def test_every_option_has_a_type_a_default_a_group_and_a_line_of_help():
    for item in fields(GenerateOptions):
        option = known_options()[item.name]
        assert option.group in GROUPS
        assert option.help and "\n" not in option.help
        assert check(item.name, item.default, option) == item.default
        has_range = option.low > -np.inf or option.high < np.inf
        assert bool(option.remedy) == has_range, item.name


@pytest.mark.parametrize("method", [SSDLM.generate, SSDLM.stream])
def test_the_signature_has_every_option_and_no_star_arguments(method):
    parameters = inspect.signature(method).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    assert inspect.Parameter.VAR_KEYWORD not in kinds
    assert set(all_names()) <= set(parameters)
    about_drafts = {"candidates", "guides", "states"}
    kept = about_drafts if method is SSDLM.stream else {"keep_steps"}
    own = {"self", "prompts", "prompt", "options"} | kept
    assert set(parameters) - set(all_names()) <= own and kept <= set(parameters)
    for name, option in known_options().items():
        line = next(line for line in method.__doc__.splitlines() if f" {name}: " in line)
        assert option.help.split()[0] in line


def test_generated_files_are_current():
    generated = runpy.run_path(str(ROOT / "docs" / "generate.py"))["generated"]()
    for path, text in generated.items():
        assert path.read_text() == text, f"{path.name} is out of date; run make generate"


def command_of(name: str):
    """The parser of one command."""
    (kinds,) = (
        action for action in parser()._actions if hasattr(action, "choices") and action.choices
    )
    return kinds.choices[name]


def test_every_keyword_has_a_flag_and_every_flag_a_keyword():
    flags = {action.dest for action in command_of("generate")._actions}
    python_only = {name for name, option in known_options().items() if option.kind is OBJECT}
    assert set(all_names()) - python_only <= flags
    about_the_command = {"help", "prompts", "input", "output", "model", "device", "dtype"}
    about_the_command |= {"deterministic", "shard", "ray", "json", "drafts", "no_live", "chat"}
    about_the_command |= {"drafter", *FORMER_NAMES}
    assert flags - set(all_names()) == about_the_command | {"candidates", "guides", "system"}


def test_flags_give_what_keywords_give():
    words = ["generate", "--B", "5,10", "--top-p", "0.5", "--no-never-end", "--pin", "3=the sea"]
    words += ["--pin", "0=a", "--must", "x", "--must", "y", "--lam", "3,4", "--band", "0.2,1"]
    words += ["--stop", "\n", "--max-new-tokens", "9", "--control", "a=b", "--no-special-tokens"]
    given = given_options(parser().parse_args(words))
    changed = OPTIONS.change(**given)
    assert changed == OPTIONS.change(
        B=[5, 10],
        top_p=0.5,
        never_end=False,
        pin={0: "a", 3: "the sea"},
        must=["x", "y"],
        lam=[3.0, 4.0],
        band=(0.2, 1),
        stop="\n",
        length=9,
        control=["a=b"],
        special_tokens=False,
    )


def test_help_shows_the_defaults_that_users_get():
    own = json.loads((ROOT / "src/ssdlm/builtin/mini/generation_config.json").read_text())
    text = " ".join(command_of("generate").format_help().partition("options:")[2].split())
    for name in ("length", "T", "width", "top_p"):
        assert default_of(name) == own[name]
        shown = f"{own[name]}"
        after = text[text.index(f"--{name.replace('_', '-')} ") :]
        assert f"(default {shown})" in after[:220], name


def test_the_schema_describes_every_option_that_json_can_say():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(all_names()) - {"streamer"}
    assert schema["properties"]["top_p"] | {"description": ""} == {
        "description": "",
        "type": "number",
        "minimum": 0,
        "maximum": 1,
    }
    assert schema["properties"]["grid"]["enum"] == [
        "uniform",
        "warped",
        "tilted",
        "staggered",
        "sliding",
    ]
    lengths = schema["properties"]["B"]["anyOf"]
    assert lengths[0]["minimum"] == lengths[1]["items"]["minimum"] == lengths[1]["minItems"] == 1
    assert schema["properties"]["lam"]["anyOf"][1]["items"]["maximum"] == 10**6
    assert schema["properties"]["stop"]["anyOf"][0]["minLength"] == 1
    json.dumps(schema)


def test_options_survive_json():
    options = OPTIONS.change(B=[3, 4], pin={2: "a"}, must="x", lam=2.0, control="a=b", stop=["."])
    assert GenerateOptions().change(**json.loads(json.dumps(options.to_json()))) == options
    assert DecodeConfig(length=7) == GenerateOptions(length=7)


def test_what_a_model_keeps_is_what_generation_config_always_had():
    own = json.loads((ROOT / "src/ssdlm/builtin/mini/generation_config.json").read_text())
    stored = set(OPTIONS.to_json(is_stored=True))
    assert set(own) <= stored
    assert {"length", "B", "T", "grid", "top_p", "gradient", "never_end"} <= stored
    assert not {"seed", "num_samples", "control", "must", "batch_size"} & stored


def test_numpy_scalars_are_numbers():
    options = OPTIONS.change(
        length=np.int64(3), top_p=np.float32(0.5), seed=np.uint8(4), stop_at_end=np.bool_(True)
    )
    assert options == OPTIONS.change(length=3, top_p=0.5, seed=4, stop_at_end=True)
    assert type(options.length) is int and type(options.stop_at_end) is bool


def test_names_of_transformers_mean_the_same():
    assert OPTIONS.change(max_new_tokens=7) == OPTIONS.change(length=7)
    assert OPTIONS.change(num_return_sequences=3) == OPTIONS.change(num_samples=3)
    assert OPTIONS.change(do_sample=False).projection == "greedy"
    assert replace(OPTIONS, projection="greedy").change(do_sample=True).projection == "sampling"
    assert OPTIONS.change(length=7, max_new_tokens=7).length == 7
    assert set(OTHER_NAMES.values()) <= set(known_options())
    assert DO_SAMPLE.group in GROUPS


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"length": 3, "max_new_tokens": 4}, "length=3 and max_new_tokens=4 are two names for one"),
        ({"do_sample": False, "top_p": 0.3}, "do_sample=False draws nothing, so top_p=0.3"),
        ({"do_sample": False, "temperature": 0.5}, "so temperature=0.5 has no effect"),
        ({"do_sample": False, "projection": "sampling"}, "two names for one setting"),
        ({"max_length": 5}, "there is no option 'max_length'; in other libraries it counts the"),
        ({"num_beams": 4}, "there is no beam search; best_of keeps the likeliest"),
        ({"steps": 5}, "there is no option 'steps'; use T, the diffusion steps per block"),
        ({"tempratur": 5}, "the nearest is temperature"),
        ({"top_p": "0.9"}, "top_p='0.9' is not a number"),
        ({"num_samples": "2"}, "num_samples='2' is not a whole number"),
        ({"length": True}, "length=True is not a whole number"),
        ({"stop_at_end": "false"}, "stop_at_end='false' is not true or false"),
        ({"must": 0.0}, "must=0.0 is not a word or a list of words"),
        ({"must": [""]}, "must=[''] is not a word"),
        ({"must": {"x"}}, "must={'x'} is not a word or a list of words"),
        ({"pin": {"x": "a"}}, "pin={'x': 'a'} is not a dictionary {position: text}"),
        ({"control": 5}, "control=5 is not a control such as sentiment=positive"),
        ({"band": (0.5,)}, "band=(0.5,) is not two numbers such as 0.15,1"),
        ({"band": (0.6, 0.5)}, "band=0.6,0.5 is out of range; give two levels between 0 and 1"),
        ({"lam": float("nan")}, "lam=nan is out of range; use 0 (no control) to 1000000"),
        ({"B": []}, "B is empty; give a block length such as 25"),
        ({"stop": "x" * 500, "must": "y", "seed": "z" * 500}, "zz... is not a whole number"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(given, message):
    with pytest.raises(ValueError) as caught:
        OPTIONS.change(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_an_option_may_be_one_for_all_prompts_or_one_for_each():
    both = OPTIONS.per_prompt(2, seed=[4, 5], must=[["a", "b"], "c"], pin={1: "x"}, length=3)
    assert [(one.seed, one.must, one.pin, one.length) for one in both] == [
        (4, ("a", "b"), ((1, "x"),), 3),
        (5, ("c",), ((1, "x"),), 3),
    ]
    assert [one.must for one in OPTIONS.per_prompt(2, must=["a", "b"])] == [("a", "b")] * 2
    with pytest.raises(ValueError, match=r"seed=\[1, 2, 3\] is not one for each of 2 prompts"):
        OPTIONS.per_prompt(2, seed=[1, 2, 3])
    with pytest.raises(ValueError, match=r"length=\[1, 2\] is not a whole number"):
        OPTIONS.per_prompt(2, length=[1, 2])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens=0 is out of range"),
        ({"num_return_sequences": "2"}, "num_return_sequences='2' is not a whole number"),
        ({"do_sample": False, "projection": "greedy", "top_p": 0.3}, "so top_p=0.3 has no effect"),
        ({"pin": [("3", "a"), (3, "b")]}, "with one text at a position"),
        ({"pin": {3: ""}}, "not empty"),
        ({"pin": ["3x"]}, "pin='3x' is not a dictionary"),
        ({"B": b"x"}, "B=b'x' is not a block length"),
        ({"seed": b"x"}, "seed=b'x' is not a whole number"),
        ({"streamer": "x"}, "streamer='x' is not an object with put() and end()"),
        ({"length": 10**400}, "... is out of range"),
    ],
)
def test_no_value_is_dropped_or_read_as_another(given, message):
    with pytest.raises(ValueError) as caught:
        OPTIONS.per_prompt(1, **given)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("depth", [101, 300, 5000])
def test_a_schema_nested_too_deep_is_refused(depth):
    schema: dict[str, object] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="json_schema=what is nested too deep is not a JSON"):
        OPTIONS.per_prompt(1, json_schema=schema)


def test_a_value_that_contains_itself_is_refused_by_name():
    loop: list[object] = []
    loop += [loop, loop]
    for name, value in {"json_schema": {"items": loop}, "B": loop}.items():
        with pytest.raises(ValueError, match=f"{name}=what is nested too deep is not"):
            OPTIONS.per_prompt(1, **{name: value})


def test_pins_of_each_prompt_may_have_positions_as_json_has_them():
    (one,) = OPTIONS.per_prompt(1, pin=[{"0": "a", "1": "b"}])
    assert one.pin == ((0, "a"), (1, "b"))
    two = OPTIONS.per_prompt(2, must=[("a", "b"), ("c", "d")])
    assert [one.must for one in two] == [("a", "b"), ("c", "d")]


def test_a_streamer_that_skips_a_prompt_is_refused():
    from transformers import TextStreamer

    with pytest.raises(ValueError, match="skip_prompt=True and would drop the first tokens"):
        OPTIONS.change(streamer=TextStreamer(None, skip_prompt=True))
    assert OPTIONS.change(streamer=TextStreamer(None)).streamer is not None


def test_names_of_prompts_are_answered():
    model = SSDLM.__new__(SSDLM)
    with pytest.raises(TypeError, match="no argument 'prompt'; prompts come first"):
        model.generate(prompt="a")
    with pytest.raises(TypeError, match="no argument 'prompts'; prompts come first"):
        model.stream(prompts="a")
