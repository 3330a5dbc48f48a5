"""install_test.py BUILD: pip installs the package into an empty folder, and it runs from there."""
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(command, **variables):
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(command, cwd="/", env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed\n{done.stdout}{done.stderr}")
    return done.stdout


def main():
    if subprocess.run([sys.executable, "-c", "import pip, wheel"], capture_output=True, check=False).returncode:
        print("skipped: this Python has no pip and wheel (Debian: python3-pip, python3-wheel)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="gradpress-install-") as folder:
        # With library and program that are built already: compiling them once more would take minutes.
        run([sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index", "--quiet",
             "--disable-pip-version-check", "--target", folder, ROOT], GRADPRESS_BUILD=sys.argv[1])
        said = run([sys.executable, "-m", "gradpress.doctor"], PYTHONPATH=folder)
        assert f"{folder}/gradpress" in said, said
        run([f"{folder}/bin/gradpress", "--version"])
        installed = {path.name for path in pathlib.Path(folder, "gradpress").iterdir()}
        wanted = {path.name for path in (ROOT / "frontends/python/gradpress").iterdir() if path.is_file()}
        assert wanted <= installed, f"missing: {wanted - installed}"
    print("passed: installed by pip; the doctor and the command ran from there")


main()
