"""examples/finetune: a small model learns chats as it does in a loop by transformers alone, in one process and in several."""

import contextlib
import importlib.util
import io
import json
import pathlib
import re
import subprocess
import sys
import time

import pytest
import torch
from warm import PYTHON

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

PROGRAM = pathlib.Path(__file__).parents[2] / "examples/finetune/finetune.py"
IGNORED = -100
END = "<|end|>"
CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MARKED = CHATML.replace(
    "{{ m.content }}<|end|>",
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|end|>{% endgeneration %}"
    "{% else %}{{ m.content }}<|end|>{% endif %}",
)


def chat(*contents):
    return {"messages": [{"role": role, "content": c} for role, c in zip(["user", "assistant"] * len(contents), contents)]}


CHATS = [chat(f"What is {a} plus {b}?", f"{a} plus {b} is {a + b}." * (1 + a % 3)) for a in range(10) for b in range(6)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finetune")
    (folder / "chats").mkdir()
    (folder / "chats/train.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in CHATS))
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator([json.dumps(chat) for chat in CHATS], vocab_size=300)
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token=END)
    tokenizer.chat_template = MARKED
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), **sizes, num_key_value_heads=2)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder


@pytest.fixture(scope="module")
def program():
    spec = importlib.util.spec_from_file_location("finetune", PROGRAM)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    return program


def arguments(folder, out, *more, chats="chats/train.jsonl", model="model"):
    fixed = ["--steps=12", "--every=6", "--lr=1e-2", "--weight-decay=0.1", "--warmup=3", "--schedule=cosine"]
    return [str(folder / model), str(folder / chats), str(folder / out), *fixed, *more]


def rows_of(output):
    """(step, loss, held-out loss or nothing) of each line."""
    return [(int(step), loss, held.strip()) for step, loss, held in re.findall(r"^ +(\d+) +([\d.]+) (.{9}) ", output, re.M)]


def run(program, *given, **options):
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "argv", ["finetune.py", *arguments(*given, **options)])
        program.main()
    return rows_of(output.getvalue())


