"""Cuts the causal language models of transformers.

A part is the model itself without the layers of other parts: its own forward runs, so what it does around the
layers (masks, rotary embeddings, scales, soft caps) is its own code. A stand-in at the place of a missing layer
passes the hidden state on. Nothing but the number of layers and their order is assumed of a model: a probe
finds the rest, and refuses a model whose layers exchange more than a hidden state.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import itertools
import math
import os
import re
import statistics
import time
import weakref
from collections.abc import Iterable
from numbers import Real

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from ._backward import leaves_of


class Absent(torch.nn.Module):
    """Stands for a module with parameters that belongs to another part."""

    def __init__(self, module, width=None):
        super().__init__()
        self.width = width  # of its output, whose values do not count; None: returns its input
        self.kind = type(module).__name__
        self.weight = torch.empty(0, dtype=next(module.parameters()).dtype)  # models ask for the type

    def forward(self, *args, **kwargs):
        inputs = [v for v in (*args, *kwargs.values()) if isinstance(v, torch.Tensor)]
        if not inputs:
            raise _Refused(f"its {self.kind} is called without a tensor")
        hidden = next((v for v in inputs if v.is_floating_point() and v.dim() > 2), None)
        if self.width is None:
            return inputs[0]
        rows = (1, 1) if hidden is None else hidden.shape[:-1]
        return self.weight.new_zeros((), device=inputs[0].device).expand(*rows, self.width)


class AbsentLayer(torch.nn.Module):
    """Stands for a layer of another part: returns the hidden state that it gets, or the one that arrived."""

    def __init__(self, layer, length):
        super().__init__()
        for name in {*vars(layer), *vars(type(layer))}:  # models ask a layer for its kind
            value = None if name.startswith("_") or hasattr(self, name) else getattr(layer, name)
            if isinstance(value, (str, int, float)):
                vars(self)[name] = value
        self.length = length  # of the sequence that the layer returns; 0: it returns a tensor
        self.arrived = None
        self.passed = None

    def forward(self, hidden, *args, **kwargs):
        self.passed = hidden
        return self.as_output(hidden if self.arrived is None else self.arrived)

    def as_output(self, hidden):
        return (hidden, *[None] * (self.length - 1)) if self.length else hidden


class _Refused(Exception):
    """Why a model cannot be cut."""


@dataclasses.dataclass(frozen=True)
class Anatomy:
    """Where a model has its layers, and what runs before and after them."""

    layers: str  # the name of the list of layers
    count: int
    length: int  # AbsentLayer.length
    before: dict  # names of the modules with parameters that run before the layers, and their widths
    after: tuple  # names of those that run after them
    embedding: str
    width: int  # of the embedding
    head: str

    def own(self, first, end):
        """Names of the modules beside the layers that belong to the part with layers [first, end)."""
        return ([] if first else list(self.before)) + (list(self.after) if end == self.count else [])


class TransformerPart(torch.nn.Module):
    """Layers [first, end) of a causal language model: the model itself without the other layers.

    The first part takes token ids, the others the hidden state; the last one returns the logits. What the
    first part gets beside the ids (attention_mask, position_ids) travels along.
    """

    def __init__(self, model, anatomy, first, end, load=None):
        super().__init__()
        self.anatomy, self.first, self.end, self._load = anatomy, first, end, load
        self.is_first = first == 0
        self.is_last = end == anatomy.count
        self._hold(model)

    def _hold(self, model):
        """Takes what the part needs of `model`, which stays as it is."""
        self.tied_parameter = self._tied = ""
        self.model = _copy_around_layers(model, self.anatomy)
        if _is_tied(model, self.anatomy) and self.is_first != self.is_last:
            weight = model.get_input_embeddings().weight
            self._tied = next(name for name, p in model.named_parameters() if p is weight)
            if self.is_last:
                _own_copy(self.model, f"{self.anatomy.head}.weight")
            self.tied_parameter = f"model.{self.anatomy.head if self.is_last else self.anatomy.embedding}.weight"
        _leave_out(self.model, self.anatomy, self.first, self.end)
        self._embeddings = _embeddings_of(self.model, self.anatomy) if self.is_first else []
        # Of the model, which may get others later.
        self._originals = {name: weakref.ref(model.get_submodule(name)) for name in self.anatomy.own(self.first, self.end)}
        self._of = weakref.ref(model)

    def __getstate__(self):
        return {**self.__dict__, "_of": None, "_originals": {}}

    def forward(self, hidden, attention_mask=None, position_ids=None):
        return self._run(hidden, attention_mask, position_ids, {})

    def _check_originals(self):
        whole = self._of and self._of()
        for name, original in self._originals.items() if whole is not None else ():
            if whole.get_submodule(name) is not original():
                raise RuntimeError(f"'{name}' of the model was replaced after the cut: expected a new cut")

    def _drop_hooks_for_gradients(self):
        """Those of gradient_checkpointing_enable() make the output of a frozen embedding a leaf that nothing trains. Only
        reentrant checkpoints need them, which are refused there."""
        for embedding, tower in self._embeddings:
            for key, hook in list(embedding._forward_hooks.items()):
                if getattr(hook, "__name__", "").startswith("make_inputs_require_grad"):
                    del embedding._forward_hooks[key]
                    trained = (m for m in tower.modules() if any(p.requires_grad for p in m.parameters()))
                    if any(map(_has_reentrant_checkpoints, trained)):
                        raise TypeError(_REENTRANT)

    def _check_checkpoints(self, layers, hidden):
        """A reentrant checkpoint trains nothing if its input requires no gradient."""
        if not any(map(_has_reentrant_checkpoints, itertools.islice(layers, self.first, self.end))):
            return
        before = (self.model.get_submodule(name) for name in self.anatomy.before if self.is_first)
        trains = hidden.requires_grad or any(p.requires_grad for m in before for p in m.parameters())
        if not trains and any(p.requires_grad for p in layers.parameters()):
            raise TypeError(_REENTRANT)

    def _run(self, hidden, attention_mask, position_ids, inputs):
        if self._load is not None:
            raise RuntimeError("this part has no weights yet: expected a call of its load()")
        config = self.model.config.get_text_config(decoder=True)
        if getattr(config, "output_router_logits", False):
            raise TypeError(_refusal(self.model, _ROUTER_LOSS))
        layers = self.model.get_submodule(self.anatomy.layers)
        if torch.is_grad_enabled():
            self._check_originals()
            self._check_checkpoints(layers, hidden)
        travels = {"attention_mask": attention_mask, "position_ids": position_ids}
        kwargs = {name: value for name, value in (travels | inputs).items() if value is not None}
        if self.is_first:
            self._drop_hooks_for_gradients()
            kwargs["input_ids"] = hidden
        else:
            # Gives the model the shape; what it computes from it before its layers is not used.
            shape = (*hidden.shape[:2], self.anatomy.width)
            kwargs["inputs_embeds"] = hidden.new_zeros(shape)
            layers[self.first - 1].arrived = hidden
        output = self.model(**kwargs, use_cache=False)
        result = _logits_of(output) if self.is_last else layers[self.end].passed
        for i in (self.first - 1, self.end):
            if 0 <= i < self.anatomy.count and layers[i].passed is None:
                raise TypeError(_refusal(self.model, f"its forward skipped layer {i}"))
        for layer in layers:
            if isinstance(layer, AbsentLayer):
                layer.arrived = layer.passed = None
        if self.is_last or not travels.keys() & kwargs.keys():
            return result
        return result, attention_mask, position_ids

    def load(self):
        """Reads the weights of this part if it comes from from_pretrained(). Returns the part."""
        if self._load is not None:
            self._hold(self._load(self))
            self._load = None
            self.train(self.training)
        return self

    def name_of_parameter(self, name):
        """The name in the whole model."""
        return self._tied if name == self.tied_parameter else name.removeprefix("model.")


class TowerPart(TransformerPart):
    """The same of a model with towers, for which the first part takes `inputs`, such as pixel_values.

    The masks and positions that the model makes of them travel to the other parts.
    """

    _has_inputs = False
    _made = None  # of the inputs, for the decoder: the module with the layers

    def _hold(self, model):
        super()._hold(model)
        decoder = self.model.get_submodule(_path(self.anatomy.layers)[-1])
        decoder.forward = functools.partial(self._decode, decoder.forward)

    def forward(self, hidden, attention_mask=None, position_ids=None, made=None, **inputs):
        inputs = {name: value for name, value in inputs.items() if value is not None and self.is_first}
        known = inspect.signature(type(_without_adapters(self.model)).forward).parameters.keys() if inputs else set()
        for name in inputs.keys() - (known - _OF_DECODERS):
            raise TypeError(f"{self.model.config.model_type}: a pipeline takes no argument '{name}'")
        self._has_inputs, self._made = bool(inputs), made
        result = self._run(hidden, attention_mask, position_ids, inputs)
        made, self._made = self._made, None
        if self.is_last or made is None:
            return result
        return result[0] if isinstance(result, tuple) else result, None, None, made

    def _decode(self, forward, *args, **kwargs):
        if self._has_inputs:
            self._made = {name: kwargs.get(name) for name in ("attention_mask", "position_ids")}
            for name in kwargs.keys() - self._made.keys() - {"inputs_embeds", "cache_position"}:
                if any(isinstance(value, torch.Tensor) for value in tree_leaves(kwargs[name])):
                    raise TypeError(_refusal(self.model, f"for images its layers get '{name}' besides the hidden state"))
        elif self._made is not None:
            kwargs.update(self._made)
        return forward(*args, **kwargs)


def from_transformers(model, stages, costs=None):
    """Splits a causal language model of Transformers by layers into `stages` parts.

    Without `costs`, the parts have equal numbers of layers. With costs from measure_layers(), the split minimises the
    time of the slowest part.

    Returns a list of modules for rrfp.Pipeline. They share the weights and the configuration of `model`, so
    model.save_pretrained() saves the trained weights. There is one exception: if the head is tied to the embedding,
    the last part holds a copy of that weight, which is kept equal.

    The parts are run once on a few ids in evaluation mode, and their logits must be bitwise equal to the model's. A
    model that cannot be split is refused with a TypeError that says why.

    The loss gets logits and targets. The targets are the ids, which the loss shifts by one token:
        lambda logits, ids: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    """
    _check_is_causal(model)
    with _refusals_of(model), _as_it_was(model):
        ids = _few_ids(model)
        anatomy = _probe(model, ids)
        parts = _cut(model, anatomy, stages, costs)
        _check_shares_nothing(parts)
        # Two microbatches, of which the second runs in a part before the first runs in the next one: what layers
        # leave for others beside the hidden state does not stay.
        microbatches = ids.split(1)
        with torch.no_grad(), _failures():
            logits = [_logits_of(model(input_ids=mb, use_cache=False)) for mb in microbatches]
        with torch.no_grad(), _failures("the forward of a part"):
            for part in parts:
                microbatches = [part.eval()(hidden).clone() for hidden in microbatches]
        if not all(map(torch.equal, microbatches, logits)):
            raise _Refused("its parts do not give the logits of the whole model")
    _take_modes(model, parts)
    return parts


def from_pretrained(name, stages, costs=None, dtype=torch.float32):
    """Like from_transformers(), for a model in a folder or on the hub. Each process loads only its own parts.

    The parts have no weights until part.load() reads them as `dtype` with Transformers' loader:
        parts = rrfp.from_pretrained("model", stages=4)
        pipe = rrfp.Pipeline(parts[rank].load(), ...)  # or [part.load() for part in parts]

    Without weights, the parts cannot be compared with the whole model; only the code between its layers is checked.
    """
    import transformers

    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch.dtype, got {dtype!r}")
    if os.path.isabs(name) and not os.path.isfile(os.path.join(name, "config.json")):
        raise FileNotFoundError(f"{name}: expected a folder with config.json")
    config = transformers.AutoConfig.from_pretrained(name)
    is_text = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING
    is_decoder = is_text and any(name.endswith("ForCausalLM") for name in config.architectures or ())
    if config.is_encoder_decoder and not is_decoder:
        raise TypeError(f"from_pretrained: {config.model_type} cannot be cut: {_ENCODER_DECODER}")
    kind = transformers.AutoModelForCausalLM if is_text else transformers.AutoModelForImageTextToText
    with _parameters_without_memory():
        model = kind.from_config(config, dtype=dtype)
    _check_is_causal(model)
    with _refusals_of(model), _as_it_was(model):
        anatomy = _probe(model, _few_ids(model))
        parts = _cut(model, anatomy, stages, costs, functools.partial(_load_part, model, name))
        _check_shares_nothing(parts)
    return parts


def measure_layers(model, ids, repetitions=5):
    """Returns the seconds of each layer's forward, then of everything else: the `costs` of from_transformers().

    `ids` are the token ids of a microbatch. Times differ from run to run, so under torchrun measure once and pass the
    same numbers in all processes.
    """
    _check_is_causal(model)
    with _refusals_of(model):
        layers = model.get_submodule(_name_of_layers(model))
    ends, runs = [], []
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


#: Arguments that act in the decoder or after it, for which the first part alone would take them.
_OF_DECODERS = {"inputs_embeds", "past_key_values", "cache", "use_cache", "cache_position", "labels", "logits_to_keep"}
_OF_DECODERS |= {"output_attentions", "output_hidden_states", "output_router_logits", "return_dict"}
_ENCODER_DECODER = "it is an encoder-decoder, whose decoder needs the encoder's output in every layer"
_REENTRANT = (
    "reentrant checkpoints train no layer behind a frozen embedding: expected "
    'gradient_checkpointing_kwargs={"use_reentrant": False}'
)
_ROUTER_LOSS = "it adds a router loss (config.output_router_logits), for which its last layer needs those of all parts"


def _cut(model, anatomy, stages, costs, load=None):
    layers = anatomy.count
    if isinstance(stages, bool) or not isinstance(stages, int) or not 1 <= stages <= layers:
        raise ValueError(f"stages: expected 1 to {layers}, the number of layers, got {stages!r}")
    around = [model.get_submodule(name) if name else model for name in _path(anatomy.layers)]
    if stages > 1 and any(getattr(module, "layerdrop", 0) for module in around):
        raise _Refused("it skips layers at random (layerdrop)")
    cuts = [layers * i // stages for i in range(stages + 1)]
    if costs is not None:
        if not isinstance(costs, Iterable) or not all(isinstance(c, Real) and 0 <= c < math.inf for c in costs):
            raise ValueError(f"costs: expected a list of finite numbers >= 0, got {costs!r}")
        if len(costs) != layers + 1:
            raise ValueError(f"costs: expected {layers + 1}, one per layer and one for the rest, got {len(costs)}")
        cuts = _balanced([*costs[:-2], costs[-2] + costs[-1]], stages)
    kind = TransformerPart if model.config.get_text_config(decoder=True) is model.config else TowerPart
    return [kind(model, anatomy, *cuts[i : i + 2], load) for i in range(stages)]


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


def _without_adapters(model):
    """The model in one of peft."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _check_is_causal(model):
    if hasattr(model, "_orig_mod"):
        raise TypeError("from_transformers: expected a model without torch.compile(): compile its parts")
    outputs = getattr(model, "get_output_embeddings", None)
    if outputs is None or outputs() is None:
        raise TypeError(f"from_transformers: expected a causal language model, got {type(model).__name__}")
    if getattr(model.config, "is_encoder_decoder", False):
        raise TypeError(_refusal(model, _ENCODER_DECODER))
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in getattr(model, "peft_config", {}).values()):
        raise TypeError(_refusal(model, "its adapter puts virtual tokens before those of the batch"))


