"""Models of transformers, without a line changed in them."""

import copy
import subprocess
import sys

import pytest
import rrfp
import torch
from kinds import Splitting
from models import adam, equal, train_plainly
from test_gradients import WAYS

transformers = pytest.importorskip("transformers")
from families import model_of  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers.models.llama.modeling_llama import LlamaDecoderLayer  # noqa: E402

SMALL = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
ROPE = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}
CONFIGS = {
    "llama": lambda: transformers.LlamaConfig(**ROPE),
    "qwen3": lambda: transformers.Qwen3Config(
        **ROPE, layer_types=["full_attention", "sliding_attention"] * 2, sliding_window=5, use_sliding_window=True
    ),
    "mistral": lambda: transformers.MistralConfig(**ROPE, sliding_window=5),
    "gemma3": lambda: transformers.Gemma3TextConfig(**ROPE, tie_word_embeddings=False, sliding_window=5),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=97, n_embd=32, n_layer=4, n_head=4, tie_word_embeddings=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    ),
}


def make(name, **changes):
    torch.manual_seed(1)
    config = CONFIGS[name]()
    for key, value in changes.items():
        setattr(config, key, value)
    return transformers.AutoModelForCausalLM.from_config(config)


def ids_of(step):
    return torch.randint(0, 97, (8, 12), generator=torch.Generator().manual_seed(step))


def loss_fn(logits, ids):
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


class Logits(torch.nn.Module):
    """A whole model as one part."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=False).logits


def train(parts, settings=None):
    all_losses = []
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=4, optimizer=adam, settings=settings) as pipe:
        for step in range(2):
            losses = []
            pipe.step(ids_of(step), target=ids_of(step), losses=losses)
            all_losses.append([loss.item() for loss in losses])
    return all_losses


@pytest.mark.parametrize("name", CONFIGS)
def test_training_equals_that_of_the_whole_model(name):
    model = make(name)
    plain = copy.deepcopy(model)
    expected = train_plainly([Logits(plain)], loss_fn, [(ids_of(s), ids_of(s)) for s in range(2)], 4)
    for stages in (1, 2, 4):
        trained = copy.deepcopy(model)
        parts = rrfp.from_transformers(trained, stages)
        assert train(parts, {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}) == expected
        for (name, a), b in zip(trained.named_parameters(), plain.parameters()):
            assert torch.equal(a, b), name


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("kind", ["phi", "starcoder2"])
def test_the_dropout_of_the_embedding_happens_once(kind, stages):
    torch.manual_seed(1)
    dropout = {"phi": "embd_pdrop", "starcoder2": "embedding_dropout"}[kind]
    config = transformers.AutoConfig.for_model(
        kind, **SMALL, **{dropout: 0.3}, intermediate_size=48, pad_token_id=0, eos_token_id=1, tie_word_embeddings=False
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    plain = copy.deepcopy(model)
    expected = train_plainly(
        [Logits(plain)], loss_fn, [(ids_of(s), ids_of(s)) for s in range(2)], 4, around=lambda *at: rrfp.keyed_generator(1, *at)
    )
    assert train(rrfp.from_transformers(model, stages)) == expected
    assert equal([model], [plain])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("by_name", [False, True])
def test_masks_and_positions_of_padded_batches_travel_along(name, by_name):
    class Masked(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, mask, positions):
            return self.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False
            ).logits

    model = make(name)
    plain = copy.deepcopy(model)
    ids = ids_of(0)
    mask = (torch.arange(12) >= torch.arange(8)[:, None]).long()
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    whole, losses = Masked(plain), []
    optimizer = adam(whole.parameters())
    for rows in (slice(i, i + 2) for i in range(0, 8, 2)):
        loss = loss_fn(whole(ids[rows], mask[rows], positions[rows]), ids[rows])
        (loss / 4).backward()
        losses.append(loss.item())
    optimizer.step()
    found = []
    parts = rrfp.from_transformers(model, 4)
    with rrfp.Pipeline(parts, loss_fn, n_microbatches=4, optimizer=adam) as pipe:
        if by_name:
            pipe.step(ids, attention_mask=mask, position_ids=positions, target=ids, losses=found)
        else:
            pipe.step(ids, mask, positions, target=ids, losses=found)
    assert [loss.item() for loss in found] == losses
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters()))


def test_a_tied_head_stays_equal_to_the_embedding():
    model = make("llama", tie_word_embeddings=True)
    plain = copy.deepcopy(model)
    expected = train_plainly([Logits(plain)], loss_fn, [(ids_of(s), ids_of(s)) for s in range(2)], 4)
    parts = rrfp.from_transformers(model, 2)
    losses = train(parts)
    # A plain loop adds up the gradients of both uses in another order.
    assert losses[0] == expected[0]
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(expected[1]))
    assert torch.equal(parts[1].model.lm_head.weight, model.get_input_embeddings().weight)


@pytest.mark.parametrize("tied", [False, True])
def test_compiled_parts_keep_arguments_names_and_ties(tied):
    def run(prepare):
        parts, losses = [prepare(part) for part in rrfp.from_transformers(make("llama", tie_word_embeddings=tied), 2)], []
        with rrfp.Pipeline(parts, loss_fn, n_microbatches=4, optimizer=adam) as pipe:
            for step in range(2):
                mask = (torch.arange(12) >= torch.arange(8)[:, None]).long()
                losses.append([])
                pipe.step(ids_of(step), attention_mask=mask, target=ids_of(step), losses=losses[-1])
            return [[loss.item() for loss in step] for step in losses], pipe.state_dict().keys()

    assert run(lambda part: torch.compile(part, backend="eager")) == run(lambda part: part)


def test_names_are_those_of_the_whole_model():
    model = make("qwen3")
    names = [
        part.name_of_parameter(name)
        for part in rrfp.from_transformers(model, 3)
        for name, _ in part.named_parameters()
    ]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("shards", ["5GB", "20KB"])
def test_a_process_loads_the_weights_of_its_own_part(tmp_path, name, shards):
    model = make(name)
    model.save_pretrained(tmp_path, max_shard_size=shards)
    whole = rrfp.from_transformers(model, 3)
    parts = rrfp.from_pretrained(tmp_path, 3)
    assert all(p.is_meta for part in parts for p in part.parameters())
    loaded = parts[1].load()
    assert all(p.is_meta for part in (parts[0], parts[2]) for p in part.parameters())
    expected = whole[1].state_dict()
    assert list(loaded.state_dict()) == list(expected)
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, expected[key]), key
    [part.load() for part in parts]
    assert train(parts) == train(whole)


PEAK = """
import resource, sys
import rrfp, torch

