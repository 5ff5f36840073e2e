"""How step() cuts its arguments, and what it returns of the outputs of all microbatches."""

import collections

import pytest
import rrfp
import torch
from kinds import KINDS
from models import adam, mlp, rows, twin
from test_buffers import last_first
from torch.distributed.pipelining.microbatch import TensorChunkSpec, sum_reducer

N = 4
mse = torch.nn.functional.mse_loss


class Last(torch.nn.Module):
    """Its output is what `extra` makes of the rows and the number of the forward."""

    def __init__(self, extra):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.extra = extra
        self.forwards = 0

    def forward(self, x):
        x = self.layer(x)
        self.forwards += 1
        return x, self.extra(x, self.forwards)


def first_output(output, target):
    return mse(output[0], target)


def second_output_of_step(extra, **options):
    x, y = rows(1, 8)
    with rrfp.Pipeline([mlp(1)[0], Last(extra)], first_output, N, optimizer=adam, **options) as pipe:
        output = pipe.step(x, target=y)
        assert output[0].shape == y.shape
        assert pipe.steps == 1
        return output[1]


def test_outputs_of_rows_are_merged_and_others_are_lists():
    Pair = collections.namedtuple("Pair", "rows loss")
    extras = {
        "0-dim": lambda x, i: x.mean(),
        "number": lambda x, i: i,
        "text": lambda x, i: f"forward {i}",
        "some": lambda x, i: x if i % 2 else None,
        "lists": lambda x, i: [x] * i,
        "lengths": lambda x, i: torch.ones(2, i),
        "heads": lambda x, i: torch.ones(3, 2, 5, 5),
        "an object": lambda x, i: object(),
        "types": lambda x, i: x if i % 2 else x.double(),
    }
    got = second_output_of_step(lambda x, i: {name: extra(x, i) for name, extra in extras.items()})
    for name in extras:
        assert isinstance(got[name], list) and len(got[name]) == N, name
    assert sorted(got["number"]) == [1, 2, 3, 4]
    assert sorted(map(len, got["lists"])) == [1, 2, 3, 4]

    got = second_output_of_step(lambda x, i: (Pair(x, x.mean()), "same", None, 3, x.flatten()))
    assert got[0].rows.shape == (8, 16) and len(got[0].loss) == N
    assert got[1:4] == ("same", None, 3)
    assert got[4].shape == (8 * 16,)


@pytest.mark.parametrize("policy", ["bf", "zb_h1", last_first])
def test_losses_that_travel_with_the_rows_are_listed_in_the_order_of_the_microbatches(policy):
    kind = KINDS["experts with router losses"]
    ((x,), y), *_ = kind.batches()
    parts = kind.make(3)
    expected = []
    for value in x.tensor_split(N):
        value = (value,)
        for part in twin(parts):
            value = part(*value)
        expected.append(value[1].item())
    with rrfp.Pipeline(parts, kind.loss_fn, N, optimizer=adam, policy=policy) as pipe:
        outputs, auxiliary = pipe.step(x, target=y)
        assert outputs.shape == y.shape
        assert [loss.item() for loss in auxiliary] == expected


def test_specs_say_how_outputs_are_merged():
    def extra(x, i):
        return torch.ones(3, 2), torch.tensor(1.0), torch.ones(i, i)

    rows_of_columns, total, uneven = second_output_of_step(
        extra, output_merge_spec=(None, (TensorChunkSpec(1), sum_reducer, TensorChunkSpec(0)))
    )
    assert rows_of_columns.shape == (3, 8)
    assert total == N
    assert len(uneven) == N


def test_a_dict_of_specs_may_have_another_order():
    extra = lambda x, i: {"a": torch.ones(3, 2), "b": torch.tensor(1.0)}
    found = second_output_of_step(extra, output_merge_spec=(None, {"b": sum_reducer, "a": TensorChunkSpec(1)}))
    assert found["a"].shape == (3, 8) and found["b"] == N


class Weighted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x, rows, columns):
        return self.layer(x) * rows * columns.T


def test_specs_of_keyword_arguments_are_found_by_name():
    x, y = rows(1, 8)
    weights = {"rows": torch.rand(8, 1), "columns": torch.rand(1, 8)}
    specs = {"rows": TensorChunkSpec(0), "columns": TensorChunkSpec(1)}
    losses = []
    for names in (("rows", "columns"), ("columns", "rows")):
        torch.manual_seed(0)
        with rrfp.Pipeline([Weighted(), *mlp(1)], mse, 2, optimizer=adam, kwargs_chunk_spec=specs) as pipe:
            pipe.step(x, target=y, **{name: weights[name] for name in names})
            losses.append(pipe.last.losses)
            with pytest.raises(ValueError, match="^kwargs_chunk_spec: expected a spec for each keyword argument, rows, got "):
                pipe.step(x, target=y, rows=weights["rows"])
    assert losses[0] == losses[1]


def test_a_spec_that_does_not_fit_gives_lists():
    output = second_output_of_step(lambda x, i: x, output_merge_spec=(None, {"another": None}))
    assert len(output) == N


class Masked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x, mask=None):
        x = self.layer(x)
        return x if mask is None else x * mask


def test_arguments_with_other_rows_are_refused():
    x, y = rows(1, 8)
    with rrfp.Pipeline([Masked(), *mlp(1)], mse, 2, optimizer=adam) as pipe:
        for wrong in (torch.ones(6, 1), {"a": torch.ones(6)}):
            with pytest.raises(ValueError, match="^argument 'mask': expected 8 rows, as the other arguments .* got 6"):
                pipe.step(x, target=y, mask=wrong)
        with pytest.raises(ValueError, match="^argument 1: expected 8 rows, as the other arguments .* got 6"):
            pipe.step(x, torch.ones(6, 1), target=y)
        for inputs, target in ((8, 6), (6, 8)):
            with pytest.raises(ValueError, match=f"^target: expected {inputs} rows, as the arguments have, got {target}"):
                pipe.step(x[:inputs], target=y[:target])
        assert pipe.steps == 0
        pipe.step(x, target=y, mask=torch.ones(8, 1))
    with rrfp.Pipeline(
        [Masked(), *mlp(1)], mse, 2, optimizer=adam, kwargs_chunk_spec={"mask": TensorChunkSpec(1)}
    ) as pipe:
        with pytest.raises(ValueError, match="expected at least 2 rows, one per microbatch, got 1"):
            pipe.step(x, target=y, mask=torch.ones(1, 1))


def test_a_target_of_flattened_rows_is_cut_with_the_rows():
    x, y = rows(1, 8)
    with rrfp.Pipeline(mlp(2), lambda output, target: mse(output.flatten(), target), 2, optimizer=adam) as pipe:
        pipe.step(x, target=y.flatten())
        assert pipe.steps == 1