def _refusal(model, why):
    family = getattr(getattr(model, "config", None), "model_type", type(model).__name__)
    return f"from_transformers: {family} ({type(model).__name__}) cannot be cut: {why}"


@contextlib.contextmanager
def _refusals_of(model):
    try:
        yield
    except _Refused as e:
        raise TypeError(_refusal(model, e)) from e.__cause__


@contextlib.contextmanager
def _as_it_was(model):
    """In evaluation mode meanwhile. Neither the modes of the modules nor random numbers change."""
    modes = {module: module.training for module in model.modules()}
    devices = {p.device for p in model.parameters() if p.device.type not in ("cpu", "meta")}
    with torch.random.fork_rng(devices, device_type=next(iter(devices)).type if devices else "cuda"):
        try:
            model.eval()
            yield
        finally:
            for module, training in modes.items():
                module.training = training


def _take_modes(model, parts):
    """Modules of the parts that are copies get the modes of those of the model."""
    modes = {name: module.training for name, module in model.named_modules(remove_duplicate=False)}
    for part in parts:
        for name, module in part.named_modules(remove_duplicate=False):
            module.training = modes.get(name.partition(".")[2], model.training)


def _few_ids(model):
    embedding = model.get_input_embeddings()
    if not isinstance(getattr(embedding, "weight", None), torch.Tensor):
        raise _Refused(f"its token embedding is a {type(embedding).__name__}, which has no weight")
    vocabulary, device = embedding.weight.shape[0], embedding.weight.device
    return (torch.arange(16, device="cpu" if device.type == "meta" else device).reshape(2, 8) * 7 + 3) % vocabulary


