"""Stand-ins for the CUDA libraries that onnxruntime-gpu loads: `PYTHON libraries.py`, in the environment that has it.

They answer what is asked while a session is opened (answers.c) and say success to all else, so that the CUDA provider
places, fuses and looks up kernels as it would beside a GPU. They go into the environment's site-packages with a .pth
file that loads them when its Python starts: the dynamic linker takes a library that is there under the wanted name.
"""

from __future__ import annotations

import importlib.util
import re
import site
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDER = "cuda_placement_libraries"
PROVIDERS = ("cuda", "tensorrt")  # the second one's are wanted by the listing of kernels, which opens every provider
BY_NAME = {"libcudnn.so.9": "cudnn", "libcufft.so.12": "cufft"}  # opened at run time: their functions are named in text
WITHOUT_VERSION = {  # libraries whose functions carry no version: how such names begin
    "libcuda.so.1": r"cu[A-Z]",
    "libnvinfer.so.10": r"createInfer|getInfer|getPlugin",
    "libnvonnxparser.so.10": r"createNvOnnx",
}
GIVES_HANDLE = re.compile(r"cu(blas|blasLt|dnn|fft)\w*Create\w*|cuda\w+Create(WithFlags)?|cudaGraphInstantiate\w*")
GIVES_HANDLE_TOO = re.compile(r"cudaLibraryLoadData|cudaLibraryGetKernel|__cudaGetKernel|cudnnBackendCreateDescriptor")
ANSWERS = {"libcudart": "FOR_CUDART", "libcudnn": "FOR_CUDNN"}
LOADER = '''"""Loads the stand-ins for CUDA's libraries: this environment tells placement, and computes nothing."""

import ctypes
from pathlib import Path

for path in sorted(Path(__file__).parent.glob("lib*.so.*")):
    ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
'''


def package(name: str) -> Path:
    """The folder of an installed package. Raises SystemExit where there is none."""
    found = importlib.util.find_spec(name)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"{name} is not installed here")
    return Path(next(iter(found.submodule_search_locations)))


def lines_of(*words: str | Path) -> list[str]:
    """What a tool of binutils prints."""
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()


def needed(library: Path) -> set[str]:
    """NVIDIA's libraries that the loader wants with this one."""
    found = (re.search(r"NEEDED.*\[(lib(?:cu|nv)\S+)\]", line) for line in lines_of("readelf", "-dW", library))
    return {match[1] for match in found if match}


def undefined(library: Path) -> list[tuple[str, str]]:
    """(function, version or "") of what others must define."""
    names = (line.split()[-1] for line in lines_of("nm", "-D", "--undefined-only", "--with-symbol-versions", library))
    return [(name.partition("@")[0], name.partition("@")[2]) for name in names]


def looked_up(library: Path, prefix: str) -> set[str]:
    """Functions that are found by their names at run time."""
    pattern = rb"(?<=\0)" + prefix.encode() + rb"[A-Z]\w{3,60}(?=\0)"
    return {name.decode() for name in re.findall(pattern, library.read_bytes())}


def wanted() -> tuple[dict[str, set[str]], set[str]]:
    """Library -> its functions; and the libraries whose functions carry the library's name as their version."""
    functions: dict[str, set[str]] = {name: set() for name in BY_NAME}
    versioned = set(BY_NAME)
    for provider in PROVIDERS:
        library = package("onnxruntime") / "capi" / f"libonnxruntime_providers_{provider}.so"
        for name in needed(library):
            functions.setdefault(name, set())
        for function, version in undefined(library):
            home = version or next((n for n, begin in WITHOUT_VERSION.items() if re.match(begin, function)), "")
            if home in functions:
                functions[home].add(function)
                versioned |= {home} if version else set()
        for name, prefix in BY_NAME.items():
            functions[name] |= looked_up(library, prefix)
    return functions, versioned


def source(functions: set[str]) -> str:
    """C that says success, or hands out a token; weak, so that what answers.c says wins."""
    lines = ["static char token[4096];", "#define WEAK __attribute__((weak))"]
    for name in sorted(functions):
        if GIVES_HANDLE.fullmatch(name) or GIVES_HANDLE_TOO.fullmatch(name):
            lines.append(f"WEAK long {name}(void **handle) {{ if (handle) *handle = token; return 0; }}")
        else:
            lines.append(f"WEAK long {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def compile_one(library: str, functions: set[str], versioned: bool, headers: Path, to: Path) -> None:
    """One shared library under its own name."""
    with tempfile.TemporaryDirectory() as scratch:
        generated, versions = Path(scratch, "generated.c"), Path(scratch, "versions")
        generated.write_text(source(functions), encoding="utf-8")
        versions.write_text(f"{library} {{ global: *; }};\n", encoding="utf-8")
        words = ["gcc", "-shared", "-fPIC", "-O1", "-w", f"-I{headers}", f"-Wl,-soname,{library}", "-o", to / library]
        words += [f"-Wl,--version-script={versions}"] if versioned else []
        answers = ANSWERS.get(library.partition(".")[0])
        words += [f"-D{answers}", HERE / "answers.c"] if answers else []
        subprocess.run([*words, generated], check=True)


def main() -> None:
    """Compiles every library into site-packages, where Python loads them at its start."""
    headers = next(package("nvidia").glob("**/include/driver_types.h"), None)
    if headers is None:
        raise SystemExit("nvidia-cuda-runtime has no driver_types.h here")
    packages = Path(site.getsitepackages()[0])
    folder = packages / FOLDER
    folder.mkdir(exist_ok=True)
    functions, versioned = wanted()
    for library, names in sorted(functions.items()):
        compile_one(library, names, library in versioned, headers.parent, folder)
        print(f"{library}: {len(names)} functions")
    (folder / "__init__.py").write_text(LOADER, encoding="utf-8")
    (packages / f"{FOLDER}.pth").write_text(f"import {FOLDER}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
