"""Two ways beside each other: which is faster, and how sure that is."""
import math
import statistics


def median_interval(values, level=0.95):
    """The median, and two values of the sample between which the true median lies with at least that probability,
    whatever the distribution: it is below the k-th smallest with the probability of fewer than k heads in n throws."""
    ordered = sorted(values)
    count = len(ordered)
    below, rank = 0.0, 0
    while rank < count // 2:
        below += math.comb(count, rank) / 2.0 ** count
        if 2 * below > 1 - level:
            break
        rank += 1
    rank = max(rank, 1)
    return statistics.median(ordered), ordered[rank - 1], ordered[count - rank]


def ratios(ours, theirs):
    """Of blocks of steps that took turns: how many times faster `ours` was, pair by pair."""
    return [statistics.median(b) / statistics.median(a) for a, b in zip(ours, theirs)]


LEAST_PAIRS = 10


def verdict(ours, theirs, least):
    """Whether `ours` reaches `least` times the speed of `theirs`: "held" or "missed" where the interval says so,
    "held within spread" or "missed within spread" where the median alone does."""
    of_pairs = ratios(ours, theirs)
    median, low, high = median_interval(of_pairs)
    word = "held" if median >= least else "missed"
    sure = len(of_pairs) >= LEAST_PAIRS and (low >= least or high < least)
    return {"ratio": round(median, 4), "low": round(low, 4), "high": round(high, 4), "pairs": len(of_pairs),
            "least": least, "verdict": word if sure else word + " within spread"}


def alike(ours, theirs):
    """Whether the interval of the pairs reaches the speed of `theirs`: nothing shows that `ours` is slower."""
    of_pairs = ratios(ours, theirs)
    median, low, high = median_interval(of_pairs)
    enough = len(of_pairs) >= LEAST_PAIRS
    word = "held" if high >= 1.0 else "missed"
    return {"ratio": round(median, 4), "low": round(low, 4), "high": round(high, 4), "pairs": len(of_pairs),
            "least": 1.0, "verdict": word if enough else word + " within spread"}
