"""Installs what the worker needs (pyproject.toml) into the virtual environment that runs this file.

Linux wheels of PyTorch are linked against 3 GB of NVIDIA's libraries, of which a machine without such a GPU calls none but
the CUDA runtime, to be told that there is no device. There the runtime is all that is installed; in place of each other
library goes a stand-in of its name, whose functions end the process. It takes 1.6 GB instead of 5.4, and a C compiler.
"""

import ctypes
import importlib.metadata
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from pathlib import Path

# Of NVIDIA's toolkit, what is called without a GPU.
RUNTIME = "cudart,cupti"

# What is linked against the toolkit, and what asks for that: installed alone, since pip would bring all of the toolkit.
ALONE = ("torch", "peft", "accelerate")


def pip(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", *args], check=True)


def without_gpu(dependencies: list[str]) -> None:
    alone = [d for d in dependencies if name_of(d) in ALONE]
    pip("--no-deps", *alone)
    own = []
    for requirement in (r for d in alone for r in importlib.metadata.requires(name_of(d)) or []):
        name = name_of(requirement)
        if name == "cuda-toolkit":
            own.append(re.sub(r"\[.*?\]", f"[{RUNTIME}]", requirement))
        elif "extra ==" not in requirement and name not in ALONE and not re.match(r"nvidia-|cuda-|triton", name):
            own.append(requirement)
    pip("--no-warn-conflicts", *own, *(d for d in dependencies if d not in alone))
    stand_in(Path(sysconfig.get_path("platlib")))


def name_of(requirement: str) -> str:
    return re.match(r"[A-Za-z0-9_-]+", requirement).group()


def stand_in(site: Path) -> None:
    """Makes a stand-in, in torch/lib, of every library that one there is linked against and that is not to be found."""
    folder = site / "torch" / "lib"
    there = {f.name for f in [*folder.iterdir(), *site.glob("nvidia/**/lib/*")]}
    needed, undefined = set(), set()
    for lib in folder.glob("lib*.so*"):
        dynamic = subprocess.run(["readelf", "-d", lib], capture_output=True, text=True, check=True).stdout
        needed |= set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic))
        symbols = subprocess.run(["nm", "-D", "--undefined-only", lib], capture_output=True, text=True, check=True).stdout
        undefined |= set(re.findall(r" [Uw] (\S+)$", symbols, re.M))
    for name in sorted(needed - there - {"libcuda.so.1"}):  # the driver: loaded when it is called
        try:
            ctypes.CDLL(name)
        except OSError:
            compile_stand_in(folder / name, undefined)


def compile_stand_in(path: Path, undefined: set[str]) -> None:
    prefix = re.match(r"lib([A-Za-z]+)", path.name).group(1).lower()
    versions: dict[str, list[str]] = {}
    for symbol in sorted(undefined):
        name, _, version = symbol.replace("@@", "@").partition("@")
        if version == path.name or name.lower().startswith(prefix) and not version.startswith("lib"):
            versions.setdefault(version, []).append(name)
    with tempfile.TemporaryDirectory() as temp:
        source, script = Path(temp, "standin.c"), Path(temp, "standin.map")
        functions = "".join(f"void {n}(void) {{ abort(); }}\n" for names in versions.values() for n in names)
        source.write_text("#include <stdlib.h>\n" + functions)
        script.write_text("".join(f"{v} {{ global: {'; '.join(names)}; }};\n" for v, names in versions.items() if v))
        versioned = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
        command = ["cc", "-w", "-fno-builtin", "-shared", "-fPIC", "-o", path, source, f"-Wl,-soname,{path.name}", *versioned]
        subprocess.run(command, check=True)


def main() -> None:
    project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["project"]
    gpu = Path("/proc/driver/nvidia/version").exists()
    if platform.system() == "Linux" and platform.machine() == "x86_64" and not gpu:
        without_gpu(project["dependencies"])
    else:
        pip(*project["dependencies"])
    subprocess.run([sys.executable, "-c", "import torch, transformers, safetensors, fastavro, peft"], check=True)


if __name__ == "__main__":
    main()
