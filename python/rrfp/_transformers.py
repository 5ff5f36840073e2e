"""Cuts the causal language models of transformers."""

import contextlib
import copy
import functools
import json
import os
import statistics
import time

import torch

# Where a base model holds its list of layers, its embeddings (used before the first layer) and its final
# norm; the first names that exist count.
LAYERS = ("layers", "h")
BEFORE = ("embed_tokens", "wte", "wpe", "drop")
AFTER = ("norm", "ln_f", "final_layernorm")


class Nothing(torch.nn.Module):
    """Stands for an embedding that another part adds."""

    def forward(self, ids):
        return torch.zeros(())


class TransformerPart(torch.nn.Module):
    """Layers [first, end) of a causal language model: its own base model with the other layers left out.

    The first part takes token ids, the others the hidden state; the last one returns the logits. What the
    first part gets beside the ids (attention_mask, position_ids) travels along.
    """

    def __init__(self, model, first, end, weights=None):
        super().__init__()
        self._weights = weights
        base_name = model.base_model_prefix
        whole = getattr(model, base_name)
        layers_name = _name_in(whole, LAYERS, "list of layers")
        layers = getattr(whole, layers_name)
        self.is_first = first == 0
        self.is_last = end == len(layers)
        self.base = _shallow_copy(whole)
        self.base.config = _config_of(whole.config, first, end)
        setattr(self.base, layers_name, torch.nn.ModuleList(layers[first:end]))
        if not self.is_first:
            for name in BEFORE:
                if hasattr(whole, name):
                    setattr(self.base, name, torch.nn.Identity() if name == "drop" else Nothing())
        if not self.is_last:
            setattr(self.base, _name_in(whole, AFTER, "final norm"), torch.nn.Identity())
        self.tied_parameter = ""
        if self.is_last:
            self.head = model.get_output_embeddings()
        self._first, self._layers, self._base = first, layers_name, base_name
        self._head = next(n for n, m in model.named_modules() if m is model.get_output_embeddings())
        embedding = model.get_input_embeddings()
        self._tied = ""
        if model.get_output_embeddings().weight is embedding.weight and not (self.is_first and self.is_last):
            self._tied = next(n for n, p in model.named_parameters() if p is embedding.weight)
            if self.is_last:
                self.head = copy.deepcopy(self.head)
                self.tied_parameter = "head.weight"
            elif self.is_first:
                self.tied_parameter = next(n for n, p in self.named_parameters() if p is embedding.weight)

    def forward(self, hidden, attention_mask=None, position_ids=None):
        name = "input_ids" if self.is_first else "inputs_embeds"
        hidden = self.base(
            **{name: hidden}, attention_mask=attention_mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        if self.is_last:
            return self.head(hidden)
        if attention_mask is None and position_ids is None:
            return hidden
        return hidden, attention_mask, position_ids

    def load(self):
        """Reads the weights of this part, if it is of from_pretrained(). Returns the part."""
        tensors = self.state_dict()
        read = self._weights.read([self.name_of_parameter(name) for name in tensors]) if self._weights else []
        for (name, empty), tensor in zip(tensors.items(), read):
            if tensor.shape != empty.shape:
                raise ValueError(
                    f"{self._weights.folder}: expected {self.name_of_parameter(name)} of shape "
                    f"{list(empty.shape)}, got {list(tensor.shape)}"
                )
            owner, _, leaf = name.rpartition(".")
            module = self.get_submodule(owner)
            tensor = tensor.to(torch.float32) if tensor.is_floating_point() else tensor
            if leaf in module._parameters:
                setattr(module, leaf, torch.nn.Parameter(tensor, module._parameters[leaf].requires_grad))
            else:
                module._buffers[leaf] = tensor
        return self

    def name_of_parameter(self, name):
        """The name in the whole model."""
        head, rest = name.split(".", 1)
        if head == "head":
            return self._tied or f"{self._head}.{rest}"
        if rest.startswith(f"{self._layers}."):
            layers, number, rest = rest.split(".", 2)
            rest = f"{layers}.{int(number) + self._first}.{rest}"
        return f"{self._base}.{rest}"


def from_transformers(model, stages, costs=None):
    """Cuts a causal language model of transformers into `stages` parts, by layers.

    Without `costs` the parts have equal numbers of layers. With them (measure_layers()) the parts are
    cut so that the slowest one is as quick as possible.

    Returns a list of modules for rrfp.Pipeline; they share the weights of `model`, so
    model.save_pretrained() saves what was trained. Only if the head is tied to the embedding, the last part
    holds a copy of that weight, which is kept equal.

    The loss gets logits and targets, so the targets are the ids of the next tokens:
        lambda logits, ids: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    """
    return _cut(model, stages, costs)


def from_pretrained(name, stages, costs=None):
    """The same for a model in a folder, or on the hub, of which each process loads its own parts alone.

    The parts have no weights until part.load() reads them, in float32:
        parts = rrfp.from_pretrained("model", stages=4)
        pipe = rrfp.Pipeline(parts[rank].load(), ...)  # or [part.load() for part in parts]
    """
    import transformers

    if os.path.isabs(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise FileNotFoundError(f"{name}: expected a folder with config.json")
    config = transformers.AutoConfig.from_pretrained(name)
    with _parameters_without_memory():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    return _cut(model, stages, costs, Weights(name))


def measure_layers(model, ids, repetitions=5):
    """Seconds of each layer's forward, and at the end of everything else: `costs` of from_transformers().

    `ids` are the token ids of a microbatch. Times differ from run to run: under torchrun measure once and pass
    the same numbers in all processes.
    """
    layers, runs = _layers_of(model), []
    ends = []
    hooks = [layer.register_forward_pre_hook(lambda *_: ends.append(time.perf_counter())) for layer in layers]
    hooks.append(layers[-1].register_forward_hook(lambda *_: ends.append(time.perf_counter())))
    try:
        with torch.no_grad():
            for _ in range(repetitions + 1):
                ends.clear()
                begin = time.perf_counter()
                model(input_ids=ids, use_cache=False)
                whole = time.perf_counter() - begin
                runs.append([b - a for a, b in zip(ends, ends[1:])] + [whole - (ends[-1] - ends[0])])
    finally:
        for hook in hooks:
            hook.remove()
    return [statistics.median(times) for times in zip(*runs[1:])]


def _cut(model, stages, costs, weights=None):
    layers = len(_layers_of(model))
    if not 1 <= stages <= layers:
        raise ValueError(f"stages: expected 1 to {layers}, the number of layers, got {stages}")
    cuts = [layers * i // stages for i in range(stages + 1)]
    if costs is not None:
        if len(costs) != layers + 1:
            raise ValueError(f"costs: expected {layers + 1}, one per layer and one for the rest, got {len(costs)}")
        cuts = _balanced([*costs[:-2], costs[-2] + costs[-1]], stages)
    return [TransformerPart(model, *cuts[i : i + 2], weights) for i in range(stages)]


def _balanced(costs, parts):
    """Where to cut `costs` so that the largest sum of a part is smallest; no part is empty."""

    @functools.cache
    def best(end, count):
        """(largest sum, cuts) of the first `end` in `count` parts."""
        if count == 1:
            return sum(costs[:end]), (0, end)
        return min(
            (max(best(at, count - 1)[0], sum(costs[at:end])), (*best(at, count - 1)[1], end))
            for at in range(count - 1, end)
        )

    return list(best(len(costs), parts)[1])


@contextlib.contextmanager
def _parameters_without_memory():
    """Modules made here have their parameters on the device "meta", but real buffers."""
    register = torch.nn.Module.register_parameter

    def register_empty(module, name, parameter):
        if parameter is not None and not parameter.is_meta:
            parameter = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    torch.nn.Module.register_parameter = register_empty
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


class Weights:
    """The tensors of a model in the files of transformers."""

    def __init__(self, name):
        self.folder = name

    def file(self, name):
        from transformers.utils import cached_file

        return cached_file(self.folder, name, _raise_exceptions_for_missing_entries=False)

    def read(self, names):
        from safetensors import safe_open

        index = self.file("model.safetensors.index.json")
        if index is not None:
            with open(index) as text:
                file_of = json.load(text)["weight_map"]
        else:
            single = self.file("model.safetensors")
            if single is None:
                raise FileNotFoundError(f"{self.folder}: expected model.safetensors or its index, found neither")
            with safe_open(single, "pt") as opened:
                file_of = dict.fromkeys(opened.keys(), "model.safetensors")
        tensors = []
        with contextlib.ExitStack() as stack:
            opened = {}
            for name in names:
                # Files of a base model leave its name out: "h.0" for "transformer.h.0".
                found = next((n for n in (name, name.partition(".")[2]) if n in file_of), None)
                if found is None:
                    raise KeyError(f"{self.folder}: expected a tensor {name}, found none")
                file = file_of[found]
                if file not in opened:
                    opened[file] = stack.enter_context(safe_open(self.file(file), "pt"))
                tensors.append(opened[file].get_tensor(found))
        return tensors


def _layers_of(model):
    whole = getattr(model, getattr(model, "base_model_prefix", ""), None)
    if whole is None or model.get_output_embeddings() is None:
        raise TypeError(f"from_transformers: expected a causal language model, got {type(model).__name__}")
    return getattr(whole, _name_in(whole, LAYERS, "list of layers"))


def _name_in(module, names, what):
    for name in names:
        if hasattr(module, name):
            return name
    raise TypeError(
        f"from_transformers: expected a {what} in {type(module).__name__} ({', '.join(names)}), found none"
    )


def _shallow_copy(module):
    """Another module with the same children and parameters, whose children can be replaced."""
    twin = copy.copy(module)
    for name in ("_modules", "_parameters", "_buffers"):
        setattr(twin, name, dict(getattr(module, name)))
    return twin


def _config_of(config, first, end):
    """The configuration of a model with these layers alone."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = end - first
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[first:end]
    return config
