"""The command line: what it prints, and how it says no."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli

RELEASED = Path(__file__).parents[1] / "parity" / "greedy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "model"
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4))
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def block_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "block"
    model = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=4))
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return tiny.save_classifier(tmp_path_factory.mktemp("cli") / "classifier")


def run(capsys, *arguments):
    code = cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def generate(capsys, folder, *arguments):
    return run(capsys, "generate", "--model", folder, "--device", "cpu", *arguments)


def test_generate_prints_prompt_and_continuation(capsys, folder):
    code, out, _ = generate(capsys, folder, "the river")
    expected = SSDLM.from_pretrained(folder, device="cpu").generate("the river")
    assert code == 0
    assert out == f"the river{expected.text}\n"


def test_drafts_are_printed_as_events_that_end_in_the_text(capsys, folder, classifier):
    asked = ["--json", "--drafts", "--candidates", 2, "--guides", f"mood={classifier}"]
    code, out, _ = generate(capsys, folder, "the river", "a", *asked)
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert all(next(iter(event)) == "event" for event in events)
    _, plain, _ = generate(capsys, folder, "the river", "a", "--json")
    done = [event for event in events if event.pop("event") == "done"]
    assert done == [json.loads(line) for line in plain.splitlines()]
    drafts = [event for event in events if "changed" in event]
    assert all(event["guides"].keys() == {"mood"} for event in drafts)
    assert len(drafts[0]["changed"][0]["candidates"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--drafts"], "--drafts prints events as JSON lines; give --json beside it"),
        (["--candidates", 2], "--candidates tells of drafts; give --json --drafts beside it"),
        (["--json", "--guides", "tense"], "--guides tells of drafts; give --json --drafts"),
        (["--json", "--guides="], "--guides tells of drafts; give --json --drafts"),
        (["--json", "--drafts", "--input", "a"], "give prompts in place of --input"),
        (["--json", "--drafts", "--guides", "joy"], "there is no built-in guide 'joy'"),
    ],
)
def test_flags_of_drafts_without_drafts_are_refused(capsys, folder, arguments, message):
    code, out, error = generate(capsys, folder, "the", *arguments)
    assert (code, out) == (2, "")
    assert message in error


def test_generate_speaks_json_one_object_a_text_in_order(capsys, folder):
    code, out, _ = generate(
        capsys, folder, "the river", "a", "--json", "--num-samples", 2, "--length", 5, "--B", "2,3"
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(line["prompt"], line["sample"]) for line in lines] == [
        ("the river", 0),
        ("the river", 1),
        ("a", 0),
        ("a", 1),
    ]
    assert all(len(line["tokens"]) == 5 and line["calls"] == 4 for line in lines)


def test_generate_takes_every_option_the_api_takes(capsys, folder, classifier):
    code, out, err = generate(
        capsys, folder, "the", "--length", 4, "--B", 4, "--T", 3, "--projection", "multi_hot",
        "--top-p", 0.5, "--rule", "renoise", "--rho", 0.25, "--returns", "w_0", "--early-exit",
        "--stop-at-end", "--seed", 5, "--control", f"{classifier}=positive:100", "--control",
        f"{classifier}=neutral", "--sees", "block", "--dtype", "float32", "--json",
        "--batch-size", 2,
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["seed"] == 5


def test_generate_takes_a_temperature_and_chooses_among_several(capsys, block_folder):
    prompts, options = ["the river", "a"], {"length": 3, "T": 3, "num_samples": 2}
    code, out, err = generate(
        capsys, block_folder, *prompts, "--length", 3, "--T", 3, "--num-samples", 2, "--json",
        "--temperature", 0.6, "--best-of", 2,
    )  # fmt: skip
    assert code == 0, err
    model = SSDLM.from_pretrained(block_folder, device="cpu")
    expected = model.generate(prompts, temperature=0.6, best_of=2, **options)
    assert [json.loads(line) for line in out.splitlines()] == [asdict(text) for text in expected]
    found = [text.tokens for text in expected]
    for other in ({"temperature": 0.6}, {"best_of": 2}):
        assert found != [text.tokens for text in model.generate(prompts, **other, **options)]


def test_generate_takes_biases_and_penalties_and_so_does_a_line_of_a_file(
    capsys, block_folder, tmp_path
):
    flags = ("--top-k", 9, "--min-p", 0.01, "--frequency-penalty", 1, "--presence-penalty", -0.5)
    flags += ("--logit-bias", "5=4", "--logit-bias", "7=-100", "--length", 6, "--B", 3, "--T", 3)
    code, out, err = generate(capsys, block_folder, "the river", *flags, "--json")
    assert code == 0, err
    own = {"top_k": 9, "min_p": 0.01, "frequency_penalty": 1.0, "presence_penalty": -0.5}
    own |= {"length": 6, "B": 3, "T": 3}
    model = SSDLM.from_pretrained(block_folder, device="cpu")
    text = model.generate("the river", **own, logit_bias={5: 4.0, 7: -100.0})
    assert json.loads(out) == asdict(text)
    assert text.tokens != model.generate("the river", length=6, B=3, T=3).tokens
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    line = {"prompt": "the river", **own, "logit_bias": {"5": 4, "7": -100}}
    source.write_text(json.dumps(line) + "\n")
    code, _, err = generate(capsys, block_folder, "--input", source, "--output", target)
    assert code == 0, err
    assert json.loads(target.read_text())["text"] == text.text


def test_a_file_of_prompts_gets_the_likeliest_texts_and_is_not_mixed(
    capsys, block_folder, tmp_path
):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    prompts = ["the river", "a", "no", "to be", "so"]
    source.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    files = ("--input", source, "--output", target, "--num-samples", 2, "--length", 3, "--T", 2)
    code, out, _ = generate(capsys, block_folder, *files, "--best-of", 2)
    assert code == 0
    assert "10 texts" in out
    rows = [json.loads(line) for line in target.read_text().splitlines()]
    model = SSDLM.from_pretrained(block_folder, device="cpu")
    expected = model.generate(prompts, num_samples=2, best_of=2, length=3, T=2)
    found = [(row["prompt"], row["sample"], row["tokens"], row["calls"]) for row in rows]
    assert found == [(text.prompt, text.sample, text.tokens, text.calls) for text in expected]
    before = target.read_bytes()
    assert generate(capsys, block_folder, *files, "--best-of", 2)[0] == 0
    err = says_no(capsys, "generate", "--model", block_folder, *files, "--best-of", 3)
    assert "was not written from these prompts with these settings" in err
    assert target.read_bytes() == before


def test_control_changes_the_text(capsys, folder, classifier):
    _, bare, _ = generate(capsys, folder, "the", "--length", 12)
    _, steered, _ = generate(
        capsys, folder, "the", "--length", 12, "--control", f"{classifier}=2:5000"
    )
    assert bare != steered


def test_convert_writes_our_layout(capsys, tmp_path):
    code, out, _ = run(capsys, "convert", RELEASED, tmp_path / "ours")
    assert code == 0
    assert "wrote" in out
    assert SSDLM.from_pretrained(tmp_path / "ours", device="cpu").denoiser.V == 96


def says_no(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--length", 0], "length=0"),
        (["--T", -3], "T=-3"),
        (["--B", 0], "B=0"),
        (["--top-p", 2], "top_p=2.0"),
        (["--projection", "best"], "projection='best'"),
        (["--control", "nonsense"], "control 'nonsense' is not CLASSIFIER=LABEL"),
        (["--control", "a=b:c"], "control 'a=b:c' is not CLASSIFIER=LABEL"),
        (["--control", "nowhere/at/all=good"], "nowhere/at/all is no folder here"),
        (["--sees", "all"], "sees='all' is unknown"),
        (["--dtype", "int3"], "dtype='int3' is unknown"),
        (["--device", "abacus"], "device='abacus'"),
        (["--num-samples", 0], "num_samples=0"),
        (["--temperature", 0], "temperature=0.0 is out of range"),
        (["--top-k", -1], "top_k=-1 is out of range"),
        (["--min-p", 2], "min_p=2.0 is out of range"),
        (["--presence-penalty", "nan"], "presence_penalty=nan is out of range"),
        (["--logit-bias", "9999=1"], "logit_bias names token 9999, and the model has 0 to 63"),
        (["--logit-bias", "5=-101"], "each with a bias from -100 to 100"),
        (["--logit-bias", "5=1", "--logit-bias", "5=2"], "logit_bias has token 5 twice"),
        (["--temperature", 0.5], "temperature=0.5 needs a network that reads evidence"),
        (["--best-of", 0], "best_of=0 is out of range"),
        (["--best-of", 2], "needs a model with a context stream (a BlockDenoiser)"),
    ],
)
@pytest.mark.parametrize("is_controlled", [False, True])
def test_bad_options_end_in_one_line_and_code_two(
    capsys, folder, classifier, arguments, words, is_controlled
):
    if is_controlled and "--control" not in arguments:
        arguments = [*arguments, "--control", f"{classifier}=positive"]
    err = says_no(capsys, "generate", "the", "--model", folder, *arguments)
    assert words in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--length", "many"], "length=many is not a whole number; write 1 to 1000000 tokens"),
        (["--logit-bias", "five=1"], "logit_bias=five=1 is not a dictionary {token id: bias}"),
        (["--B", "5,x"], "B=5,x is not a block length such as 25, or several as 5,10,25"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_unreadable_options_end_in_one_line_too(capsys, folder, arguments, words):
    with pytest.raises(SystemExit) as caught:
        cli.main(["generate", "the", "--model", str(folder), *arguments])
    err = capsys.readouterr().err
    assert caught.value.code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_bad_labels_list_what_there_is(capsys, folder, classifier):
    err = says_no(capsys, "generate", "a", "--model", folder, "--control", f"{classifier}=happy")
    assert "0: negative, 1: neutral, 2: positive" in err


def test_a_batch_has_at_least_one_text(capsys, folder):
    message = says_no(capsys, "generate", "a", "--model", folder, "--batch-size", 0)
    assert "batch_size=0 is out of range; a batch has 1 to 1000000 texts" in message


def test_convert_makes_the_folder_that_is_shipped(capsys, tmp_path):
    source = SSDLM(tiny.block(), tiny.tokenizer(), DecodeConfig(length=6, B=(3,), T=9))
    source.save_pretrained(tmp_path / "run")
    settings = ("--T", 4, "--grid", "staggered", "--width", 1, "--returns", "w_0")
    settings += ("--temperature", 0.9)
    code, *_ = run(
        capsys, "convert", tmp_path / "run", tmp_path / "small", "--quantise", "int8", *settings
    )
    assert code == 0
    before, after = (tmp_path / name / "model.safetensors" for name in ("run", "small"))
    assert after.stat().st_size < 0.4 * before.stat().st_size
    small = SSDLM.from_pretrained(tmp_path / "small", device="cpu")
    assert (small.options.T, small.options.grid, small.options.width) == (4, "staggered", 1.0)
    assert (small.options.length, small.options.B) == (6, (3,))
    assert small.options.temperature == 0.9
    assert len(small.generate("the river").tokens) == 6
    weight, rounded = source.denoiser.words, small.denoiser.words
    assert (weight - rounded).abs().max() <= weight.abs().amax() / 127
    assert "quantise='int4' is unknown" in says_no(
        capsys, "convert", tmp_path / "run", tmp_path / "other", "--quantise", "int4"
    )


def test_missing_models_are_named(capsys, tmp_path):
    assert "no-model" in says_no(capsys, "generate", "a", "--model", tmp_path / "no-model")


def test_a_failed_conversion_leaves_nothing(capsys, tmp_path):
    source = shutil.copytree(RELEASED, tmp_path / "source")
    (source / "timestep_layer.pt").write_bytes(b"")
    says_no(capsys, "convert", source, tmp_path / "target")
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
    (tmp_path / "there").mkdir()
    assert "exists already" in says_no(capsys, "convert", RELEASED, tmp_path / "there")


def test_the_live_view_draws_every_draft(folder):
    from rich.console import Console

    from ssdlm.cli.live import picture

    model = SSDLM.from_pretrained(folder, device="cpu")
    console = Console(width=60, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for draft in model.stream("the river"):
        console.print(picture("the river", draft, model.spellings()))
    console.file.close()
    shown = console.export_text()
    assert shown.count("steps left") == 2 * 4
    assert "block 2, 0 steps left" in shown
