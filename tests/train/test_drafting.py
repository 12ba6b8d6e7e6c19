"""Training of a drafter: what it learns, keeps and refuses."""

import json

import pytest
import torch
from tests import causal, tiny

from ssdlm import SSDLM
from ssdlm.cli import main
from ssdlm.denoiser.drafter import base_of, read_texts
from ssdlm.storage.checkpoint import load_denoiser
from ssdlm.storage.drafter import load_drafter, save_drafter
from ssdlm.train.drafting import configure, train_drafter
from ssdlm.train.drafting.loss import largest, targets
from ssdlm.train.drafting.texts import acceptance, right_guesses, until, write_texts

SMALL = ("hidden=16", "rank=4", "guesses=3", "batch=4", "max_len=32", "anchors=6", "measured=2")
SMALL += ("log_every=2", "save_seconds=0", "own=4", "layers=1")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return causal.save(tmp_path_factory.mktemp("base") / "model", "llama-tied")


@pytest.fixture(scope="module")
def run(base, store, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "drafter"
    return out, draft(base, store, out, "steps=8", "cooldown=0")


def draft(base, store, out, *more, **rest):
    config = configure([*SMALL, *more])
    return train_drafter(config, model=str(base), data=[store], out=out, device="cpu", **rest)


def losses(out):
    return [json.loads(line)["loss"] for line in (out / "log.jsonl").read_text().splitlines()]


def test_a_run_learns_and_resumes_to_the_bit(base, store, tmp_path, run):
    whole, report = run
    assert len(report.acceptance) == 3
    assert losses(whole)[-1] < losses(whole)[0]
    draft(base, store, tmp_path / "cut", "steps=4", "cooldown=0")
    with pytest.raises(ValueError, match=r"other settings \(cooldown: 0.0 -> 0.5\); give the same"):
        draft(base, store, tmp_path / "cut", "steps=8")
    draft(base, store, tmp_path / "cut", "steps=8", "cooldown=0")
    assert losses(tmp_path / "cut")[-1] == losses(whole)[-1]
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (whole / name).read_bytes()


def test_a_run_begins_with_another_ones_weights(base, store, tmp_path, run):
    draft(base, store, tmp_path / "more", "steps=1", "lr=1e-12", "muon_lr=1e-12", begin=run[0])
    network = base_of(load_denoiser(base))
    own, more = (load_drafter(one, network, base) for one in (run[0], tmp_path / "more"))
    for name, value in own.state_dict().items():
        assert torch.allclose(more.state_dict()[name], value, atol=1e-2), name
    with pytest.raises(ValueError, match="is a drafter of other sizes"):
        draft(base, store, tmp_path / "other", "rank=5", begin=run[0])


def test_a_folder_of_something_else_is_left_alone(base, store, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ValueError, match=r"not empty \(letter.txt is there\) and not a drafter's"):
        draft(base, store, tmp_path, "steps=1", fresh=True)
    with pytest.raises(ValueError, match=r"no setting 'layer'; the nearest is 'layers'"):
        configure(["layer=2"])
    with pytest.raises(ValueError, match=r"setting 'layers' has no value; write key=value"):
        configure(["layers"])
    with pytest.raises(ValueError, match=r"letter.txt is, or lies in, a file; give the name of a"):
        draft(base, store, tmp_path / "letter.txt", "steps=1")
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_a_drafter_that_would_guess_nothing_is_refused(base, run, capsys):
    asked = ["generate", "a", "--model", str(base), "--drafter", str(run[0]), "--length", "2"]
    for more in ([], ["--mode", "autoregressive"]):
        assert main([*asked, *more]) == 2
        assert "--drafter is for --mode speculative; give that" in capsys.readouterr().err


def test_an_adapter_names_the_model_whose_drafter_it_uses(store, tmp_path):
    adapter = causal.save_adapted(tmp_path / "adapter")
    with pytest.raises(ValueError, match=r"run is an adapter and uses the drafter of .*base"):
        draft(adapter, store, tmp_path / "out", "steps=1")
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("unchecked")
def test_another_model_is_refused_by_name(base, run, tmp_path):
    out, _ = run
    network = base_of(load_denoiser(base))
    assert load_drafter(out, network, base).config.base == str(base)
    other = causal.save(tmp_path / "other", "llama-tied", seed=1)
    with pytest.raises(ValueError, match=rf"was trained with '{base}', and {other} has other"):
        load_drafter(out, base_of(load_denoiser(other)), other)
    with pytest.raises(ValueError, match=r"has a vocabulary of .*, and .* one of 63; give a"):
        load_drafter(out, tiny.llama(V=63), base)
    with pytest.raises(ValueError, match=r"contains no drafter; give a folder that"):
        load_drafter(base, network, base)
    with pytest.raises(ValueError, match=r"drafter is empty; give the name of a file or folder"):
        SSDLM.from_pretrained(base, drafter="")
    with pytest.raises(ValueError, match=r"drafter=5 is no path; give the name of a file or fol"):
        SSDLM.from_pretrained(base, drafter=5)


def test_a_broken_file_is_refused(base, run, tmp_path):
    out, _ = run
    network = base_of(load_denoiser(base))
    drafter = load_drafter(out, network, base)
    weights = drafter.state_dict()
    weights.pop("into")
    save_drafter(drafter.config, weights, tmp_path)
    with pytest.raises(ValueError, match=r"lacks into"):
        load_drafter(tmp_path, network, base)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match=r"is truncated or corrupt; get it anew"):
        load_drafter(tmp_path, network, base)


@pytest.mark.parametrize("network", [tiny.block(), tiny.llama()], ids=["block", "llama"])
def test_texts_are_read_as_decoding_reads_them(network):
    tokens = torch.randint(64, (2, 9), generator=torch.Generator().manual_seed(1))
    texts = read_texts(network, tokens, (1,))
    drafter = tiny.drafter(network, guesses=2, reads=(1,))
    own = network.next_logits(network.prefill(tokens[:, :0]), tokens)
    assert torch.allclose(drafter.logits(texts.hidden), own, atol=1e-4)
    # What comes behind an anchor is not seen, but for the tokens before later guesses.
    other = tokens.clone()
    other[:, 6:] = 0
    rows = [
        drafter(one, read_texts(network, one, (1,)), torch.tensor([4])) for one in (tokens, other)
    ]
    assert torch.equal(rows[0], rows[1])


def test_guesses_of_the_model_itself_are_right():
    network = tiny.llama()
    drafter = tiny.drafter(network, guesses=2)
    [text] = write_texts(network, [[1, 2, 3]], 12, seed=0, top_p=1.0)
    table = right_guesses(drafter, text)
    assert table.shape == (11, 2)
    assert table[-1, 1] == -1
    drafter.forward = lambda tokens, texts, anchors: torch.stack(
        [texts.hidden[:, anchors], texts.hidden[:, anchors]], 2
    )
    assert acceptance(drafter, [text])[0] == 1


def test_targets_are_the_nucleus():
    logits = torch.randn(5, 8192, generator=torch.Generator().manual_seed(0))
    for found, exact in zip(largest(logits, 100), logits.topk(100), strict=True):
        assert torch.equal(found, exact)
    network = tiny.llama()
    ids, probs = targets(tiny.drafter(network), torch.randn(3, 32), 0.5)
    assert torch.allclose(probs.sum(-1), torch.ones(3))
    assert bool((probs[:, 0] > 0).all())
    assert ids.shape == (3, 64)
    assert until([3, 1, 2, 1], frozenset({1})) == [3, 1]
