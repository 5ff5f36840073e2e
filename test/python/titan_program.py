"""A program of torchrun: torchtitan's trainer with a debug model on CPUs, with its own schedule or with rrfp's.

usage: titan_program.py OUT [OPTION=VALUE]...   OPTION: a name of `options` below; OUT_RANK gets losses and parameters

The trainer expects GPUs: this replaces its device module by that of the CPU, flex attention by scaled_dot_product_attention,
and what gloo lacks: FSDP's scaled reduction by a sum, and the all-to-all of tensors of different sizes by that of one
tensor. Data are drawn, so nothing is downloaded.
"""

import ast
import dataclasses
import importlib
import os
import random
import sys
import time
import types
import warnings

import torch

warnings.simplefilter("ignore")
options = {
    "ready": True,
    "model": "llama3",
    "schedule": "1F1B",
    "pp": 2,
    "dp": 1,
    "replicas": 1,
    "tp": 1,
    "ep": 1,
    "backend": "spmd_types",
    "parameters": "float32",  # of FSDP's mixed precision
    "loss": "whole",  # or "chunked"
    "checkpointing": True,
    "compile": False,
    "validates": False,
    "delay_ms": 0.0,  # on average, in each layer of a task
    "steps": 20,
    "microbatches": 8,
    "length": 32,
}
out = sys.argv[1]
for word in sys.argv[2:]:
    name, value = word.split("=", 1)
    options[name] = type(options[name])(ast.literal_eval(value)) if type(options[name]) is not str else value
o = types.SimpleNamespace(**options)
rank = int(os.environ["RANK"])
vocabulary = 2048


class Cpu(types.ModuleType):
    """torch.cpu with what the trainer asks of torch.cuda."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def get_device_name(self, *device):
        return "CPU"

    def get_device_properties(self, *device):
        return types.SimpleNamespace(total_memory=2**34)

    def memory_stats(self, *device):
        return {}

    def device_count(self):
        return 1

    def nothing(self, *device):
        return 0

    current_device = set_device = synchronize = empty_cache = reset_peak_memory_stats = nothing


torch.set_num_threads(1)
tools = importlib.import_module("torchtitan.tools.utils")
tools.device_type, tools.device_module = "cpu", Cpu("cpu")
tools.get_local_device = lambda: torch.device("cpu")
_barrier = torch.distributed.barrier
torch.distributed.barrier = lambda *args, device_ids=None, **more: _barrier(*args, **more)


def all_to_all(outputs, inputs, group=None):
    received = [len(output) for output in outputs]
    all_rows = inputs[0].new_empty(sum(received), *inputs[0].shape[1:])
    torch.distributed.all_to_all_single(all_rows, torch.cat(inputs), received, list(map(len, inputs)), group=group)
    for output, rows in zip(outputs, all_rows.split(received)):
        output.copy_(rows)


torch.distributed.all_to_all = all_to_all

from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.config import ParallelismConfig, TrainingConfig
from torchtitan.distributed import fsdp
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.common.config_utils import decoder_vocab_size
from torchtitan.trainer import Trainer

_without_division = fsdp.disable_fsdp_gradient_division


def sum_without_division(model):
    _without_division(model)
    for module in model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


fsdp.disable_fsdp_gradient_division = sum_without_division


class Tokenizer(BaseTokenizer):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):
        pass

    def __init__(self, config, *, tokenizer_path=None):
        super().__init__()
        self.eos_id = 0

    def encode(self, *args, **more):
        return []

    def decode(self, *args, **more):
        return ""

    def get_vocab_size(self):
        return vocabulary


class Data(BaseDataLoader):
    @dataclasses.dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        infinite: bool = True

    def __init__(self, config, *, dp_rank, seq_len, local_batch_size=1, **others):
        self.shape = local_batch_size, seq_len
        self.draws = torch.Generator().manual_seed(100 + dp_rank)

    def __iter__(self):
        rows, length = self.shape
        while True:
            tokens = torch.randint(0, 64, (rows, length + 1), generator=self.draws).cumsum(1) % vocabulary
            positions = torch.arange(length).expand(rows, -1).contiguous()
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions}, tokens[:, 1:].contiguous()

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Sleep(torch.autograd.Function):
    draws = random.Random(rank)

    @staticmethod
    def sleep():
        time.sleep(Sleep.draws.expovariate(1000 / o.delay_ms))

    @staticmethod
    def forward(context, x):
        Sleep.sleep()
        return x.view_as(x)

    @staticmethod
    def backward(context, gradient):
        Sleep.sleep()
        return gradient


def configured():
    config = getattr(importlib.import_module(f"torchtitan.models.{o.model}.config_registry"), f"{o.model}_debugmodel")()
    spec = config.model_spec
    for _, _, parent, name in list(spec.model.traverse(FlexAttention.Config)):
        setattr(parent, name, ScaledDotProductAttention.Config())
    if o.loss == "whole":
        config.loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec))
    if o.ready:
        from rrfp.torch import pipelining_fn

        config.model_spec = dataclasses.replace(spec, pipelining_fn=pipelining_fn())
    config.tokenizer, config.dataloader = Tokenizer.Config(), Data.Config()
    config.training = TrainingConfig(
        local_batch_size=o.microbatches,
        seq_len=o.length,
        steps=o.steps,
        disable_cuda_graphs=True,
        mixed_precision_param=o.parameters,
    )
    config.parallelism = ParallelismConfig(
        pipeline_parallel_degree=o.pp,
        pipeline_parallel_schedule=o.schedule,
        data_parallel_shard_degree=o.dp,
        data_parallel_replicate_degree=o.replicas,
        tensor_parallel_degree=o.tp,
        expert_parallel_degree=o.ep,
        spmd_backend=o.backend,
    )
    config.debug.seed = 1
    config.debug.enable_structured_logging = False
    config.compile.enable = o.compile
    config.checkpoint.enable = False
    config.dump_folder = f"{out}_dump"
    config.validator.enable = o.validates
    if o.validates:
        config.validator.dataloader, config.validator.freq, config.validator.steps = Data.Config(), 5, 2
    if not o.checkpointing:
        config.activation_checkpoint = None
    return config


trainer = Trainer(configured())
if o.delay_ms:
    for part in trainer.model_parts:
        for layer in part.layers.values():
            layer.register_forward_hook(lambda module, args, output: Sleep.apply(output))
figures = []


def noted(name):
    method = getattr(trainer.metrics_processor, name)

    def note(*args, **more):
        figures.append((name, *(float(value).hex() for value in args[:4])))
        return method(*args, **more)

    setattr(trainer.metrics_processor, name, note)


noted("log")
noted("log_validation")
trainer.train()
for part in trainer.model_parts:
    for module in part.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()  # torch's schedules leave parameters gathered after an evaluation
parameters = {
    name: (p.to_local() if hasattr(p, "to_local") else p).detach().clone()
    for part in trainer.model_parts
    for name, p in part.named_parameters()
}
torch.save({"figures": figures, "parameters": parameters}, f"{out}_{rank}")
kind = type(trainer.pp_schedule).__name__
if o.ready:
    trainer.pp_schedule.close()
trainer.close()
print(f"rank {rank}: {kind}, {len(figures)} lines", flush=True)
torch.distributed.destroy_process_group()
