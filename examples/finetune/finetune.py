"""Fine-tunes a causal language model of Transformers on chats, in a pipeline.

    python finetune.py MODEL CHATS OUT [--stages 4] [--epochs 3] [--lora 16] [--pack] ...
    torchrun --standalone --nproc-per-node 4 finetune.py MODEL CHATS OUT ...

MODEL is a folder with a model and its tokenizer (or a name on the hub). CHATS is a JSONL file whose lines are
{"messages": [{"role": "user", "content": "..."}, ...]}, or anything that datasets.load_dataset() takes. The loss counts
only the assistant's tokens: those between {% generation %} and {% endgeneration %} in the chat template. If the template
has no such markers, they are what it adds for an assistant message after the generation prompt. A tokenizer without a
template gets a plain one.

OUT gets all results:
    best/        the model with the lowest held-out loss, in the Transformers format; with --lora the adapter in peft's
                 format, or the model with the adapter merged in (--merge)
    checkpoint/  the state from which the same command resumes after an interruption, with the same rows and bits
    logs/        for TensorBoard, if torch.utils.tensorboard or tensorboardX is installed

Under torchrun each process is a stage and loads only its own part's weights; all processes must see the same OUT.
"""

import argparse
import contextlib
import copy
import functools
import importlib
import json
import math
import os
import pathlib
import re
import shutil
import sys
import zlib

import rrfp
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import save_file

IGNORED = -100
MARKERS = re.compile(r"\{%-?\s*generation\s*-?%\}")
PLAIN = """{% for m in messages %}{{ m.role }}: {% if m.role == "assistant" %}{% generation %}{{ m.content }}{{ eos_token }}
{% endgeneration %}{% else %}{{ m.content }}
{% endif %}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"""
WORLD, RANK = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("chats")
    parser.add_argument("out", type=pathlib.Path)

    def option(name, default, help, kind=None, **others):
        parser.add_argument(f"--{name}", type=kind or type(default), default=default, help=f"{help} [%(default)s]", **others)

    option("stages", 2, "without torchrun: number of stages", at_least(1))
    option("epochs", 3.0, "passes over the rows", at_least(0, float))
    option("steps", None, "instead of --epochs", at_least(1))
    option("batch", 16, "rows in a step", at_least(1))
    option("microbatches", 8, "into which a batch is cut", at_least(1))
    option("length", 1024, "tokens of a row; longer chats are cut", at_least(2))
    option("lr", 1e-4, "highest learning rate of AdamW; a training that resumes keeps its own", at_least(0, float))
    option("weight-decay", 0.0, "of AdamW", at_least(0, float))
    option("warmup", 0, "steps until the learning rate is --lr", at_least(0))
    option("lora", 0, "rank of adapters of peft, which are trained alone; 0: the whole model is trained", at_least(0))
    option("targets", None, "modules with adapters, by commas, or all-linear; peft has a list for each family", str)
    option("dtype", "float32", "of the weights; adapters are float32", choices=["float32", "bfloat16", "float16", "float64"])
    option("held-out", 0.1, "share of the chats for evaluation, below 1; at least one chat", at_least(0, float))
    option("every", 20, "steps between two evaluations, and between two checkpoints", at_least(1))
    option("seed", 1, "of the order of the rows, dropout and new adapters", at_least(0))
    option("schedule", "linear", "of the learning rate", choices=["linear", "cosine"])
    parser.add_argument("--pack", action="store_true", help="several chats in a row, which do not see each other")
    parser.add_argument("--merge", action="store_true", help="save the whole model instead of the adapter")
    parser.add_argument("--checkpointing", action="store_true", help="compute the activations of layers anew in backward")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the job reference")
    given = parser.parse_args()
    if given.held_out >= 1:
        parser.error(f"argument --held-out: expected less than 1, got {given.held_out:g}")
    for name in ("merge", "targets"):
        if getattr(given, name) and not given.lora:
            parser.error(f"argument --{name}: expected --lora beside it")
    for setting in given.set:
        if "=" not in setting:
            parser.error(f"argument --set: expected KEY=VALUE, got {setting}")
    return given