def _logits_of(output):
    return output.logits if hasattr(output, "logits") else output[0]


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


@contextlib.contextmanager
def _failures(what="its forward"):
    """An exception of the model becomes the reason of a refusal."""
    try:
        yield
    except _Refused:
        raise
    except Exception as e:
        why = next(iter(str(e).strip().splitlines()), "")
        asked = re.fullmatch(r"'_ProbeLayer' object has no attribute '(\w+)'", why)
        raise _Refused(f"it asks its layers for '{asked[1]}'" if asked else f"{what} raised {type(e).__name__}: {why}") from e


def _name_of_layers(model):
    """The name of the list of layers: the one with the most parameters of those with the length of the configuration."""
    config = model.config.get_text_config(decoder=True)
    # In the decoder of an encoder-decoder num_hidden_layers can be the encoder's.
    count = getattr(config, "decoder_layers", None) or getattr(config, "num_hidden_layers", None)
    lists = {name: m for name, m in model.named_modules() if isinstance(m, torch.nn.ModuleList)}
    found = [name for name, layers in lists.items() if len(layers) == count]
    if not found:
        layers = "the layers, whose number its configuration does not give" if count is None else f"its {count} layers"
        raise _Refused(f"expected one list of {layers}, found none")
    return max(found, key=lambda name: sum(p.numel() for p in lists[name].parameters()))