def load(folder):
    part = rrfp.from_pretrained(folder, 4)[2].load()
    for p in part.parameters():
        p.detach().sum()  # Pages of a mapped file come when they are read.
    return sum(p.numel() * p.element_size() for p in part.parameters())

load(sys.argv[1] + "/small")  # all that is imported and made once
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = load(sys.argv[1] + "/large")
print(size, 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def test_a_process_never_holds_more_than_its_part(tmp_path):
    for name, width in (("small", 32), ("large", 384)):
        sizes = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": 8, "num_attention_heads": 4}
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=4000, **sizes))
        model.save_pretrained(tmp_path / name)
    whole = sum(p.numel() * p.element_size() for p in model.parameters())
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    size, peak = map(int, done.stdout.split())
    assert whole > 60e6 and size < whole / 4
    assert peak < 1.2 * size + 10e6  # the allocator's own


def test_loading_tied_and_prefixed_weights(tmp_path):
    model = make("gpt2", tie_word_embeddings=True)
    model.base_model.save_pretrained(tmp_path)  # as on the hub: "h.0...", not "transformer.h.0..."
    model.config.save_pretrained(tmp_path)
    parts = [part.load() for part in rrfp.from_pretrained(tmp_path, 2)]
    assert torch.equal(parts[1].model.lm_head.weight, model.get_input_embeddings().weight)
    assert train(parts) == train(rrfp.from_transformers(model, 2))


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("scale", [1, 2])
def test_a_head_beside_the_tied_embedding_is_loaded_as_transformers_does(tmp_path, scale, stages):
    model = make("llama", tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    head = scale * model.get_input_embeddings().weight.detach()
    save_file({**state, "lm_head.weight": head}, tmp_path / "model.safetensors", {"format": "pt"})
    expected = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    assert torch.equal(expected["lm_head.weight"], head)
    parts = [part.load() for part in rrfp.from_pretrained(tmp_path, stages)]
    for part in parts:
        for name, value in part.state_dict(keep_vars=True).items():
            assert torch.equal(value, expected[name.removeprefix("model.")]), name
    train(parts)
    first, last = parts[0].model.get_input_embeddings(), parts[-1].model.lm_head
    assert torch.equal(first.weight, last.weight) == (scale == 1)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "deepseek_v3"])
