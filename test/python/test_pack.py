"""rrfp.pack() packs each sample once, evenly, within its limits; the tensors of a microbatch are those of transformers."""

import functools
import itertools
import json
import math
import random
import subprocess
import sys

import numpy as np
import pytest
import rrfp

LLAMA = dict(hidden=4096, layers=32, heads=32, kv_heads=8, feed_forward=14336, vocabulary=128256)


def lognormal(n, seed=0):
    draw = random.Random(seed)
    return [min(4096, max(1, round(draw.lognormvariate(6.2, 0.8)))) for _ in range(n)]


def long_tailed(n, seed=0):
    draw = random.Random(seed)
    return [min(8192, round(100 * draw.paretovariate(1.0))) for _ in range(n)]


def chats(n, seed=0):
    draw = random.Random(seed)
    return [min(8192, sum(round(draw.lognormvariate(4.8, 0.7)) for _ in range(draw.randint(1, 6)))) for _ in range(n)]


def indices_of(steps):
    return [i for step in steps for replica in step for microbatch in replica for i in microbatch]


def has_outlier(step, costs):
    mean = sum(map(sum, step.costs)) / sum(map(len, step.costs))
    return max(costs[i] for i in indices_of([step])) > 0.9 * mean


@pytest.mark.parametrize("draw", [lognormal, long_tailed, chats], ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("replicas", [1, 4])
def test_an_epoch_has_each_sample_once_with_even_work(draw, replicas):
    lengths = draw(6000)
    cost = rrfp.CostModel.from_sizes(**LLAMA)
    packing = rrfp.pack(
        lengths, max_tokens=32768, microbatches=8, replicas=replicas, batch_size=256 * replicas, cost=cost, seed=3
    )
    steps = list(packing)
    assert sorted(indices_of(steps)) == list(range(6000))
    even = [step for step in steps if not has_outlier(step, [cost(n) for n in lengths])]
    assert even
    for step in even:
        assert step.imbalance.microbatches < 1.03 and step.imbalance.replicas < 1.03
    for step in steps:
        assert [len(replica) for replica in step] == [8] * replicas
        for microbatches, tokens, costs in zip(step, step.tokens, step.costs):
            for microbatch, its_tokens, its_cost in zip(microbatches, tokens, costs):
                assert its_tokens == sum(lengths[i] for i in microbatch) <= 32768
                assert its_cost == pytest.approx(sum(cost(lengths[i]) for i in microbatch))


def test_images_are_balanced_by_their_patches():
    draw = random.Random(1)
    images = [[draw.choice([256, 1024]) for _ in range(draw.randint(0, 3))] for _ in range(4000)]
    lengths = [round(draw.lognormvariate(5, 0.8)) + 1 + sum(patches) // 4 for patches in images]
    vision = dict(hidden=1280, layers=32, heads=16, patches_per_token=4)
    model = rrfp.CostModel.from_sizes(**LLAMA, vision=vision)
    costs = [model(n, patches) for n, patches in zip(lengths, images)]
    by_cost = rrfp.pack(lengths, microbatches=8, replicas=2, batch_size=256, cost=costs)
    assert by_cost.imbalance.microbatches < 1.03 and by_cost.imbalance.replicas < 1.001


def test_without_a_step_size_all_samples_are_one_step_of_few_microbatches():
    (step,) = rrfp.pack([300] * 12, max_tokens=900, replicas=2)
    assert [len(replica) for replica in step] == [2, 2]
    assert step.tokens == [[900, 900], [900, 900]]
    (step,) = rrfp.pack([5, 6, 7])
    assert step == [[[0, 1, 2]]] and step.imbalance == rrfp.Imbalance(1, 1) and step.delays == {}


def test_the_number_of_microbatches_follows_from_the_stages():
    lengths = [1 + i % 7 for i in range(400)]
    by_stages = rrfp.pack(lengths, max_tokens=64, stages=3, replicas=2, batch_size=200)
    assert list(by_stages) == list(rrfp.pack(lengths, max_tokens=64, microbatches=12, replicas=2, batch_size=200))
    with pytest.raises(ValueError, match="stages: expected an integer >= 1"):
        rrfp.pack(lengths, stages=0)


def test_batch_tokens_limit_the_tokens_of_a_step():
    lengths = lognormal(2000)
    steps = list(rrfp.pack(lengths, max_tokens=8192, microbatches=4, batch_tokens=24000))
    assert sorted(indices_of(steps)) == list(range(2000))
    totals = [sum(map(sum, step.tokens)) for step in steps]
    assert max(totals) <= 24000 and min(totals[:-1]) > 24000 - 4096


def test_outliers_wait_for_each_other_for_some_steps_at_most():
    lengths = [2000 if i % 40 == 0 else 50 for i in range(4000)]
    at_once = rrfp.pack(lengths, microbatches=8, batch_size=40)
    waiting = rrfp.pack(lengths, microbatches=8, batch_size=40, delay=12)
    steps = list(waiting)
    assert sorted(indices_of(steps)) == list(range(4000))
    waited = [n for step in steps for n in step.delays.values()]
    assert waited and max(waited) <= 12
    assert all(lengths[i] == 2000 for step in steps for i in step.delays)
    waiting.set_epoch(0)
    assert waiting.imbalance.microbatches < at_once.imbalance.microbatches / 2


def test_a_seed_gives_one_order_and_each_epoch_another():
    make = functools.partial(rrfp.pack, chats(500), max_tokens=8192, batch_size=32, delay=3)
    packing = make(seed=4)
    first, second = list(packing), list(packing)
    assert (packing.epoch, packing.step) == (2, 0)
    assert first == list(make(seed=4)) != list(make(seed=5))
    assert first != second and sorted(indices_of(first)) == sorted(indices_of(second))
    packing.set_epoch(1)
    assert len(packing) == len(second) and list(packing) == second
    assert indices_of(rrfp.pack([7] * 6, batch_size=2, shuffle=False)) == list(range(6))


def test_a_state_goes_on_in_the_middle_of_an_epoch():
    make = functools.partial(rrfp.pack, long_tailed(2000), microbatches=4, replicas=2, batch_size=64, delay=6)
    packing = make()
    list(packing)
    steps, states = [], []
    for step in packing:
        steps.append((list(step), step.delays))
        states.append(json.dumps(packing.state_dict()))
    assert any(json.loads(state)["waiting"] for state in states)
    for done in (0, 7, 20, len(steps) - 2):
        resumed = make()
        resumed.load_state_dict(json.loads(states[done]))
        assert (resumed.epoch, resumed.step) == (1, done + 1)
        assert [(list(step), step.delays) for step in resumed] == steps[done + 1 :]
    again = make()
    again.load_state_dict(json.loads(states[-1]))
    assert again.epoch == 2
    # A loop that was left goes on.
    left = make()
    some = list(itertools.islice(left, 5))
    assert some + list(left) == list(make())


def test_lengths_come_from_numbers_objects_or_a_key():
    torch = pytest.importorskip("torch")
    expected = list(rrfp.pack([3, 1, 2], batch_size=2, seed=1))
    for samples in (
        [[0] * 3, "a", (1, 2)],
        torch.tensor([3, 1, 2]),
        [torch.zeros(3), torch.tensor([7]), torch.zeros(2)],
        [torch.tensor(3), torch.tensor(1), torch.tensor(2)],
        [{"input_ids": [0] * 3, "more": 1}, {"input_ids": [0]}, {"input_ids": [0] * 2}],
        iter([3, 1, 2]),
    ):
        assert list(rrfp.pack(samples, batch_size=2, seed=1)) == expected
    assert list(rrfp.pack(["3", "1", "2"], key=int, batch_size=2, seed=1)) == expected
    lengths = {"a": 3, "b": 1, "c": 2}
    assert list(rrfp.pack(lengths, key=lengths.get, batch_size=2, seed=1)) == expected


def test_costs_come_from_a_model_a_function_or_numbers():
    lengths = lognormal(300)
    square = lambda n: n * n
    by_function = list(rrfp.pack(lengths, microbatches=4, batch_size=50, cost=square))
    assert by_function == list(rrfp.pack(lengths, microbatches=4, batch_size=50, cost=[n * n for n in lengths]))
    assert by_function == list(rrfp.pack(lengths, microbatches=4, batch_size=50, cost=rrfp.CostModel(0, 1)))
    assert by_function != list(rrfp.pack(lengths, microbatches=4, batch_size=50))


def test_the_flops_of_a_model_are_six_for_each_parameter_and_token():
    cost = rrfp.CostModel.from_sizes(**LLAMA)
    layer = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336
    assert cost.per_token == pytest.approx(6 * (32 * layer + 4096 * 128256))
    assert cost.per_token_square == pytest.approx(32 * 3 * 2 * 4096)
    assert cost.per_patch == 0
    vision = rrfp.CostModel.from_sizes(**LLAMA, vision=dict(hidden=1280, layers=2, heads=16, patches_per_token=4))
    assert vision.per_token == cost.per_token and vision.per_patch_square == pytest.approx(2 * 3 * 4 * 1280)


def test_a_configuration_of_transformers_gives_the_sizes():
    transformers = pytest.importorskip("transformers")
    llama = transformers.LlamaConfig(
        hidden_size=4096, num_hidden_layers=32, num_attention_heads=32, num_key_value_heads=8, intermediate_size=14336,
        vocab_size=128256,
    )  # fmt: skip
    assert rrfp.CostModel.from_config(llama) == rrfp.CostModel.from_sizes(**LLAMA)
    gpt2 = rrfp.CostModel.from_config(transformers.GPT2Config())
    assert gpt2 == rrfp.CostModel.from_sizes(hidden=768, layers=12, heads=12, vocabulary=50257, gated=False)
    mixture = transformers.MixtralConfig()
    cost = rrfp.CostModel.from_config(mixture)
    assert cost.per_token == pytest.approx(6 * (32 * (2 * 4096**2 + 2 * 4096 * 1024 + 8 * 4096 + 2 * 3 * 4096 * 14336) + 32000 * 4096))
    llava = transformers.LlavaConfig()
    assert rrfp.CostModel.from_config(llava).per_patch > 0


def test_measured_times_give_a_cost():
    seconds = lambda documents: 0.01 + sum(2e-6 * n + 3e-10 * n * n for n in documents)
    batches = [[512] * 8, [1024] * 4, [4096], [8192], [300, 700, 2000]]
    cost = rrfp.CostModel.fit([(documents, seconds(documents)) for documents in batches])
    assert cost.per_token == pytest.approx(2e-6) and cost.per_token_square == pytest.approx(3e-10)
    assert cost.per_microbatch == pytest.approx(0.01)
    assert rrfp.CostModel.fit([(100, 1.0), (200, 2.0), (300, 3.0)])(50) == pytest.approx(0.5)


NAN = float("nan")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (dict(samples=[]), "samples: expected at least one, got none"),
        (dict(samples=None), "samples: expected a list of samples, got None"),
        (dict(samples=[4, -2]), "samples[1]: expected at least 1 token, got -2"),
        (dict(samples=[4, 0]), "samples[1]: expected at least 1 token, got 0"),
        (dict(samples=[2.5]), 'samples[0]: expected a number of tokens, or what has a length or "input_ids", got float'),
        (dict(samples=[{"ids": [1]}]), 'samples[0]: expected a number of tokens, or what has a length or "input_ids", got dict'),
        (dict(samples="some text"), "samples: expected a list of samples, got one str"),
        (dict(samples={"input_ids": [[1, 2], [3]]}), "samples: expected a list of samples, got one dict"),
        (dict(samples=[4, 1 << 32 | 1]), "samples[1]: expected 1 to 4294967296 tokens, got 4294967297"),
        (dict(samples=[np.zeros((1, 5))]), "samples[0]: expected one dimension of tokens, got (1, 5)"),
        (dict(samples=[1 << 70]), "samples[0]: expected 1 to 4294967296 tokens, got 1180591620717411303424"),
        (dict(samples=[4, 9], max_tokens=8), "samples[1]: expected at most max_tokens = 8 tokens, got 9"),
        (dict(samples=[4], max_tokens=0), "max_tokens: expected an integer >= 1 or None, got 0"),
        (dict(samples=[4], replicas=0), "replicas: expected an integer >= 1 and <= 65536, got 0"),
        (dict(samples=[4], replicas=None), "replicas: expected an integer >= 1 and <= 65536, got None"),
        (dict(samples=[4], microbatches=1.5), "microbatches: expected an integer >= 1 and <= 65536 or None, got 1.5"),
        (
            dict(samples=[4], max_tokens=1 << 63),
            "max_tokens: expected an integer >= 1 and <= 9223372036854775807 or None, got 9223372036854775808",
        ),
        (dict(samples=[4], seed=1 << 63), "seed: expected an integer >= 0 and <= 9223372036854775807, got 9223372036854775808"),
        (dict(samples=[4], seed=-1), "seed: expected an integer >= 0, got -1"),
        (dict(samples=[4], delay=-1), "delay: expected an integer >= 0 and <= 65536, got -1"),
        (
            dict(samples=[4], delay=1),
            "delay: expected 0 without batch_size and batch_tokens, because all samples are one step, got 1",
        ),
        (dict(samples=[4], batch_size=1, batch_tokens=3), "batch_tokens: expected None with batch_size, got 3"),
        (dict(samples=[4], drop_last=True), "drop_last: expected False without batch_size, got True"),
        (dict(samples=[4], cost=[NAN]), "cost of samples[0]: expected a finite number >= 0, got nan"),
        (dict(samples=[4], cost=lambda n: -n), "cost of samples[0]: expected a finite number >= 0, got -4.000000"),
        (dict(samples=[4], cost=["x"]), "cost of samples[0]: expected a finite number >= 0, got 'x'"),
        (dict(samples=[4], cost=[10**309]), f"cost of samples[0]: expected a finite number >= 0, got {10**309}"),
        (
            dict(samples=[4], cost={4: 1.0}),
            "cost: expected a function of the tokens, or a number for each sample, got {4: 1.0}",
        ),
        (dict(samples=[4], cost=[1, 2]), "cost: expected 1 numbers, one for each sample, got 2"),
        (dict(samples=[4], cost=3), "cost: expected a function of the tokens, or a number for each sample, got 3"),
    ],
)
def test_bad_input_is_one_valueerror_that_names_the_argument(arguments, message):
    with pytest.raises(ValueError) as e:
        rrfp.pack(arguments.pop("samples"), **arguments)
    assert str(e.value) == message