def at_least(least, kind=int):
    def number(text):
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"expected a number >= {least}, got {text}")
        return value

    return number


def text_of(content):
    """Of a message: a text, or a list of parts that are texts."""
    if isinstance(content, list) and all(isinstance(part, dict) and part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, (str, type(None))):
        raise TypeError("the content of a message is no text")
    return content


def tokens_of(chat, tokenizer, length):
    """Token ids, and as labels those that the assistant speaks."""
    messages = chat["messages"]
    if not isinstance(messages, list):
        raise TypeError("the messages are no list")
    messages = [{**m, "content": text_of(m["content"])} if "content" in m else m for m in messages]
    tools = chat.get("tools") or None
    template = tokenizer.get_chat_template(tools=tools)  # some tokenizers have one for tools
    if template == PLAIN and (tools or any(m.get("tool_calls") for m in messages)):
        raise ValueError("a chat with tools needs a chat template of the tokenizer")
    apply = functools.partial(tokenizer.apply_chat_template, chat_template=template, tools=tools)
    if MARKERS.search(template):
        found = apply(messages, return_dict=True, return_assistant_tokens_mask=True)
        ids, spoken = found["input_ids"], found["assistant_masks"]
    else:
        render = functools.partial(apply, tokenize=False)
        text = render(messages)
        learned = []
        for i, message in enumerate(messages):
            if message["role"] == "assistant":
                if i == 0:
                    raise ValueError("a chat that begins with the assistant needs a template with {% generation %} markers")
                before, after = render(messages[:i], add_generation_prompt=True), render(messages[: i + 1])
                if not (text.startswith(after) and after.startswith(before)):
                    raise ValueError("the chat template writes earlier messages anew: it needs {% generation %} markers")
                learned.append((len(before), len(after)))
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, spoken = found["input_ids"], []
        last = 0  # Some tokenizers leave white space out of the offsets.
        for at, end in found["offset_mapping"]:
            spoken.append(any(begin < end and min(at, last) < stop for begin, stop in learned))
            last = max(last, end)
    return ids[:length], [i if s else IGNORED for i, s in zip(ids, spoken)][:length]


def read_rows(source):
    """The lines of a file, or the rows of a data set."""
    if pathlib.Path(source).is_file():
        try:
            with open(source, encoding="utf-8-sig") as lines:
                return list(lines)
        except UnicodeDecodeError as e:
            sys.exit(f"{source}: expected JSONL in UTF-8, got {e}")
    try:
        import datasets
    except ImportError:
        sys.exit(f"{source}: expected a file, found none; for a data set of the hub, install the package datasets")
    return datasets.load_dataset(source, split="train")


def read_chats(source, tokenizer, length):
    """Tokens and labels of all chats with an answer."""
    chats = []
    for number, row in enumerate(read_rows(source), 1):
        if isinstance(row, str) and not row.strip():
            continue
        try:
            chats.append(tokens_of(json.loads(row) if isinstance(row, str) else row, tokenizer, length))
        except Exception as e:  # also what the chat template raises
            sys.exit(f'{source}:{number}: expected {{"messages": [...]}}, got {type(e).__name__}: {e}')
    chats = [(ids, labels) for ids, labels in chats if any(label != IGNORED for label in labels[1:])]
    if len(chats) < 2:
        sys.exit(f"{source}: expected at least 2 chats with an answer within {length} tokens, got {len(chats)}")
    return chats


def packed(chats, length):
    """As few rows of at most `length` tokens as hold the chats, about equally full."""
    (step,) = rrfp.pack([len(ids) for ids, _ in chats], max_tokens=length, shuffle=False)
    return [[chats[i] for i in row] for row in step[0]]


def tensors_of(rows):
    """Ids, positions and targets (the next token), padded at the right; each chat begins at position 0.

    By the positions transformers finds the chats of a row, and its masks keep them apart; padding is one more chat.
    """
    width = max(sum(len(ids) for ids, _ in row) for row in rows)
    columns = []
    for row in rows:
        pad = width - sum(len(ids) for ids, _ in row)
        row = [*row, ([0] * pad, [IGNORED] * pad)] if pad else row
        ids = [i for ids, _ in row for i in ids]
        positions = [at for ids, _ in row for at in range(len(ids))]
        columns.append((ids, positions, [label for _, labels in row for label in [*labels[1:], IGNORED]]))
    return [torch.tensor(column) for column in zip(*columns)]


