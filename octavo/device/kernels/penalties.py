"""Repetition, frequency and presence penalties: over whole rows, or over the tokens that a row has seen."""

import torch
from torch import Tensor


def penalise(
    logits: Tensor,
    rows: Tensor,
    prompted: Tensor,
    counts: Tensor,
    rep: Tensor,
    freq: Tensor,
    pres: Tensor,
    *,
    drafts: Tensor | None = None,
) -> None:
    """In place on float32 logits [N, V] of persistent ``rows`` int64[N].

    prompted bool[R + 1, V]: tokens of the prompt; counts int32[R + 1, V]: how often the row has said each; rep, freq,
    pres float32[N]; drafts int64[N, W]: what counts as said beside that (-1: nothing). A token seen in any is divided
    by ``rep`` where its logit is positive, else multiplied; then a said token loses freq * count + pres.
    """
    penalise_torch(logits, rows, prompted, counts, rep, freq, pres, drafts)


def penalise_torch(
    logits: Tensor,
    rows: Tensor,
    prompted: Tensor,
    counts: Tensor,
    rep: Tensor,
    freq: Tensor,
    pres: Tensor,
    drafts: Tensor | None = None,
) -> None:
    said = counts[rows]
    if drafts is not None:
        said.scatter_add_(1, drafts.clamp(min=0), (drafts >= 0).to(said.dtype))
    seen = prompted[rows].logical_or_(said > 0)
    factor = torch.where(logits > 0, 1.0 / rep.unsqueeze(1), rep.unsqueeze(1))
    logits.mul_(factor.masked_fill_(~seen, 1.0))
    logits.sub_(said * freq.unsqueeze(1)).sub_((said > 0) * pres.unsqueeze(1))


def penalise_seen(
    logits: Tensor, index: Tensor, ids: Tensor, said: Tensor, rep: Tensor, freq: Tensor, pres: Tensor
) -> None:
    """``penalise`` where what each row has seen is a list: of token ``ids[j]`` int64[M] in logit row ``index[j]``
    int64[M], said ``said[j]`` times (0: only the prompt has it). No token twice in a row."""
    penalise_seen_torch(logits, index, ids, said, rep, freq, pres)


def penalise_seen_torch(
    logits: Tensor, index: Tensor, ids: Tensor, said: Tensor, rep: Tensor, freq: Tensor, pres: Tensor
) -> None:
    here = logits[index, ids]
    each = rep[index]
    here.mul_(torch.where(here > 0, 1.0 / each, each))
    here.sub_(said * freq[index]).sub_((said > 0) * pres[index])
    logits[index, ids] = here


def count(counts: Tensor, rows: Tensor, tokens: Tensor, good: Tensor, again: bool = False) -> None:
    """counts[rows[i], tokens[i]] += good[i]; no row twice, unless ``again``."""
    if again:
        counts.index_put_((rows, tokens), good.to(counts.dtype), accumulate=True)
    else:
        counts[rows, tokens] += good.to(counts.dtype)
