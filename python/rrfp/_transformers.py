"""Cuts the causal language models of transformers."""

import copy

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

    The first part takes token ids, the others the hidden state; the last one returns the logits.
    """

    def __init__(self, model, first, end):
        super().__init__()
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
        if model.get_output_embeddings().weight is embedding.weight and not (self.is_first and self.is_last):
            self.tied_parameter = next(n for n, p in model.named_parameters() if p is embedding.weight)
            if self.is_last:
                self.head = copy.deepcopy(self.head)

    def forward(self, hidden):
        given = {"input_ids": hidden} if self.is_first else {"inputs_embeds": hidden}
        hidden = self.base(**given, use_cache=False).last_hidden_state
        return self.head(hidden) if self.is_last else hidden

    def name_of_parameter(self, name):
        """The name in the whole model."""
        head, rest = name.split(".", 1)
        if head == "head":
            return self.tied_parameter or f"{self._head}.{rest}"
        if rest.startswith(f"{self._layers}."):
            layers, number, rest = rest.split(".", 2)
            rest = f"{layers}.{int(number) + self._first}.{rest}"
        return f"{self._base}.{rest}"


def from_transformers(model, stages):
    """Cuts a causal language model of transformers into `stages` parts with equal numbers of layers.

    Returns a list of modules for rrfp.Pipeline; they share the weights of `model`, so
    model.save_pretrained() saves what was trained. Only if the head is tied to the embedding, the last part
    holds a copy of that weight, which is kept equal.

    The loss gets logits and targets, so the targets are the ids of the next tokens:
        lambda logits, ids: torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    """
    whole = getattr(model, model.base_model_prefix, None)
    if whole is None or model.get_output_embeddings() is None:
        raise TypeError(f"from_transformers: expected a causal language model, got {type(model).__name__}")
    count = len(getattr(whole, _name_in(whole, LAYERS, "list of layers")))
    if not 1 <= stages <= count:
        raise ValueError(f"stages: expected 1 to {count}, the number of layers, got {stages}")
    cuts = [count * i // stages for i in range(stages + 1)]
    return [TransformerPart(model, *cuts[i : i + 2]) for i in range(stages)]


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
