"""Messages as prompts: by the tokenizer's own template, until the end of the turn."""

import io
import json
import pickle
import sys
import time

import pytest
from tests import talking, tiny
from tests.talking import talker

from ssdlm import SSDLM, GenerateOptions
from ssdlm.cli import main
from ssdlm.engine.chat import chat_text, until_end_of_turn
from ssdlm.engine.prompt_files import generate_file
from ssdlm.engine.template import render
from ssdlm.tokenizer import load_tokenizer

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture
def model() -> SSDLM:
    options = GenerateOptions(length=30, B=(6,), T=3, top_p=1.0)
    return SSDLM(tiny.block(V=66), talker(), options)


@pytest.fixture
def folder(model, tmp_path):
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_chat_is_the_template_s_prompt_and_ends_with_the_turn(model):
    prompt = chat_text(model.tokenizer, HELLO)
    assert prompt == "<|turn|>user\nHello<|end|>\n<|turn|>assistant\n"
    answer = model.chat(HELLO, seed=5)
    assert answer.prompt == prompt
    assert model.chat("Hello", seed=5) == answer
    assert answer.finish_reason == "stop" and "<|end|>" not in answer.text
    whole = model.generate(str(prompt), seed=5)
    assert whole.text.startswith(answer.text + "<|end|>")


def test_a_prompt_is_what_transformers_makes_of_the_messages(model, folder):
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(folder)
    told = [{"role": "system", "content": "Hi"}, *HELLO, {"role": "assistant", "content": "Oh"}]
    for said in (HELLO, told, [*told, *HELLO]):
        expected = theirs.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        assert chat_text(model.tokenizer, said) == expected
        ids = theirs.apply_chat_template(said, add_generation_prompt=True)["input_ids"]
        assert list(model.context(expected)) == ids


def test_a_turn_may_end_otherwise_than_a_document(model):
    other = SSDLM(model.denoiser, talker(eos="<|endoftext|>"), model.options)
    options = until_end_of_turn(other.options, other.tokenizer)
    assert (options.stop, options.stop_at_end) == (("<|end|>",), True)
    assert until_end_of_turn(model.options, model.tokenizer).stop == ()
    answer, theirs = (one.chat(HELLO, seed=2) for one in (model, other))
    assert answer.finish_reason == "stop"
    assert theirs.text == answer.text.partition("<|endoftext|>")[0]


@pytest.mark.parametrize("name", ["<|end|>", "<|bye|>", "<|Fine|>"])
def test_an_end_of_turn_may_have_any_name(name):
    template = talking.TEMPLATE.replace("<|end|>", name)
    tokenizer = talker(template, eos="<|endoftext|>", special=("<|endoftext|>", "<|turn|>", name))
    assert until_end_of_turn(GenerateOptions(), tokenizer).stop == (name,)


def test_what_a_caller_says_of_the_end_is_kept(model):
    assert len(model.chat(HELLO, seed=5, stop_at_end=False).tokens) == 30
    assert [one.sample for one in model.chat(HELLO, num_samples=2, length=5)] == [0, 1]
    matched = model.chat(HELLO, regex="[ab]{3}", length=8)
    assert len(matched.text) == 3


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "is not a list of messages"),
        ("Hello", "is not a list of messages"),
        ([{"role": "user"}], "has no text as role and content"),
        ([{"role": "user", "content": ["Hello"]}], "has no text as role and content"),
        ([{"role": "robot", "content": "Hello"}], r"does not take these messages \(no robots\)"),
        (
            [{"role": "user", "content": "a<|endoftext|>b"}],
            r"has the special token <\|endoftext\|>",
        ),
        ([{"role": "x<|endoftext|>", "content": "a"}], r"leave that out"),
    ],
)
def test_bad_messages_are_refused_in_one_line(model, messages, words):
    with pytest.raises(ValueError, match=words) as error:
        chat_text(model.tokenizer, messages)
    assert "\n" not in str(error.value)


def test_a_template_runs_in_a_sandbox():
    for template in ("{{ messages.__class__.__mro__ }}", "{{ messages.append(1) }}"):
        with pytest.raises(ValueError, match="does not take these messages"):
            chat_text(talker(template), HELLO)