def _path(name):
    """The names of the modules that contain `name`, from the outside; "" is the model."""
    parts = name.split(".")
    return ["", *(".".join(parts[:i]) for i in range(1, len(parts)))]


def _copy_around_layers(model, anatomy):
    """The model with a list of layers of its own. Layers and modules with parameters are those of `model`."""
    path = [*_path(anatomy.layers), anatomy.layers]
    copies = {}
    for name in path:
        copies[name] = twin = copy.copy(model.get_submodule(name) if name else model)
        if getattr(twin, "rope_deltas", None) is not None:  # of the last forward, for the next tokens
            twin.rope_deltas = None
        for kind in ("_modules", "_parameters", "_buffers"):
            setattr(twin, kind, dict(getattr(twin, kind)))
    for outer, inner in zip(path, path[1:]):
        copies[outer]._modules[inner.rpartition(".")[2]] = copies[inner]
    for name in path[:-1]:
        for child, module in copies[name]._modules.items():
            if module is not None and not _contains(path, name, child) and not any(True for _ in module.parameters()):
                # Rotary embeddings have states, and each part runs on a thread of its own.
                copies[name]._modules[child] = _copy(module, model.config)
    return copies[""]


def _contains(path, outer, child):
    return (f"{outer}.{child}" if outer else child) in path


