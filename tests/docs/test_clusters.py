"""The files for clusters: scripts run against stand-ins, Jobs are read, commands are parsed."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from ssdlm.cli import parser
from ssdlm.settings import override
from ssdlm.train.recipes import recipe

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "clusters"
SCRIPTS = sorted(FOLDER.glob("*.sh"))
JOBS = sorted(FOLDER.glob("*.yaml"))
ENVIRONMENT = {
    "DATA": "/shared/data",
    "OUT": "/shared/out",
    "PROMPTS": "/shared/prompts.jsonl",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_NNODES": "4",
    "SLURM_JOB_ID": "77",
    "SLURM_ARRAY_TASK_ID": "2",
    "SLURM_ARRAY_TASK_COUNT": "8",
}


def check_command(words: list[str]) -> None:
    """Raise on a command that ssdlm or torchrun would refuse."""
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        arguments = get_args_parser().parse_args(words[1:])
        assert arguments.module and arguments.training_script == "ssdlm"
        words = ["ssdlm", *arguments.training_script_args]
    assert words[0] == "ssdlm"
    arguments = parser().parse_args(words[1:])
    if words[1] == "train":
        config = override(recipe(arguments.recipe), arguments.overrides)
        assert config.train.batch % 32 == 0
    else:
        assert arguments.shard.count == 8 and arguments.input and arguments.output


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_starts_commands_that_are_accepted(script, tmp_path):
    said = tmp_path / "said"
    for name in ("srun", "ssh", "ssdlm", "torchrun", "scontrol"):
        stub = tmp_path / name
        line = "echo node1" if name == "scontrol" else f'echo "$(basename "$0") $*" >> {said}'
        stub.write_text(f"#!/bin/bash\n{line}\n")
        stub.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script), "host0", "host1"],
        env=ENVIRONMENT | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = [shlex.split(line) for line in said.read_text().splitlines()]
    assert len(lines) == (2 if script.name == "nodes.sh" else 1)
    for words in lines:
        check_command(words[{"srun": 1, "ssh": 2}.get(words[0], 0) :])


def test_directives_of_slurm_come_before_all_commands():
    for script in (path for path in SCRIPTS if path.name.startswith("slurm")):
        lines = script.read_text().splitlines()
        first = next(i for i, line in enumerate(lines) if not line.startswith("#"))
        asked = [i for i, line in enumerate(lines) if line.startswith("#SBATCH")]
        assert asked and max(asked) < first
        for i in asked:
            assert re.fullmatch(r"#SBATCH --[a-z-]+(=\S+)?", lines[i])


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.name)
def test_a_job_is_whole_and_its_command_is_accepted(job):
    yaml = pytest.importorskip("yaml")
    documents = list(yaml.safe_load_all(job.read_text()))
    (one,) = [each for each in documents if each["kind"] == "Job"]
    spec = one["spec"]
    assert one["apiVersion"] == "batch/v1" and spec["completionMode"] == "Indexed"
    assert spec["parallelism"] == spec["completions"]
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] in ("Never", "OnFailure")
    assert "backoffLimitPerIndex" not in spec or pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    words = shlex.split(container["args"][0].replace("$JOB_COMPLETION_INDEX", "3"))
    check_command(words)
    if service := [each for each in documents if each["kind"] == "Service"]:
        name = service[0]["metadata"]["name"]
        assert service[0]["spec"]["clusterIP"] == "None" and pod["subdomain"] == name
        assert service[0]["spec"]["selector"] == {"job-name": one["metadata"]["name"]}
        place = words[words.index("--master-addr") + 1]
        assert place == f"{one['metadata']['name']}-0.{name}"
        assert int(words[words.index("--nnodes") + 1]) == spec["completions"]
    else:
        assert f"/{spec['completions']}" in words[words.index("--shard") + 1]