def test_weights_that_transformers_renames_are_loaded(tmp_path, family):
    model = model_of(family)
    model.save_pretrained(tmp_path)
    assert load_file(tmp_path / "model.safetensors").keys() != model.state_dict().keys()
    plain = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    expected = train_plainly([Logits(plain)], loss_fn, [(ids_of(s), ids_of(s)) for s in range(2)], 4)
    parts = [part.load() for part in rrfp.from_pretrained(tmp_path, 2)]
    assert train(parts) == expected
    for part in parts:
        for name, value in part.named_parameters():
            assert torch.equal(value, plain.get_parameter(part.name_of_parameter(name))), name


def test_a_model_that_reaches_into_all_layers_is_loaded(tmp_path):
    model = model_of("falcon_h1")
    model.save_pretrained(tmp_path)
    for part in [part.load() for part in rrfp.from_pretrained(tmp_path, 2)]:
        for name, value in part.state_dict().items():
            assert torch.equal(value, model.state_dict()[part.name_of_parameter(name)]), name
        for name, value in part.named_buffers():
            assert torch.equal(value, model.get_buffer(part.name_of_parameter(name))), name


def test_errors_of_loading(tmp_path):
    model = make("llama")
    model.config.save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="^dtype: expected a torch.dtype, got 'auto'"):
        rrfp.from_pretrained(tmp_path, 2, dtype="auto")
    part = rrfp.from_pretrained(tmp_path, 2)[0]
    with pytest.raises(RuntimeError, match=r"^this part has no weights yet: expected a call of its load\(\)"):
        part(ids_of(0))
    with pytest.raises(OSError, match="no file named model.safetensors"):
        part.load()
    state = model.state_dict()
    save_file({k: v for k, v in state.items() if "norm" not in k}, tmp_path / "model.safetensors")
    with pytest.raises(KeyError, match="expected a tensor model.layers.0.input_layernorm.weight"):
        part.load()
    save_file({**state, "model.embed_tokens.weight": torch.zeros(3, 2)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=r"model.embed_tokens.weight of shape \[97, 32\], got \[3, 2\]"):
        part.load()


def test_cuts_by_cost():
    model = make("llama")
    costs = rrfp.measure_layers(model, ids_of(1))
    assert len(costs) == 5 and all(cost > 0 for cost in costs)

    def layers(costs, stages):
        return [part.end - part.first for part in rrfp.from_transformers(model, stages, costs)]

    assert layers([1, 1, 1, 1, 2], 2) == [3, 1]  # 3 and 1 + 2
    assert layers([5, 1, 1, 1, 1], 2) == [1, 3]
    assert layers([1, 1, 1, 1, 9], 4) == [1, 1, 1, 1]
    assert train(rrfp.from_transformers(copy.deepcopy(model), 2, [5, 1, 1, 1, 1])) == train(
        rrfp.from_transformers(model, 2)
    )
    with pytest.raises(ValueError, match="costs: expected 5, one per layer and one for the rest, got 2"):
        rrfp.from_transformers(model, 2, [1, 2])


def test_changes_of_the_configuration_after_the_cut_reach_all_parts():
    model = make("llama")
    parts = rrfp.from_transformers(model, 2)
    model.set_attn_implementation("eager")
    other = ids_of(1).clone()
    other[:, -1] = 5
    ours, changed = (parts[1](parts[0](ids)) for ids in (ids_of(1), other))
    assert torch.equal(ours[:, :-1], changed[:, :-1])  # nothing attends to the future
    assert torch.equal(ours, model(ids_of(1), use_cache=False).logits)
    model = make("gemma3")
    parts = rrfp.from_transformers(model, 2)
    before = parts[1](parts[0](ids_of(1)))
    model.config.final_logit_softcapping = 0.01
    ours = parts[1](parts[0](ids_of(1)))
    assert torch.equal(ours, model(ids_of(1), use_cache=False).logits) and not torch.equal(ours, before)


def test_router_losses_are_refused():
    experts = {"num_local_experts": 4, "output_router_logits": True}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**ROPE, **experts))
    with pytest.raises(TypeError, match="mixtral .* cannot be cut: it adds a router loss"):
        rrfp.from_transformers(model, 2)
    model.config.output_router_logits = False
    part = rrfp.from_transformers(model, 2)[0]
    model.config.output_router_logits = True
    with pytest.raises(TypeError, match="mixtral .* cannot be cut: it adds a router loss"):
        part(ids_of(1))


