"""int8 weights with a scale for each row."""

from dataclasses import replace

import torch
from tests import causal, tiny

from ssdlm import SSDLM
from ssdlm.cli import main
from ssdlm.storage import checkpoint
from ssdlm.storage.int8 import dequantise, quantise
from ssdlm.storage.tensors import is_finite


def some_tensors():
    generator = torch.Generator().manual_seed(0)
    return {
        "matrix": torch.randn(40, 64, generator=generator) * torch.logspace(-3, 3, 40)[:, None],
        "cube": torch.randn(3, 5, 7, generator=generator),
        "vector": torch.randn(9, generator=generator),
        "zeros": torch.zeros(2, 3),
    }


def test_a_value_moves_by_half_a_step_of_its_row_at_most():
    tensors = some_tensors()
    small = quantise(tensors)
    again = dequantise(small)
    assert again.keys() == tensors.keys()
    for name in ("matrix", "cube", "zeros"):
        assert small[name].dtype == torch.int8
        step = small[name + ".scale"].float().unsqueeze(-1)
        assert ((again[name] - tensors[name]).abs() <= 0.5001 * step).all()
    assert torch.equal(again["vector"], tensors["vector"].half())
    large = {"vector": torch.tensor([1e5, 1.0])}
    assert torch.equal(quantise(large)["vector"], large["vector"]), "fp16 has no room for it"


def test_it_takes_a_quarter_of_the_space_and_a_second_time_changes_nothing():
    tensors = {"matrix": torch.randn(256, 512, generator=torch.Generator().manual_seed(0))}
    small = quantise(tensors)
    size = sum(tensor.nbytes for tensor in small.values())
    assert size < 0.26 * tensors["matrix"].nbytes
    again = dequantise(small)
    assert torch.allclose(dequantise(quantise(again))["matrix"], again["matrix"], atol=1e-2)


def test_a_quantised_model_is_opened_like_any_other(tmp_path):
    denoiser = tiny.encoder()
    checkpoint.save_denoiser(denoiser, tmp_path, quantise(checkpoint.tensors_to_write(denoiser)))
    stored = checkpoint.read_tensors(tmp_path / "model.safetensors")
    again = SSDLM.from_pretrained(tmp_path, device="cpu").denoiser
    assert sum(t.dtype == torch.int8 for t in stored.values()) == 0
    for name, value in denoiser.state_dict().items():
        assert (again.state_dict()[name] - value).abs().max() <= value.abs().max() / 127


def test_int8_weights_are_taken_over_and_others_are_copied(tmp_path, monkeypatch):
    taken = []
    monkeypatch.setattr(
        checkpoint, "fill", lambda *args, is_copied, **kwargs: taken.append(not is_copied)
    )
    for save in (checkpoint.save_as_int8, checkpoint.save_denoiser):
        save(tiny.block(), tmp_path)
        checkpoint.load_ours(tmp_path)
    assert taken == [True, False]


def test_tensors_that_are_no_int8_get_memory_of_their_own_beside_those_that_are():
    small = quantise({"matrix": torch.randn(2, 3), "vector": torch.ones(3)})
    large = dequantise(small)
    small["vector"].zero_()
    assert large["vector"].tolist() == [1.0, 1.0, 1.0]


def test_a_sum_that_overflows_is_no_infinity_in_the_weights():
    large = torch.full((4,), 3e38)
    assert is_finite(large) and is_finite(torch.zeros(0))
    for bad in (torch.inf, -torch.inf, torch.nan):
        assert not is_finite(torch.tensor([1.0, bad]))
    assert not is_finite(torch.tensor([torch.inf, -torch.inf]))


def test_an_adapter_in_int8_says_nearly_the_same_of_the_same_model(tmp_path):
    run, small = causal.save_adapted(tmp_path), tmp_path / "small"
    assert main(["convert", str(run), str(small), "--quantise", "int8"]) == 0
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (run, small)]
    assert sizes[1] < 0.5 * sizes[0]  # a header, and scales of tiny rows
    context, levels = torch.arange(12).unsqueeze(0), torch.full((1, 4), 0.4)
    w_t = 5 * torch.randn(1, 4, tiny.V, generator=torch.Generator().manual_seed(2))

    def says(denoiser):
        logits = denoiser.adapted_logits(denoiser.prefill(context), w_t, levels)
        return logits.log_softmax(-1)

    large, less = map(checkpoint.load_denoiser, (run, small))
    assert replace(less.config, tokens="") == large.config
    new = checkpoint.build(large.config).eval().requires_grad_(False)
    own = says(large)
    # The divergence from it, in nats: of what the adapter does, less than a hundredth is lost.
    lost, all_of_it = ((own.exp() * (own - says(one))).sum(-1).mean() for one in (less, new))
    assert 0 < lost < 0.01 * all_of_it
