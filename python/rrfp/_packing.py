"""Samples of different lengths as steps of microbatches with about equal work."""

import collections.abc
import dataclasses
import math
import operator

from . import _runtime

TOKENS_MAX = 1 << 32  # of a sample
SIZE_MAX = (1 << 32) - 1  # of a model


@dataclasses.dataclass(frozen=True)
class CostModel:
    """The cost of a sample: per_token * tokens + per_token_square * tokens², plus the same terms for image patches.

    The squares come from attention. Attention does not cross documents, so the cost of a microbatch is the sum over its
    samples. The unit does not matter: FLOPs or seconds, for example. `per_microbatch` is the fixed cost of a
    microbatch, which is not attributed to any sample.
    """

    per_token: float = 1.0
    per_token_square: float = 0.0
    per_patch: float = 0.0
    per_patch_square: float = 0.0
    per_microbatch: float = 0.0

    def __call__(self, tokens, patches=()):
        """Returns the cost of a sample.

        patches: the number of patches of each image. `tokens` includes the rows that the images add to the text.
        """
        cost = self.per_token * tokens + self.per_token_square * tokens * tokens
        return cost + sum(self.per_patch * p + self.per_patch_square * p * p for p in patches)

    @classmethod
    def from_sizes(
        cls, *, hidden, layers, heads, vocabulary, kv_heads=None, head_dim=None, feed_forward=None, gated=True,
        experts=0, experts_per_token=0, vision=None,
    ):  # fmt: skip
        """Counts the FLOPs of forward and backward of a transformer with causal attention.

        kv_heads: default `heads`.
        head_dim: default hidden / heads.
        feed_forward: the width of the feed-forward layers, or of one expert in a mixture; default 4 * hidden.
        gated: whether the feed-forward layers have three matrices rather than two.
        vision: the sizes of an image encoder, a dict with hidden, layers, heads, and optionally feed_forward,
            gated (False) and patches_per_token (1).
        """
        layer = _block(hidden, heads, kv_heads, head_dim, feed_forward, gated, True, experts, experts_per_token)
        v = {"hidden": 1, "layers": 0, "heads": 1, "feed_forward": None, "gated": False, "patches_per_token": 1}
        if vision is not None:
            if not isinstance(vision, collections.abc.Mapping):
                raise ValueError(f"vision: expected a dict of sizes or None, got {vision!r}")
            if unknown := [name for name in vision if name not in v]:
                raise ValueError(f"vision: expected the keys {', '.join(v)}, got {unknown[0]!r}")
            v.update(vision)
        image_layer = _block(v["hidden"], v["heads"], None, None, v["feed_forward"], v["gated"], False, 0, 0)
        return cls(
            *_runtime.training_flops(
                layer,
                _integer("layers", layers, 1, most=SIZE_MAX),
                _integer("vocabulary", vocabulary, 0, most=SIZE_MAX),
                image_layer,
                _integer("vision layers", v["layers"], 0, most=SIZE_MAX),
                _integer("patches_per_token", v["patches_per_token"], 1, most=SIZE_MAX),
            )
        )

    @classmethod
    def from_config(cls, config):
        """Counts the FLOPs of a Transformers model from its configuration, including its `vision_config` if it has one.

        Models with `num_key_value_heads` count as gated: Llama's feed-forward layers, not GPT-2's.
        """
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        get = lambda *names: next((v for n in names if (v := getattr(text, n, None)) is not None), None)
        experts = get("num_experts", "num_local_experts", "n_routed_experts") or 0
        vision = getattr(config, "vision_config", None)
        if vision is not None:
            names = {"hidden": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
            if missing := [name for name in names.values() if not hasattr(vision, name)]:
                raise ValueError(f"vision_config: expected {missing[0]}, got none; from_sizes() takes the sizes themselves")
            vision = {key: getattr(vision, name) for key, name in names.items()}
            vision["feed_forward"] = getattr(config.vision_config, "intermediate_size", None)
            vision["patches_per_token"] = getattr(config.vision_config, "spatial_merge_size", 1) ** 2
        return cls.from_sizes(
            hidden=text.hidden_size,
            layers=text.num_hidden_layers,
            heads=text.num_attention_heads,
            vocabulary=text.vocab_size,
            kv_heads=get("num_key_value_heads"),
            head_dim=get("head_dim"),
            feed_forward=(get("moe_intermediate_size") if experts else None) or get("intermediate_size", "n_inner"),
            gated=hasattr(text, "num_key_value_heads"),
            experts=experts,
            experts_per_token=get("num_experts_per_tok") or 0,
            vision=vision,
        )

    @classmethod
    def fit(cls, measured):
        """Fits non-negative coefficients to measured times by least squares; costs are then in seconds.

        measured: tuples (tokens, seconds) for a sample, or (list of tokens, seconds) for a microbatch; with images,
            (list of tokens, list of patches, seconds). Measure several lengths, so that tokens and their squares can be
            told apart.
        """
        rows = []
        for i, one in enumerate(measured):
            try:
                lengths, *patches, seconds = one
                lists = [lengths, patches[0] if patches else []]
                numbers = [[float(n) for n in (x if hasattr(x, "__iter__") else [x])] for x in lists]
                rows.append([f(x) for x in numbers for f in (sum, lambda x: sum(n * n for n in x))] + [float(seconds)])
            except (TypeError, ValueError):
                raise ValueError(f"measured[{i}]: expected (tokens, seconds) or (tokens, patches, seconds), got {one!r}") from None
        coefficients, constant = _runtime.fit_cost(rows)
        return cls(*coefficients, constant)


@dataclasses.dataclass(frozen=True)
class Imbalance:
    """The largest cost divided by the mean (1 is best), over the microbatches of a step and over its replicas.

    For several steps: the cost if every microbatch (replica) cost as much as the largest of its step, divided by the
    actual cost.
    """

    microbatches: float
    replicas: float


def admission_order(costs):
    """Returns the order in which a pipeline should start microbatches with these costs, as a list of indices.

    The cheapest come first and last, so that the pipeline fills and drains quickly. Equal costs stay in their order.

    costs: numbers in any unit, such as PackedStep.costs of a replica.
    """
    if isinstance(costs, str) or not hasattr(costs, "__iter__"):
        raise TypeError(f"costs: expected a list of numbers, got {type(costs).__name__}")
    try:
        costs = [float(cost) for cost in costs]
    except (TypeError, ValueError, OverflowError) as e:
        raise TypeError(f"costs: expected a list of numbers: {e}") from e
    if not all(map(math.isfinite, costs)):
        raise ValueError(f"costs: expected finite numbers, got {next(c for c in costs if not math.isfinite(c))}")
    return _runtime.admission_order(costs)


class PackedStep(list):
    """A step: a list of microbatches for each replica, each a list of sample indices.

    `tokens` and `costs` hold the tokens and cost of each microbatch, nested in the same way. `delays` maps the index of
    each delayed sample to the number of steps that it waited.
    """

    def __init__(self, replicas, tokens, costs, delays):
        super().__init__(replicas)
        self.tokens, self.costs, self.delays = tokens, costs, delays

    @property
    def imbalance(self):
        return _imbalance_of([self])


class Packing:
    """The result of rrfp.pack(). `for step in packing` yields the steps of one epoch; the next loop, the next epoch.

    After a loop that was left early, the next loop continues where it stopped. `len(packing)` is the number of steps of
    the epoch.
    """

    def __init__(self, packer, checked):
        self._packer = packer
        self._checked = checked  # what a state must share
        self._whole = (None, None)

    @property
    def epoch(self):
        """The number of the epoch, from 0."""
        return self._packer.position[0]

    @property
    def step(self):
        """The number of the next step in its epoch, from 0."""
        return self._packer.position[1]

    def __iter__(self):
        epoch = self.epoch
        while self.epoch == epoch:
            yield PackedStep(*self._packer.next())

    def __len__(self):
        return len(self._steps())

    @property
    def imbalance(self):
        """The imbalance of the whole epoch. The position does not change."""
        return _imbalance_of(self._steps())

    def set_epoch(self, epoch):
        """Moves to the beginning of an epoch, as torch's DistributedSampler does."""
        self._packer.go_to((_integer("epoch", epoch, 0), 0, 0, []))

    def state_dict(self):
        """Returns the position of the next step as numbers. Inside a loop, the current step counts as done."""
        epoch, step, next_place, waiting = self._packer.position
        place = {"epoch": epoch, "step": step, "next": next_place, "waiting": [list(w) for w in waiting]}
        return {**place, **self._checked}

    def load_state_dict(self, state):
        """Continues at the position of `state`. Samples, seed and order must be the same; other arguments may differ.

        With a smaller delay or fewer microbatches, outliers that are already waiting may wait longer than `delay`.
        """
        if not isinstance(state, collections.abc.Mapping):
            raise ValueError(f"state: expected what state_dict() returned, got {state!r}")
        for name, value in self._checked.items():
            if state.get(name) != value:
                raise ValueError(f"state: expected {name} = {value!r}, as in this packing, got {state.get(name)!r}")
        try:
            place = (*(operator.index(state[name]) for name in ("epoch", "step", "next")), [tuple(w) for w in state["waiting"]])
            self._packer.go_to(place)
        except (KeyError, TypeError):
            raise ValueError("state: expected what state_dict() returned, got other keys or values") from None

    def _steps(self):
        epoch, steps = self._whole
        if epoch != self.epoch:
            packer, steps = self._packer.copy(), []
            packer.go_to((self.epoch, 0, 0, []))
            while packer.position[0] == self.epoch:
                steps.append(PackedStep(*packer.next()))
            self._whole = (self.epoch, steps)
        return steps


def pack(
    samples, *, max_tokens=None, microbatches=None, stages=None, replicas=1, batch_size=None, batch_tokens=None,
    cost=None, delay=0, key=None, shuffle=True, drop_last=False, seed=0,
):  # fmt: skip
    """Packs samples of different lengths into microbatches so that microbatches and replicas have about equal work.

    Nothing is padded or cut, and each sample occurs once per epoch. Returns a Packing, which yields steps:
    step[replica][microbatch] is a list of sample indices.

    samples: the number of tokens of each sample, or objects with a length or "input_ids". Otherwise pass `key`:
        key(sample) returns the number of tokens.
    max_tokens: the token limit of a microbatch. A sample with more tokens is refused.
    microbatches: the number of microbatches per replica in a step. None: as few as max_tokens allows, with the same
        number for all replicas of a step; without max_tokens, one. A step with too few samples has fewer.
    stages: the number of pipeline stages. Without `microbatches`, a replica gets four microbatches per stage, to fill
        the pipeline.
    replicas: the number of data-parallel copies of the model, which share the samples of a step.
    batch_size, batch_tokens: the size of a step over all replicas, in samples, or as a maximum number of tokens (a
        larger sample gets its own step). Neither: all samples form one step. With `microbatches`, samples that do not
        fit into max_tokens move to the next step.
    cost: a function of a sample's tokens, such as an rrfp.CostModel, or a list of costs. None: the number of tokens.
    delay: the maximum number of steps that an outlier (a sample that costs more than an average microbatch) may wait
        for other outliers. They then share a step in which each is the core of a microbatch. Needs batch_size or
        batch_tokens; outliers that have waited may exceed it.
    shuffle: whether each epoch has a new order, derived from the seed. False: the order of the samples.
    drop_last: whether to omit a last step with fewer samples than batch_size.
    """
    stages = _integer("stages", stages, 1, none=0, most=1 << 14)
    if microbatches is None and stages > 0:
        microbatches = 4 * stages
    if getattr(samples, "ndim", 0) == 1:  # of torch or numpy
        samples = samples.tolist()
    # A loop over a text gives characters, and one over a mapping its keys, such as "input_ids".
    if key is None and isinstance(samples, (str, collections.abc.Mapping)):
        raise ValueError(f"samples: expected a list of samples, got one {type(samples).__name__}")
    if not hasattr(samples, "__iter__") or getattr(samples, "ndim", 1) == 0:
        raise ValueError(f"samples: expected a list of samples, got {samples!r}")
    tokens = [_tokens_of(sample, i, key) for i, sample in enumerate(samples)]
    packer = _runtime.Packer(
        tokens,
        _costs_of(cost, tokens),
        max_tokens=_integer("max_tokens", max_tokens, 1, none=0),
        microbatches=_integer("microbatches", microbatches, 1, none=0, most=1 << 16),
        replicas=_integer("replicas", replicas, 1, most=1 << 16),
        batch_size=_integer("batch_size", batch_size, 1, none=0),
        batch_tokens=_integer("batch_tokens", batch_tokens, 1, none=0),
        delay=_integer("delay", delay, 0, most=1 << 16),
        shuffle=bool(shuffle),
        drop_last=bool(drop_last),
        seed=_integer("seed", seed, 0),
    )
    return Packing(packer, {"samples": len(tokens), "seed": operator.index(seed), "shuffle": bool(shuffle)})


def _integer(name, value, least, none=None, most=(1 << 63) - 1):
    if value is None and none is not None:
        return none
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        up_to = "" if most >= SIZE_MAX and (number is None or number <= most) else f" and <= {most}"
        raise ValueError(f"{name}: expected an integer >= {least}{up_to}{'' if none is None else ' or None'}, got {value!r}")
    return number


def _tokens_of(sample, i, key):
    try:
        if key is not None:
            tokens = operator.index(key(sample))
        elif hasattr(sample, "__index__") and getattr(sample, "ndim", 0) == 0:
            tokens = operator.index(sample)
        else:
            ids = sample["input_ids"] if isinstance(sample, collections.abc.Mapping) else sample
            if getattr(ids, "ndim", 1) != 1:
                raise ValueError(f"samples[{i}]: expected one dimension of tokens, got {tuple(ids.shape)}")
            tokens = len(ids)
    except (TypeError, KeyError):
        how = "key(sample) to be a number of tokens" if key else 'a number of tokens, or what has a length or "input_ids"'
        raise ValueError(f"samples[{i}]: expected {how}, got {type(sample).__name__}") from None
    if tokens < 1:
        raise ValueError(f"samples[{i}]: expected at least 1 token, got {tokens}")
    if tokens > TOKENS_MAX:
        raise ValueError(f"samples[{i}]: expected 1 to {TOKENS_MAX} tokens, got {tokens}")
    return tokens


def _costs_of(cost, tokens):
    if cost is None:
        return [float(n) for n in tokens]
    if callable(cost):
        costs = [cost(n) for n in tokens]
    elif hasattr(cost, "__len__") and not isinstance(cost, collections.abc.Mapping) and getattr(cost, "ndim", 1) > 0:
        costs = cost.tolist() if hasattr(cost, "tolist") else list(cost)
    else:
        raise ValueError(f"cost: expected a function of the tokens, or a number for each sample, got {cost!r}")
    if len(costs) != len(tokens):
        raise ValueError(f"cost: expected {len(tokens)} numbers, one for each sample, got {len(costs)}")
    for i, value in enumerate(costs):
        try:
            costs[i] = float(value)
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"cost of samples[{i}]: expected a finite number >= 0, got {value!r}") from None
    return costs


