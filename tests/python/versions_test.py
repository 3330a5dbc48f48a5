"""What differs between versions of Python and torch, with fakes in the place of versions that are not here.

The calls that are faked here are those that changed between torch 1.13 and 2.14.
"""
import ast
import pathlib
import types
from datetime import timedelta

import gradpress
import torch
import workers
from gradpress import _torch_versions

PACKAGE = pathlib.Path(gradpress.__file__).parent


def the_package_is_python_3_9():
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 10, files
    for file in files:
        tree = ast.parse(file.read_text(), str(file), feature_version=(3, 9))
        lazy = any(isinstance(node, ast.ImportFrom) and node.module == "__future__" for node in tree.body)
        for node in ast.walk(tree):
            # X | Y between types is evaluated in 3.9, and fails, unless annotations are lazy.
            if isinstance(node, (ast.arg, ast.AnnAssign)) and not lazy and node.annotation is not None:
                assert not any(isinstance(part, ast.BinOp) for part in ast.walk(node.annotation)), f"{file}: {node.lineno}"


class Options:
    _timeout = timedelta(seconds=77)


class Backend:
    options = Options()


class OldGroup:  # 1.13: a backend is the process group
    options = Options()


class NewGroup:  # 2.x: a process group holds a backend per device
    def _get_backend(self, device):
        if device.type != "cpu":
            raise RuntimeError("No backend type associated with device type cuda")
        return Backend()


class CudaGroup:
    def _get_backend(self, device):
        if device.type == "cpu":
            raise RuntimeError("No backend type associated with device type cpu")
        return Backend()


class SilentGroup:  # a group of a backend that tells no timeout
    def _get_backend(self, device):
        return object()


def the_timeout_is_found_in_every_kind_of_group():
    for group in (OldGroup(), NewGroup(), CudaGroup()):
        assert _torch_versions.timeout_of(group) == timedelta(seconds=77), type(group).__name__
    assert _torch_versions.timeout_of(SilentGroup()) == timedelta(minutes=30)


def the_store_is_found_in_every_kind_of_registry():
    store, group = torch.distributed.HashStore(), object()
    real = _torch_versions.distributed_c10d
    registries = {
        "1.13": types.SimpleNamespace(_pg_map={group: ("gloo", store)}, _pg_names={group: "7"}),
        "2.x": types.SimpleNamespace(_world=types.SimpleNamespace(pg_map={group: ("gloo", store)}, pg_names={group: "7"}))}
    try:
        for name, registry in registries.items():
            _torch_versions.distributed_c10d = registry
            _torch_versions.store_of(group).set("key", name)
            assert store.get("gradpress/7/key").decode() == name
            try:
                _torch_versions.store_of(object())
            except ValueError as error:
                assert "torch.distributed" in str(error)
            else:
                raise AssertionError("a group that nobody knows was accepted")
    finally:
        _torch_versions.distributed_c10d = real


def gradients_are_seen_after_they_were_added():
    for old in (True, False):
        if not old and not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
            print("before 2.1: no register_post_accumulate_grad_hook", flush=True)
            continue
        parameter = torch.nn.Parameter(torch.ones(3))
        seen = []
        given = types.SimpleNamespace(expand_as=lambda _: parameter.expand_as(parameter)) if old else parameter
        kept = _torch_versions.after_accumulation(given, lambda p=parameter, s=seen: s.append(p.grad.clone()))
        (2 * parameter).sum().backward()
        (3 * parameter).sum().backward()
        assert [float(gradient[0]) for gradient in seen] == [2.0, 5.0], seen
        assert kept is not None


def the_end_of_backward_is_told_inside_it_alone():
    assert not _torch_versions.when_backward_ends(lambda: None), "no backward runs"
    told = []

    class Lost(RuntimeError):
        pass

    def fails():
        raise Lost("a peer")

    for call, wanted in ((lambda: told.append(1), None), (fails, Lost)):
        parameter = torch.nn.Parameter(torch.ones(3))
        parameter.register_hook(lambda _, call=call: told.append(_torch_versions.when_backward_ends(call)) or None)
        try:
            parameter.sum().backward()
        except RuntimeError as error:
            assert wanted is not None and isinstance(error, wanted), repr(error)
        else:
            assert wanted is None
    assert told == [True, 1, True], told


def modes_of_ddp_are_told_apart():
    def ddp(**fields):
        return types.SimpleNamespace(**{"gradient_as_bucket_view": False, **fields})
    assert _torch_versions.refusal(ddp()) is None
    assert "python_reducer" in _torch_versions.refusal(ddp(_use_python_reducer=True))
    assert "mixed_precision" in _torch_versions.refusal(ddp(mixed_precision=object()))
    for model, wanted in ((ddp(), False), (ddp(batched_grad_copy=True), True), (ddp(_batched_grad_copy=True), True)):
        assert _torch_versions.copies_in_batches(model) == wanted, model
    module = torch.nn.Linear(2, 2)
    assert _torch_versions.unwrapped(types.SimpleNamespace(_orig_mod=module)) is module
    assert _torch_versions.unwrapped(module) is module


workers.main(__name__, {1: [
    the_package_is_python_3_9, the_timeout_is_found_in_every_kind_of_group, the_store_is_found_in_every_kind_of_registry,
    gradients_are_seen_after_they_were_added, the_end_of_backward_is_told_inside_it_alone, modes_of_ddp_are_told_apart]})
