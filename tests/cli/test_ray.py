"""`--ray`: the workers of a cluster write what one process writes, also where some are killed."""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests import bpe, causal, tiny

from ssdlm import SSDLM, DecodeConfig, cli
from ssdlm.storage import cluster
from ssdlm.storage.parts import Shard, TooManyPartsError
from ssdlm.storage.remote import Remote

pytest.importorskip("ray")

TWO_WORKERS = """
import ray, sys
ray.init("local", num_cpus=2, include_dashboard=False, object_store_memory=100 << 20)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""
"""A cluster of this machine that ends with its standard input."""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Where a cluster of two workers listens, which whoever has this module's token may join."""
    folder = tmp_path_factory.mktemp("ray")
    with pytest.MonkeyPatch.context() as patch, (folder / "log").open("w") as log:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else they wait for all other tests
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
        started = subprocess.Popen(
            [sys.executable, "-c", TWO_WORKERS],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        yield started.stdout.readline().strip()
        started.communicate(timeout=60)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a model, prompts, a tokenizer and texts."""
    folder = tmp_path_factory.mktemp("spread")
    settings = DecodeConfig(length=4, B=(2,), T=6)
    SSDLM(tiny.block(), tiny.tokenizer(), settings).save_pretrained(folder / "model")
    prompts = [{"prompt": f"the river {i}", "num_samples": 1 + i % 2} for i in range(40)]
    (folder / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in prompts))
    bpe.write_gpt2(folder / "tokenizer")
    texts = [f"{i}: " + bpe.TEXT[: 10 + i % 7 * 20].strip() for i in range(10000)]
    (folder / "a.txt").write_text("\n\n".join(texts))
    return folder


def run_and_kill(words, folder, pattern):
    """Run a command, kill a process once that writes a file of this kind; return what was said."""
    command = subprocess.Popen(
        [sys.executable, "-m", "ssdlm", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    is_killed = False
    while command.poll() is None and not is_killed:
        time.sleep(0.01)
        is_killed = any(map(kill_writer, folder.glob(pattern)))
    said, warned = command.communicate(timeout=240)
    assert command.returncode == 0, warned
    assert is_killed, f"{folder}/{pattern} was never seen"
    return said, warned


def kill_writer(path):
    """Kill a process that has a file open in which there is something; tell whether one had."""
    with suppress(FileNotFoundError):
        if path.stat().st_size:
            for link in Path("/proc").glob("[0-9]*/fd/*"):
                with suppress(OSError):
                    if os.path.samefile(link, path):
                        os.kill(int(link.parts[2]), signal.SIGKILL)
                        return True
    return False


@pytest.mark.slow
def test_texts_of_a_killed_worker_are_neither_lost_nor_repeated(
    folder, address, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(folder)
    words = ["generate", "--model", "model", "--input", "p.jsonl", "--device", "cpu", "--output"]
    on_ray = [*words, str(tmp_path / "all.jsonl"), "--ray", address]
    said, shown = run_and_kill(on_ray, tmp_path, "all.jsonl.parts/*.part")
    assert cli.main([*words, str(tmp_path / "one.jsonl")]) == 0
    assert (tmp_path / "all.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert not list(tmp_path.glob("*.parts"))
    alone = capfd.readouterr()
    assert said.replace("all.jsonl", "one.jsonl") == alone.out  # wrote one.jsonl: 60 texts
    last = "generate 40/40  prompts  0 s left"
    assert shown.splitlines()[-1] == alone.err.splitlines()[-1] == last
    assert shown.count("40/40") == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_a_causal_language_model_writes_the_same_on_a_cluster(address, tmp_path):
    model = causal.save(tmp_path / "model", "qwen3")
    lines = [{"prompt": f"the river {i}", "seed": i} for i in range(6)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["generate", "--model", str(model), "--input", str(tmp_path / "p.jsonl"), "--length"]
    words += ["8", "--device", "cpu", "--output"]
    on_ray = [sys.executable, "-m", "ssdlm", *words, str(tmp_path / "all.jsonl"), "--ray", address]
    subprocess.run(on_ray, check=True, timeout=240)
    assert cli.main([*words, str(tmp_path / "one.jsonl")]) == 0
    written = (tmp_path / "all.jsonl").read_text()
    assert written == (tmp_path / "one.jsonl").read_text()
    assert len({json.loads(line)["text"] for line in written.splitlines()}) > 3


@pytest.mark.nightly
@pytest.mark.slow
def test_a_store_of_a_killed_worker_is_the_store_of_one_process(
    folder, address, tmp_path, monkeypatch
):
    monkeypatch.chdir(folder)
    words = ["prepare", "a.txt", "--tokenizer", "tokenizer", "--out"]
    on_ray = [*words, str(tmp_path / "all"), "--ray", address]
    _, shown = run_and_kill(on_ray, tmp_path, "all.parts/*/*.tmp")
    assert "parts on Ray 2/2  done" in shown
    assert cli.main([*words, str(tmp_path / "one")]) == 0
    assert content(tmp_path / "all") == content(tmp_path / "one")
    assert not list(tmp_path.glob("*.parts"))


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Ray:
    """What `cluster` uses of Ray, done in this process."""

    class exceptions:
        RayError = RuntimeError

    def __init__(self, **resources):
        self.resources = resources
        self.options_given = []
        self.started = []

    def is_initialized(self):
        return True

    def cluster_resources(self):
        return self.resources

    def remote(self, do):
        ray = self

        class Task:
            def options(self, **options):
                ray.options_given.append(options)
                return self

            def remote(self, *given):
                ray.started.append(given[1])
                return (do, given)

        return Task()

    def wait(self, tasks, num_returns, timeout):
        return tasks[:num_returns], tasks[num_returns:]

    def get(self, task):
        do, given = task
        return do(*given)

    def cancel(self, task, force):
        self.started.remove(task[1][1])


@pytest.fixture
def ray(monkeypatch):
    fake = Ray(CPU=3.0)
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


def write_number(shard, target):
    Path(target).parent.mkdir(parents=True, exist_ok=True)
    Path(target).write_text(str(shard))


def test_there_are_as_many_parts_as_workers_and_prompts(ray, tmp_path):
    def parts(**settings):
        with cluster.spread(
            write_number, tmp_path / "out", **{"address": "", "most": 9} | settings
        ) as found:
            assert [part.read_text() for part in found] == [str(s) for s in ray.started]
            names = [part.name for part in found]
        assert not list(tmp_path.iterdir())
        ray.started.clear()
        return names, ray.options_given[-1]["num_gpus"]

    assert parts() == (["0-of-3", "1-of-3", "2-of-3"], 0)
    assert parts(most=2, ending=".jsonl") == (["0-of-2.jsonl", "1-of-2.jsonl"], 0)
    assert parts(uses_gpus=True) == (["0-of-3", "1-of-3", "2-of-3"], 0)
    ray.resources["GPU"] = 2.0
    assert parts(uses_gpus=True) == (["0-of-2", "1-of-2"], 1)
    assert parts() == (["0-of-3", "1-of-3", "2-of-3"], 0)
    (tmp_path / "out.parts").mkdir()
    (tmp_path / "out.parts" / "0-of-2.part").touch()
    assert parts() == (["0-of-2", "1-of-2"], 0)  # as it was begun


def test_what_is_done_is_told_while_parts_are_waited_for(ray, tmp_path, monkeypatch, capsys):
    seen, wait = [], ray.wait

    def wait_in_vain(tasks, **given):
        monkeypatch.setattr(ray, "wait", wait)
        return [], tasks

    @contextmanager
    def watched():
        yield lambda parts, num_done: seen.append((len(parts), num_done))
        seen.append("ended")

    def talk(shard, target):
        print("a worker has died")  # as Ray does
        write_number(shard, target)

    monkeypatch.setattr(ray, "wait", wait_in_vain)
    with cluster.spread(talk, tmp_path / "out", address="", most=9, watched=watched):
        assert seen == [(3, 0), (3, 1), (3, 2), (3, 3), "ended"]
    assert capsys.readouterr() == ("", "a worker has died\n" * 3)


def test_what_a_worker_says_is_said(ray, tmp_path):
    def warn(shard, target):
        import warnings

        warnings.warn(f"part {shard} is odd", stacklevel=1)
        write_number(shard, target)

    def refuse(shard, target):
        raise OSError(28, "No space left on device", target)

    def refuse_many(shard, target):
        write_number(Shard(shard.number, 2).share(2, "documents"), target)
        if shard.count > 2:
            raise TooManyPartsError("too many", 2)

    def die(shard, target):
        raise RuntimeError("the worker died")

    def spread(work):
        with cluster.spread(work, tmp_path / "out", address="", most=9) as parts:
            return [part.name for part in parts]

    with pytest.warns(UserWarning, match="part ./3 is odd"):
        spread(warn)
    with pytest.raises(ValueError, match=r"No space left on device.*out.parts/0-of-3"):
        spread(refuse)
    assert spread(refuse_many) == ["0-of-2", "1-of-2"]
    with pytest.raises(ValueError, match=r"worker of part 0/3 ended 21 times, .*\(RuntimeError\)"):
        spread(die)
    with pytest.raises(ValueError, match=r"0-of-3 was written on another machine"):
        spread(lambda shard, target: None)


def test_parts_elsewhere_are_found_and_removed(tmp_path, monkeypatch):
    folder = cluster.parts_folder(Remote("memory://1-of-9/out/"))
    assert str(folder) == "memory://1-of-9/out.parts" and cluster.num_begun(folder) == 0
    (tmp_path / "x").touch()
    (folder / "2-of-5" / "part.json").put(tmp_path / "x")
    assert cluster.num_begun(folder) == 5
    cluster.remove(folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray", "127.0.0.1:9"], "no Ray cluster at 127.0.0.1:9 ([Errno"),
        (["--ray", "ray://127.0.0.1:99999"], "no Ray cluster at ray://127.0.0.1:99999 ("),
        (["--ray", "0"], "ray=0 workers are out of range; use 1 to 1024"),
        (["--ray", "99999"], "ray=99999 workers are out of range"),
        (["--ray", "a.txt"], "ray=a.txt is no address; use HOST:PORT, ray://HOST:PORT, auto"),
        (["--ray", "--shard", "0/2"], "--ray does all parts and --shard one"),
    ],
)
def test_an_address_without_a_cluster_is_one_line(folder, tmp_path, words, said, capsys):
    given = [str(folder / "a.txt"), "--tokenizer", str(folder / "tokenizer")]
    began = time.monotonic()
    assert cli.main(["prepare", *given, "--out", str(tmp_path / "out"), *words]) == 2
    assert time.monotonic() - began < 20
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_no_cluster_is_noticed(monkeypatch):
    monkeypatch.setattr(cluster, "SECONDS_TO_JOIN", 0.5)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ValueError, match=f"no Ray cluster at {address} .*as Ray does"):
            cluster.require_cluster(address)


def test_why_a_cluster_cannot_be_joined_is_said_in_a_few_words():
    said = "Traceback\nray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: ...\n\nmore"
    assert cluster.why(said).startswith("it wants another token: set RAY_AUTH_MODE=token")
    assert cluster.why("W gcs_client.cc\nConnectionError: other version\n").endswith(
        "other version"
    )
    assert cluster.why("") == "it ended"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input", "-", "--output", "x"], "--ray needs files for --input and --output"),
        (["--input", __file__, "--output", "x", "--shard", "0/2"], "--ray shares the prompts out"),
        (["a prompt"], "--input and --output go together"),
        (["--json", "--drafts", "a"], "--drafts prints to standard output"),
        (
            ["--input", "missing.jsonl", "--output", "x"],
            "there is no file missing.jsonl; give",
        ),
    ],
)
def test_flags_that_do_not_go_with_ray_are_refused(words, said, capsys):
    assert cli.main(["generate", *words, "--ray"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {said}")


class Stopped(BaseException):
    """What a handler of SIGTERM raises."""


@pytest.fixture
def stopping():
    """A handler of SIGTERM that raises."""

    def stop(*_):
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    yield
    signal.signal(signal.SIGTERM, before)


def own_handler(*_, **__):
    """Do what Ray does as it starts: put a handler there, and have SIGTERM come."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
    signal.raise_signal(signal.SIGTERM)


def ray_with(init):
    return SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: None)


def test_sigterm_while_ray_starts_is_what_it_is_without_ray(stopping, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", ray_with(own_handler))
    with pytest.raises(Stopped), cluster.joined("1"):
        pass


def test_sigterm_while_ray_works_is_what_it_is_without_ray(stopping, monkeypatch):
    """Ray's wait returns in spite of what a handler raises, which Python makes a SystemError."""
    monkeypatch.setitem(sys.modules, "ray", ray_with(lambda *_, **__: None))
    with pytest.raises(Stopped), cluster.joined("1"):
        try:
            signal.raise_signal(signal.SIGTERM)
        except Stopped as error:
            raise SystemError("returned a result with an exception set") from error


def test_ray_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(ValueError, match=r"--ray needs ray.* pip install 'ssdlm\[ray\]'"),
        cluster.joined(""),
    ):
        pass