def _block(hidden, heads, kv_heads, head_dim, feed_forward, gated, causal, experts, experts_per_token):
    size = lambda name, value, least, none=None, most=SIZE_MAX: _integer(name, value, least, none, most)
    hidden, heads, experts = size("hidden", hidden, 1), size("heads", heads, 1), size("experts", experts, 0)
    return _runtime.Block(
        hidden=hidden,
        heads=heads,
        kv_heads=size("kv_heads", kv_heads, 1, none=heads),
        head_dim=size("head_dim", hidden // heads if head_dim is None else head_dim, 1),
        feed_forward=size("feed_forward", feed_forward, 1, none=min(4 * hidden, SIZE_MAX)),
        gated=bool(gated),
        causal=causal,
        experts=experts,
        experts_per_token=size("experts_per_token", experts_per_token, min(experts, 1), most=experts),
    )


def _imbalance_of(steps):
    def ratio(costs_of_steps):
        largest = sum(max(costs, default=0) * len(costs) for costs in costs_of_steps)
        all_costs = sum(sum(costs) for costs in costs_of_steps)
        return largest / all_costs if all_costs else 1.0

    microbatches = [[cost for replica in step.costs for cost in replica] for step in steps]
    return Imbalance(ratio(microbatches), ratio([[sum(replica) for replica in step.costs] for step in steps]))
