"""Builds gradpress._core by CMake, for the Python that runs this. All else is in pyproject.toml."""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        folder = pathlib.Path(self.build_temp).resolve() / "cmake"
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        f"-DGRADPRESS_PYTHON={sys.executable}", "-DGRADPRESS_WITH_TORCH=ON", "-DGRADPRESS_TESTS=OFF",
                        "-DGRADPRESS_CLI=OFF"], check=True)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.run(["ninja", "-C", folder, "-j", jobs, "gradpress_core"], check=True)
        target = pathlib.Path(self.get_ext_fullpath(ext.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        built = list((folder / "python/gradpress").glob("_core*.so"))
        if not built:
            raise RuntimeError("CMake built no gradpress/_core: it needs python3-torch, libtorch-dev, libpython3-dev and "
                               "pybind11-dev, and says so when it configures")
        shutil.copy2(built[0], target)


setup(ext_modules=[Extension("gradpress._core", sources=[])], cmdclass={"build_ext": CMakeBuild})
