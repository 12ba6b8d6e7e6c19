"""A file of prompts to a file of texts."""

import json
import os
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests import tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.engine import prompt_files

PROMPTS = ["the river", "a", "the movie", "", "no", "to be", "so it is", "end"]


@pytest.fixture(scope="module")
def model():
    return SSDLM(tiny.encoder(), tiny.tokenizer(), DecodeConfig(length=5, B=(3,), T=2))


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"prompt": prompt, "id": i}) for i, prompt in enumerate(PROMPTS)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def write(model, source, target, *, identity=None, **options):
    writer = model.writer(**options)
    return prompt_files.generate_file(writer, source, target, identity=identity or {}).texts


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_keep_the_order_and_the_fields_of_their_prompts(model, source, tmp_path):
    target = tmp_path / "new" / "out.jsonl"
    assert write(model, source, target, num_samples=2, seed=4) == 16
    rows = read(target)
    assert [(row["prompt"], row["id"], row["sample"]) for row in rows] == [
        (prompt, index, sample) for index, prompt in enumerate(PROMPTS) for sample in (0, 1)
    ]
    direct = model.generate(PROMPTS, num_samples=2, seed=4)
    assert [row["tokens"] for row in rows] == [text.tokens for text in direct]
    assert [row["text"] for row in rows] == [text.text for text in direct]
    assert {row["calls"] for row in rows} == {2}
    assert [path.name for path in target.parent.iterdir()] == ["out.jsonl"]


@pytest.mark.parametrize("cut", [0, 1, 150, 1000, 1801])
def test_an_interrupted_file_is_finished_with_the_same_bytes(model, source, tmp_path, cut):
    whole, target = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    write(model, source, whole, num_samples=2)
    part = tmp_path / "out.jsonl.part"
    part.write_bytes(whole.read_bytes()[:cut])
    write(model, source, target, num_samples=2)
    assert target.read_bytes() == whole.read_bytes()
    assert not part.exists()


def test_a_finished_file_is_left_alone_and_another_is_refused(model, source, tmp_path):
    target = tmp_path / "out.jsonl"
    write(model, source, target)
    before = target.stat().st_mtime_ns
    assert write(model, source, target) == 8
    assert target.stat().st_mtime_ns == before
    with pytest.raises(ValueError, match="was not written from these prompts with these settings"):
        write(model, source, target, identity={"T": 9})
    target.rename(tmp_path / "out.jsonl.part")
    with pytest.raises(ValueError, match="is the beginning of another run"):
        write(model, source, target, identity={"T": 9})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"prompt": "cut', "line 2 is not JSON"),
        (b'{"prompt": "a", "prompt": "b"}', "line 2 has 'prompt' twice; give it once"),
        (b'{"text": "a"}', 'line 2 has no text "prompt"'),
        (b'{"prompt": 7}', "line 2 has no text"),
        (b'["a"]', "line 2 is a list and not a JSON object"),
        (b'{"prompt": "\xff"}', "line 2 is not UTF-8"),
    ],
)
def test_a_bad_line_is_named_before_anything_is_written(model, tmp_path, line, words):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(b'{"prompt": "a"}\n' + line + b"\n")
    with pytest.raises(ValueError, match=words):
        write(model, source, target)
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.jsonl"]


def test_a_bad_option_leaves_no_file_behind(model, source, tmp_path):
    before = list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="T=0"):
        write(model, source, tmp_path / "out.jsonl", T=0)
    assert list(tmp_path.iterdir()) == before


def test_a_later_prompt_that_cannot_be_continued_is_named_before_anything_is_written(
    model, tmp_path
):
    source = tmp_path / "prompts.jsonl"
    source.write_text("".join(json.dumps({"prompt": f"abc {end}"}) + "\n" for end in "fghijx"))
    with pytest.raises(ValueError, match=r"prompts.jsonl line 6: no text of 2 tokens"):
        write(model, source, tmp_path / "out.jsonl", length=2, must="y", must_not="x y")
    source.write_text('{"prompt": "a"}\n{"prompt": "\\ud800"}\n')
    with pytest.raises(ValueError, match=r"prompts.jsonl line 2: .* is not UTF-8"):
        write(model, source, tmp_path / "out.jsonl")
    source.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"line 1 is not JSON \(nested too deep\)"):
        write(model, source, tmp_path / "out.jsonl")
    assert list(tmp_path.iterdir()) == [source]


def test_an_empty_file_is_refused(model, tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ValueError, match="has no prompts"):
        write(model, tmp_path / "empty.jsonl", tmp_path / "out.jsonl")