def test_a_broken_template_is_said_to_be_broken():
    with pytest.raises(ValueError, match=r"template is broken \(line 1: .*tokenizer_config\.json"):
        chat_text(talker("{% if %}"), HELLO)


GROWING = (
    "{%% set n = namespace(x=%s) %%}{%% for i in range(99) %%}{%% set n.x = %s %%}{%% endfor %%}"
)
GROWING += "{{ n.x }}"
LONG = "{% set a = 'a' * 10**6 %}"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{{ 'a' * (10**9) }}",
        "{{ (10**9) * [0] }}",
        "{{ 9**(9**9) }}",
        "{{ '%999999999s'|format('a') }}",
        "{{ '%999999999s' % 'a' }}",
        "{{ '%*d' % (999999999, 5) }}",
        "{{ '{:>999999999}'.format('a') }}",
        "{{ 'a'.ljust(999999999) }}",
        "{{ 'a'|center(999999999) }}",
        "{{ messages|tojson(indent=999999999) }}",
        "{{ 5|round(999999999) }}",
        "{{ [1]|batch(999999999, 'a')|list }}",
        LONG + "{{ a.replace('a', a) }}",
        LONG + "{{ a|replace('a', a) }}",
        LONG + "{{ ([a] * 10**6)|join }}",
        GROWING % ("'a'", "n.x ~ n.x"),
        GROWING % ("'a'", "n.x + n.x"),
        GROWING % ("7", "n.x * n.x"),
        GROWING % ("7", "[n.x, n.x]"),
        LONG + "{% set b %}{% for i in range(9999) %}{{ a }}{% endfor %}{% endset %}",
    ],
)
def test_a_template_ends_soon_and_fills_no_memory(template, monkeypatch):
    monkeypatch.setattr("ssdlm.engine.template.MOST_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(
        ValueError, match=r"does not take these messages \(.*\); give others"
    ) as got:
        chat_text(talker(template), HELLO)
    assert "\n" not in str(got.value)
    assert time.monotonic() - began < 5


RICH = """{%- macro shout(text, times=2) -%}{{ text|upper ~ '!' * times }}{%- endmacro -%}
{%- set ns = namespace(found=false, seen=[]) -%}
{%- for m in messages if m.role != 'none' -%}
{%- set ns.seen = ns.seen + [m.content] -%}
{{ loop.index0 }}/{{ loop.length }}{{ ' last' if loop.last }}
{%- if loop.previtem is defined %}{{ loop.previtem.role }}{% endif -%}
{{ m.content.split('l')[-1].lstrip('o')|trim|default('none', true) if m.content is string }}
{{ shout(m['content'][::-1]) }} {{ '%s-%03d' % (m.role, 7) }} {{ '{0:>4}'.format('a') }}
{%- else -%}nothing{%- endfor -%}
{{ messages|selectattr('role', 'equalto', 'user')|map(attribute='content')|join(', ') }}
{%- set block %}{{ ns.seen|length }}{% endset -%}{{ block|int + 1 }} {{ nosuch }}
{{ messages|tojson }}
{%- for key, value in {'a': 1}.items() %}{{ key }}{{ value ** 2 }}{% continue %}x{% endfor -%}
{%- for n in [[1, [2]]] recursive %}{{ loop(n) if n is iterable else n }}{% endfor -%}
{{ messages[0].content.replace('l', 'LL') }}{{ [3, 1]|sort|first }}{{ 'é' }}"""


def test_bounds_change_nothing_of_what_a_usual_template_writes(model, folder):
    from transformers import AutoTokenizer

    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": RICH}))
    told = [*HELLO, {"role": "assistant", "content": "Oh, hello"}] * 200
    theirs = AutoTokenizer.from_pretrained(folder)
    assert chat_text(load_tokenizer(folder), told) == theirs.apply_chat_template(
        told, tokenize=False
    )


