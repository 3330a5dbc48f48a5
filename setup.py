"""Builds libgradpress.so and the program gradpress by CMake and puts both into the wheel. All else is in pyproject.toml.

Python does not matter to either: the wheel is for every Python 3 on the platform. torch is not needed.

MAX_JOBS: compilers at once. GRADPRESS_BUNDLED: a folder of tools/bundled_libraries.sh, for a wheel with Gloo and Highway
inside; without it, the wheel uses the shared libraries of this system. GRADPRESS_BUILD: a CMake build folder that has
library and program already; nothing is compiled then.
"""
import os
import pathlib
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from distutils.command.build_scripts import build_scripts  # setuptools brings it, also where Python no longer does

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = pathlib.Path(__file__).resolve().parent
# Not build/, where ./run builds.
WORK = ROOT / "build-pip"


def built():
    """The folder of library and program, built if needed."""
    given = os.environ.get("GRADPRESS_BUILD")
    if given:
        return pathlib.Path(given).resolve()
    bundled = os.environ.get("GRADPRESS_BUNDLED", "")
    folder = WORK / ("bundled" if bundled else "system")
    print(f"Gloo and Highway: {f'static, of {bundled}' if bundled else 'the shared libraries of this system'}", flush=True)
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER=g++",
                    f"-DGRADPRESS_BUNDLED={bundled}", "-DGRADPRESS_WITH_GLOO=ON", "-DGRADPRESS_WITH_TORCH=OFF",
                    "-DGRADPRESS_TESTS=OFF", f"-DGRADPRESS_WERROR={os.environ.get('GRADPRESS_WERROR') or 'OFF'}"], check=True)
    jobs = os.environ.get("MAX_JOBS", str(os.cpu_count() or 1))
    subprocess.run(["ninja", "-C", folder, "-j", jobs, "gradpress_shared", "gradpress_cli"], check=True)
    return folder


def copy_stripped(source, target):
    if not source.exists():
        raise RuntimeError(f"{source} is not there: GRADPRESS_BUILD needs the targets gradpress_shared and gradpress_cli")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, target)  # a link becomes the file
    if shutil.which("strip"):
        subprocess.run(["strip", "--strip-unneeded", target], check=True)


class BuildLibrary(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            package = pathlib.Path(self.build_lib) / "gradpress"
            copy_stripped(built() / "libgradpress.so", package / "libgradpress.so")
            bundled = os.environ.get("GRADPRESS_BUNDLED")
            if bundled:
                shutil.copytree(pathlib.Path(bundled) / "licenses", package / "licenses", dirs_exist_ok=True)


class BuildProgram(build_scripts):
    """The program is the command itself, without a Python script around it: no start of Python, no import of torch."""

    def run(self):
        copy_stripped(built() / "bin" / "gradpress", pathlib.Path(self.build_dir) / "gradpress")


class PlatformWheel(bdist_wheel):
    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class PlatformDistribution(Distribution):
    def has_ext_modules(self):
        return True  # there is machine code, so that the wheel is for one platform


WORK.mkdir(exist_ok=True)
setup(distclass=PlatformDistribution, scripts=["gradpress"],
      cmdclass={"build_py": BuildLibrary, "build_scripts": BuildProgram, "bdist_wheel": PlatformWheel},
      options={"build": {"build_base": str(WORK)}, "egg_info": {"egg_base": str(WORK)}})
