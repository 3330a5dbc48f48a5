"""What attach takes, refuses and tells."""
import dataclasses
import inspect
import pathlib
import re
import time

import expecting
import gradpress
import models
import torch
import torch.distributed as dist
import workers
from gradpress._settings import Settings
from torch.nn.parallel import DistributedDataParallel as DDP

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs/pytorch.md"


def wrong_arguments_are_refused_by_name():
    for wrong, kind, words in (
            ({"codec": None}, TypeError, ["codec", "None"]), ({"codec": 5}, TypeError, ["codec", "5"]),
            ({"codec": "tpok:0.1"}, ValueError, ["tpok"]), ({"codec": "topk:7"}, ValueError, ["topk:7"]),
            ({"codec": {0: "none", 5: "tpok"}}, ValueError, ["tpok"]), ({"codec": {3: "none"}}, ValueError, ["0"]),
            ({"rules": {}}, TypeError, ["rules", "pairs"]), ({"rules": "none"}, TypeError, ["rules"]),
            ({"rules": [("*.bias",)]}, TypeError, ["rules"]), ({"rules": [("*", "nune")]}, ValueError, ["nune"]),
            ({"codec": "acpsgd:4", "rules": [("embed*", "none")]}, ValueError, ["embed*", "7.weight"]),
            ({"codec": "acpsgd:4", "bukket_bytes": 1}, TypeError, ["bukket_bytes"]),
            ({"bucket_bytes": 0}, ValueError, ["bucket_bytes"]), ({"fusion": 1}, ValueError, ["fusion"]),
            ({"timeout_s": 0}, ValueError, ["timeout_s"]), ({"start": -1}, ValueError, ["start"]),
            ({"momentum": 0.9}, ValueError, ["optimizer="]), ({"clip_norm": 1.0}, ValueError, ["momentum="])):
        net = models.wrapped()
        with expecting.error(kind, *words):
            gradpress.attach(net, **wrong)
    with expecting.error(TypeError, "DistributedDataParallel", "Sequential"):
        gradpress.attach(models.model())
    with expecting.error(TypeError, "bukket_bytes", "bucket_bytes"):
        gradpress.State(models.wrapped(), bukket_bytes=1)


