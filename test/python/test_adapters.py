"""Adapters of peft and checkpoints of activations, over stages."""

import copy

import pytest
import rrfp
import torch
from models import equal, train_plainly

transformers = pytest.importorskip("transformers")
from test_transformers import Logits, ids_of, loss_fn, make  # noqa: E402


def trained(params):
    return torch.optim.AdamW([p for p in params if p.requires_grad], 1e-2)


def train(parts, autocast=None):
    losses = []
    settings = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
    with rrfp.Pipeline(parts, loss_fn, 4, optimizer=trained, settings=settings, autocast=autocast) as pipe:
        for step in range(2):
            losses.append([])
            pipe.step(ids_of(step), target=ids_of(step), losses=losses[-1])
    return [[loss.item() for loss in step] for step in losses]


def train_whole(model):
    return train_plainly([Logits(model)], loss_fn, [(ids_of(s), ids_of(s)) for s in range(2)], 4, optimizer=trained)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpoints", [None, "before the cut", "after the cut"])
def test_adapters_over_stages_equal_a_plain_loop(tmp_path, name, dtype, checkpoints):
    peft = pytest.importorskip("peft")
    # Random adapters, because those of zeros would pass on no gradient to others.
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    begin = peft.get_peft_model(make(name).to(dtype), config)
    plain = copy.deepcopy(begin)
    if checkpoints:
        plain.gradient_checkpointing_enable()
    expected = train_whole(plain)
    for stages in (2, 4):
        model = copy.deepcopy(begin)
        if checkpoints == "before the cut":
            model.gradient_checkpointing_enable()
        parts = rrfp.from_transformers(model, stages)
        if checkpoints == "after the cut":
            model.gradient_checkpointing_enable()
        assert train(parts) == expected
        assert equal([model], [plain])
    model.save_pretrained(tmp_path)
    loaded = peft.PeftModel.from_pretrained(make(name).to(dtype), tmp_path)
    assert torch.equal(loaded(ids_of(7)).logits, plain.eval()(ids_of(7)).logits)


def test_adapters_that_cannot_be_cut_are_refused_by_name():
    peft = pytest.importorskip("peft")
    prompts = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(TypeError, match="cannot be cut: its adapter puts virtual tokens before those of the batch"):
        rrfp.from_transformers(peft.get_peft_model(make("llama"), prompts), 2)
    vera = peft.VeraConfig(r=4, target_modules=["o_proj"])
    with pytest.raises(TypeError, match=r"cannot be cut: its parts share the buffer '.*vera_[AB]"):
        rrfp.from_transformers(peft.get_peft_model(make("llama"), vera), 2)


@pytest.mark.parametrize("checkpoints", [False, True])
def test_adapters_of_experts_over_threads_equal_a_plain_loop(checkpoints):
    """They compute under a cache of the process."""
    peft = pytest.importorskip("peft")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "moe_intermediate_size": 16, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(1)
    model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(vocab_size=97, **sizes, **heads))
    names = ["experts.gate_up_proj", "experts.down_proj"]
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_parameters=[f"mlp.{n}" for n in names], init_lora_weights=False))
    plain = copy.deepcopy(model)
    if checkpoints:
        model.gradient_checkpointing_enable()
    assert train(rrfp.from_transformers(model, 4)) == train_whole(plain)
    assert equal([model], [plain])


@pytest.mark.parametrize("change", ["head", "embedding"])
def test_what_is_replaced_after_the_cut_is_refused(change):
    model = make("llama")
    parts = rrfp.from_transformers(model, 2)
    if change == "head":
        model.resize_token_embeddings(128)
    else:
        model.set_input_embeddings(torch.nn.Embedding(97, 32))
    told = "lm_head" if change == "head" else "model.embed_tokens"
    with pytest.raises(rrfp.Error, match=f"RuntimeError: '{told}' of the model was replaced after the cut: expected a new cut"):
        train(parts)


@pytest.mark.parametrize("frozen", ["embedding", "bottom half"])
def test_reentrant_checkpoints_behind_a_frozen_embedding_are_refused(frozen):
    """They would train nothing."""
    model = make("llama")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    plain = copy.deepcopy(model)
    assert train(rrfp.from_transformers(model, 2)) == train_whole(plain)
    below = model.model.layers[:2] if frozen == "bottom half" else []
    for module in (model.model.embed_tokens, *below):
        module.requires_grad_(False)
    with pytest.raises(rrfp.Error, match="TypeError: reentrant checkpoints train no layer behind a frozen embedding: "):
        train(rrfp.from_transformers(model, 2))


@pytest.mark.parametrize("checkpoints", ["before the cut", "after the cut"])
def test_checkpoints_of_activations_do_not_change_the_bits(checkpoints):
    model = make("llama")
    plain = copy.deepcopy(model)
    if checkpoints == "before the cut":
        model.gradient_checkpointing_enable()
    parts = rrfp.from_transformers(model, 2)
    if checkpoints == "after the cut":
        model.gradient_checkpointing_enable()
    runs = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(lambda *_: runs.append(1))
    assert train(parts) == train_whole(plain)
    assert len(runs) == 2 * 2 * 4 * 4  # each of 4 layers twice in 2 steps of 4 microbatches
    assert equal([model], [plain])