def _copy(module, *kept):
    """A deep copy; what it has of `kept` and the configurations stay the same objects."""
    configs = [value for m in module.modules() for value in vars(m).values() if hasattr(value, "to_dict")]
    return copy.deepcopy(module, {id(value): value for value in (*kept, *configs)})


def _own_copy(model, name):
    """Gives `model` its own parameter `name`; all else in the same module stays shared."""
    top = name.split(".")[0]
    tied = model.get_parameter(name)
    shared = [p for p in model.get_submodule(top).parameters() if p is not tied]
    model._modules[top] = _copy(model.get_submodule(top), *shared)


def _has_reentrant_checkpoints(layer):
    if not (layer.training and getattr(layer, "gradient_checkpointing", False)):
        return False
    return getattr(layer._gradient_checkpointing_func, "keywords", {}).get("use_reentrant", False)


def _embeddings_of(model, anatomy):
    """Those of the text and of towers, each with its tower; that of the text with itself, because its layers are checked
    anyway."""
    layers, found = model.get_submodule(anatomy.layers), {}
    for module in model.modules():
        with contextlib.suppress(AttributeError, NotImplementedError):
            embedding = module.get_input_embeddings()
            if isinstance(embedding, torch.nn.Module):
                found.setdefault(embedding, embedding if layers in module.modules() else module)
    return list(found.items())


