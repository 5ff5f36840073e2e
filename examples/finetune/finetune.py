"""Fine-tunes a causal language model of transformers on chats, in a pipeline.

    python finetune.py MODEL CHATS.jsonl OUT [--stages 4] [--steps 100] ...
    torchrun --standalone --nproc-per-node 4 finetune.py MODEL CHATS.jsonl OUT ...

MODEL is a folder with a model and its tokenizer (or a name on the hub), OUT the folder for the result in the
same format. A line of CHATS.jsonl is {"messages": [{"role": "user", "content": "..."}, ...]}; the loss counts
the tokens of the assistant. A tenth of the chats is held out for evaluation. Under torchrun each process is a
stage and loads the weights of its own part alone. With --set checkpoint.dir=DIR an interrupted run resumes.
"""

import argparse
import json
import os
import pathlib
import sys

import rrfp
import torch
import transformers
from safetensors.torch import save_file

IGNORED = -100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("chats", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--stages", type=int, default=2, help="without torchrun: number of stages")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="chats in a step")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--length", type=int, default=128, help="tokens of a chat; longer ones are cut")
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of the job reference")
    parser.add_argument("--tensorboard", type=pathlib.Path, help="folder for TensorBoard")
    return parser.parse_args()


def pieces_of(messages, tokenizer):
    """Pairs of a text and whether the model shall learn it, by the tokenizer's chat template if it has one.

    The assistant's texts end as the template ends them, or with the end token, so the model learns to stop.
    """
    if tokenizer.chat_template is None:
        for message in messages:
            yield f"{message['role']}: ", False
            is_spoken = message["role"] == "assistant"
            yield message["content"] + (tokenizer.eos_token or "" if is_spoken else "") + "\n", is_spoken
        return
    done = ""
    for i, message in enumerate(messages, 1):
        is_spoken = message["role"] == "assistant"
        prompts = [(messages[: i - 1], True, False)] if is_spoken else []
        for part, prompt, learns in [*prompts, (messages[:i], False, is_spoken)]:
            text = tokenizer.apply_chat_template(part, tokenize=False, add_generation_prompt=prompt)
            if not text.startswith(done):
                raise ValueError("the chat template writes earlier messages anew")
            yield text[len(done) :], learns
            done = text


def tokens_of(chat, tokenizer, length):
    """Token ids, and the targets: the next token where the assistant speaks."""
    ids, spoken = [], []
    for text, is_spoken in pieces_of(chat["messages"], tokenizer):
        new = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        ids += new
        spoken += [is_spoken] * len(new)
    ids, spoken = ids[: length + 1], spoken[: length + 1]
    pad = length + 1 - len(ids)
    targets = [i if s else IGNORED for i, s in zip(ids, spoken)] + [IGNORED] * pad
    return (ids + [0] * pad)[:-1], targets[1:]


def read_chats(file, tokenizer, length):
    chats = []
    for number, line in enumerate(file.read_text().splitlines(), 1):
        try:
            chats.append(tokens_of(json.loads(line), tokenizer, length))
        except (ValueError, KeyError, TypeError) as e:
            sys.exit(f"{file}:{number}: expected {{\"messages\": [...]}}, got {type(e).__name__}: {e}")
    if len(chats) < 10:
        sys.exit(f"{file}: expected at least 10 chats, got {len(chats)}")
    ids, targets = (torch.tensor(values) for values in zip(*chats))
    return ids, targets


def loss_sum(logits, targets):
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
    )


def save(parts, names, out, config, tokenizer):
    """Each process writes its part; the first one what describes the whole."""
    out.mkdir(parents=True, exist_ok=True)
    count = len(names)
    file_of = lambda index: f"model-{index + 1:05}-of-{count:05}.safetensors"
    for index, part in parts.items():
        tensors = {part.name_of_parameter(n): p.detach().contiguous() for n, p in part.named_parameters()}
        # A tied head is saved once, with the embedding.
        tensors = {n: tensors[n] for n in names[index]}
        save_file(tensors, out / file_of(index), metadata={"format": "pt"})
    if 0 in parts:
        config.save_pretrained(out)
        tokenizer.save_pretrained(out)
        weight_map = {name: file_of(index) for index in range(count) for name in names[index]}
        index = {"metadata": {}, "weight_map": weight_map}
        (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def main():
    given = arguments()
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    ids, targets = read_chats(given.chats, tokenizer, given.length)
    held_out = max(given.microbatches, len(ids) // 10)

    parts = rrfp.from_pretrained(given.model, world if world > 1 else given.stages)
    names, seen = [], set()
    for part in parts:
        names.append([n for n in map(part.name_of_parameter, dict(part.named_parameters())) if n not in seen])
        seen.update(names[-1])
    config = transformers.AutoConfig.from_pretrained(given.model)
    stages = parts[rank].load() if world > 1 else [part.load() for part in parts]

    writer = None
    pipe = rrfp.Pipeline(
        stages,
        loss_sum,
        n_microbatches=given.microbatches,
        count=lambda target: int((target != IGNORED).sum()),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, given.lr),
        settings=dict(setting.split("=", 1) for setting in given.set),
    )
    if given.tensorboard and pipe.leads:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(given.tensorboard)

    def passed(run, rows):
        run(*([ids[rows]] if rank == 0 else []), target=targets[rows] if rank == world - 1 else None, return_outputs=False)
        return pipe.last.loss

    with pipe:
        print(f"{'step':>6} {'loss':>9} {'held out':>9} {'ms':>8} {'bubble':>7}") if pipe.leads else None
        for step in range(pipe.steps + 1, given.steps + 1):  # after those of a checkpoint
            draws = torch.Generator().manual_seed(step)
            rows = torch.randint(held_out, len(ids), (given.batch,), generator=draws)
            loss = passed(pipe.step, rows)
            ms, bubble = pipe.last.ms, pipe.last.bubble
            evaluated = ""
            if step % given.eval_every == 0 or step == given.steps:
                held = passed(pipe.eval, torch.arange(held_out))
                evaluated = f"{held:.6f}"
                if writer:
                    writer.add_scalar("loss/held out", held, step)
            if writer:
                writer.add_scalar("loss/training", loss, step)
            if pipe.leads:
                print(f"{step:6} {loss:9.6f} {evaluated:>9} {ms:8.1f} {bubble:7.1%}", flush=True)
    save(pipe.stages, names, given.out, config, tokenizer)
    if writer:
        writer.close()


if __name__ == "__main__":
    main()
