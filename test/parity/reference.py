"""Writes the results of transformers for small random models; parity_test compares with them.

    reference.py OUT        one folder a model: config.json, model.safetensors, and
                            reference.safetensors with the data, the logits, the loss, the gradient
                            of every parameter and the losses of a short training
    reference.py --load FOLDER DATA OUT
                            loads a model as any user of transformers would, which must find every
                            weight and no other, and writes its logits of DATA, one of the files above

Exits with 77 and one line if transformers cannot be imported.
"""

import os
import sys

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

try:
    import torch
    import transformers
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as missing:
    print(f"no parity with transformers is tested: {missing}")
    sys.exit(77)

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCABULARY = 320
IMAGE_TOKEN = 300
IGNORED = -100
MICROBATCHES = 4
STEPS = 20
ADAMW = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)


def llama(**more):
    sizes = dict(
        vocab_size=VOCABULARY,
        max_position_embeddings=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    return transformers.LlamaConfig(**{**sizes, **more})


def models():
    yield "gpt2", transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY, n_positions=64, n_embd=32, n_layer=4, n_head=4,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        )
    )
    yield "llama", transformers.LlamaForCausalLM(llama())
    scaled = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0,
                  high_freq_factor=4.0, original_max_position_embeddings=16)
    yield "llama-scaled-bias", transformers.LlamaForCausalLM(
        llama(rope_parameters=scaled, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    )
    yield "qwen3", transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(
            vocab_size=VOCABULARY, max_position_embeddings=64, hidden_size=32,
            intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, head_dim=12, tie_word_embeddings=True,
        )
    )
    vit = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=40,
        image_size=16, patch_size=4,
    )
    yield "llava", transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=vit, text_config=llama(num_hidden_layers=2, max_position_embeddings=512),
            image_token_index=IMAGE_TOKEN, vision_feature_layer=-1,
        )
    )