def _leave_out(model, anatomy, first, end):
    """Puts stand-ins for the layers and the other modules that do not belong to the part."""
    layers = model.get_submodule(anatomy.layers)
    for i in [*range(first), *range(end, anatomy.count)]:
        if not isinstance(layers[i], AbsentLayer):
            layers[i] = AbsentLayer(layers[i], anatomy.length)
    if first > 0:
        # What the modules with towers have of their own is for the first part's inputs. Here they are no parameters.
        for name in _path(anatomy.layers)[:-1]:
            outer = model.get_submodule(name) if name else model
            for inner, value in list(outer.named_parameters(recurse=False)):
                delattr(outer, inner)
                setattr(outer, inner, value.detach())
    own = anatomy.own(first, end)
    for name in (*anatomy.before, *anatomy.after):
        module = model.get_submodule(name)
        if name not in own and not isinstance(module, Absent):
            model.set_submodule(name, Absent(module, anatomy.before.get(name)))


def _is_tied(model, anatomy):
    """Whether head and embedding, if both are in `model`, have the same weight."""
    weight_of = {name.removesuffix(".weight"): p for name, p in model.named_parameters(remove_duplicate=False)}
    embedding = weight_of.get(anatomy.embedding)
    return embedding is not None and weight_of.get(anatomy.head) is embedding


def _name_of(model, module):
    return next(name for name, m in model.named_modules() if m is module)


def _run_without_memory(module, args, kwargs):
    """The output of a module; if it has no weights, zeros of the right shape."""
    if not any(p.is_meta for p in module.parameters()):
        return module(*args, **kwargs)
    there = functools.partial(tree_map_only, torch.Tensor, lambda value: value.to("meta"))
    buffers = dict(module.named_buffers())
    output = torch.func.functional_call(module, there(buffers), there(args), there(kwargs))
    return tree_map_only(torch.Tensor, lambda value: torch.zeros(value.shape, dtype=value.dtype), output)


