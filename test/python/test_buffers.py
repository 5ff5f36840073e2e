"""Buffers that forward changes: refused, or the same in every order and in checkpoints."""

import pytest
import rrfp
import torch
from models import adam, equal, mlp, rows, train_plainly
from torch.utils.checkpoint import checkpoint

N = 6
mse = torch.nn.functional.mse_loss


class Average(torch.nn.Module):
    """Changes its buffer as `change` does."""

    def __init__(self, change, **attributes):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.register_buffer("average", torch.zeros(16))
        self.change = change
        vars(self).update(attributes)

    def forward(self, x):
        x = self.layer(x)
        self.change(self, 0.9 * self.average + 0.1 * x.detach().mean(0))
        return x + self.average


def assign(module, value):
    module.average = value


def register(module, value):
    module.register_buffer("average", value)


def assign_data(module, value):
    module.average.data = value


def change_data(module, value):
    module.average.data.copy_(value)


def change_array(module, value):
    module.average.numpy()[...] = value.numpy()


def change_array_late(module, value):
    module.calls = getattr(module, "calls", 0) + 1
    if module.calls == N + 2:  # in the second step
        change_array(module, value)


def add_buffer(module, value):
    module.register_buffer("another", value)


CHANGES = [assign, register, assign_data, change_data, change_array, change_array_late, add_buffer]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_any_kind_is_refused(change):
    pipe = rrfp.Pipeline([*mlp(1), Average(change)], mse, N, optimizer=adam)
    x, y = rows(1)
    with pytest.raises(rrfp.Error, match="forward changes the buffer 'a.*forwards_in_order = True"):
        for _ in range(2):
            pipe.step(x, target=y)
    pipe.close()


def scale(module):
    module.layer.weight.data.mul_(0.9)


def scale_once(module):
    if not hasattr(module, "is_scaled"):
        scale(module)
    module.is_scaled = True


def assign_scaled(module):
    module.layer.bias.data = module.layer.bias.data * 0.9


def scale_array(module):
    module.layer.bias.detach().numpy()[...] *= 0.9


class Scaling(torch.nn.Module):
    """Changes a parameter as `change` does."""

    forwards_in_order = True

    def __init__(self, change):
        super().__init__()
        self.layer = torch.nn.Linear(15, 15).to(torch.bfloat16 if change is scale_once else torch.float32)
        self.change = change

    def forward(self, x):
        self.change(self)
        return torch.nn.functional.pad(self.layer(x[:, :15].to(self.layer.weight.dtype)).float(), (0, 1))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("change", [scale, scale_once, assign_scaled, scale_array])
def test_a_change_of_a_parameter_without_a_version_is_refused(change, is_training):
    x, y = rows(1)
    with rrfp.Pipeline([*mlp(1), Scaling(change)], mse, N, optimizer=adam) as pipe:
        with pytest.raises(rrfp.Error, match="forward changes the parameter 'layer.(weight|bias)' through .data or numpy.*between"):
            pipe.step(x, target=y) if is_training else pipe.eval(x, target=y)