def test_other_bad_input_is_named_too():
    packing = rrfp.pack([3, 4], batch_size=1, seed=2)
    with pytest.raises(ValueError, match="^state: expected samples = 2, as in this packing, got 3$"):
        packing.load_state_dict(rrfp.pack([1, 2, 3], seed=2).state_dict())
    with pytest.raises(ValueError, match="^state: expected seed = 2, as in this packing, got 0$"):
        packing.load_state_dict(rrfp.pack([1, 2]).state_dict())
    for change in ({"next": 7}, {"next": "x"}, {"waiting": [[5, 0]], "step": 1}):
        with pytest.raises(ValueError, match="^state: expected "):
            packing.load_state_dict({**packing.state_dict(), **change})
    with pytest.raises(ValueError, match=r"^state: expected what state_dict\(\) returned, got None$"):
        packing.load_state_dict(None)
    for costs in (None, "12", [None, 1]):
        with pytest.raises(TypeError, match="^costs: expected a list of numbers"):
            rrfp.admission_order(costs)
    with pytest.raises(ValueError, match=r"^samples\[1\]: expected token ids, .*whole numbers are expected, not torch.float32"):
        rrfp.pack_microbatch([[1, 2], [3.7, 4.2]])
    with pytest.raises(ValueError, match=r"^measured\[0\]: expected \(tokens, seconds\)"):
        rrfp.CostModel.fit([3])
    with pytest.raises(ValueError, match="^measurement 1: expected finite seconds >= 0, got nan$"):
        rrfp.CostModel.fit([(1, 1.0), (2, math.nan)])
    with pytest.raises(ValueError, match="^layers: expected an integer >= 1, got 0$"):
        rrfp.CostModel.from_sizes(**{**LLAMA, "layers": 0})
    for sizes, message in (
        ({"layers": 1 << 32}, "layers: expected an integer >= 1 and <= 4294967295, got 4294967296"),
        ({"heads": 8192, "kv_heads": None}, "head_dim: expected an integer >= 1, got 0"),
        ({"experts": 8}, "experts_per_token: expected an integer >= 1 and <= 8, got 0"),
        ({"experts": 8, "experts_per_token": 9}, "experts_per_token: expected an integer >= 1 and <= 8, got 9"),
        ({"vision": 3}, "vision: expected a dict of sizes or None, got 3"),
    ):
        with pytest.raises(ValueError, match=f"^{message}$"):
            rrfp.CostModel.from_sizes(**{**LLAMA, **sizes})
    with pytest.raises(ValueError, match="^vision: expected the keys hidden, .* got 'width'$"):
        rrfp.CostModel.from_sizes(**LLAMA, vision={"width": 3})


