"""Models of transformers with towers for images: any number of images in a sample, without a line changed in them."""

import copy

import pytest
import rrfp
import torch
from models import adam, equal

transformers = pytest.importorskip("transformers")
from test_transformers import ROPE, SMALL, loss_fn  # noqa: E402

IMAGE, BEGIN = 96, 94  # tokens of an image, and before one
TEXT = {**ROPE, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
MROPE = {"rope_parameters": {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}}
IDS = {"image_token_id": IMAGE, "video_token_id": 95, "vision_start_token_id": BEGIN, "vision_end_token_id": 93}
TOWER = {**SMALL, "num_hidden_layers": 2, "intermediate_size": 48, "image_size": 16, "patch_size": 8}
PATCHES = {"patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_heads": 2, "depth": 2}


def of_patches(count, ids):
    """Of 4 by 4 patches an image, which become four tokens."""
    pixels = torch.randn(16 * count, 3 * 2 * 16)
    types = (ids == IMAGE).int()
    return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, 4, 4]] * count), "mm_token_type_ids": types}


def of_pixels(count, ids):
    return {"pixel_values": torch.randn(count, 3, 16, 16)}


def llava():
    tower = transformers.CLIPVisionConfig(**TOWER)
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaConfig(vision_config=tower, text_config=text, image_token_index=IMAGE, image_seq_length=4)
    return transformers.LlavaForConditionalGeneration(config)


def llava_next():
    """A parameter of its own ends each row of an image. One of 8 by 16 is seen whole, in one patch, and as two tiles."""
    tower = transformers.CLIPVisionConfig(**{**TOWER, "image_size": 8})
    text = transformers.LlamaConfig(**TEXT)
    config = transformers.LlavaNextConfig(
        vision_config=tower, text_config=text, image_token_index=IMAGE, image_grid_pinpoints=[[8, 16]], image_seq_length=4
    )
    return transformers.LlavaNextForConditionalGeneration(config)


def of_tiles(count, ids):
    return {"pixel_values": torch.randn(count, 3, 3, 8, 8), "image_sizes": torch.tensor([[8, 16]] * count)}


def qwen2_vl():
    tower = {**PATCHES, "embed_dim": 16, "hidden_size": 32, "mlp_ratio": 2}
    config = transformers.Qwen2VLConfig(text_config={**TEXT, **MROPE}, vision_config=tower, **IDS)
    return transformers.Qwen2VLForConditionalGeneration(config)


def qwen2_5_vl():
    tower = {**PATCHES, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32, "window_size": 16}
    config = transformers.Qwen2_5_VLConfig(text_config={**TEXT, **MROPE}, vision_config=tower, **IDS)
    return transformers.Qwen2_5_VLForConditionalGeneration(config)


def gemma3():
    """The tokens of an image see each other, so the mask depends on them."""
    tower = {**TOWER, "vision_use_head": False}
    text = {**TEXT, "sliding_window": 5}
    config = transformers.Gemma3Config(
        text_config=text, vision_config=tower, image_token_index=IMAGE, mm_tokens_per_image=4, tie_word_embeddings=False
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def qwen3_vl():
    """Features of its tower are added between layers."""
    tower = {**PATCHES, "hidden_size": 16, "out_hidden_size": 32, "intermediate_size": 32, "deepstack_visual_indexes": [0]}
    tower["num_position_embeddings"] = 16
    config = transformers.Qwen3VLConfig(text_config={**TEXT, **MROPE}, vision_config=tower, **IDS)
    return transformers.Qwen3VLForConditionalGeneration(config)


MODELS = {
    "llava": (llava, of_pixels),
    "llava_next": (llava_next, of_tiles),
    "qwen2_vl": (qwen2_vl, of_patches),
    "qwen2_5_vl": (qwen2_5_vl, of_patches),
    "gemma3": (gemma3, lambda count, ids: {**of_pixels(count, ids), "token_type_ids": (ids == IMAGE).long()}),
}


def make(family):
    torch.manual_seed(1)
    model = family()
    model.config.get_text_config().use_cache = False
    return model


def microbatches(inputs_of, always=()):
    """Ids and inputs of microbatches whose two samples have 0 and 0, 1 and 0, 3 and 0, and 1 and 1 images."""
    torch.manual_seed(2)
    for counts in [(0, 0), (1, 0), (3, 0), (1, 1)]:
        ids = torch.randint(3, 90, (2, 24))
        for row, count in enumerate(counts):
            for at in range(2, 2 + 6 * count, 6):
                ids[row, at], ids[row, at + 1 : at + 5] = BEGIN, IMAGE
        inputs = inputs_of(sum(counts), ids) if any(counts) else {}
        if not inputs and "token_type_ids" in always:
            inputs = {"token_type_ids": torch.zeros_like(ids)}
        yield ids, inputs


@pytest.mark.parametrize("name", MODELS)
def test_training_equals_that_of_the_whole_model(name, tmp_path):
    family, inputs_of = MODELS[name]
    model = make(family)
    model.save_pretrained(tmp_path)
    # Gemma 3 asks for token_type_ids in training, with images or without.
    mbs = list(microbatches(inputs_of, ("token_type_ids",) if name == "gemma3" else ()))
    plain = copy.deepcopy(model).train()
    optimizer, expected = adam(plain.parameters()), []
    for _ in range(2):
        for ids, inputs in mbs:
            loss = loss_fn(plain(input_ids=ids, **inputs, use_cache=False).logits, ids)
            (loss / 4).backward()
            expected.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    for stages in (1, 2, 4, "loaded"):
        trained = copy.deepcopy(model)
        if stages == "loaded":
            parts = [part.load() for part in rrfp.from_pretrained(tmp_path, 2)]
        else:
            parts = rrfp.from_transformers(trained, stages)
        losses = []
        with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam, settings={"jitter.compute": "lognormal"}) as pipe:
            for _ in range(2):
                ids, inputs = zip(*mbs)
                pipe.step_microbatches(list(ids), list(inputs), list(ids), losses=losses)
        assert [loss.item() for loss in losses] == expected, stages
        assert stages == "loaded" or equal([trained], [plain])


