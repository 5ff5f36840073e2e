"""The number of microbatches belongs to the step and to the replica."""

import copy

import pytest
import rrfp
import torch
from models import adam, mlp, rows

JITTER = {"jitter.compute": "lognormal", "jitter.compute_sigma": 0.8, "run.hang_timeout_s": 60}
mse = torch.nn.functional.mse_loss


def sum_of_squares(output, target):
    return mse(output, target, reduction="sum")


def microbatches(step, count):
    """As many as `count`, of 1 to 5 rows each."""
    sizes = [1 + (7 * step + 3 * i) % 5 for i in range(count)]
    x, y = rows(step, sum(sizes))
    return list(x.split(sizes)), list(y.split(sizes))


def train_plainly(parts, steps, orders=None):
    """steps: by step, the microbatches of each replica. Losses are divided by the rows of the step."""
    optimizers = [adam(part.parameters()) for part in parts]
    losses = []
    for step, counts in enumerate(steps):
        xs, ys = microbatches(step, sum(counts))
        if orders is not None:
            xs, ys = ([mbs[i] for i in orders[step]] for mbs in (xs, ys))
        terms = sum(len(y) for y in ys)
        parameters = [p for part in parts for p in part.parameters()]
        sums, next = [None] * len(parameters), 0
        for count in counts:
            for x, y in zip(xs[next : next + count], ys[next : next + count]):
                for part in parts:
                    x = part(x)
                loss = sum_of_squares(x, y)
                (loss / terms).backward()
                losses.append(loss.item() / len(y))
            next += count
            for i, p in enumerate(parameters):
                if p.grad is not None:
                    sums[i] = p.grad if sums[i] is None else sums[i] + p.grad
                    p.grad = None
        for p, gradient in zip(parameters, sums):
            p.grad = gradient
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def same_bits(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


SETTINGS = {
    "ready": {},
    "in order": {"dispatch.mode": "in-order", "dispatch.policy": "one_f_one_b"},
    "one slot": {"dispatch.slots": 1, "dispatch.policy": "bf"},
    "zero bubble": {"dispatch.policy": "zb_h1"},
    "recomputation": {"pipeline.recompute": True},
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("steps", [[[4], [1], [7], [2], [23], [4]], [[3, 5], [4, 0], [0, 1], [6, 6], [1, 9]]])
def test_steps_with_any_number_of_microbatches_have_the_bits_of_a_plain_loop(name, steps):
    parts = mlp(2)
    plain = copy.deepcopy(parts)
    wanted = train_plainly(plain, steps)
    settings = {**JITTER, **SETTINGS[name], "pipeline.replicas": len(steps[0])}
    got = []
    with rrfp.Pipeline(parts, sum_of_squares, 4, optimizer=adam, count=len, settings=settings) as pipe:
        for step, counts in enumerate(steps):
            xs, ys = microbatches(step, sum(counts))
            losses = []
            outputs = pipe.step_microbatches(xs, target_mbs=ys, losses=losses, n_microbatches=counts)
            assert [len(output) for output in outputs] == [len(y) for y in ys]
            got += [loss.item() for loss in losses]
        assert got == wanted
        assert all(same_bits(a, b) for a, b in zip(pipe.stages.values(), plain))


def test_without_numbers_the_replicas_share_the_microbatches_evenly():
    parts = mlp(2)
    plain = copy.deepcopy(parts)
    train_plainly(plain, [[3, 2], [1, 0]])
    with rrfp.Pipeline(parts, sum_of_squares, optimizer=adam, count=len, settings={"pipeline.replicas": 2}) as pipe:
        for step, n in enumerate((5, 1)):
            xs, ys = microbatches(step, n)
            pipe.step_microbatches(iter(xs), target_mbs=ys)
        assert all(same_bits(a, b) for a, b in zip(pipe.stages.values(), plain))


def test_costs_decide_which_microbatches_start_first():
    parts = mlp(2)
    plain = copy.deepcopy(parts)
    steps = [[5, 3], [1, 4], [0, 6]]
    orders = []
    for step, counts in enumerate(steps):
        costs = [float(len(x)) ** 2 for x in microbatches(step, sum(counts))[0]]
        first = counts[0]
        orders.append(rrfp.admission_order(costs[:first]) + [first + i for i in rrfp.admission_order(costs[first:])])
    assert any(order != sorted(order) for order in orders)
    wanted = train_plainly(plain, steps, orders)
    settings = {**JITTER, "pipeline.replicas": 2}
    with rrfp.Pipeline(parts, sum_of_squares, 4, optimizer=adam, count=len, settings=settings) as pipe:
        for step, (counts, order) in enumerate(zip(steps, orders)):
            xs, ys = microbatches(step, sum(counts))
            losses = []
            outputs = pipe.step_microbatches(
                xs, target_mbs=ys, losses=losses, n_microbatches=counts, costs=[len(x) ** 2 for x in xs]
            )
            assert [len(output) for output in outputs] == [len(y) for y in ys]
            started, wanted = wanted[: len(xs)], wanted[len(xs) :]
            assert [losses[i].item() for i in order] == started
            assert [pipe.last.losses[i] for i in order] == started
        assert all(same_bits(a, b) for a, b in zip(pipe.stages.values(), plain))


def test_costs_that_do_not_fit_are_refused_and_the_training_goes_on():
    assert rrfp.admission_order([3, 1, 5, 2]) == [1, 0, 2, 3]
    assert rrfp.admission_order([2] * 3) == [0, 1, 2] and rrfp.admission_order([]) == []
    x, y = rows(0)
    with rrfp.Pipeline(mlp(2), mse, 4, optimizer=adam) as pipe:
        for costs, why in (
            ([1], "arg_mbs: expected 1 microbatches, got 2"),
            ([1, float("nan")], "costs: expected finite numbers, got nan"),
        ):
            with pytest.raises(ValueError, match=why):
                pipe.step_microbatches([x, x], target_mbs=[y, y], costs=costs)
        with pytest.raises(ValueError, match="costs: expected 2, one for each microbatch, got 3"):
            pipe.step_microbatches([x, x], target_mbs=[y, y], n_microbatches=2, costs=[1, 2, 3])
        pipe.step_microbatches([x, x], target_mbs=[y, y], costs=[2, 1])


def test_a_step_is_cut_into_as_many_microbatches_as_it_says():
    parts = mlp(2)
    x, y = rows(0)
    with rrfp.Pipeline(parts, mse, 4, optimizer=adam) as pipe:
        for n in (1, 24, 5):
            losses = []
            output = pipe.step(x, target=y, losses=losses, n_microbatches=n)
            assert len(losses) == n and output.shape == y.shape
        losses = []
        pipe.eval(x, target=y, losses=losses, n_microbatches=[3])
        assert len(losses) == 3
        pipe.eval_microbatches([x], target_mbs=[y])
        pipe.step(x, target=y)
        assert len(pipe.last.losses) == 4 and pipe.steps == 4


@pytest.mark.parametrize("n", [0, -1, 70000, 1.5, [1, 2], [], "4"])
def test_a_number_that_cannot_be_is_refused_and_the_training_goes_on(n):
    x, y = rows(0)
    with rrfp.Pipeline(mlp(2), mse, 4, optimizer=adam) as pipe:
        with pytest.raises(ValueError, match="n_microbatches: expected 1 to 65536, or a list with the number of each"):
            pipe.step(x, target=y, n_microbatches=n)
        with pytest.raises(ValueError, match="expected at least one microbatch, got none"):
            pipe.step_microbatches([], target_mbs=[])
        with pytest.raises(ValueError, match="target_mbs: expected 2 microbatches, got 1"):
            pipe.step_microbatches([x, x], target_mbs=[y])
        pipe.step(x, target=y)


def test_a_policy_of_the_program_gets_the_number_of_each_step():
    asked = []

    def backward_first(stage, n_stages, n_microbatches):
        asked.append(n_microbatches)
        order = range(n_microbatches) if len(asked) % 2 else reversed(range(n_microbatches))
        return [task for i in order for task in (f"BW{i}", f"F{i}")]

    parts = mlp(2)
    plain = copy.deepcopy(parts)
    train_plainly(plain, [[3], [6], [3]])
    with rrfp.Pipeline(parts, sum_of_squares, 4, policy=backward_first, optimizer=adam, count=len) as pipe:
        for step, n in enumerate((3, 6, 3)):
            xs, ys = microbatches(step, n)
            pipe.step_microbatches(xs, target_mbs=ys)
        assert all(same_bits(a, b) for a, b in zip(pipe.stages.values(), plain))
    assert asked[-6:] == [3, 3, 6, 6, 3, 3]


def test_a_schedule_without_an_order_for_the_number_ends_the_training_in_words():
    x, y = rows(0)
    with rrfp.Pipeline(mlp(2), mse, 4, policy="zb_h2", optimizer=adam) as pipe:
        with pytest.raises(rrfp.Error, match="a step of 2 microbatches: .*zb_h2") as e:
            pipe.step(x, target=y, n_microbatches=2)
    assert e.value.exit_code == 2


def test_emulated_devices_take_any_number():
    settings = {"device.kind": "emulated", "cost.forward_ms": 0.2, "cost.backward_ms": 0.4}
    with rrfp.Pipeline(n_stages=3, n_microbatches=2, settings=settings, trace=True) as pipe:
        for n in (1, 9, 2):
            pipe.step(n_microbatches=n)
        assert pipe.steps == 3
