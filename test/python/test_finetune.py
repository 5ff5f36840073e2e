"""examples/finetune: a small model learns chats, in one process and in several, to the same bits."""

import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
import torch

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

PROGRAM = pathlib.Path(__file__).parents[2] / "examples/finetune/finetune.py"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    chats = [
        {
            "messages": [
                {"role": "user", "content": f"What is {a} plus {b}?"},
                {"role": "assistant", "content": f"{a} plus {b} is {a + b}."},
            ]
        }
        for a in range(10)
        for b in range(6)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats))
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([json.dumps(chat) for chat in chats], vocab_size=300)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer)
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


def run(folder, out, *more, processes=1, steps=12):
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *(launcher if processes > 1 else []), str(PROGRAM)]
    command += [str(folder / "model"), str(folder / "chats.jsonl"), str(folder / out), f"--steps={steps}"]
    command += ["--eval-every=6", "--length=24", "--lr=1e-2", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return re.findall(r"^ +(\d+) +([\d.]+) (.{9}) ", done.stdout, re.M)


def test_in_order_and_ready_in_one_process_and_several_give_the_same_model(folder):
    jitter = ["--set=jitter.compute=lognormal", "--set=jitter.compute_sigma=0.5"]
    in_order = ["--set=dispatch.mode=in-order", "--set=dispatch.policy=one_f_one_b"]
    rows = run(folder, "ready", *jitter)
    assert [int(step) for step, _, _ in rows] == list(range(1, 13))
    assert float(rows[-1][1]) < 0.7 * float(rows[0][1])
    assert rows == run(folder, "in order", *jitter, *in_order)
    assert rows == run(folder, "processes", *jitter, processes=2)
    models = [
        transformers.AutoModelForCausalLM.from_pretrained(folder / out).state_dict()
        for out in ("ready", "in order", "processes")
    ]
    start = transformers.AutoModelForCausalLM.from_pretrained(folder / "model").state_dict()
    for name, value in models[0].items():
        assert not torch.equal(value, start[name])
        assert all(torch.equal(value, other[name]) for other in models)


def test_wrong_chats_name_the_line(folder):
    (folder / "wrong.jsonl").write_text('{"messages": []}\n{"text": "x"}\n')
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder / "model"), str(folder / "wrong.jsonl"), "out"],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0
    assert "wrong.jsonl:2: expected" in done.stderr


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def load_program():
    spec = importlib.util.spec_from_file_location("finetune", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


@pytest.mark.parametrize("template", [None, CHATML])
def test_the_template_and_the_end_of_an_answer_are_learned(folder, template):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model", eos_token="<|stop|>")
    tokenizer.chat_template = template
    chat = {"messages": [{"role": r, "content": c} for r, c in [("user", "2?"), ("assistant", "3."), ("user", "ok")]]}
    ids, targets = load_program().tokens_of(chat, tokenizer, 200)
    learned = tokenizer.decode([t for t in targets if t >= 0])
    seen = tokenizer.decode([i for i in ids if i])
    if template is None:
        assert learned == "3.<|stop|>\n" and seen.startswith("user: 2?\nassistant: 3.<|stop|>\nuser: ok")
    else:
        assert learned == "3.<|end|>" and seen.startswith("<|user|>2?<|end|><|assistant|>3.<|end|><|user|>ok<|end|>")


def test_a_resumed_run_continues_where_the_checkpoint_ends(folder):
    checkpoints = [f"--set=checkpoint.dir={folder / 'saved'}", "--set=checkpoint.every=4"]
    whole = [row[:2] for row in run(folder, "whole")]
    assert [row[:2] for row in run(folder, "first", *checkpoints, steps=8)] == whole[:8]
    assert [row[:2] for row in run(folder, "second", *checkpoints)] == whole[8:]
