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


workers.main(__name__, {2: [auto_measures_decides_alike_and_says_what]})