def test_packing_needs_no_torch():
    program = "import sys; sys.modules['torch'] = None; import rrfp; print(list(rrfp.pack([3, 1], microbatches=2)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "[[[[0], [1]]]]\n"


def test_the_tensors_of_a_microbatch_are_those_of_the_collator_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    collator = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    plain = [{"input_ids": [5, 6, 7]}, {"input_ids": [8]}, {"input_ids": [9, 10]}]
    spoken = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [9, 10], "labels": [9, -100]}]
    for samples in (plain, spoken):
        expected, packed = collator(samples), rrfp.pack_microbatch(samples)
        assert set(packed) == set(expected)
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                assert torch.equal(packed[name], value) and packed[name].dtype == value.dtype, name
            else:
                assert packed[name] == value
    tensors = [torch.tensor(sample["input_ids"]) for sample in plain]
    assert torch.equal(rrfp.pack_microbatch(tensors)["labels"], collator(plain)["labels"])
    assert tensors[0].tolist() == [5, 6, 7]  # as they were
    for samples, message in (
        ([], "samples: expected at least one, got none"),
        ([[1], []], "samples[1]: expected one dimension with at least one token, got (0,)"),
        ([{"ids": [1]}], "samples[0]: expected token ids, or a mapping with \"input_ids\", got KeyError('input_ids')"),
        ([{"input_ids": [1, 2], "labels": [1]}], "samples[0]: expected 2 labels, one for each token, got (1,)"),
    ):
        with pytest.raises(ValueError) as e:
            rrfp.pack_microbatch(samples)
        assert str(e.value) == message


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_documents_of_a_packed_row_have_the_losses_that_they_have_alone(attention, family):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_implementation=attention,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    documents = [torch.randint(0, 97, (n,)) for n in (5, 17, 2, 30, 9)]
    with torch.no_grad():
        alone = [model(d[None]).logits[0] for d in documents]
        packed = rrfp.pack_microbatch(documents)
        logits = model(packed["input_ids"], position_ids=packed["position_ids"], use_cache=False).logits[0]
        loss = model(**packed, use_cache=False).loss
    torch.testing.assert_close(logits, torch.cat(alone))
    losses = [
        torch.nn.functional.cross_entropy(its_logits[:-1], d[1:], reduction="sum") for its_logits, d in zip(alone, documents)
    ]
    assert loss.item() == pytest.approx(sum(losses).item() / sum(len(d) - 1 for d in documents), rel=1e-5)
    # Without positions each document sees those before it.
    with torch.no_grad():
        assert not torch.allclose(model(packed["input_ids"]).logits[0], logits, atol=1e-3)


