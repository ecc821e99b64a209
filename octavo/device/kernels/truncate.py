"""min-p, top-k and top-p: unlikely tokens get -inf."""

from torch import Tensor

from octavo.device.kernels.logprobs import log_sum_exp

#: Tokens that are sorted before a row is given up to a full sort.
SHORT = 1024


def min_p(logits: Tensor, least: Tensor) -> None:
    """In place: -inf where a token is less than ``least`` [N] times as likely as the best one. 0 is off."""
    min_p_torch(logits, least)


def min_p_torch(logits: Tensor, least: Tensor) -> None:
    floor = logits.amax(-1, keepdim=True) + least.log().unsqueeze(1)
    logits.masked_fill_(logits < floor, float("-inf"))


def top_k_p(logits: Tensor, k: Tensor, p: Tensor) -> None:
    """In place: keep the k [N] most likely tokens (0 is off) and those that tie with the last of them; of what is left
    the fewest most likely ones whose probabilities reach p [N] together (1 is off), again with ties. One always stays.
    """
    top_k_p_torch(logits, k, p)


def top_k_p_torch(logits: Tensor, k: Tensor, p: Tensor) -> None:
    vocab = logits.shape[1]
    ks = k.clamp(0, vocab).tolist()
    nucleus = bool((p < 1).any())
    short = min(vocab, SHORT)
    best = logits.topk(max(short if nucleus else 1, *ks), -1).values
    if any(ks):
        kth = best.gather(1, (k.clamp(1, best.shape[1]) - 1).long().unsqueeze(1))
        kth.masked_fill_((k == 0).unsqueeze(1), float("-inf"))
        logits.masked_fill_(logits < kth, float("-inf"))
    if nucleus:
        total = log_sum_exp(logits)
        floor, done = _nucleus(best[:, :short].contiguous(), total, p)
        for row in (~done).nonzero().flatten().tolist() if short < vocab else []:
            whole = logits[row : row + 1].sort(-1, descending=True).values
            floor[row] = _nucleus(whole, total[row : row + 1], p[row : row + 1])[0][0]
        logits.masked_fill_(logits < floor.unsqueeze(1), float("-inf"))


def _nucleus(best: Tensor, total: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """The least logit that top-p keeps, float[N], and whether it lies within ``best`` [N, n] (descending), bool[N].

    A token stays while the probability of those before it is less than p. ``total``: log-sum-exp of the row.
    """
    chances = (best - total.unsqueeze(1)).exp_()
    before = chances.cumsum(-1).sub_(chances)
    kept = (before < p.unsqueeze(1)).cummin(-1).values.sum(-1).clamp(min=1)
    floor = best.gather(1, (kept - 1).unsqueeze(1)).squeeze(1)
    floor.masked_fill_(p >= 1, float("-inf"))
    return floor, (kept < best.shape[1]) | (p >= 1)