PLACES = {
    "the hidden state": lambda layer, hidden: hidden,
    "the configuration": lambda layer, hidden: layer.self_attn.config,
}


@pytest.mark.parametrize("place", PLACES)
def test_a_state_that_layers_pass_on_in_an_attribute_is_refused(place):
    class Leaving(LlamaDecoderLayer):
        def forward(self, hidden, **kwargs):
            before = vars(PLACES[place](self, hidden)).get("left", 0) if self.self_attn.layer_idx else 0
            output = super().forward(hidden, **kwargs) + before
            PLACES[place](self, output).left = output.detach()
            return output

    model = make("llama")
    for layer in model.model.layers:
        layer.__class__ = Leaving
    with pytest.raises(TypeError, match="llama .* cannot be cut: its parts do not give the logits of the whole model"):
        rrfp.from_transformers(model, 2)


class Seeing(torch.nn.Module):
    """The images and the words of LLaVA, as embeddings."""

    def __init__(self, model, words):
        super().__init__()
        self.model, self.words = model, words

    def forward(self, ids, pixels):
        images = torch.cat(self.model.get_image_features(pixels, return_dict=True).pooler_output)
        return self.words(ids).masked_scatter((ids == self.model.config.image_token_id).unsqueeze(-1), images)


class Speaking(torch.nn.Module):
    def __init__(self, model, head):
        super().__init__()
        self.model, self.head = model, head

    def forward(self, embeddings):
        return self.head(self.model(inputs_embeds=embeddings, use_cache=False).last_hidden_state)


@pytest.mark.parametrize("way", WAYS)
def test_the_layer_of_clip_that_llava_does_not_use_stays(way):
    class Whole(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, ids, pixels):
            return self.model(input_ids=ids, pixel_values=pixels, use_cache=False).logits

    torch.manual_seed(1)
    tower = {**SMALL, "num_hidden_layers": 3, "intermediate_size": 48, "image_size": 16, "patch_size": 8}
    model = transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**tower),
            text_config=transformers.LlamaConfig(**ROPE),
            image_token_index=96,
            image_seq_length=4,
        )
    )
    ids = ids_of(0) % 96
    ids[:, :4] = 96
    inputs = ids, torch.randn(8, 3, 16, 16)
    plain = Whole(copy.deepcopy(model))
    expected = train_plainly([plain], loss_fn, [(Splitting(inputs), ids)] * 2, 4)
    language = model.model.language_model
    parts = [Seeing(model.model, language.embed_tokens), Speaking(language, model.lm_head)]
    language.embed_tokens = model.model.language_model = torch.nn.Identity()
    unused = model.model.vision_tower.encoder.layers[-1]
    before, losses = copy.deepcopy(unused), []
    with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, settings=WAYS[way]) as pipe:
        for _ in range(2):
            losses.append([])
            pipe.step(*inputs, target=ids, losses=losses[-1])
    assert [[loss.item() for loss in step] for step in losses] == expected
    assert equal([unused], [before])