def test_a_pipeline_trains_on_packed_microbatches_to_the_loss_of_whole_documents():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    documents = [torch.randint(0, 97, (n,)) for n in chats(24, seed=2)]
    documents = [d[:64] for d in documents]
    with torch.no_grad():
        sums = [torch.nn.functional.cross_entropy(model(d[None]).logits[0, :-1], d[1:], reduction="sum") for d in documents]
    expected = sum(sums).item() / sum(len(d) - 1 for d in documents)

    def loss(logits, targets):
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")

    (step,) = rrfp.pack(documents, microbatches=4, cost=rrfp.CostModel.from_config(config))
    batches = [rrfp.pack_microbatch([documents[i] for i in microbatch]) for microbatch in step[0]]
    targets = [torch.nn.functional.pad(b["labels"][:, 1:], (0, 1), value=-100) for b in batches]
    with rrfp.Pipeline(
        rrfp.from_transformers(model, stages=2), loss, n_microbatches=4, count=lambda target: int((target != -100).sum())
    ) as pipe:
        pipe.step_microbatches(
            [b["input_ids"] for b in batches], [{"position_ids": b["position_ids"]} for b in batches], targets,
            return_outputs=False,
        )  # fmt: skip
        assert pipe.last.loss == pytest.approx(expected, rel=1e-5)
