"""Triton bodies against the plain ones, on a GPU or, with TRITON_INTERPRET=1, on a CPU.

What the interpreter cannot run is left out there: programmatic launches, which begin while the
launch before is at work, and products that are a library's (GELU within one, in bfloat16). It takes
reductions by functions of ours number by number, so vocabularies are small there, and none is too
wide for one tile.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.closeness import NETWORK, assert_close

from ssdlm.ops import counters, draws, encoder, guesses, nudges, rows, verify
from ssdlm.ops.rotary import rotation

pytest.importorskip("triton")
# Of a choice between two values a kernel computes both; numpy, which interprets it, warns of one.
pytestmark = [
    pytest.mark.kernel,
    pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARIES = [1000, 9001] if DEVICE == "cuda" else [60]


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def there(*tensors):
    """The tensors where kernels run, copied, so that what is written over is not shared."""
    return [one.to(DEVICE, copy=True) if isinstance(one, torch.Tensor) else one for one in tensors]


@pytest.mark.parametrize("M", [1, 2, 4, 5, 12, 20, 40, 100])
@pytest.mark.parametrize("is_invariant", [False, True])
def test_products_with_what_stands_around_them(M, is_invariant):
    from ssdlm.ops.kernels import products

    plan = products.INVARIANT if is_invariant else None
    x, weight, old = normals(M, 96), normals(160, 96, seed=1), normals(M, 160, seed=2)
    for is_squared in (False, True):
        plain = rows.normed_product(x.unsqueeze(0), weight, is_squared=is_squared)[0]
        found = products.normed_product(*there(x, weight), is_squared=is_squared, plan=plan)
        assert_close(found.cpu(), plain, roundings=NETWORK)
    scale = 1 + normals(96, seed=3) / 4
    plain = rows.normed_product(x.unsqueeze(0), weight, scale, eps=1e-5, is_gated=True)[0]
    gated = {"eps": 1e-5, "is_gated": True, "plan": plan}
    found = products.normed_product(*there(x, weight, scale), **gated)
    assert_close(found.cpu(), plain, roundings=NETWORK)
    found = products.product(*there(x, weight), plan=plan)
    assert_close(found.cpu(), x @ weight.T, roundings=NETWORK)
    found = products.add_product_(*there(old, x, weight), plan=plan)
    plain = rows.add_product_(old.clone().unsqueeze(0), x.unsqueeze(0), weight)[0]
    assert_close(found.cpu(), plain, roundings=NETWORK)


def test_wide_matrices_of_several_rows_are_for_a_library():
    from ssdlm.ops.kernels import products

    wide, narrow = (torch.empty(16, K, dtype=torch.bfloat16) for K in (2048, 576))
    assert products.is_quick(wide[:1], 8192) and products.is_quick(narrow, 49152)
    assert products.is_quick(wide, 512) and not products.is_quick(wide[:8], 2048)


def test_a_row_of_an_invariant_product_does_not_depend_on_how_many_there_are():
    from ssdlm.ops.kernels import products

    x, weight = there(normals(70, 96), normals(160, 96, seed=1))
    whole = products.product(x, weight, plan=products.INVARIANT)
    for count in (1, 3, 17, 64):
        alone = products.product(x[:count], weight, plan=products.INVARIANT)
        assert torch.equal(alone, whole[:count])


def test_norms_and_squares():
    from ssdlm.ops.kernels import rows as kernels

    x = normals(7, 96)
    assert_close(kernels.norm(*there(x)).cpu(), rows.plain_norm(x), roundings=NETWORK)
    assert_close(kernels.relu_squared_(*there(x)).cpu(), F.relu(x).square())


def some_rows(kind):
    if kind == "tree":
        sees = torch.eye(40, dtype=torch.bool)
        sees[:, 0] = True
        sees[20:, 7] = True
        return rows.Rows(torch.arange(40) // 13, sees)
    device = torch.device("cpu")
    return {"window": rows.Rows.window(2, device), "prompt": rows.Rows.causal(20, device)}[kind]


@pytest.mark.parametrize("kind", ["window", "prompt", "tree"])
@pytest.mark.parametrize("is_invariant", [False, True])
@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("has_counts", [False, True])
@pytest.mark.parametrize("is_full", [False, True])
def test_rows_attend_to_their_slots_and_to_each_other(
    kind, is_invariant, group, has_counts, is_full, monkeypatch
):
    if has_counts and (is_invariant or kind == "tree"):
        pytest.skip("texts have fewer rows in blocks alone")
    if is_full and is_invariant:
        pytest.skip("rows alone have one way")
    from ssdlm.ops.kernels import rows as kernels

    if is_full:  # of programs, which then read nothing ahead
        monkeypatch.setattr(kernels, "MANY", 0)
    N, H, d, S = 3, 2, 16, 160
    table = some_rows(kind)
    R = len(table.offsets)
    qkv = normals(N, R, (group + 2) * H, d)
    weights = (1 + normals(2, d, seed=3) / 4) if kind == "tree" and group > 1 else None
    norms = None if kind == "window" and group > 1 else rows.HeadNorms(1e-5, weights)
    keys, values = normals(5, H, S, d, seed=1), normals(5, H, S, d, seed=2)
    at = rows.Behind(table, torch.tensor([4, 0, 2]), torch.tensor([0, 70, 5]))
    angles = rotation(torch.arange(S), d).squeeze(2).transpose(0, 1).contiguous()
    attend = kernels.place_and_attend_alone if is_invariant else kernels.place_and_attend
    moved = rows.Rows(*there(table.offsets, table.sees))
    tables = there(keys, values, at.lengths, at.slots)
    own = norms and norms._replace(weights=there(weights)[0])
    counts = torch.tensor([R - 1, R, 2]) if has_counts else None
    given = {"counts": counts.to(DEVICE)} if has_counts else {}
    at = at._replace(counts=counts)
    found = attend(*there(qkv), *tables, moved, *there(angles), own, **given)
    plain = rows.place_and_attend(qkv, keys, values, at, angles, norms)
    assert_close(found.cpu(), plain, roundings=NETWORK)
    assert_close(tables[0].cpu(), keys, roundings=NETWORK)
    assert torch.equal(tables[1].cpu(), values)


@pytest.mark.gpu
def test_the_last_rows_of_a_prompt_whose_pairs_are_more_than_32_bits_count():
    from ssdlm.ops.kernels import rows as kernels

    R, d, last = 46_400, 16, 20
    parts = (normals(1, R, 1, d, seed=n).to(DEVICE) for n in range(3))
    query, key, value = (part.transpose(1, 2).contiguous() for part in parts)
    nothing = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    sees = rows.Rows.causal(R, torch.device(DEVICE)).sees
    found = kernels.attend(query.transpose(1, 2), key, value, nothing, nothing, sees)
    plain = F.scaled_dot_product_attention(query[:, :, -last:], key, value, attn_mask=sees[-last:])
    assert_close(found[:, -last:].cpu(), plain.transpose(1, 2).cpu(), roundings=NETWORK)


def test_a_guess_attends_as_the_same_word_does_when_it_is_read_later():
    from ssdlm.ops.kernels import rows as kernels

    H, d, S, length = 2, 16, 160, 62
    angles = rotation(torch.arange(S), d).squeeze(2).transpose(0, 1).contiguous()
    qkv, keys, values = normals(1, 4, 3 * H, d), normals(1, H, S, d), normals(1, H, S, d, seed=1)
    parents = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    tree = rows.Rows(*there(torch.tensor([0, 1, 1, 2]), parents))
    slot, lengths = there(torch.tensor([0]), torch.tensor([length]))
    tables = there(keys, values)
    whole = kernels.place_and_attend_alone(
        *there(qkv), *tables, lengths, slot, tree, *there(angles), rows.HeadNorms()
    )
    one, tables = rows.Rows.causal(1, torch.device(DEVICE)), there(keys, values)
    for place, node in enumerate((0, 2, 3)):
        row = there(qkv[:, node : node + 1])
        behind = lengths + place, slot, one, *there(angles), rows.HeadNorms()
        alone = kernels.place_and_attend_alone(*row, *tables, *behind)
        assert torch.equal(alone[:, 0], whole[:, node])


def settings_of(N):
    """What N texts ask for: suppressed tokens, temperatures, nuclei, seeds, steps, streams."""
    whole = torch.arange(N)
    top_ps = torch.tensor([0.0, 0.5, 0.9, 0.99, 1.0])[whole % 5]
    return whole % 7 - 1, 0.5 + whole / N, top_ps, 2**33 + whole, whole % 3, whole % 4


@pytest.mark.parametrize("V", VOCABULARIES)
@pytest.mark.parametrize("has_evidence", [False, True])
def test_draws(V, has_evidence):
    from ssdlm.ops.kernels import draws as kernels

    N, W = 10, 2
    logits, prior = 3 * normals(N, W, V), normals(V, seed=1)
    evidence = 2 * normals(N, W, V, seed=2) if has_evidence else None
    settings = settings_of(N)
    settings[2][6:8] *= -1  # the likeliest of the nucleus
    trust = torch.zeros(N, W)
    (found_trust,) = there(torch.zeros(N, W))
    plain = draws.draw(logits, prior, evidence, *settings, trust)
    found = kernels.draw(*there(logits, prior, evidence, *settings), found_trust).cpu()
    # A sum in another order may fall on the other side of a boundary.
    assert int((found != plain).sum()) <= 1
    same = found == plain
    assert torch.allclose(found_trust.cpu()[same], trust[same], rtol=1e-3, atol=1e-6)
    assert torch.equal(kernels.draw(*there(logits, prior, evidence, *settings)).cpu(), found)


@pytest.mark.parametrize("scale", [0.01, 6.0])
@pytest.mark.parametrize("N", [8, 40])
def test_a_wide_vocabulary_is_drawn_from_as_a_narrow_one(scale, N):
    from ssdlm.ops.kernels import draws as kernels

    W = 3
    V, tile = (5003, 2048) if DEVICE == "cuda" else (301, 64)
    logits, prior = there(scale * normals(N, W, V), normals(V, seed=1))
    settings = there(*settings_of(N))
    trusts = torch.zeros(2, N, W, device=logits.device)
    narrow = kernels.draw(logits, prior, None, *settings, trusts[0])
    # By other cuts for 8 texts than for 40.
    wide = kernels.draw_wide(logits, prior, *settings, trusts[1], tile=tile)
    assert int((narrow != wide).sum()) <= 2
    assert torch.allclose(*trusts[:, narrow == wide], rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("V", VOCABULARIES)
def test_perturbed_draws(V):
    from ssdlm.ops.kernels import draws as kernels

    N, R = 10, 3
    logits, prior = 3 * normals(N, R, V), normals(V, seed=1)
    *settings, _, _ = settings_of(N)
    places = torch.arange(N * R).view(N, R)
    plain = draws.draw_perturbed(logits, prior, *settings, places, counters.GUMBEL)
    found = kernels.draw_perturbed(*there(logits, prior, *settings, places), counters.GUMBEL)
    assert int((found.cpu() != plain).sum()) <= 1


@pytest.mark.parametrize("V", VOCABULARIES)
@pytest.mark.parametrize("has_evidence", [False, True])
def test_draws_among_the_likeliest(V, has_evidence):
    from ssdlm.ops.kernels import draws as kernels

    N, W = 12, 2
    logits, prior = 3 * normals(N, W, V), normals(V, seed=1)
    evidence = 2 * normals(N, W, V, seed=2) if has_evidence else None
    settings, rest = settings_of(N)[:3], settings_of(N)[3:]
    cuts = torch.tensor([0, 1, 7])[torch.arange(N) % 3], torch.tensor([0.0, 0.2])[settings[0] % 2]
    plain = draws.draw(logits, prior, evidence, *settings, *rest, cuts=cuts)
    own, nothing, left = draws.cut_rows(*there(logits + prior, *settings, *cuts))
    found = kernels.draw(own, nothing, *there(evidence), *left, *there(*rest)).cpu()
    assert int((found != plain).sum()) <= 1
    assert int((plain != draws.draw(logits, prior, evidence, *settings, *rest)).sum()) > 2
    places = torch.arange(N * W).view(N, W)
    after = rest[0], places, counters.GUMBEL
    plain = draws.draw_perturbed(logits, prior, *settings, *after, cuts)
    found = kernels.draw_perturbed(own, nothing, *left, *there(*after)).cpu()
    assert int((found != plain).sum()) <= 1


@pytest.mark.parametrize("own_gains", [False, True])
def test_evidence_at_a_new_level(own_gains):
    from ssdlm.ops.kernels import draws as kernels

    N, W, V = 4, 3, 1001
    tokens = torch.arange(N * W).view(N, W) * 80
    gains = [normals(N, W, seed=seed).abs() for seed in (1, 2)]
    gains = gains if own_gains else [gain[0].contiguous() for gain in gains]
    *_, seeds, steps, streams = settings_of(N)
    plain, found = torch.zeros(N, W, V), torch.zeros(N, W, V, device=DEVICE)
    counters_of = tokens, *gains, seeds, steps, streams, torch.arange(N) % 3
    draws.new_evidence_(plain, *counters_of)
    kernels.new_evidence_(found, *there(*counters_of))
    assert_close(found.cpu(), plain, roundings=NETWORK)


def test_normals():
    from ssdlm.ops.kernels import normals as kernels

    seeds = torch.tensor([5, 2**40 + 3])
    plain = counters.normal(seeds, block=1, step=7, B=3, V=1001, first=2)
    stream = counters.NUM_STREAMS + counters.NORMAL
    found = kernels.normals(*there(seeds), stream=stream, step=7, B=3, V=1001, first=2)
    assert_close(found.cpu(), plain, roundings=NETWORK)


def test_what_guesses_begin_with():
    from ssdlm.ops.kernels import guesses as kernels

    N, R, G, V, D = 3, 4, 2, 50, 24
    shapes = (D, D), (D, D), (V, D), (G, D)
    parts = guesses.Start(*(normals(*shape, seed=n) / 3 for n, shape in enumerate(shapes)))
    hidden, ends, newest = (
        normals(N, R, D, seed=4),
        torch.tensor([0, 3, 1]),
        torch.tensor([7, 0, 49]),
    )
    plain = guesses.start_rows(hidden, ends, newest, parts, is_invariant=False)
    states = hidden @ parts.hidden.T
    found = kernels.start_rows(*there(states, ends, newest, parts.word_table, parts.places))
    assert_close(found.cpu(), plain, roundings=NETWORK)


def guessing_settings():
    """What three texts ask for: suppressed tokens, temperatures, nuclei, seeds, tokens so far."""
    settings = [torch.tensor([-1, 5, -1]), torch.tensor([1.0, 0.7, 1.3])]
    settings += [torch.tensor([0.9, 0.0, 1.0]), torch.tensor([11, 5 << 40 | 3, 7])]
    return [*settings, torch.tensor([0, 4, 9])]


@pytest.mark.parametrize("tile", [128, 16])
def test_chains_of_guesses(monkeypatch, tile):
    from ssdlm.ops.kernels import guesses as kernels

    monkeypatch.setattr(kernels, "TILE", tile)
    V, N, G, r = 200, 3, 4, 12  # the last tile is not whole, and a CPU looks at all of so few
    shapes = (V, 24), (V, 24), (r, 24), (24, r)
    cell = guesses.Cell(*(normals(*shape, seed=n) / 3 for n, shape in enumerate(shapes)))
    logits, prior, given = 2 * normals(N, G, V), normals(V), normals(N, G, r, seed=1)
    plain = torch.randint(V, (N, 1 + G), generator=torch.Generator().manual_seed(0))
    (found,) = there(plain)
    settings = prior, *guessing_settings()
    tables = there(given, cell.word_table, cell.head_table, *settings)
    kernels.put_guesses_(found, *there(logits), *tables, counters.GUMBEL)
    scores, ids = guesses.likeliest(logits, *settings)
    alone = ids.gather(2, scores.argmax(-1, keepdim=True))[..., 0]
    guesses.put_guesses_(plain, logits, given, cell, *settings)
    assert torch.equal(found.cpu(), plain)
    assert (plain[:, 1:] != alone).any()  # the cell has a say


def test_right_guesses_become_text():
    from ssdlm.ops.kernels import verify as kernels

    N, R = 4, 3
    guesses = torch.randint(50, (N, R), generator=torch.Generator().manual_seed(5))
    chosen = torch.full_like(guesses, 99)
    chosen[1, 0], chosen[2, :2] = guesses[1, 1], guesses[2, 1:]
    tables = {
        "limits": torch.full((N,), 20), "active": torch.tensor([1, 1, 1, 0]),
        "steps": torch.arange(N), "done": torch.tensor([3, 4, 5, 6]),
        "lengths": torch.tensor([7, 8, 9, 10]), "text": torch.zeros(N, 30).long(),
        "when": torch.zeros(N, 30).long(),
    }  # fmt: skip
    moved = {name: there(table)[0] for name, table in tables.items()}
    own_guesses, (there_guesses,) = guesses.clone(), there(guesses)
    ends = kernels.advance_(*there(chosen), there_guesses, **moved)
    assert verify.advance_(chosen, own_guesses, **tables).tolist() == [0, 1, 2, 0]
    assert ends.tolist() == [0, 1, 2, 0]
    for name, table in tables.items():
        assert torch.equal(moved[name].cpu(), table), name
    assert torch.equal(there_guesses.cpu(), own_guesses)


@pytest.mark.parametrize("V", [1001, 8192])
@pytest.mark.parametrize("W", [1, 3])
@pytest.mark.parametrize("plausible", [0.0, 0.01])
def test_nudges_are_those_of_words_that_stand_out(V, W, plausible):
    from ssdlm.ops.kernels import nudges as kernels

    N = 5
    logits, base = 6 * normals(N, W, V), normals(N, W, V, seed=1)
    logits[..., ::5] -= 100  # never drawn
    gradient = normals(N, W, V, seed=2) ** 3
    ids = torch.randint(V, (N, 40), generator=torch.Generator().manual_seed(3))
    present = torch.zeros(N, V, dtype=torch.bool).scatter(1, ids[:, :-1], True)
    active, most = torch.tensor([1, 0, 1, 1, 1]), torch.tensor(-1.0)
    known = base, logits, gradient, present, ids[:, -1:].contiguous(), active, most
    moved, how = there(*known), {"scale": 5.0, "threshold": 2.0}
    margin = math.log(1 / plausible) if plausible else math.inf
    found = kernels.add_nudge(*moved, **how, margin=margin, smallest=nudges.SMALLEST)
    plain = nudges.add_nudge(*known, **how, plausible=plausible)
    assert_close(found.cpu(), plain, roundings=NETWORK)
    assert torch.equal(moved[3].cpu(), present)
    assert_close(moved[6].cpu(), most, roundings=NETWORK)
    assert ((plain - base) != 0).any(-1).all()
    is_likely = logits >= logits.amax(-1, keepdim=True) + math.log(plausible or 0.01)
    assert bool((plain > base)[~is_likely].any()) == (not plausible)


def test_an_encoders_noisy_input():
    from ssdlm.ops.kernels import encoder as kernels

    V, tokens = 1001, torch.tensor([[3, 500, 9], [7, 7, 1000]])
    gains = torch.tensor([3.0, 4.0]), torch.tensor([6.0, 0.0])
    seeds, steps = torch.tensor([11, 12]), torch.tensor([4, 4])
    settings = tokens, *gains, seeds, steps, torch.full_like(steps, counters.NORMAL)
    sizes = {"V": V, "width": 1024, "dtype": torch.float32}
    weights, sums = kernels.noised_weights(*there(*settings), **sizes)
    plain, plain_sums = encoder.noised_weights(*settings, **sizes)
    assert_close((weights / sums).cpu(), plain / plain_sums, roundings=NETWORK)
    assert not weights[:, V:].any()


def test_an_encoders_attention_and_norms():
    from ssdlm.ops.kernels import encoder as kernels

    N, B, C, H, d = 3, 5, 9, 2, 16
    qkv = normals(N, B + C, 3, H, d)
    lengths, sizes = torch.tensor([9, 0, 4]), torch.tensor([5, 2, 5])
    plain = encoder.attend_all(qkv, lengths, sizes, B, count=B)
    found = kernels.attend_all(*there(qkv, lengths, sizes), B, count=B)
    assert_close(found.cpu(), plain, roundings=NETWORK)
    norm = torch.nn.LayerNorm(96)
    torch.nn.init.normal_(norm.weight)
    x, y = normals(7, 96), normals(7, 96, seed=1)
    with torch.no_grad():
        found = kernels.add_norm_(*there(x, y), norm.to(DEVICE)).cpu()
        assert_close(found, encoder.add_norm_(x.clone(), y, norm.cpu()), roundings=NETWORK)


@pytest.mark.gpu
def test_gelu_by_a_product_is_that_of_the_layer_within_bfloat16():
    dense = torch.nn.Linear(128, 256, device="cuda", dtype=torch.bfloat16)
    x = normals(40, 1, 128)[:, 0].bfloat16().cuda()
    plain = F.gelu(dense(x).float())
    assert_close(encoder.gelu_product(x, dense), plain, roundings=2)