def loss_sum(logits, targets):
    logits = logits.flatten(0, 1).float()
    return torch.nn.functional.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


def of_all_processes(value):
    """What each process passes, by rank."""
    values = [value] * WORLD
    if WORLD > 1:
        dist.all_gather_object(values, value)
    return values


def load(given):
    """All parts, of which those of this process have weights."""
    dtype = getattr(torch, given.dtype)
    parts = rrfp.from_pretrained(given.model, WORLD if WORLD > 1 else given.stages, dtype=dtype)
    own = {i: part.load() for i, part in enumerate(parts) if WORLD == 1 or i == RANK}
    of_own = {i: list(map(part.name_of_parameter, saved_tensors(part))) for i, part in own.items()}
    names_of = {i: found for of_one in of_all_processes(of_own) for i, found in of_one.items()}
    names, seen = [], set()  # of what is saved of each part; a tied head is saved once, with the embedding
    for i in range(len(parts)):
        names.append([name for name in names_of[i] if name not in seen])
        seen.update(names[i])
    for part in own.values() if given.checkpointing else ():
        part.model.gradient_checkpointing_enable()
    return own, names, add_adapters(own.values(), given) if given.lora else None


def saved_tensors(part):
    """Parameters and persistent buffers by their names; a parameter that two modules share once."""
    first = {id(p): name for name, p in part.named_parameters()}
    return {name: value for name, value in part.state_dict(keep_vars=True).items() if first.get(id(value), name) == name}


def add_adapters(parts, given):
    import peft

    targets = given.targets if given.targets in (None, "all-linear") else given.targets.split(",")
    config = peft.LoraConfig(r=given.lora, lora_alpha=2 * given.lora, target_modules=targets, task_type="CAUSAL_LM")
    failures = []  # and whether the part has targets
    for part in parts:
        own = copy.copy(config)  # peft puts the names in the part into it
        absent = [name for name, m in part.model.named_modules() if type(m).__name__ == "Absent"]  # here
        of_targets = lambda name: any(f".{name}".endswith(f".{target}") for target in targets or [])
        own.exclude_modules = [name for name in absent if of_targets(name)] or None
        try:
            peft.inject_adapter_in_model(own, part.model)
        except ValueError as e:
            has_targets = any(of_targets(name) and name not in absent for name, _ in part.model.named_modules())
            failures.append((f"layers {part.first} to {part.end - 1}: {e}", has_targets))
        if part.tied_parameter and part.tied_parameter not in dict(part.named_parameters()):
            sys.exit("--targets: expected neither the head nor the embedding, which are tied in this model")
        for name, p in part.named_parameters():
            p.requires_grad_("lora_" in name)
            if "lora_" in name:  # Small steps would be lost in bfloat16.
                p.data = p.data.float()
            # Random numbers that depend neither on the cut nor on the other processes.
            generator = torch.Generator().manual_seed(given.seed + zlib.crc32(name.encode()))
            if "lora_A" in name:
                torch.nn.init.kaiming_uniform_(p, math.sqrt(5), generator=generator)
            if "lora_embedding_B" in name:
                torch.nn.init.normal_(p, generator=generator)
    of_all = of_all_processes(failures)
    for why, has_targets in sum(of_all, []):
        if has_targets:
            sys.exit(f"--targets: {why}")
    if all(len(failures) == (len(parts) if WORLD == 1 else 1) for failures in of_all):
        sys.exit(f"--targets: nothing to train in {of_all[0][0][0]}")
    config.base_model_name_or_path = given.model
    config.target_modules = targets or own.target_modules
    return config