def randomize(model):
    """Randomises norms and biases: ones and zeros would hide a missing one."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def make_data(has_images):
    """Microbatches of sequences of different lengths; in every other one, images of different
    sizes, not all of them square. The second one has no image at all."""
    data = []
    for mb in range(MICROBATCHES):
        sequences = []
        for s in range(2 + mb % 2):
            ids = torch.randint(0, 256, (5 + (7 * s + 3 * mb) % 11,))
            images = []
            if has_images and mb != 1 and s != 2:
                rows, columns = [(4, 4), (2, 3), (5, 4)][(s + mb) % 3]
                images.append(torch.randn(3, 4 * rows, 4 * columns))
                place = torch.full((rows * columns,), IMAGE_TOKEN)
                ids = torch.cat((ids[:2], place, ids[2:]))
            targets = torch.cat((ids[1:], torch.tensor([IGNORED])))
            targets[targets == IMAGE_TOKEN] = IGNORED
            sequences.append((ids, targets, images))
        data.append(sequences)
    return data


def logits_of(model, ids, images):
    if not images:
        return model(input_ids=ids[None], use_cache=False).logits[0]
    # One image at a time, because sizes differ.
    features = []
    for image in images:
        out = model.model.get_image_features(
            image[None], vision_feature_layer=-1, vision_feature_select_strategy="default",
            interpolate_pos_encoding=True, return_dict=True)
        features += list(out.pooler_output)
    out.pooler_output = features
    return model(input_ids=ids[None], mm_encoder_outputs={"image": out}, use_cache=False).logits[0]


def loss_sum(model, sequences):
    total = torch.zeros(())
    all_logits = []
    for ids, targets, images in sequences:
        logits = logits_of(model, ids, images)
        all_logits.append(logits)
        total = total + torch.nn.functional.cross_entropy(
            logits, targets, ignore_index=IGNORED, reduction="sum")
    return total, torch.cat(all_logits)


def tokens_of(sequences):
    return sum(int((targets != IGNORED).sum()) for _, targets, _ in sequences)


def names_on_disk(model, folder):
    """The name in the file of every parameter: saving gives each one a number of its own."""
    import copy

    numbered = copy.deepcopy(model)
    with torch.no_grad():
        for n, parameter in enumerate(numbered.parameters()):
            parameter.fill_(float(n))
    numbered.save_pretrained(folder)
    names = {}
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        for key in f.keys():
            names[int(f.get_tensor(key).flatten()[0])] = key
    return [names[n] for n, _ in enumerate(numbered.parameters())]


def write(name, model, out):
    folder = os.path.join(out, name)
    model.float().train()
    randomize(model)
    names = names_on_disk(model, folder)
    model.save_pretrained(folder)
    data = make_data(name == "llava")
    tokens = sum(tokens_of(sequences) for sequences in data)
    tensors = {}
    for mb, sequences in enumerate(data):
        tensors[f"data.{mb}.inputs"] = torch.cat([ids for ids, _, _ in sequences])
        tensors[f"data.{mb}.targets"] = torch.cat([targets for _, targets, _ in sequences])
        tensors[f"data.{mb}.lengths"] = torch.tensor([len(ids) for ids, _, _ in sequences])
        images = [image for _, _, images in sequences for image in images]
        for n, image in enumerate(images):
            tensors[f"data.{mb}.image.{n}"] = image

        if images:
            # The encoder by itself: the output of its last layer, including class tokens.
            with torch.no_grad():
                hidden = [model.model.vision_tower(
                    image[None], output_hidden_states=True, interpolate_pos_encoding=True
                ).hidden_states[-1][0] for image in images]
            tensors[f"vit.{mb}"] = torch.cat(hidden)

    losses = []
    for mb, sequences in enumerate(data):
        loss, logits = loss_sum(model, sequences)
        (loss / tokens).backward()
        losses.append(loss.item() / tokens_of(sequences))
        tensors[f"logits.{mb}"] = logits.detach()
    tensors["losses"] = torch.tensor(losses, dtype=torch.float64)
    for disk, parameter in zip(names, model.parameters()):
        gradient = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
        tensors["gradient." + disk] = gradient.clone()

    trained = [p for p in model.parameters() if p.grad is not None]
    optimizer = torch.optim.AdamW(trained, foreach=False, **ADAMW)
    history = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        step = 0.0
        for sequences in data:
            loss, _ = loss_sum(model, sequences)
            (loss / tokens).backward()
            step += loss.item()
        optimizer.step()
        history.append(step / tokens)
    tensors["training"] = torch.tensor(history, dtype=torch.float64)
    save_file({k: v.contiguous() for k, v in tensors.items()},
              os.path.join(folder, "reference.safetensors"))


def load(folder, data, out):
    config = transformers.AutoConfig.from_pretrained(folder)
    model, found = getattr(transformers, config.architectures[0]).from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True)
    wrong = {what: keys for what, keys in found.items() if keys}
    if wrong:
        sys.exit(f"{folder}: {wrong}")
    tensors = {}
    with safe_open(data, "pt") as f:
        for mb in range(MICROBATCHES):
            ids = f.get_tensor(f"data.{mb}.inputs")
            lengths = f.get_tensor(f"data.{mb}.lengths").tolist()
            images = [f.get_tensor(key) for key in sorted(
                (k for k in f.keys() if k.startswith(f"data.{mb}.image.")),
                key=lambda k: int(k.rsplit(".", 1)[1]))]
            logits = []
            with torch.no_grad():
                for part in torch.split(ids, lengths):
                    # At most one image in a sequence.
                    has_image = bool((part == IMAGE_TOKEN).any())
                    logits.append(logits_of(model, part, [images.pop(0)] if has_image else []))
            tensors[f"logits.{mb}"] = torch.cat(logits).contiguous()
    save_file(tensors, out)


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    if sys.argv[1] == "--load":
        return load(*sys.argv[2:])
    out = sys.argv[1]
    for name, model in models():
        write(name, model, out)
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