def run_processes(*given, count=2):
    launcher = [PYTHON, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    done = subprocess.run([*launcher, str(PROGRAM), *arguments(*given)], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return rows_of(done.stdout)


def model_of(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path)


def same_weights(path, other):
    return all(torch.equal(value, other[name]) for name, value in model_of(path).state_dict().items())


def labelled(folder):
    """Ids and labels of each chat, by transformers alone."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    for chat in CHATS:
        found = tokenizer.apply_chat_template(chat["messages"], return_dict=True, return_assistant_tokens_mask=True)
        labels = [i if spoken else IGNORED for i, spoken in zip(found["input_ids"], found["assistant_masks"])]
        yield torch.tensor([found["input_ids"]]), torch.tensor([labels])


def padded(rows):
    pad = lambda tensors, value: torch.nn.utils.rnn.pad_sequence([t[0] for t in tensors], True, value)
    ids, labels = zip(*rows)
    return pad(ids, 0), pad(labels, IGNORED)


def learned_of(labels):
    return int((labels[:, 1:] != IGNORED).sum())


@torch.no_grad()
def held_out_loss(model, folder):
    """Of each chat alone."""
    terms = [
        (model(input_ids=ids, labels=labels).loss.item() * learned_of(labels), learned_of(labels))
        for ids, labels in list(labelled(folder))[:6]
    ]
    return sum(loss for loss, _ in terms) / sum(count for _, count in terms)


def test_losses_and_weights_are_those_of_a_loop_by_transformers(folder, program):
    model = model_of(folder / "model").train()
    chats = list(labelled(folder))[6:]  # a tenth is held out
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    scheduler = transformers.get_cosine_schedule_with_warmup(optimizer, 3, 12)
    expected = []
    for step in range(12):
        epoch, at = divmod(step, 4)
        order = torch.randperm(54, generator=torch.Generator().manual_seed(1 + epoch)).tolist()
        rows = [chats[i] for i in order[at * 16 : (at + 1) * 16]]
        cuts = [len(rows) * i // 8 for i in range(9)]
        microbatches = [padded(rows[a:b]) if b > a else None for a, b in zip(cuts, cuts[1:])]
        if len(rows) < 8:
            microbatches = [padded([row]) for row in rows]
        count = sum(learned_of(labels) for _, labels in microbatches)
        losses = []
        for ids, labels in microbatches:
            loss = model(input_ids=ids, labels=labels, num_items_in_batch=count).loss
            loss.backward()
            losses.append(loss.item())
        expected.append(sum(losses))
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    rows = run(program, folder, "whole")
    assert [step for step, _, _ in rows] == list(range(1, 13))
    assert [float(loss) for _, loss, _ in rows] == pytest.approx(expected, abs=2e-6)
    assert json.loads((folder / "whole/best/best.json").read_text())["step"] == 12
    assert same_weights(folder / "whole/best", model.state_dict())
    assert float(rows[-1][2]) == pytest.approx(held_out_loss(model.eval(), folder), abs=2e-6)


def test_in_order_and_ready_in_one_process_and_several_give_the_same_model(folder, program):
    jitter = ["--set=jitter.compute=lognormal", "--set=jitter.compute_sigma=0.5"]
    in_order = ["--set=dispatch.mode=in-order", "--set=dispatch.policy=one_f_one_b"]
    rows = run(program, folder, "ready", *jitter)
    assert float(rows[-1][1]) < 0.7 * float(rows[0][1])
    assert rows == run(program, folder, "in order", *jitter, *in_order, "--stages=4")
    assert rows == run_processes(folder, "processes", *jitter)
    expected = model_of(folder / "ready/best").state_dict()
    assert all(same_weights(folder / out / "best", expected) for out in ("in order", "processes"))


def test_an_interrupted_run_goes_on_in_the_middle_of_an_epoch_with_the_same_bits(folder, program):
    whole = run(program, folder, "uninterrupted", "--steps=22", "--every=5")
    given = arguments(folder, "interrupted", "--steps=22", "--every=5", "--set=jitter.compute=lognormal")
    running = subprocess.Popen([PYTHON, str(PROGRAM), *given], stdout=subprocess.DEVNULL)
    saved = folder / "interrupted/checkpoint/step-00000005/manifest.json"
    deadline = time.monotonic() + 120
    while not saved.exists() and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    running.kill()
    running.wait()
    rows = run_processes(folder, "interrupted", "--steps=22", "--every=5")
    assert 0 < len(rows) < 22
    assert rows == whole[-len(rows) :]
    assert same_weights(folder / "interrupted/best", model_of(folder / "uninterrupted/best").state_dict())
    assert run(program, folder, "interrupted", "--steps=22", "--every=5") == []


LORA = ["--pack", "--length=96", "--lora=4", "--targets=q_proj,v_proj,down_proj"]


def test_adapters_are_trained_on_packed_chats_and_loaded_by_peft(folder, program):
    peft = pytest.importorskip("peft")
    rows = run(program, folder, "adapters", *LORA)
    assert rows == run_processes(folder, "adapters of processes", *LORA)
    expected = peft.PeftModel.from_pretrained(model_of(folder / "model"), folder / "adapters/best")
    best = json.loads((folder / "adapters/best/best.json").read_text())
    assert 0 < best["loss"] < float(rows[0][1]) - 0.1
    assert best["loss"] == pytest.approx(held_out_loss(expected, folder), abs=1e-5)  # of chats that are not packed
    with expected.disable_adapter():
        assert held_out_loss(expected, folder) > best["loss"] + 0.1
    of_processes = peft.PeftModel.from_pretrained(model_of(folder / "model"), folder / "adapters of processes/best")
    assert all(map(torch.equal, expected.state_dict().values(), of_processes.state_dict().values()))
    assert run(program, folder, "merged", *LORA, "--merge", "--checkpointing") == rows
    assert same_weights(folder / "merged/best", expected.merge_and_unload().state_dict())
    assert transformers.AutoTokenizer.from_pretrained(folder / "merged/best").chat_template == MARKED


def test_adapters_of_a_model_in_bfloat16(folder, program):
    peft = pytest.importorskip("peft")
    rows = run(program, folder, "half", *LORA, "--dtype=bfloat16", "--targets=all-linear")
    assert float(rows[-1][2]) < float(rows[0][1]) - 0.1
    assert run(program, folder, "half merged", *LORA, "--dtype=bfloat16", "--targets=all-linear", "--merge") == rows
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16)
    model = peft.PeftModel.from_pretrained(base, folder / "half/best")
    adapters = [p for name, p in model.named_parameters() if "lora_" in name]
    assert len(adapters) == 2 * 7 * 4 and all(p.dtype == torch.float32 for p in adapters)
    merged = transformers.AutoModelForCausalLM.from_pretrained(folder / "half merged/best")
    assert merged.dtype == torch.bfloat16
    assert all(map(torch.equal, merged.state_dict().values(), model.merge_and_unload().state_dict().values()))


def test_buffers_and_settings_of_generation_are_saved(folder, program):
    model = transformers.AutoConfig.for_model(
        "deepseek_v3", vocab_size=301, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
        q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, first_k_dense_replace=1,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(model)
    biases = [value for name, value in model.named_buffers() if name.endswith("e_score_correction_bias")]
    assert len(biases) == 3
    for bias in biases:
        bias.copy_(torch.randn(4))
    model.generation_config.update(temperature=0.6, do_sample=True, eos_token_id=[2, 7])
    model.save_pretrained(folder / "experts")
    transformers.AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "experts")
    run(program, folder, "of experts", "--steps=1", model="experts")
    saved = model_of(folder / "of experts/best")
    now = [value for name, value in saved.named_buffers() if name.endswith("e_score_correction_bias")]
    assert all(map(torch.equal, now, biases))
    assert saved.generation_config.temperature == 0.6 and saved.generation_config.eos_token_id == [2, 7]


def test_an_evaluation_that_an_interruption_left_out_is_made(folder, program):
    rows = run(program, folder, "all", "--steps=6", "--every=3")
    best = json.loads((folder / "all/best/best.json").read_text())
    assert run(program, folder, "cut", "--steps=6", "--every=3") == rows
    (folder / "cut/best").rename(folder / "cut/best.new")  # as after the last file, before it replaces the last best
    assert run(program, folder, "cut", "--steps=6", "--every=3") == []
    assert json.loads((folder / "cut/best/best.json").read_text()) == best
    for path in (folder / "cut/best").iterdir():  # as before the evaluation
        path.unlink()
    assert run(program, folder, "cut", "--steps=6", "--every=3") == []
    assert json.loads((folder / "cut/best/best.json").read_text()) == best
    assert same_weights(folder / "cut/best", model_of(folder / "all/best").state_dict())


def test_chats_that_see_each_other_are_not_packed(folder, program):
    config = transformers.BloomConfig(vocab_size=301, hidden_size=32, n_layer=2, n_head=4)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder / "bloom")
    transformers.AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "bloom")
    with pytest.raises(SystemExit, match="^--pack: expected a model that keeps the"):
        run(program, folder, "seen", "--pack", model="bloom")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--every=0", "argument --every: expected a number >= 1, got 0"),
        ("--length=-5", "argument --length: expected a number >= 2, got -5"),
        ("--held-out=1", "argument --held-out: expected less than 1, got 1"),
        ("--epochs=nan", "argument --epochs: expected a number >= 0, got nan"),
        ("--merge", "argument --merge: expected --lora beside it"),
        ("--set=foo", "argument --set: expected KEY=VALUE, got foo"),
        ("--dtype=int8", "argument --dtype: invalid choice: 'int8'"),
    ],
)
def test_wrong_options_are_refused(folder, program, capsys, option, told):
    with pytest.raises(SystemExit) as ended:
        run(program, folder, "wrong", option)
    assert ended.value.code == 2 and told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b'{"messages": "hi"}\n', ':1: expected {"messages": [...]}, got TypeError: the messages are no list'),
        (b"\n[1, 2]\n", ':2: expected {"messages": [...]}, got TypeError: list indices must be'),
        (b"\xff\xfe\n", ": expected JSONL in UTF-8, got 'utf-8' codec can't decode byte 0xff"),
        (json.dumps(CHATS[0], ensure_ascii=False).replace("What", "\u2028").encode() + b"\n\n", ": expected at least 2 chats"),
        (None, ": expected a file, found none; for a data set of the hub, install the package datasets"),
    ],
)
def test_wrong_chats_are_refused(folder, program, text, told):
    path = folder / "chats/wrong.jsonl"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_bytes(text)
    elif importlib.util.find_spec("datasets"):
        pytest.skip("the package datasets is installed")
    with pytest.raises(SystemExit, match=re.escape(f"{path}{told}")):
        run(program, folder, "wrong", chats="chats/wrong.jsonl")


def test_modules_of_one_part_alone_may_have_adapters(folder, program):
    pytest.importorskip("peft")
    rows = run(program, folder, "head", "--lora=4", "--targets=lm_head")
    assert rows == run_processes(folder, "head of processes", "--lora=4", "--targets=lm_head")
    assert float(rows[-1][1]) < float(rows[0][1])


def test_modules_that_are_not_there_are_an_error(folder, program):
    pytest.importorskip("peft")
    with pytest.raises(SystemExit, match="--targets: nothing to train in layers 0 to 1: Target modules .*nowhere"):
        run(program, folder, "nothing", "--lora=4", "--targets=nowhere")


def test_packed_chats_do_not_see_each_other(folder, program):
    chats = [([5 + i, 6, 7, 8 + i] + [9] * (i % 3), [IGNORED, IGNORED, 7, 8 + i] + [9] * (i % 3)) for i in range(7)]
    rows = program.packed(chats, 10)
    assert sorted(chat for row in rows for chat in row) == sorted(chats)
    assert len(rows) == 4 and max(sum(len(ids) for ids, _ in row) for row in rows) <= 10
    ids, positions, targets = program.tensors_of(rows)
    model = model_of(folder / "model").eval()
    with torch.no_grad():
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
        for at, row in enumerate(rows):
            begin = 0
            for tokens, labels in row:
                alone = model(input_ids=torch.tensor([tokens])).logits[0]
                here = slice(begin, begin + len(tokens))
                torch.testing.assert_close(logits[at, here], alone)
                assert targets[at, here].tolist() == [*labels[1:], IGNORED]
                begin += len(tokens)
            assert (targets[at, begin:] == IGNORED).all()


@pytest.mark.parametrize("template", ["PLAIN", CHATML, MARKED])
def test_the_answers_and_their_ends_are_learned(folder, program, template):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = getattr(program, template, template)
    ids, labels = program.tokens_of(chat("2?", "3.", "ok", "Yes."), tokenizer, 200)
    learned, seen = tokenizer.decode([i for i in labels if i >= 0]), tokenizer.decode(ids)
    if template == "PLAIN":
        assert learned == "3.<|end|>\nYes.<|end|>\n"
        assert seen == "user: 2?\nassistant: 3.<|end|>\nuser: ok\nassistant: Yes.<|end|>\n"
    else:
        assert learned == "3.<|end|>Yes.<|end|>"
        assert seen == "<|user|>2?<|end|><|assistant|>3.<|end|><|user|>ok<|end|><|assistant|>Yes.<|end|>"
    assert program.tokens_of(chat("2?", "3.", "ok", "Yes."), tokenizer, 5)[0] == ids[:5]


def test_tools_are_those_of_the_template(folder, program):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    with_tools = "{% for t in tools %}tool {{ t.name }};{% endfor %}" + CHATML
    tokenizer.chat_template = {"default": CHATML, "tool_use": with_tools}
    told = chat("2?", "3.") | {"tools": [{"name": "add"}]}
    ids, labels = program.tokens_of(told, tokenizer, 200)
    assert tokenizer.decode(ids) == "tool add;<|user|>2?<|end|><|assistant|>3.<|end|>"
    assert tokenizer.decode([i for i in labels if i >= 0]) == "3.<|end|>"
    assert tokenizer.decode(program.tokens_of(chat("2?", "3."), tokenizer, 200)[0]) == "<|user|>2?<|end|><|assistant|>3.<|end|>"
    tokenizer.chat_template = program.PLAIN
    called = {"messages": [*chat("2?")["messages"], {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}]}
    for wrong in (told, called):
        with pytest.raises(ValueError, match="a chat with tools needs a chat template"):
            program.tokens_of(wrong, tokenizer, 200)


def test_a_head_of_its_own_beside_a_tied_embedding_is_saved(folder, program):
    model = model_of(folder / "model")
    model.config.tie_word_embeddings = True
    model.save_pretrained(folder / "own head")  # with both
    transformers.AutoTokenizer.from_pretrained(folder / "model").save_pretrained(folder / "own head")
    before = model_of(folder / "own head").state_dict()
    assert not torch.equal(before["lm_head.weight"], before["model.embed_tokens.weight"])
    run(program, folder, "kept head", "--steps=1", "--every=1", "--lr=0", model="own head")
    assert same_weights(folder / "kept head/best", before)


def test_a_loss_may_be_large(program):
    assert program.perplexity(0.0) == 1 and program.perplexity(1e4) == float("inf")


def test_wrong_chats_name_the_line(folder, program):
    (folder / "wrong.jsonl").write_text(json.dumps(chat("1", "2")) + '\n{"text": "x"}\n')
    with pytest.raises(SystemExit, match="wrong.jsonl:2: expected .*KeyError"):
        run(program, folder, "out", chats="wrong.jsonl")
    (folder / "unanswered.jsonl").write_text(f"{json.dumps(chat('1'))}\n{json.dumps(chat('1', '2'))}\n")
    with pytest.raises(SystemExit, match="expected at least 2 chats with an answer within 1024 tokens, got 1"):
        run(program, folder, "out", chats="unanswered.jsonl")


def test_blank_lines_are_no_chats(folder, program):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    lines = (folder / "chats/train.jsonl").read_text()
    (folder / "spaced.jsonl").write_text("\ufeff  \n" + lines.replace("\n", "\n \t\n"), encoding="utf-8")
    plain, spaced = (program.read_chats(str(folder / name), tokenizer, 99) for name in ("chats/train.jsonl", "spaced.jsonl"))
    assert plain == spaced and len(plain) == 60


def test_chats_come_from_datasets_too(folder, program):
    pytest.importorskip("datasets")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder / "model")
    of_file, of_dataset = (program.read_chats(str(folder / name), tokenizer, 99) for name in ("chats/train.jsonl", "chats"))
    assert of_file == of_dataset and len(of_file) == 60


def test_the_figures_are_in_tensorboard(folder, program):
    writer = pytest.importorskip("tensorboardX")
    assert writer
    run(program, folder, "logged", "--steps=2")
    assert list((folder / "logged/logs").glob("events*"))
