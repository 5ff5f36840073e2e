"""Small models, and the plain loop that a pipeline must equal to the last bit."""

import copy

import torch

torch.set_num_threads(1)


def mlp(parts, width=16):
    torch.manual_seed(7)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.Tanh(), torch.nn.Linear(width, width))
        for _ in range(4)
    ]
    size = len(blocks) // parts
    return [torch.nn.Sequential(*blocks[i * size : (i + 1) * size]) for i in range(parts)]


def rows(step, count=24, width=16):
    generator = torch.Generator().manual_seed(step)
    return torch.randn(count, width, generator=generator), torch.randn(count, width, generator=generator)


def adam(parameters):
    return torch.optim.AdamW(parameters, 1e-2, weight_decay=0.1)


def train_plainly(parts, loss_fn, batches, n, optimizer=adam, around=None, before_update=lambda parts: None):
    """The same training in a plain loop; returns the losses of all microbatches by step.

    `around(step, microbatch, stage)` may give a context for a forward.
    """
    optimizers = [optimizer([p for p in part.parameters() if p.requires_grad]) for part in parts]
    all_losses = []
    for step, (x, y) in enumerate(batches, 1):
        losses = []
        for i, (inputs, target) in enumerate(zip(x.tensor_split(n), y.tensor_split(n))):
            value = inputs
            for stage, part in enumerate(parts):
                value = value if isinstance(value, tuple) else (value,)
                if around is None:
                    value = part(*value)
                else:
                    with around(step, i, stage):
                        value = part(*value)
            loss = loss_fn(value, target)
            (loss / n).backward()
            losses.append(loss.item())
        all_losses.append(losses)
        before_update(parts)
        for o in optimizers:
            o.step()
            o.zero_grad()
    return all_losses


def train_in_half(parts, loss_fn, batches, n):
    """The same with torch.autocast to float16 and a GradScaler; returns the losses and the scales by step."""
    optimizer = adam([p for part in parts for p in part.parameters()])
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=2)
    losses, scales = [], []
    for x, y in batches:
        for inputs, target in zip(x.tensor_split(n), y.tensor_split(n)):
            with torch.autocast("cpu", torch.float16):
                value = inputs
                for part in parts:
                    value = part(value)
                loss = loss_fn(value, target)
            scaler.scale(loss / n).backward()
            losses.append(loss.item())
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scales.append(scaler.get_scale())
        scaler.update()
        optimizer.zero_grad()
    return losses, scales


HALF = {"train.loss_scale": 4096, "train.loss_scale_interval": 2}


def rows_with_overflow():
    batches = [rows(step) for step in range(6)]
    batches[2] = (batches[2][0] * 1e6, batches[2][1])
    return batches


def twin(parts):
    return copy.deepcopy(parts)


def equal(parts, others):
    """Whether the weights and buffers are the same bits."""
    pairs = [
        (a, b)
        for part, other in zip(parts, others)
        for a, b in zip(part.state_dict().values(), other.state_dict().values())
    ]
    assert pairs
    return all(torch.equal(a, b) for a, b in pairs)