class _ProbeModule(torch.nn.Module):
    """Notes when a module beside the layers runs: how many layers have run before."""

    def __init__(self, module, calls):
        super().__init__()
        self.module, self.calls = module, calls
        self.seen, self.width = set(), None

    def __getattr__(self, name):
        return super().__getattr__(name) if name in ("module", "_modules") else getattr(self.module, name)

    def forward(self, *args, **kwargs):
        output = _run_without_memory(self.module, args, kwargs)
        self.seen.add(len(self.calls))
        first = tree_leaves(output)[0]
        self.width = first.shape[-1]
        if not self.calls and isinstance(output, torch.Tensor) and output.is_floating_point():
            return output.detach().requires_grad_().clone()  # also of a frozen model
        return output


class _ProbeLayer(AbsentLayer):
    """Notes what a layer gets, and returns a new tensor."""

    def __init__(self, layer, calls, ids):
        super().__init__(layer, 0)
        self.layer, self.calls, self.ids = layer, calls, ids

    def forward(self, hidden, *args, **kwargs):
        others = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
        # A dictionary is a place where layers leave states for others.
        if any(v.requires_grad for v in others) or any(isinstance(v, dict) for v in (*args, *kwargs.values())):
            raise _Refused("its layers exchange more than the hidden state")
        if any(v is self.ids for v in others):
            raise _Refused("its layers use the token ids")
        if self.calls and self.calls[-1][1] is not hidden:
            raise _Refused("it changes the hidden state between its layers")
        self.length = self.calls[0][0].length if self.calls else self.length_of_output(hidden, args, kwargs)
        output = torch.zeros_like(hidden, requires_grad=True)
        self.calls.append((self, output))
        return self.as_output(output)

    def length_of_output(self, hidden, args, kwargs):
        try:
            with torch.no_grad():
                output = _run_without_memory(self.layer, (hidden, *args), kwargs)
        except (RuntimeError, NotImplementedError):
            return 0  # experts ask for values, which a layer without weights does not have; such layers return a tensor
        return 0 if isinstance(output, torch.Tensor) else len(output)


def _probe(model, ids):
    """Runs the model without its layers, and finds out what runs before and after them."""
    if getattr(model.config.get_text_config(decoder=True), "output_router_logits", False):
        raise _Refused(_ROUTER_LOSS)
    name_of_layers = _name_of_layers(model)
    count = len(model.get_submodule(name_of_layers))
    embedding = _name_of(model, model.get_input_embeddings())
    head = _name_of(model, model.get_output_embeddings())
    anatomy = Anatomy(name_of_layers, count, 0, {}, (), embedding, model.get_submodule(embedding).weight.shape[1], head)
    probe, calls = _copy_around_layers(model, anatomy), []
    layers = probe.get_submodule(name_of_layers)
    for i in range(count):
        layers[i] = _ProbeLayer(layers[i], calls, ids)
    beside = {name: _ProbeModule(probe.get_submodule(name), calls) for name in _beside(probe, name_of_layers)}
    for name, module in beside.items():
        probe.set_submodule(name, module)
    with torch.enable_grad(), _failures():
        logits = _logits_of(probe(input_ids=ids, use_cache=False))
    if [layer for layer, _ in calls] != list(layers):
        raise _Refused("its layers do not run once each, in their order")
    leaves = set(leaves_of([logits]))
    if any(output in leaves for _, output in calls[:-1]):
        raise _Refused("it uses the outputs of several layers")
    before, after = {}, []
    for name, module in beside.items():
        if module.seen <= {0}:
            before[name] = module.width
        elif module.seen == {count}:
            after.append(name)
        else:
            raise _Refused(f"its module '{name}' runs before and after its first layer")
    return dataclasses.replace(anatomy, length=calls[0][0].length, before=before, after=tuple(after))