class Looking(torch.nn.Module):
    """Torch scales the rows of the embedding that a forward uses, once."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(8, 16, max_norm=0.5)

    def forward(self, x):
        return x + self.embedding((100 * x[:, 0].abs()).long() % 8)


def test_changes_that_no_order_shows_are_not_refused():
    x, y = rows(1)
    ready, looking = Scaling(scale_once), Looking()
    ready(x)
    before = looking.embedding.weight.detach().clone()
    with rrfp.Pipeline([ready, looking, *mlp(1)], mse, N, optimizer=lambda ps: torch.optim.SGD(ps, 0)) as pipe:
        for _ in range(2):
            pipe.step(x, target=y)
    assert not torch.equal(looking.embedding.weight, before)


def last_first(stage, n_stages, n_microbatches):
    order = range(n_microbatches)[::-1]
    return [f"BW{i}" for i in range(n_microbatches)] + [f"F{i}" for i in order]


def open_pipeline(parts, **settings):
    jitter = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
    return rrfp.Pipeline(
        parts, mse, N, optimizer=adam, policy=last_first, settings={**jitter, **settings}, on_note=lambda line: None
    )


def losses_of(pipe, batches):
    all_losses = []
    for x, y in batches:
        losses = []
        pipe.step(x, target=y, losses=losses)
        all_losses.append([loss.item() for loss in losses])
    return all_losses


@pytest.mark.parametrize("change", [assign, register, assign_data, change_array])
def test_forwards_in_order_give_the_buffers_of_a_plain_loop_also_after_a_resume(tmp_path, change):
    def parts():
        torch.manual_seed(3)
        return [Average(change, forwards_in_order=True), *mlp(1), Average(change, forwards_in_order=True)]

    plain, batches = parts(), [rows(step) for step in range(4)]
    expected = train_plainly(plain, mse, batches, N)
    resumed = []
    for at in (0, 2):
        made = parts()
        with open_pipeline(made, **{"checkpoint.dir": str(tmp_path)}) as pipe:
            assert pipe.steps == at
            resumed += losses_of(pipe, batches[at : at + 2])
            state = pipe.state_dict()
            assert torch.equal(state["0.average"], made[0].average)
    assert resumed == expected
    assert equal(made, plain)
    with open_pipeline(parts()) as pipe:
        pipe.load_state_dict(state)
        assert torch.equal(pipe.state_dict()["2.average"], plain[2].average)


def test_a_buffer_that_a_checkpoint_could_not_restore_is_refused():
    pipe = rrfp.Pipeline([*mlp(1), Average(add_buffer, forwards_in_order=True)], mse, N, optimizer=adam)
    x, y = rows(1)
    with pytest.raises(rrfp.Error, match="forward registers or removes the buffer 'another'"):
        pipe.step(x, target=y)
    pipe.close()


@pytest.mark.parametrize("is_declared", [False, True])
@pytest.mark.parametrize("change", [assign, register, assign_data, change_data, change_array])
def test_a_change_in_a_recomputed_part_is_refused(change, is_declared):
    part = Average(change, **({"forwards_in_order": True} if is_declared else {}))
    words = "forward changes buffers, so it may run only once" if is_declared else "forward changes the buffer 'average'"
    with pytest.raises(rrfp.Error, match=f"stage 0.*{words}"):
        losses_of(open_pipeline([part, *mlp(1)], **{"pipeline.recompute": True}), [rows(1)])


class Checkpointed(torch.nn.Module):
    forwards_in_order = True

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)


@pytest.mark.parametrize(
    ("inner", "name"),
    [
        (lambda: torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16)), "1.num_batches_tracked"),
        (lambda: Average(assign), "average"),
        (lambda: Average(assign_data), "average"),
    ],
)
def test_a_change_under_a_checkpoint_is_refused(inner, name):
    pipe = open_pipeline([*mlp(1), Checkpointed(inner())])
    with pytest.raises(rrfp.Error, match=f"stage 1, F0 .*changes the buffer 'inner.{name}' under torch.utils.checkpoint"):
        losses_of(pipe, [rows(1)])


def test_a_buffer_that_changes_beside_a_checkpoint_is_that_of_a_plain_loop():
    def parts():
        torch.manual_seed(3)
        return [torch.nn.Sequential(Checkpointed(mlp(1)[0]), torch.nn.BatchNorm1d(16)) for _ in range(2)]

    made, plain, batches = parts(), parts(), [rows(step) for step in range(2)]
    expected = train_plainly(plain, mse, batches, N)
    with open_pipeline(made) as pipe:
        assert losses_of(pipe, batches) == expected
    assert equal(made, plain)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_embeddings_that_follow_the_length_give_the_losses_of_the_whole_model(kind):
    transformers = pytest.importorskip("transformers")
    import test_transformers as hugging_face

    def make():
        torch.manual_seed(1)
        rope = {"rope_type": kind, "rope_theta": 10000.0, "factor": 4.0}
        if kind == "longrope":
            rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4, "original_max_position_embeddings": 8}
        config = transformers.LlamaConfig(**hugging_face.ROPE, max_position_embeddings=8, rope_parameters=rope)
        return transformers.AutoModelForCausalLM.from_config(config)

    ids = [hugging_face.ids_of(step)[:2, :length] for step, length in enumerate((6, 12, 7, 10))]
    expected = []
    plain = hugging_face.Logits(make())
    optimizer = adam(plain.parameters())
    for _ in range(2):
        expected.append([])
        for mb in ids:
            loss = hugging_face.loss_fn(plain(mb), mb)
            expected[-1].append(loss.item())
            (loss / 4).backward()
        optimizer.step()
        optimizer.zero_grad()

    for policy in ("bfw", last_first):
        parts, got = rrfp.from_transformers(make(), 2), []
        settings = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.5}
        with rrfp.Pipeline(
            parts, hugging_face.loss_fn, 4, optimizer=adam, policy=policy, settings=settings
        ) as pipe:
            for _ in range(2):
                losses = []
                pipe.step_microbatches(ids, target_mbs=ids, losses=losses)
                got.append([loss.item() for loss in losses])
        assert got == expected