def test_the_modes_of_modules_stay_and_loaded_parts_train(tmp_path):
    model = make("gpt2", attn_pdrop=0.5, resid_pdrop=0.5)
    model.save_pretrained(tmp_path)
    assert all(module.training for part in rrfp.from_pretrained(tmp_path, 2) for module in part.load().modules())
    model.train()
    model.transformer.h[1].eval()
    frozen = {module for layer in (model.transformer.h[1],) for module in layer.modules()}
    for part in rrfp.from_transformers(model, 2):
        own = [module for module in part.modules() if "Absent" not in type(module).__name__]
        assert all(module.training == (module not in frozen) for module in own)


def test_the_optimizer_of_a_part_with_nothing_to_train_may_refuse():
    model = make("llama")
    for module in (model.model.embed_tokens, model.model.layers[0], model.model.layers[1]):
        module.requires_grad_(False)
    plain = copy.deepcopy(model).train()
    trained = lambda parameters: adam([p for p in parameters if p.requires_grad])
    losses = []
    with rrfp.Pipeline(rrfp.from_transformers(model, 2), loss_fn, 1, optimizer=trained) as pipe:
        assert len(pipe.optimizers) == 1
        for _ in range(2):
            pipe.step(ids_of(1), target=ids_of(1), losses=losses)
        state = pipe.state_dict()
        pipe.load_state_dict(state)
        model.model.layers[0].requires_grad_(True)
        with pytest.raises(rrfp.Error, match="a part has no optimizer: all its parameters were frozen when"):
            pipe.step(ids_of(1), target=ids_of(1))
        pipe.close()
    optimizer = trained(plain.parameters())
    for found in losses:
        loss = loss_fn(plain(input_ids=ids_of(1), use_cache=False).logits, ids_of(1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert loss.item() == found.item()


def test_layers_that_are_skipped_are_refused():
    config = transformers.OPTConfig(
        hidden_size=32, num_hidden_layers=4, ffn_dim=64, num_attention_heads=4, vocab_size=97, word_embed_proj_dim=32, layerdrop=0.2
    )
    model = transformers.OPTForCausalLM(config)
    with pytest.raises(TypeError, match=r"opt \(OPTForCausalLM\) cannot be cut: it skips layers at random \(layerdrop\)"):
        rrfp.from_transformers(model, 2)
    assert len(rrfp.from_transformers(model, 1)) == 1
    model.model.decoder.layerdrop = 0
    first, second = rrfp.from_transformers(model, 2)
    model.train()
    first.model.model.decoder.layerdrop = second.model.model.decoder.layerdrop = 1.0
    with pytest.raises(TypeError, match="its forward skipped layer 2"):
        first.train()(ids_of(1))


def test_what_cannot_be_cut_is_refused():
    for stages in ("2", 2.0, None, True):
        with pytest.raises(ValueError, match="stages: expected 1 to 4, the number of layers, got"):
            rrfp.from_transformers(make("llama"), stages)
    for costs in (5, ["a"] * 5, [1, 1, 1, 1, float("nan")], [1, 1, 1, 1, -1]):
        with pytest.raises(ValueError, match="costs: expected a list of finite numbers >= 0, got"):
            rrfp.from_transformers(make("llama"), 2, costs)
    with pytest.raises(TypeError, match="expected a model without torch.compile"):
        rrfp.from_transformers(torch.compile(make("llama")), 2)
    with pytest.raises(ValueError, match="stages: expected 1 to 4, the number of layers, got 5"):
        rrfp.from_transformers(make("llama"), 5)
    with pytest.raises(TypeError, match="expected a causal language model, got Linear"):
        rrfp.from_transformers(torch.nn.Linear(2, 2), stages=1)
    with pytest.raises(FileNotFoundError, match="^/nothing: expected a folder with config.json"):
        rrfp.from_pretrained("/nothing", stages=1)
    with pytest.raises(TypeError, match="expected a causal language model, got BertModel"):
        rrfp.from_transformers(transformers.BertModel(transformers.BertConfig(**SMALL)), 2)