def test_the_command_line_reads_and_writes_files(model, source, tmp_path, capsys):
    model.save_pretrained(tmp_path / "model")
    target = tmp_path / "out.jsonl"
    command = ["generate", "--model", str(tmp_path / "model"), "--input", str(source)]
    assert cli.main([*command, "--output", str(target), "--length", "4"]) == 0
    assert "8 texts" in capsys.readouterr().out
    assert {len(row["tokens"]) for row in read(target)} == {4}
    assert cli.main([*command, "--output", str(target), "--length", "3"]) == 2
    assert cli.main(command) == 2
    assert "--input and --output go together" in capsys.readouterr().err


def test_a_setting_that_the_model_cannot_follow_leaves_no_file(model, source, tmp_path):
    target = tmp_path / "out.jsonl"
    with pytest.raises(ValueError, match="nucleus=network needs"):
        write(model, source, target, nucleus="network")
    assert list(tmp_path.iterdir()) == [source]


def test_a_line_may_set_options_of_its_own(model, tmp_path):
    lines = [
        {"prompt": "the river", "id": 7},
        {"prompt": "a", "length": 3, "seed": 5},
        {"prompt": "the movie", "num_return_sequences": 2, "must": ["so"]},
        {"prompt": "no", "top_p": 0.5, "max_new_tokens": 4},
    ]
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert write(model, source, target, seed=2) == 5
    rows = read(target)
    expected = [
        model.generate("the river", seed=2),
        model.generate("a", length=3, seed=5),
        *model.generate("the movie", seed=2, num_samples=2, must="so"),
        model.generate("no", seed=2, top_p=0.5, length=4),
    ]
    assert [row["tokens"] for row in rows] == [text.tokens for text in expected]
    assert rows[0]["id"] == 7
    assert [row["seed"] for row in rows] == [2, 5, 2, 2, 2]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"length": 0}, "prompts.jsonl line 2: length=0 is out of range"),
        ({"num_samples": "2"}, "line 2: num_samples='2' is not a whole number"),
        ({"length": 3, "max_new_tokens": 4}, "line 2: length=3 and max_new_tokens=4 are two names"),
        ({"nucleus": "network"}, "line 2: nucleus=network needs a network that reads evidence"),
    ],
)
def test_options_that_a_line_cannot_mean_are_named_with_the_line(model, tmp_path, line, message):
    source = tmp_path / "prompts.jsonl"
    source.write_text('{"prompt": "a"}\n' + json.dumps({"prompt": "b"} | line) + "\n")
    with pytest.raises(ValueError) as caught:
        write(model, source, tmp_path / "out.jsonl")
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("cut", [1, 400, 900])
def test_lines_with_several_texts_each_are_resumed_too(model, tmp_path, cut):
    source, whole = tmp_path / "prompts.jsonl", tmp_path / "whole.jsonl"
    lines = [{"prompt": p, "num_samples": 1 + i % 3} for i, p in enumerate(PROMPTS)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write(model, source, whole)
    (tmp_path / "out.jsonl.part").write_bytes(whole.read_bytes()[:cut])
    write(model, source, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").read_bytes() == whole.read_bytes()


def command_of(folder, source, target):
    files = ["--input", str(source), "--output", str(target)]
    return ["generate", "--model", str(folder), "--device", "cpu", *files]


def test_a_finished_file_says_so_and_other_weights_behind_the_same_name_are_another_run(
    model, source, tmp_path, capsys
):
    folder, target = tmp_path / "model", tmp_path / "out.jsonl"
    model.save_pretrained(folder)
    assert cli.main(command_of(folder, source, target)) == 0
    assert f"wrote {target}: 8 texts" in capsys.readouterr().out
    assert cli.main(command_of(folder, source, target)) == 0
    assert f"{target} is already complete: 8 texts" in capsys.readouterr().out
    assert cli.main([*command_of(folder, source, target), "--dtype", "float32"]) == 0  # as auto
    assert cli.main([*command_of(folder, source, target), "--dtype", "bfloat16"]) == 2
    folder.rename(tmp_path / "moved")  # the weights are what counts, not where they are
    assert cli.main(command_of(tmp_path / "moved", source, target)) == 0
    SSDLM(tiny.encoder(seed=1), tiny.tokenizer(), model.options).save_pretrained(folder)
    assert cli.main(command_of(folder, source, target)) == 2
    assert "was not written from these prompts with these settings" in capsys.readouterr().err
    target.rename(tmp_path / "out.jsonl.part")
    assert cli.main(command_of(folder, source, target)) == 2
    assert "is the beginning of another run" in capsys.readouterr().err


def test_another_tokenizer_behind_the_same_name_is_another_run(model, source, tmp_path, capsys):
    folder, target = tmp_path / "model", tmp_path / "out.jsonl"
    model.save_pretrained(folder)
    assert cli.main(command_of(folder, source, target)) == 0
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"a": 0', '"b": 0').replace('"b": 1', '"a": 1'))
    assert cli.main(command_of(folder, source, target)) == 2
    assert "was not written from these prompts" in capsys.readouterr().err


@pytest.mark.parametrize("is_set_by_lines", [False, True])
def test_other_weights_of_a_guide_are_another_run(model, tmp_path, capsys, is_set_by_lines):
    folder, target, source = (tmp_path / name for name in ("model", "out.jsonl", "in.jsonl"))
    guide = tiny.save_classifier(tmp_path / "guide")
    model.save_pretrained(folder)
    control = f"{guide}=positive"
    source.write_text(
        json.dumps({"prompt": "a"} | ({"control": control} if is_set_by_lines else {})) + "\n"
    )
    command = command_of(folder, source, target)
    command += [] if is_set_by_lines else ["--control", control]
    assert cli.main(command) == 0
    assert cli.main(command) == 0
    assert "already complete" in capsys.readouterr().out
    tiny.save_classifier(guide, seed=2)
    assert cli.main(command) == 2
    assert "was not written from these prompts" in capsys.readouterr().err


def test_texts_go_to_a_pipe_that_another_process_reads(model, source, tmp_path):
    pipe, plain = tmp_path / "pipe", tmp_path / "plain.jsonl"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        content = pool.submit(pipe.read_bytes)
        assert write(model, source, pipe) == 8
    write(model, source, plain)
    assert content.result() == plain.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pipe",
        "plain.jsonl",
        "prompts.jsonl",
    ]


def test_prompts_come_from_a_pipe(model, source, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(pipe.write_bytes, source.read_bytes())
        assert write(model, pipe, tmp_path / "out.jsonl") == 8


def test_a_name_for_standard_output_is_never_read_back(tmp_path):
    """Where it is redirected to a file, it is a file that is there and is not a run's."""
    assert all(
        prompt_files.is_stream(Path(f"/dev/{name}")) for name in ("stdout", "fd/1", "stderr")
    )
    (tmp_path / "out.jsonl").touch()
    assert not any(map(prompt_files.is_stream, (tmp_path, tmp_path / "out.jsonl", tmp_path / "x")))


@contextmanager
def endless():
    """A pipe through which the same prompt comes for ever."""
    with subprocess.Popen(["yes", '{"prompt": "a"}'], stdout=subprocess.PIPE) as process:
        try:
            yield Path(f"/dev/fd/{process.stdout.fileno()}")
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such devices")
def test_devices_without_an_end_or_without_room_are_refused(model, source, tmp_path, monkeypatch):
    monkeypatch.setattr("ssdlm.storage.files.MOST_FROM_PIPES", 1 << 16)
    with pytest.raises(ValueError, match="/dev/zero: it is not UTF-8"):
        write(model, Path("/dev/zero"), tmp_path / "out.jsonl")
    with pytest.raises(ValueError, match=r"/dev/fd/.* has no end"), endless() as pipe:
        write(model, pipe, tmp_path / "out.jsonl")
    with pytest.raises(OSError, match="No space left"):
        write(model, source, Path("/dev/full"))
    assert list(tmp_path.iterdir()) == [source]


def test_an_output_nested_too_deep_is_not_ours(model, source, tmp_path):
    target = tmp_path / "out.jsonl"
    for path in (target, tmp_path / "out.jsonl.part"):
        path.write_text(('{"a":' * 50_000 + "1" + "}" * 50_000 + "\n") * 8)
        with pytest.raises(ValueError, match=r"was not written from|beginning of another run"):
            write(model, source, target)
        path.unlink()


def test_many_texts_of_a_prompt_are_written_as_they_come(model, tmp_path, monkeypatch, unchecked):
    source, target = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"prompt": "a", "num_samples": 1000000}\n{"prompt": "be"}\n')
    model = SSDLM(model.denoiser, model.tokenizer, model.options)

    def stop(batch):
        raise KeyboardInterrupt

    monkeypatch.setattr(model.engine, "steps", stop)
    tracemalloc.start()
    with pytest.raises(KeyboardInterrupt):
        write(model, source, target)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
