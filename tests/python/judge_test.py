"""What the bench says about limits of a few percent."""
import random

import judge


def the_interval_holds_the_median_as_often_as_it_says():
    seed = 7
    generator = random.Random(seed)
    for count in (10, 12, 25):
        held = 0
        for _ in range(2000):
            # Skewed, as times are: the true median of an exponential is ln 2.
            _, low, high = judge.median_interval([generator.expovariate(1.0) for _ in range(count)])
            held += low <= 0.6931 <= high
        assert held >= 0.945 * 2000, f"{count} values, seed {seed}: {held} of 2000"


def few_values_are_never_sure():
    assert judge.median_interval([3.0, 1.0, 2.0]) == (2.0, 1.0, 3.0)
    words = judge.verdict([[1.0]] * 3, [[2.0]] * 3, least=1.5)
    assert words["verdict"] == "held within spread" and words["pairs"] == 3, words


def limits_are_judged_by_the_interval():
    ours, same, slower = [[100.0, 101.0]] * 12, [[100.0, 101.0]] * 12, [[94.0, 95.0]] * 12
    assert judge.verdict(ours, same, least=0.98)["verdict"] == "held"
    assert judge.verdict(ours, slower, least=0.98)["verdict"] == "missed"
    noisy = [[90.0 + 2 * i] for i in range(12)]
    assert judge.verdict([[100.0]] * 12, noisy, least=1.0)["verdict"].endswith("within spread")


def equal_speed_is_judged_by_the_interval_alone():
    noisy = [[95.0 + i] for i in range(12)]
    assert judge.alike([[100.0]] * 12, noisy)["verdict"] == "held"
    assert judge.alike([[120.0]] * 12, noisy)["verdict"] == "missed"
    assert judge.alike([[90.0]] * 12, noisy)["verdict"] == "held", "faster is fine"
    assert judge.alike([[120.0]] * 3, noisy)["verdict"] == "missed within spread"


for case in (the_interval_holds_the_median_as_often_as_it_says, few_values_are_never_sure,
             limits_are_judged_by_the_interval, equal_speed_is_judged_by_the_interval_alone):
    case()
    print(f"passed: {case.__name__}")