def _beside(model, layers):
    """Names of the modules with parameters beside the list of layers and what contains it."""
    path = [*_path(layers), layers]
    names = []
    for outer in path[:-1]:
        module = model.get_submodule(outer) if outer else model
        for child, inner in module.named_children():
            if _contains(path, outer, child) or not any(True for _ in inner.parameters()):
                continue
            names.append(f"{outer}.{child}" if outer else child)
            if isinstance(inner, (torch.nn.ModuleList, torch.nn.ParameterList)):
                raise _Refused(f"it has a list of modules besides its layers, '{names[-1]}'")
    return names


def _check_shares_nothing(parts):
    """Refuses a model whose parts would train the same parameter, or keep the same buffer in their state; the copy of a
    tied one has its own."""
    owner = {}
    for index, part in enumerate(parts):
        parameters = dict(part.named_parameters())
        states = {name: name for name in part.state_dict().keys() - parameters.keys()}
        for name, key in {**{name: id(value) for name, value in parameters.items()}, **states}.items():
            if owner.setdefault(key, index) != index and name != part.tied_parameter:
                kind = "parameter" if name in parameters else "buffer"
                raise _Refused(f"its parts share the {kind} '{part.name_of_parameter(name)}'")


def _load_part(model, folder, part):
    """The model with the weights of the part alone, by the loader of transformers, which reads no others."""
    whole, anatomy = type(model), part.anatomy
    outer, _, name_of_list = anatomy.layers.rpartition(".")

    class Loaded(whole):
        def __init__(self, config, *args, **kwargs):
            super().__init__(config, *args, **kwargs)
            kept = dict(self.named_modules())
            _leave_out(self, anatomy, part.first, part.end)
            if (part.is_first or part.is_last) and _is_tied(model, anatomy):
                # The file may have another head; then the loader leaves both as they are.
                for name in (*anatomy.before, *anatomy.after):
                    if _holds(name, anatomy.embedding) or _holds(name, anatomy.head):
                        self.set_submodule(name, kept[name])
            else:
                self.all_tied_weights_keys = {}

            _initialize_present(self.get_submodule(outer), name_of_list)

    Loaded.__name__, Loaded.__qualname__, Loaded.__module__ = whole.__name__, whole.__qualname__, whole.__module__
    with _quiet_loader():
        loaded, info = Loaded.from_pretrained(
            folder, config=copy.deepcopy(model.config), dtype=model.dtype, output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    for name, *shapes in info["mismatched_keys"]:
        raise ValueError(f"{folder}: expected {name} of shape {list(shapes[1])}, got {list(shapes[0])}")
    names = {part.name_of_parameter(name) for name, _ in part.named_parameters()}
    for name in sorted(names & set(info["missing_keys"])):
        raise KeyError(f"{folder}: expected a tensor {name}, found none")
    loaded.__class__ = whole
    vars(loaded.get_submodule(outer)).pop("_init_weights", None)
    return loaded


def _initialize_present(outer, name):
    """Some families reach from the module with the list of layers into each of them: while a part is loaded, into those
    that are there."""
    if not hasattr(outer, "_init_weights"):  # a plain module
        return
    original, layers = outer._init_weights, getattr(outer, name)

    def initialize(module):
        if module is outer:
            present = torch.nn.ModuleList(layer for layer in layers if not isinstance(layer, AbsentLayer))
            setattr(outer, name, present)
        try:
            original(module)
        finally:
            setattr(outer, name, layers)

    outer._init_weights = initialize


def _holds(outer, name):
    return name == outer or name.startswith(f"{outer}.")


@contextlib.contextmanager
def _quiet_loader():
    """Without the loader's report on the weights of other parts, and its progress bars."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
