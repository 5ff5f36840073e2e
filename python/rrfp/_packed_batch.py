"""The tensors of a packed microbatch."""

import collections.abc

import torch

IGNORED = -100


def pack_microbatch(samples):
    """Concatenates samples without padding into the tensors that Transformers models take.

    samples: the token ids of each document, or mappings with "input_ids" and optionally "labels" of the same length.

    Returns a dict like Transformers' DataCollatorWithFlattening with return_flash_attn_kwargs=True:

    input_ids: [1, tokens].
    position_ids: [1, tokens], restarting at 0 in each document. From them, Transformers keeps documents apart with
        every attention (eager, sdpa, flash, flex) if the model is called without a mask and with use_cache=False, as
        its Trainer and rrfp.from_transformers() do.
    labels: [1, tokens], by default the input_ids, with -100 at the first token of each document because no earlier
        token predicts it. (Transformers models shift the labels themselves.)
    cu_seq_lens_q, cu_seq_lens_k: int32 [documents + 1], the start of each document, and the end.
    max_length_q, max_length_k: the number of tokens of the longest document.
    """
    ids, labels = [], []
    for i, sample in enumerate(samples):
        fields = sample if isinstance(sample, collections.abc.Mapping) else {"input_ids": sample}
        try:
            document = _whole_numbers(fields["input_ids"])
            targets = _whole_numbers(fields.get("labels", document)).clone()
        except (KeyError, TypeError, ValueError, RuntimeError) as e:
            raise ValueError(f'samples[{i}]: expected token ids, or a mapping with "input_ids", got {e!r}') from None
        if document.dim() != 1 or document.numel() == 0:
            raise ValueError(f"samples[{i}]: expected one dimension with at least one token, got {tuple(document.shape)}")
        if targets.shape != document.shape:
            raise ValueError(f"samples[{i}]: expected {len(document)} labels, one for each token, got {tuple(targets.shape)}")
        targets[0] = IGNORED
        ids.append(document)
        labels.append(targets)
    if not ids:
        raise ValueError("samples: expected at least one, got none")
    lengths = [len(document) for document in ids]
    begins = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    return {
        "input_ids": torch.cat(ids)[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "cu_seq_lens_q": begins,
        "cu_seq_lens_k": begins,
        "max_length_q": max(lengths),
        "max_length_k": max(lengths),
    }


def _whole_numbers(values):
    values = torch.as_tensor(values)
    if values.numel() > 0 and (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool):
        raise TypeError(f"whole numbers are expected, not {values.dtype}")
    return values.to(torch.int64)
