"""attach(model) with nothing else: measure, plan, compress where it pays."""
import gradpress
import models
from gradpress._baseline import BaselineSteps
import workers


def auto_measures_decides_alike_and_says_what():
    net = models.wrapped()
    state = gradpress.attach(net, auto_raw_steps=3, auto_window=4, auto_cache="-")
    for tensors in models.train(net, 14)[::4]:
        models.assert_same_everywhere(tensors)
    assert "auto" in state.summary(), state.summary()
    print(state.summary().splitlines()[0], flush=True)
    state.close()


def baseline_steps_are_timed_once_they_have_settled():
    times = iter([0, 9, 18, 19, 21, 22, 40, 41, 50, 51, 52, 53, 54, 55])
    own = BaselineSteps(clock=lambda: next(times))
    medians = []
    for _ in range(7):
        own.step_begins()
        medians.append(own.median_us())
    # Nine and nine settle; then 1, 2 and 1, then 2, 1 and 18.
    assert medians == [None] * 5 + [1e6, 2e6], medians
    own.interrupt()
    for _ in range(6):
        assert own.median_us() is None
        own.step_begins()
    assert own.median_us() == 1e6


def steps_until(state, net, words, first=0):
    steps = first
    while words not in state.summary():
        assert steps < first + 100, state.summary()
        models.train(net, 1, first=steps, rate=0.0)
        steps += 1
    return steps


def auto_at_rest_begins_again_when_asked():
    net = models.wrapped()
    # No tensor may be compressed: that leaves raw.
    state = gradpress.attach(net, rules=[("*", "none")], auto_raw_steps=3, auto_window=4, auto_cache="-")
    assert "timing DDP's own" in state.summary()
    steps = steps_until(state, net, "now by DDP's own")
    ran = state._session.last_step()["step"]
    models.train(net, 6, first=steps, rate=0.0)
    assert state._session.last_step()["step"] == ran, "steps at rest are DDP's"
    state.set_codec("auto")
    models.train(net, 2, first=steps + 6, rate=0.0)
    assert state._session.last_step()["step"] == ran + 2, "what DDP takes was known: auto begins at once"
    steps_until(state, net, "now by DDP's own", first=steps + 8)
    state.close()


def auto_that_decided_for_raw_is_ddp_to_the_bit():
    plain, ours = models.wrapped(), models.wrapped()
    # No tensor may be compressed: that leaves raw.
    state = gradpress.attach(ours, rules=[("*", "none")], auto_raw_steps=3, auto_window=4, auto_cache="-")
    steps_until(state, ours, "now by DDP's own")
    models.assert_same_bits(models.train(ours, 3), models.train(plain, 3))
    state.set_codec("acpsgd:2")
    models.assert_same_everywhere(models.train(ours, 2)[-1])
    assert "now by DDP's own" not in state.summary()
    state.close()


workers.main(__name__, {
    1: [baseline_steps_are_timed_once_they_have_settled],
    2: [auto_measures_decides_alike_and_says_what, auto_that_decided_for_raw_is_ddp_to_the_bit,
        auto_at_rest_begins_again_when_asked]})
