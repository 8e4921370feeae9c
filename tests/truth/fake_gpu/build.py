#!/usr/bin/env python3
"""Builds stand-ins for the NVIDIA libraries that a CUDA build of PyTorch loads.

    build.py WHEEL_DIR OUT_DIR [MORE.so ...]

WHEEL_DIR holds an unpacked torch wheel (WHEEL_DIR/torch/lib); MORE.so are further libraries that must load (bitsandbytes,
flash-attn, ...). Every symbol that they import is exported by the library it is expected from: written by hand where torch looks
at the answer (the .cpp files here), else as a function that returns 0.
"""
import collections, glob, os, re, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
PREFIXES = [  # where an import carries no library's name as its version
    (r"cublasLt", "cublasLt"), (r"cublas", "cublas"), (r"cudnn", "cudnn"), (r"cufft", "cufft"), (r"curand", "curand"),
    (r"cusparseLt", "cusparseLt"), (r"cusparse", "cusparse"), (r"cusolver|cungqr_|cunmqr_", "cusolver"), (r"p?nccl", "nccl"),
    (r"nvrtc", "nvrtc"), (r"nvshmem", "nvshmem_host"), (r"cupti", "cupti"), (r"cuFile", "cufile"), (r"nvtx", "nvToolsExt"),
    (r"nvJitLink|__nvJitLink", "nvJitLink"), (r"__cuda|cuda", "cudart"), (r"cu[A-Z]", "cuda")]
SOURCES = {"cuda": ["driver.cpp", "device.cpp"], "cudart": ["runtime.cpp"], "cublas": ["libraries.cpp"], "cublasLt": ["libraries.cpp"],
           "cudnn": ["libraries.cpp"], "nvrtc": ["libraries.cpp"], "nccl": ["libraries.cpp"]}


def run(*args):
    done = subprocess.run(args, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(args)}\n{done.stderr}")
    return done.stdout


def stem(soname):
    return re.sub(r"^lib|\.so.*$", "", soname)


def main():
    wheel, out, more = sys.argv[1], sys.argv[2], sys.argv[3:]
    libraries = glob.glob(os.path.join(wheel, "torch/lib/*.so*")) + more
    if not libraries:
        sys.exit(f"{wheel}: no torch/lib/*.so here; give the folder where a torch wheel was unpacked")
    own = {os.path.basename(f) for f in libraries}
    sonames, imports, named = {"cuda": "libcuda.so.1"}, collections.defaultdict(set), set()
    versions = collections.defaultdict(dict)            # library: version name: its symbols
    for lib in libraries:
        for need in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", lib)):
            if need not in own and any(re.match(f"({p})$", stem(need)) for p in
                                       ("cuda|cudart|cublas|cublasLt|cudnn|cufft|curand|cusparse|cusparseLt|cusolver|nccl|nvrtc|nvshmem_host|cupti|"
                                        "cufile|nvToolsExt|nvJitLink",)):
                sonames[stem(need)] = need
        file_of = {}
        for line in run("readelf", "-V", "-W", lib).splitlines():
            if found := re.search(r"File: (\S+)", line):
                file = found[1]
            elif found := re.search(r"Name: (\S+)  Flags", line):
                file_of[found[1]] = file
        for line in run("nm", "-D", "--undefined-only", "--with-symbol-versions", lib).splitlines():
            name, _, version = line.split()[-1].partition("@")
            version = version.lstrip("@")
            if stem(file_of.get(version, "")) in sonames:
                imports[stem(file_of[version])].add(name)
                versions[stem(file_of[version])].setdefault(version, set()).add(name)
            elif not version:
                for pattern, where in PREFIXES:
                    if re.match(pattern, name):
                        imports[where].add(name)
                        break
        if os.path.getsize(lib) < 100 << 20:           # driver functions looked up by name
            named.update(re.findall(r"^cu[A-Z][A-Za-z0-9]+(?:_v[0-9])?$", run("strings", "-a", lib), re.M))
    imports["cuda"] |= {n for n in named if not re.match(r"cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|cupti|cuFile", n)}
    major = int(sonames.get("cudart", "libcudart.so.12").split(".")[-1].split(".")[0])
    metadata = "".join(open(f).read() for f in glob.glob(os.path.join(wheel, "torch-*.dist-info/METADATA")))
    nccl = re.search(r"nvidia-nccl-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)", metadata)
    nccl = int(nccl[1]) * 10000 + int(nccl[2]) * 100 + int(nccl[3]) if nccl else 22105
    runtime = re.search(r"cuda-runtime-cu\d+ ?\(?==(\d+)\.(\d+)|cuda-toolkit\[.*?\]==(\d+)\.(\d+)", metadata)
    runtime = [g for g in runtime.groups() if g] if runtime else [str(major), "0"]
    flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-w", "-fvisibility=default", f"-DCUDA_MAJOR={major}", f"-DNCCL_VERSION_NUMBER={nccl}",
             f"-DCUDA_VERSION_NUMBER={int(runtime[0]) * 1000 + int(runtime[1]) * 10}", "-I", HERE, "-L", out]
    os.makedirs(out, exist_ok=True)
    order = ["cuda", "cudart"] + sorted(set(sonames) - {"cuda", "cudart"})
    for lib in order:
        if lib not in sonames:
            continue
        target = os.path.join(out, sonames[lib])
        sources = [os.path.join(HERE, s) for s in SOURCES.get(lib, [])]
        made = set()
        link = [] if lib == "cuda" else ["-Wl,--no-as-needed", f"-l:{sonames['cuda']}"]
        if sources:
            objects = []
            for s in sources:
                o = os.path.join(out, f"{lib}-{os.path.basename(s)}.o")
                run("g++", *[f for f in flags if f not in ("-shared",)], f"-DLIB_{lib}", "-c", s, "-o", o)
                objects.append(o)
                made |= {l.split()[-1] for l in run("nm", "--defined-only", "--extern-only", o).splitlines()}
            sources = objects
        rest = sorted(imports[lib] - made)
        stub = os.path.join(out, f"{lib}-rest.c")
        with open(stub, "w") as f:
            f.write("long fakegpu_nothing_%s(void) { return 0; }\n" % lib)
            for name in rest:
                f.write('long %s(void) __attribute__((alias("fakegpu_nothing_%s")));\n' % (name, lib))
        o = stub + ".o"
        run("gcc", "-w", "-fPIC", "-c", stub, "-o", o)
        symver = []
        if named_versions := versions[lib]:
            script = os.path.join(out, f"{lib}.map")
            with open(script, "w") as f:
                if len(named_versions) == 1:
                    f.write("%s { global: *; };\n" % next(iter(named_versions)))
                for version, names in named_versions.items() if len(named_versions) > 1 else []:
                    f.write("%s { global: %s };\n" % (version, " ".join(n + ";" for n in sorted(names))))
            symver = [f"-Wl,--version-script={script}"]
            sources.append(script)
        run("g++", *flags, *[s for s in sources if not s.endswith(".map")], o, *symver, f"-Wl,-soname,{sonames[lib]}", *link, "-ldl", "-o", target)
        for f in [*sources, stub, o]:
            os.remove(f)
    print(f"{out}: {', '.join(sonames[l] for l in order if l in sonames)}; CUDA {'.'.join(runtime)}, NCCL {nccl}")


main()
