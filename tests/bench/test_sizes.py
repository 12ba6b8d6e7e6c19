"""Sizes are the shapes that their names promise."""

import torch

from ssdlm import SSDLM
from ssdlm.bench.sizes import SIZES, original_network, prompts_for, random_model, random_weights
from ssdlm.storage.checkpoint import find, read_config

CPU = torch.device("cpu")
TINY = {"device": CPU, "dtype": torch.float32, "max_len": 30}


def test_mini_is_the_shape_of_the_built_in_model():
    config = read_config(find("builtin:mini"))
    shape = SIZES["mini"].block()
    for name in ("V", "D", "num_layers", "num_heads", "expansion"):
        assert getattr(shape, name) == getattr(config, name)


def test_roberta_large_is_as_large():
    backbone = SIZES["roberta-large"].encoder(200).backbone
    assert (backbone["num_hidden_layers"], backbone["hidden_size"]) == (24, 1024)
    assert (backbone["num_attention_heads"], backbone["intermediate_size"]) == (16, 4096)
    assert (backbone["vocab_size"], backbone["max_position_embeddings"]) == (50265, 514)


def test_random_weights_are_the_same_every_time_and_leave_the_generator_alone():
    state = torch.get_rng_state()
    for config in (SIZES["tiny"].block(), SIZES["tiny"].encoder(30)):
        one, other = (random_weights(config, CPU, torch.bfloat16) for _ in range(2))
        pairs = zip(one.parameters(), other.parameters(), strict=True)
        assert all(torch.equal(a, b) and a.dtype == torch.bfloat16 for a, b in pairs)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_longer_text_than_a_roberta_has_room_for_gets_more_positions():
    model = random_model("tiny", "encoder", **TINY | {"max_len": 700})
    assert model.denoiser.max_len == 700


def test_an_engine_is_deterministic_where_that_is_asked_for():
    for family in ("encoder", "block"):
        for wanted in (False, True):
            model = random_model("tiny", family, **TINY, deterministic=wanted)
            assert model.engine.is_deterministic is wanted


def test_the_authors_network_is_an_encoder_of_that_size():
    network = original_network("tiny", CPU, max_len=30)
    assert network.simplex_embed.weight.shape == (32, 211)
    assert network.masked_lm.config.num_hidden_layers == 2
    assert network.simplex_embed.weight.dtype == torch.float32


def test_prompts_of_random_weights_are_random_ids():
    model = random_model("tiny", "block", **TINY)
    prompts = prompts_for(model, batch=3, context=7)
    assert [len(ids) for ids in prompts] == [7] * 3
    assert prompts == prompts_for(model, batch=3, context=7)
    assert len(set(map(tuple, prompts))) == 3


def test_prompts_of_the_built_in_model_are_its_own_words():
    model = SSDLM.from_pretrained("builtin:mini", device="cpu")
    prompts = prompts_for(model, batch=2, context=6)
    assert [len(ids) for ids in prompts] == [6, 6]
    assert prompts[0] != prompts[1]
    assert model.tokenizer.end_of_text not in prompts[0] + prompts[1]
    # A row does not depend on its neighbours, and text is likelier than random ids.
    assert prompts_for(model, batch=1, context=6) == prompts[:1]
    ids = torch.tensor(prompts)
    cache = model.denoiser.prefill(ids[:, :1])
    said = model.denoiser.next_logits(cache, ids[:, 1:-1]).log_softmax(-1)
    nll = -said.gather(-1, ids[:, 2:].unsqueeze(-1)).mean()
    assert nll < 6
