"""Commands over a causal language model: files, parts of them, and what would be written."""

import json

import pytest
from tests import causal

from ssdlm import SSDLM
from ssdlm.cli import main
from ssdlm.evaluate.lm_eval.scoring import Scorer
from ssdlm.evaluate.lm_eval.writing import cut, decoding_of, text_of, until_request, write

PROMPTS = ("the river", "a", "why", "b c")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("causal")
    lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS]
    (root / "prompts.jsonl").write_text("".join(lines))
    return causal.save(root / "llama", "llama")


def texts_in(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_files_and_parts_of_them_have_the_texts_of_generate(folder, tmp_path):
    prompts, out = folder.parent / "prompts.jsonl", tmp_path / "out.jsonl"
    command = ["generate", "--model", str(folder), "--input", str(prompts), "--length", "7"]
    assert main([*command, "--output", str(out)]) == 0
    expected = [
        text.text for text in SSDLM.from_pretrained(folder).generate(list(PROMPTS), length=7)
    ]
    assert texts_in(out) == expected
    parts = [tmp_path / f"part{number}.jsonl" for number in range(2)]
    for number, part in enumerate(parts):
        assert main([*command, "--output", str(part), "--shard", f"{number}/2"]) == 0
    assert main(["merge", *map(str, parts), "--output", str(tmp_path / "all.jsonl")]) == 0
    assert texts_in(tmp_path / "all.jsonl") == expected


def test_it_is_explained_how_a_text_would_be_written(folder, capsys):
    assert main(["explain", "--model", str(folder), "--control", "sentiment=positive"]) == 0
    told = capsys.readouterr().out
    assert "program: window" in told
    assert "particles" in told  # the guide does not know these tokens


def test_particles_that_nobody_asked_for_are_told(folder, tmp_path, capsys):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "the"}\n')
    model = ["--model", str(folder), "--device", "cpu", "--length", "2", "--control", "tense=past"]
    files = ["--input", str(source), "--output", str(target)]
    said = "tense=past has no guide for this model's tokens: 8 particles are weighed by its scorer"
    for words in (["the"], files):
        assert main(["generate", *words, *model]) == 0
        assert capsys.readouterr().err.splitlines()[0] == said
    assert main(["generate", "the", *model, "--particles", "2"]) == 0
    assert "no guide" not in capsys.readouterr().err


def test_the_harness_has_the_greedy_text_up_to_a_string_or_the_end(folder):
    model, greedy = SSDLM.from_pretrained(folder), decoding_of({"temperature": 0.0})
    scorer = Scorer(model)
    requests = [until_request(scorer, prompt, {"max_gen_toks": 60}) for prompt in PROMPTS]
    written = {tuple(one.context): one.tokens for one in write(scorer, requests, **greedy)}
    for text in model.generate(list(PROMPTS), do_sample=False, length=60):
        assert written[model.context(text.prompt)] == text.tokens
    model.options = model.options.change(stop_at_end=False, never_end=True)
    whole = model.generate("the river", do_sample=False, length=60)
    until = whole.text[30]
    request = until_request(scorer, "the river", {"until": [until], "max_gen_toks": 60})
    (done,) = write(scorer, [request], **greedy)
    assert cut(text_of(scorer, done), done.until) == whole.text[: whole.text.index(until)]