def momentum_correction_wants_an_optimizer_without_momentum():
    net = models.wrapped()
    for optimizer, words in ((torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), "SGD"),
                             (torch.optim.AdamW(net.parameters()), "AdamW")):
        with expecting.error(ValueError, "momentum", words):
            gradpress.attach(net, codec="dgc:0.01", momentum=0.9, optimizer=optimizer)
    for flag in ("find_unused_parameters", "static_graph"):
        other = DDP(models.model(), **{flag: True})
        with expecting.error(ValueError, "momentum", flag):
            gradpress.attach(other, codec="dgc:0.01", momentum=0.9, optimizer=torch.optim.SGD(other.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    state = gradpress.attach(net, codec="dgc:0.05", momentum=0.5, clip_norm=1e6, optimizer=optimizer)
    # The same gradient in every step: with momentum m the k-th update is (1 + m + … + m^(k-1)) times it, of what was sent.
    sums = []
    for _ in range(8):
        net.zero_grad()
        models.backward(net, 0)
        sums.append(sum(float(tensor.double().sum()) for tensor in models.gradients(net)))
    dense = models.wrapped()
    models.backward(dense, 0)
    one = sum(float(tensor.double().sum()) for tensor in models.gradients(dense))
    assert torch.isfinite(torch.tensor(sums)).all() and any(abs(value - one) > 1e-3 for value in sums), sums
    models.assert_same_everywhere(models.gradients(net))
    state.close()


def every_setting_is_an_argument_with_a_line_in_the_documents():
    arguments = inspect.signature(gradpress.attach).parameters
    for field in dataclasses.fields(Settings):
        assert arguments[field.name].default == field.default, field.name
        assert arguments[field.name].annotation is not inspect.Parameter.empty, field.name
        assert re.search(rf"^{field.name}: ", inspect.getdoc(gradpress.attach), re.M), f"attach's docstring: {field.name}"
    if not DOCUMENT.exists():
        print("the documents are not here: their table is not compared", flush=True)
        return
    table = DOCUMENT.read_text()
    for name in arguments:
        if name != "model":
            assert re.search(rf"^\| `{name}`", table, re.M), f"docs/pytorch.md has no row for {name}"


def ranks_that_disagree_are_told_what_each_wrote():
    mine = {0: "none", 1: "acpsgd:4"}[dist.get_rank()]
    with expecting.error(ValueError, "codec", "rank 0 has none", "rank 1 has acpsgd:4"):
        gradpress.attach(models.wrapped(), codec=mine)
    with expecting.error(ValueError, "bucket_bytes", "rank 0 has 1000", "rank 1 has 2000"):
        gradpress.attach(models.wrapped(), codec="efsign", bucket_bytes=1000 * (1 + dist.get_rank()))


def a_rank_that_does_not_attach_is_named():
    net = models.wrapped()
    if dist.get_rank() == 0:
        began = time.monotonic()
        with expecting.error(RuntimeError, "rank 1", "start_timeout_s"):
            gradpress.attach(net, codec="efsign", start_timeout_s=1.5)
        assert time.monotonic() - began < 60
    dist.barrier()


def a_codec_that_is_refused_changes_nothing():
    net = models.wrapped()
    state = gradpress.attach(net, codec="topk:0.05")
    models.train(net, 2)
    before = state.residuals()
    for wrong in ("bogus", "topk:9"):
        with expecting.error(ValueError, wrong):
            state.set_codec(wrong)
    assert state.codec == "topk:0.05"
    for name, residual in state.residuals().items():
        assert torch.equal(residual, before[name]), name
    models.train(net, 1)
    assert state.state_dict()["codec"] == "topk:0.05"
    state.close()


def the_log_has_the_same_keys_always_and_says_what_ran():
    net = models.wrapped()
    state = gradpress.attach(net, codec={0: "none", 2: "topk:0.05", 4: "efsign"})
    keys = set(state.log())
    for step, (codec, path) in enumerate([("none", "ddp")] * 2 + [("topk:0.05", "engine")] * 2 + [("efsign", "engine")]):
        models.backward(net, step)
        log = state.log()
        assert set(log) == keys, set(log) ^ keys
        assert (log["gradpress/codec"], log["gradpress/path"]) == (codec, path), log
        assert (log["gradpress/sent_bytes"] > 0) == (path == "engine"), log
        assert log["gradpress/step"] == step + 1
    state.close()


def the_summary_names_every_tensors_codec():
    net = models.wrapped()
    state = gradpress.attach(net, codec="acpsgd:4", rules=[("7.*", "none")])
    models.backward(net, 0)
    text = state.summary()
    lines = {line.split()[-1]: line.split()[0] for line in text.splitlines() if line.startswith("  ")}
    for name, tensor in net.module.named_parameters():
        wanted = "none" if name.startswith("7.") or tensor.numel() < 1024 else "acpsgd:4"
        assert lines[name] == wanted, (name, lines.get(name), text)
    assert "Sequential" in text.splitlines()[0]
    state.close()


def parameters_of_other_types_are_refused_by_name():
    class Odd(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fine = torch.nn.Linear(4, 4)
            self.odd = torch.nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    with expecting.error(ValueError, "odd", "complex64"):
        gradpress.State(Odd(), codec="efsign")
    net = DDP(models.model())
    net._use_python_reducer = True
    with expecting.error(ValueError, "python_reducer"):
        gradpress.attach(net)
    net._use_python_reducer = False
    net.mixed_precision = object()
    with expecting.error(ValueError, "mixed_precision"):
        gradpress.attach(net)


workers.main(__name__, {
    1: [every_setting_is_an_argument_with_a_line_in_the_documents],
    2: [wrong_arguments_are_refused_by_name, momentum_correction_wants_an_optimizer_without_momentum,
        ranks_that_disagree_are_told_what_each_wrote, a_codec_that_is_refused_changes_nothing, the_log_has_the_same_keys_always_and_says_what_ran,
        the_summary_names_every_tensors_codec, parameters_of_other_types_are_refused_by_name,
        # Last: from then on one rank has attached once more than the other.
        a_rank_that_does_not_attach_is_named]})