def weights_of(part, names):
    """The weights of the part by their names in the whole model, with adapters merged in."""
    weights = {}
    for name, p in saved_tensors(part).items():
        owner, is_adapted, leaf = name.partition(".base_layer.")
        whole = part.name_of_parameter(f"{owner}.{leaf}" if is_adapted else name)
        if whole in names:
            delta = part.get_submodule(owner).get_delta_weight("default") if is_adapted and leaf == "weight" else None
            weights[whole] = (p if delta is None else (p + delta).to(p.dtype)).detach().contiguous()
    return weights


def save(out, best, parts, names, given, tokenizer, adapters):
    """Replaces OUT/best. Each process writes its parts; the first one what describes the whole, or the adapter of all."""
    folder = out / "best.new"
    folder.mkdir(parents=True, exist_ok=True)
    if adapters and not given.merge:
        name_of = lambda part, name: f"base_model.model.{part.name_of_parameter(name)}".replace(".default.", ".")
        own = {name_of(part, n): p.detach() for part in parts.values() for n, p in part.named_parameters() if "lora_" in n}
        of_all = of_all_processes(own)
        if RANK == 0:
            whole = {name: value for own in of_all for name, value in own.items()}
            save_file(whole, folder / "adapter_model.safetensors", {"format": "pt"})
            adapters.save_pretrained(folder)
    else:
        file_of = lambda index: f"model-{index + 1:05}-of-{len(names):05}.safetensors"
        for index, part in parts.items():
            save_file(weights_of(part, names[index]), folder / file_of(index), {"format": "pt"})
        if RANK == 0:
            parts[0].model.config.save_pretrained(folder)
            if parts[0].model.can_generate():
                parts[0].model.generation_config.save_pretrained(folder)
            weight_map = {name: file_of(index) for index, own in enumerate(names) for name in own}
            (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    if WORLD > 1:
        dist.barrier()
    if RANK == 0:
        tokenizer.save_pretrained(folder)
        (folder / "best.json.new").write_text(json.dumps(best))
        (folder / "best.json.new").rename(folder / "best.json")  # the last file: with it the folder is complete
        take_over(out)


def take_over(out):
    """Makes a complete OUT/best.new the best one, also after an interruption."""
    if (out / "best.new/best.json").exists():
        shutil.rmtree(out / "best", ignore_errors=True)
        (out / "best.new").rename(out / "best")


def perplexity(loss):
    return math.exp(loss) if loss < math.log(sys.float_info.max) else math.inf


def summary_writer(folder):
    for name in ("torch.utils.tensorboard", "tensorboardX"):
        with contextlib.suppress(ImportError):
            return importlib.import_module(name).SummaryWriter(str(folder))


def main():
    given = arguments()
    torch.set_num_threads(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    tokenizer.chat_template = tokenizer.chat_template or PLAIN
    chats = read_chats(given.chats, tokenizer, given.length)
    held = max(1, int(given.held_out * len(chats)))
    rows_of = lambda chats: packed(chats, given.length) if given.pack else [[chat] for chat in chats]
    held_rows, rows = rows_of(chats[:held]), rows_of(chats[held:])
    steps_per_epoch = math.ceil(len(rows) / given.batch)
    steps = given.steps or math.ceil(given.epochs * steps_per_epoch)
    if steps == 0:
        sys.exit("--epochs: expected more than 0 steps")

    if WORLD > 1:
        dist.init_process_group("gloo")
    parts, names, adapters = load(given)
    vocabulary = next(iter(parts.values())).model.config.get_text_config(decoder=True).vocab_size
    highest = max(max(ids) for ids, _ in chats)
    if highest >= vocabulary:
        sys.exit(f"{given.model}: expected token ids below {vocabulary}, the size of its embedding, got {highest}")
    settings = {"checkpoint.dir": str(given.out / "checkpoint"), "checkpoint.every": given.every}
    pipe = rrfp.Pipeline(
        list(parts.values()) if WORLD == 1 else parts[RANK],
        loss_sum,
        n_microbatches=given.microbatches,
        count=lambda target: int((target != IGNORED).sum()),
        optimizer=lambda params: torch.optim.AdamW(
            [p for p in params if p.requires_grad], given.lr, weight_decay=given.weight_decay
        ),
        seed=given.seed,
        settings={**settings, **dict(setting.split("=", 1) for setting in given.set)},
    )

    def run_microbatches(kind, cut):
        """cut: the rows of each microbatch."""
        ids, positions, targets = zip(*map(tensors_of, cut))
        kwargs = [{"position_ids": p} for p in positions] if given.pack else None
        inputs = (list(ids), kwargs) if RANK == 0 else (None, None)
        kind(*inputs, list(targets) if RANK == WORLD - 1 else None, return_outputs=False)

    def run(kind, rows):
        """Mean and number of the loss terms, the same in all processes."""
        n = given.microbatches
        rows = [*rows, *[[([0], [IGNORED])]] * (n - len(rows))]  # A row that fills up has nothing to learn.
        run_microbatches(kind, [rows[len(rows) * i // n : len(rows) * (i + 1) // n] for i in range(n)])
        return pipe.last.loss, pipe.last.count

    def keeps_chats_apart():
        """Whether the loss of the second chat of a row is the same to the last bit after two different first ones."""
        second = [at % vocabulary for at in range(3, 11)]
        rows = [[([at % vocabulary] * 8, [IGNORED] * 8), (second, second)] for at in (1, 2)]
        run_microbatches(pipe.eval_microbatches, [[rows[i % 2]] for i in range(max(2, given.microbatches))])
        return len(set(pipe.last.losses)) == 1

    def held_out_loss():
        batches = [held_rows[at : at + given.batch] for at in range(0, len(held_rows), given.batch)]
        losses = [run(pipe.eval_microbatches, batch) for batch in batches]
        return sum(loss * count for loss, count in losses) / sum(count for _, count in losses)

    def evaluate(step):
        """The held-out loss; saves the model if it is the lowest so far."""
        nonlocal best
        found = held_out_loss()
        if found < best:
            best = found
            save(given.out, {"loss": best, "step": step}, parts, names, given, tokenizer, adapters)
        return found

    with pipe:
        if given.pack and not keeps_chats_apart():
            sys.exit("--pack: expected a model that keeps the chats of a row apart by their positions; in this one they see each other")
        schedulers = [
            transformers.get_scheduler(given.schedule, o, given.warmup, steps, {"last_epoch": pipe.steps - 1})
            for o in pipe.optimizers
        ]
        if RANK == 0:
            take_over(given.out)
        if WORLD > 1:
            dist.barrier()
        kept = given.out / "best/best.json"
        best = json.loads(kept.read_text())["loss"] if pipe.steps and kept.exists() else math.inf
        is_due = lambda step: step % given.every == 0 or step == steps
        if pipe.steps and is_due(pipe.steps):
            evaluate(pipe.steps)  # which an interruption may have left out
        writer = summary_writer(given.out / "logs") if pipe.leads else None
        if pipe.leads:
            print(f"{len(rows)} rows, {steps_per_epoch} steps an epoch, {steps} steps, after step {pipe.steps}")
            print(f"{'step':>6} {'loss':>9} {'held out':>9} {'perplexity':>10} {'lr':>9} {'ms':>8} {'bubble':>7}")
        for step in range(pipe.steps, steps):
            epoch, at = divmod(step, steps_per_epoch)
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(given.seed + epoch)).tolist()
            lr = schedulers[0].get_last_lr()[0] if schedulers else 0.0
            loss, _ = run(pipe.step_microbatches, [rows[i] for i in order[at * given.batch : (at + 1) * given.batch]])
            figures = {"train/loss": loss, "train/learning_rate": lr}
            ms, bubble, evaluated = pipe.last.ms, pipe.last.bubble, f"{'':>9} {'':>10}"
            for scheduler in schedulers:
                scheduler.step()
            if is_due(step + 1):
                found = evaluate(step + 1)
                figures.update({"eval/loss": found, "eval/perplexity": perplexity(found)})
                evaluated = f"{found:9.6f} {perplexity(found):10.4g}"
            for name, value in figures.items() if writer else ():
                writer.add_scalar(name, value, step + 1)
            if pipe.leads:
                print(f"{step + 1:6} {loss:9.6f} {evaluated} {lr:9.3g} {ms:8.1f} {bubble:7.1%}", flush=True)
    if writer:
        writer.close()
    if WORLD > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