@pytest.mark.parametrize("name", ["llava", "qwen2_5_vl"])
@pytest.mark.parametrize("frozen", ["tower", "all but the head"])
def test_checkpoints_of_activations_with_a_frozen_tower(name, frozen):
    family, inputs_of = MODELS[name]
    model = make(family)
    model.requires_grad_(frozen == "tower")
    tower = model.model.vision_tower if name == "llava" else model.model.visual
    tower.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    model.gradient_checkpointing_enable()
    model.enable_input_require_grads()
    plain = copy.deepcopy(model).train()
    mbs = list(microbatches(inputs_of))
    expected = []
    for ids, inputs in mbs:
        loss = loss_fn(plain(input_ids=ids, **inputs, use_cache=False).logits, ids)
        (loss / 4).backward()
        expected.append(loss.item())
    trained = lambda params: adam([p for p in params if p.requires_grad])
    trained(plain.parameters()).step()
    losses, parts = [], rrfp.from_transformers(model, 2)
    with rrfp.Pipeline(parts, loss_fn, 4, optimizer=trained) as pipe:
        ids, inputs = zip(*mbs)
        pipe.step_microbatches(list(ids), list(inputs), list(ids), losses=losses)
    assert [loss.item() for loss in losses] == expected
    assert equal([model], [plain])


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl"])
def test_a_model_that_has_seen_images_is_cut_as_a_new_one(name):
    family, inputs_of = MODELS[name]
    model = make(family)
    ids, inputs = list(microbatches(inputs_of))[1]
    model(input_ids=ids, **inputs)
    assert model.model.rope_deltas is not None
    assert len(rrfp.from_transformers(model, 2)) == 2


@pytest.mark.parametrize("name", MODELS)
def test_arguments_of_the_decoder_are_refused(name):
    parts = rrfp.from_transformers(make(MODELS[name][0]), 2)
    for name in ("logits_to_keep", "past_key_values", "cache"):
        with pytest.raises(TypeError, match=f"a pipeline takes no argument '{name}'"):
            parts[0](torch.randint(3, 90, (2, 8)), **{name: 1})


def test_a_model_that_gives_images_to_its_layers_is_refused_when_they_come():
    parts = rrfp.from_transformers(make(qwen3_vl), 2)
    with rrfp.Pipeline(parts, loss_fn, 4, optimizer=adam) as pipe:
        ids, inputs = zip(*microbatches(of_patches))
        pipe.step_microbatches([ids[0]] * 4, None, [ids[0]] * 4)  # of texts
        with pytest.raises(
            rrfp.Error, match="TypeError: from_transformers: qwen3_vl .* cannot be cut: for images its layers get '.*visual.*'"
        ):
            pipe.step_microbatches(list(ids), list(inputs), list(ids))


def test_arguments_that_a_model_does_not_have_are_refused():
    ids = torch.ones(4, 8, dtype=torch.int64)
    with rrfp.Pipeline(rrfp.from_transformers(make(llava), 2), loss_fn, 2, optimizer=adam) as pipe:
        with pytest.raises(rrfp.Error, match="TypeError: llava: a pipeline takes no argument 'pixel_valuess'"):
            pipe.step(ids, target=ids, pixel_valuess=ids)


def test_encoder_decoders_are_refused_by_name(tmp_path):
    config = transformers.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=97)
    model = transformers.T5ForConditionalGeneration(config)
    with pytest.raises(TypeError, match=r"^from_transformers: t5 \(T5ForConditionalGeneration\) cannot be cut: it is an encoder-dec"):
        rrfp.from_transformers(model, 2)
    model.save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="^from_pretrained: t5 cannot be cut: it is an encoder-decoder"):
        rrfp.from_pretrained(tmp_path, 2)


@pytest.mark.parametrize("kind", ["ForConditionalGeneration", "ForCausalLM"])
def test_an_encoder_decoder_is_refused_but_not_its_decoder_saved_alone(tmp_path, kind):
    sizes = {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    config = transformers.BartConfig(d_model=32, encoder_layers=2, decoder_layers=2, vocab_size=97, **sizes)
    getattr(transformers, f"Bart{kind}")(config).save_pretrained(tmp_path)
    if kind == "ForCausalLM":
        assert len(rrfp.from_pretrained(tmp_path, 2)) == 2
        return
    with pytest.raises(TypeError, match="^from_pretrained: bart cannot be cut: it is an encoder-decoder"):
        rrfp.from_pretrained(tmp_path, 2)
