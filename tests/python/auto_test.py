"""attach(model) with nothing else: measure, plan, compress where it pays."""
import gradpress
import models
import workers


def auto_measures_decides_alike_and_says_what():
    net = models.wrapped()
    state = gradpress.attach(net, auto_raw_steps=3, auto_window=4, auto_cache="-")
    for tensors in models.train(net, 14)[::4]:
        models.assert_same_everywhere(tensors)
    assert "auto" in state.summary(), state.summary()
    print(state.summary().splitlines()[0], flush=True)
    state.close()


def auto_that_decided_for_raw_is_ddp_to_the_bit():
    plain, ours = models.wrapped(), models.wrapped()
    # No tensor may be compressed: that leaves raw.
    state = gradpress.attach(ours, rules=[("*", "none")], auto_raw_steps=3, auto_window=4, auto_cache="-")
    steps = 0
    while "DDP's own" not in state.summary():
        assert steps < 60, state.summary()
        models.train(ours, 1, first=steps, rate=0.0)
        steps += 1
    models.assert_same_bits(models.train(ours, 3), models.train(plain, 3))
    state.set_codec("acpsgd:2")
    models.assert_same_everywhere(models.train(ours, 2)[-1])
    assert "DDP's own" not in state.summary()
    state.close()


workers.main(__name__, {2: [auto_measures_decides_alike_and_says_what, auto_that_decided_for_raw_is_ddp_to_the_bit]})
