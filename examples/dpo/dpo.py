#!/usr/bin/env python3
"""Trains a small policy by direct preference optimization (DPO, Rafailov et al. 2023, arXiv 2305.18290) in a pipeline.

pip install rrfp torch transformers
python dpo.py [--stages 3] [--steps 60] [--tokens 512] [--policy bfw_plus]

The policy and the frozen reference run in the same stages: each part holds some layers of both and passes both hidden
states on. A microbatch has as many pairs of an accepted and a rejected answer as fit into `--tokens`, so the number of
microbatches differs from step to step. The preferences are synthetic: answers whose tokens ascend.
"""

import argparse
import copy

import rrfp
import torch
import transformers

VOCABULARY = 32


class Pair(torch.nn.Module):
    """The layers of one stage, of the policy and of the reference."""

    def __init__(self, policy, reference):
        super().__init__()
        self.policy = policy
        self.reference = reference.requires_grad_(False)

    def forward(self, of_policy, of_reference=None):
        """The ids on the first stage, a hidden state of each on the others; logits of both on the last."""
        of_reference = of_policy if of_reference is None else of_reference
        with torch.no_grad():
            reference = self.reference(of_reference)
        return self.policy(of_policy), reference


def log_probability(logits, ids):
    """Of each row, the sum over its answer, which follows the first token."""
    chosen = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return chosen.sum(-1)


def margins(output, ids):
    """Of each pair: by how much the policy prefers the accepted answer more than the reference does."""
    gains = log_probability(output[0], ids) - log_probability(output[1], ids)
    accepted, rejected = gains.view(-1, 2).unbind(1)
    return accepted - rejected


def dpo_loss(output, ids, beta=0.1):
    """Summed over the pairs of a microbatch; rows alternate between accepted and rejected."""
    return -torch.nn.functional.logsigmoid(beta * margins(output, ids)).sum()


def pairs_of_step(step, count=24):
    """Answers of different lengths, as tensors of two rows: accepted, rejected."""
    generator = torch.Generator().manual_seed(step)
    for _ in range(count):
        length = int(torch.randint(4, 28, (), generator=generator))
        answer = torch.randint(1, VOCABULARY, (length,), generator=generator)
        yield torch.stack([answer.sort().values, answer])


def microbatches_of(pairs, max_tokens):
    """Pairs of one length share a microbatch up to `max_tokens`."""
    by_length = {}
    for pair in pairs:
        by_length.setdefault(pair.shape[1], []).append(pair)
    for length, alike in sorted(by_length.items()):
        room = max(1, max_tokens // (2 * length))
        for first in range(0, len(alike), room):
            yield torch.cat(alike[first : first + room])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=512, help="of a microbatch, at most")
    parser.add_argument("--policy", default="bfw_plus", help="the hint: " + ", ".join(rrfp.policies()))
    given = parser.parse_args()
    if given.tokens < 1 or given.steps < 1:
        parser.error("expected --tokens and --steps of at least 1")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=6, num_attention_heads=4,
        tie_word_embeddings=False,
    )  # fmt: skip
    policy = transformers.AutoModelForCausalLM.from_config(config)
    reference = copy.deepcopy(policy)
    parts = [Pair(*both) for both in zip(*(rrfp.from_transformers(model, given.stages) for model in (policy, reference)))]
    optimizer = lambda parameters: torch.optim.AdamW([p for p in parameters if p.requires_grad], 3e-3)
    with rrfp.Pipeline(
        parts, dpo_loss, policy=given.policy, optimizer=optimizer, count=lambda ids: len(ids) // 2
    ) as pipe:
        for step in range(given.steps):
            batch = list(microbatches_of(pairs_of_step(step), given.tokens))
            pipe.step_microbatches(batch, target_mbs=batch, return_outputs=False)
            if (step + 1) % 10 == 0 and pipe.leads:
                print(f"step {step + 1}: loss {pipe.last.loss:.6f}, {len(batch)} microbatches", flush=True)
        # A forward alone: how often the policy prefers the accepted answer of pairs that it has not seen.
        held_out = list(microbatches_of(pairs_of_step(10**6, 64), given.tokens))
        outputs = pipe.eval_microbatches(held_out, target_mbs=held_out)
    if outputs:  # of the last part, in its process
        right = torch.cat([margins(output, ids) > 0 for output, ids in zip(outputs, held_out)])
        print(f"held out: {right.float().mean():.1%} of {len(right)} pairs, loss {pipe.last.loss:.6f}")


if __name__ == "__main__":
    main()