def test_template_and_end_come_from_a_folder_and_go_into_one(model, folder):
    saved = load_tokenizer(folder)
    assert saved.settings == model.tokenizer.settings
    assert saved.end_of_text == model.tokenizer.end_of_text == 65
    assert pickle.loads(pickle.dumps(saved)).settings == saved.settings
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    named = [{"name": "tool", "template": "x"}, {"name": "default", "template": "y"}]
    settings |= {"chat_template": named, "eos_token": {"content": "<|turn|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    read = load_tokenizer(folder)
    assert (read.settings["chat_template"], read.end_of_text) == ("y", 64)
    (folder / "chat_template.jinja").write_text("z")
    assert load_tokenizer(folder).settings["chat_template"] == "z"


@pytest.mark.parametrize("templates", [["x"], [5], [None]])
def test_templates_that_are_no_objects_are_refused_by_file(folder, templates):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({"chat_template": templates}))
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: chat_template=.* is no list of"):
        load_tokenizer(folder)


def test_lines_of_a_file_may_be_messages(model, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"messages": HELLO, "seed": 5}, {"prompt": "abc", "length": 4}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    generate_file(model.writer(), source, target, identity={})
    answer, text = map(json.loads, target.read_text().splitlines())
    assert answer["text"] == model.chat(HELLO, seed=5).text
    assert answer["messages"] == HELLO
    assert text["text"] == model.generate("abc", length=4).text
    source.write_text('{"messages": []}\n')
    with pytest.raises(ValueError, match='line 1 has no text "prompt" and no "messages"'):
        generate_file(model.writer(), source, tmp_path / "other.jsonl", identity={})


def test_the_command_line_answers(model, folder, capsys, monkeypatch):
    command = ["generate", "--model", str(folder), "--device", "cpu", "--seed", "5", "--chat"]
    assert main([*command, "Hello"]) == 0
    assert capsys.readouterr().out == model.chat(HELLO, seed=5).text + "\n"
    told = [{"role": "system", "content": "Hi"}, *HELLO]
    expected = model.chat(told, seed=5).text + "\n"
    for piped, words in (("", ["Hello"]), ("Hello\n", []), (json.dumps({"messages": HELLO}), [])):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(piped.encode())))
        assert main([*command, *words, "--system", "Hi"]) == 0
        assert capsys.readouterr().out == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--chat", "Hello"], "this model has no chat template; give a prompt"),
        (["Hello", "--system", "Hi"], "give --chat beside it"),
    ],
)
def test_what_cannot_be_a_chat_is_said_in_one_line(capsys, words, said):
    for command in ("generate", "explain"):
        assert main([command, "--device", "cpu", *words]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1


def test_prompts_of_a_file_may_be_messages_of_a_user(model, folder, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"prompt": "Hello"}) + "\n" + json.dumps({"messages": HELLO}))
    files = ["--input", str(source), "--output", str(target), "--chat", "--system", "Hi"]
    command = ["generate", "--model", str(folder), "--device", "cpu", "--seed", "5", *files]
    assert main(command) == main(command) == 0, "it is already complete"
    told = [{"role": "system", "content": "Hi"}, *HELLO]
    for line in map(json.loads, target.read_text().splitlines()):
        assert line["messages"] == told
        assert line["text"] == model.chat(told, seed=5).text
    assert main(command[:-2]) == 2, "without --system it is another run"


def test_a_chat_is_explained(folder, monkeypatch, capsys):
    command = ["explain", "--model", str(folder), "--device", "cpu", "--chat", "Hello"]
    prompts = []
    explain = SSDLM.explain

    def watched(self, prompt, **options):
        prompts.append(prompt)
        return explain(self, prompt, **options)

    monkeypatch.setattr(SSDLM, "explain", watched)
    assert main([*command, "--system", "Hi"]) == 0
    assert "passes per token" in capsys.readouterr().out
    told = [{"role": "system", "content": "Hi"}, *HELLO]
    assert prompts == [chat_text(load_tokenizer(folder), told)]


def test_marks_for_training_in_a_template_are_left_out():
    loop = "{% for m in messages %}{% generation %}{{ m.content }};{% endgeneration %}{% endfor %}"
    assert render(loop, messages=[{"content": "a"}, {"content": "b"}]) == "a;b;"
