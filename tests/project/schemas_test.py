#!/usr/bin/env python3
"""schemas_test.py PROGRAM PROJECT: the JSON Schemas of docs/schemas, the documents and the program agree.

Every example file and every example in the two documents fits its schema and is read by the program. A file from which a
required field was taken, or in which a field was given a wrong value, fits neither.
"""
import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

try:
    import jsonschema
except ImportError:
    print("skipped: this Python has no jsonschema (Debian: python3-jsonschema)")
    sys.exit(77)

PROGRAM, PROJECT = sys.argv[1], pathlib.Path(sys.argv[2])


def schema(kind):
    document = json.loads((PROJECT / f"docs/schemas/{kind}.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(document)
    return jsonschema.Draft7Validator(document)


SCHEMAS = {kind: schema(kind) for kind in ("trace", "cluster")}


def example_of(kind):
    """The example in the document."""
    text = (PROJECT / f"docs/{kind}_file.md").read_text()
    return json.loads(re.search(r"```json\n(.*?)```", text, re.DOTALL)[1])


EXAMPLES = {kind: example_of(kind) for kind in SCHEMAS}


def program_reads(kind, document):
    """Whether the program reads it, and its words if not."""
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for each, content in {**EXAMPLES, kind: document}.items():
            files[each] = pathlib.Path(folder) / f"{each}.json"
            files[each].write_text(json.dumps(content))
        ended = subprocess.run([PROGRAM, "plan", "--trace", files["trace"], "--cluster", files["cluster"], "--codec", "none"],
                               capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode in (0, 2), f"exit code {ended.returncode}: {ended.stderr}"
    return ended.returncode == 0, ended.stderr


def expect(kind, document, fits, what):
    in_schema = SCHEMAS[kind].is_valid(document)
    in_program, words = program_reads(kind, document)
    assert in_schema == fits, f"{what}: the schema says {in_schema}, wanted {fits}"
    assert in_program == fits, f"{what}: the program says {in_program}, wanted {fits}: {words}"


def example_files():
    folders = [PROJECT / "examples/clusters"]
    data = os.environ.get("GRADPRESS_DATA")
    if data:
        folders += [pathlib.Path(data) / "clusters", pathlib.Path(data) / "traces"]
    return [file for folder in folders for file in sorted(folder.glob("*.json"))]


def changed(document, path, value):
    """A copy with the value at that path; None takes the field away."""
    copied = copy.deepcopy(document)
    place = copied
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return copied


WRONG = {
    "trace": [
        (("format",), None), (("format",), "gradpress-trace-9"), (("model",), None), (("model",), 7), (("forward_us",), -1),
        (("tensors",), None), (("tensors",), []), (("tensors", 0, "name"), None), (("tensors", 0, "shape"), None),
        (("tensors", 0, "shape"), [10, 0]), (("tensors", 0, "shape"), [1] * 9), (("tensors", 0, "elements"), None),
        (("tensors", 0, "elements"), 4.5), (("tensors", 0, "ready_gap_us"), None), (("tensors", 0, "ready_gap_us"), -3)],
    "cluster": [
        (("format",), None), (("name",), None), (("machines",), 0), (("machines",), 1.5), (("workers_per_machine",), 2000),
        (("intra",), None), (("inter", "gbps"), 0), (("inter", "gbps"), 1e7), (("inter", "latency_us"), None),
        (("inter", "latency_us"), -1), (("inter", "rate_known"), "yes"), (("inter", "collectives", "alltoall"), {}),
        (("decode_costs",), "per-step"), (("codec_costs",), None), (("codec_costs", "efsign"), {}),
        (("codec_costs", "efsign", "host"), []), (("codec_costs", "efsign", "host", 0, "encode_us"), -1),
        (("codec_costs", "efsign", "host", 0, "decode_us"), None)],
}


def main():
    checks = 0
    for kind, document in EXAMPLES.items():
        expect(kind, document, True, f"the example in docs/{kind}_file.md")
        expect(kind, {**document, "a field of tomorrow": 1}, True, f"{kind} with an unknown field")
        checks += 2
        for path, value in WRONG[kind]:
            expect(kind, changed(document, path, value), False, f"{kind} with {'.'.join(map(str, path))} = {value}")
            checks += 1
    for file in example_files():
        document = json.loads(file.read_text())
        kind = document["format"].split("-")[1]
        expect(kind, document, True, file.name)
        checks += 1
    print(f"{checks} passed, 0 failed")


main()
