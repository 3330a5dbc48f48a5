"""check_wheel_test.py CHECK HEADER LIBRARY PROGRAM: tools/check_wheel.py refuses wheels that are not what they say.

LIBRARY and PROGRAM are those of a build that uses Debian's shared libraries: a wheel must not carry them.
"""
import pathlib
import subprocess
import sys
import tempfile
import zipfile

LICENSES = ("gloo", "highway", "libxxhash", "nlohmann-json3", "libcli11", "libexpected")


def check(name, files, licenses=LICENSES):
    """Exit code and output for a wheel of that name."""
    with tempfile.TemporaryDirectory(prefix="gradpress-test-") as folder:
        wheel = pathlib.Path(folder, name)
        with zipfile.ZipFile(wheel, "w") as archive:
            for inside, outside in files.items():
                archive.write(outside, inside)
            for license_name in licenses:
                archive.writestr(f"gradpress/licenses/{license_name}", "text")
        done = subprocess.run([sys.executable, CHECK, wheel, HEADER], capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr


def refused(outcome, *texts):
    code, output = outcome
    assert code == 1, f"wanted exit code 1, got {code}\n{output}"
    for text in texts:
        assert text in output, f"wanted {text!r} in\n{output}"


CHECK, HEADER, LIBRARY, PROGRAM = sys.argv[1:]
TAGGED = "gradpress-0.1.0-py3-none-manylinux_2_36_x86_64.whl"
FILES = {"gradpress/libgradpress.so": LIBRARY, "gradpress-0.1.0.data/scripts/gradpress": PROGRAM}
refused(check("gradpress-0.1.0-py3-none-any.whl", FILES), "wanted a wheel py3-none-manylinux")
refused(check("gradpress-0.1.0-py3-none-manylinux_2_17_x86_64.whl", FILES), "no bounds are known for glibc 2.17")
refused(check(TAGGED, FILES), "libgradpress.so: needs libhwy.so.1; the tag allows",
        "scripts/gradpress: needs libhwy.so.1; the tag allows", "libgradpress.so: exports _ZN9gradpress")
refused(check(TAGGED, {"gradpress/libgradpress.so": LIBRARY}, LICENSES[1:]), "wanted machine code in", "carries gloo without")
refused(check(TAGGED, {"gradpress/libgradpress.so": "/bin/true"}), "does not export gradpress_version, which")
print("passed")
