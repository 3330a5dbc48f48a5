"""Builds gradpress._core by CMake, for the Python that runs this. All else is in pyproject.toml.

MAX_JOBS: compilers at once. GRADPRESS_BUILD: a CMake build folder that has the module already; nothing is compiled then.
"""
import os
import pathlib
import shutil
import subprocess
import sys

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = pathlib.Path(__file__).resolve().parent
# Not build/, where ./run builds.
WORK = ROOT / "build-pip"


class CMakeBuild(build_ext):
    def build_extension(self, ext):
        given = os.environ.get("GRADPRESS_BUILD")
        folder = pathlib.Path(given).resolve() if given else WORK / f"cmake-{sys.implementation.cache_tag}"
        if not given:
            self.compile(folder)
        target = pathlib.Path(self.get_ext_fullpath(ext.name))
        built = folder / "python/gradpress" / target.name
        if not built.exists():
            raise RuntimeError(f"{built} is not there: CMake builds it where python3-torch, libtorch-dev, libpython3-dev and "
                               "pybind11-dev are installed, and says so when it configures")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(built, target)

    @staticmethod
    def compile(folder):
        cache = shutil.which("ccache")
        subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                        f"-DGRADPRESS_PYTHON={sys.executable}", "-DGRADPRESS_WITH_TORCH=ON", "-DGRADPRESS_TESTS=OFF",
                        "-DGRADPRESS_CLI=OFF", *([f"-DCMAKE_CXX_COMPILER_LAUNCHER={cache}"] if cache else [])], check=True)
        jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
        subprocess.run(["ninja", "-C", folder, "-j", jobs, "gradpress_core"], check=True)


WORK.mkdir(exist_ok=True)
setup(ext_modules=[Extension("gradpress._core", sources=[])], cmdclass={"build_ext": CMakeBuild},
      options={"build": {"build_base": str(WORK)}, "egg_info": {"egg_base": str(WORK)}})
