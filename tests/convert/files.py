#!/usr/bin/env python3
"""What the converter does to the files around it, promise by promise.

    files.py --tool BUILD/mpr-convert [--only TEXT]

Every function of this file whose name begins with `check_` is one promise. Exit code 77: skipped.
"""
import filecmp
import resource
import shutil
import signal
import stat
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from promise import *  # noqa: E402,F403


def call(tool, *args, code=0, **more):
    done = subprocess.run([tool.path, *args], capture_output=True, cwd=tool.folder, timeout=60, **more)
    said = done.stderr.decode(errors="replace")
    assert done.returncode == code, f"exit {done.returncode}: {said}"
    return said


def holds(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def with_data(tool, location, name="e.onnx", size=512):
    m = model([N("MatMul", ["x", "W"], ["y"], "mm")], [v("x", ("n", size))], [v("y", ("n", size))], [w("W", size, size)])
    onnx.save(m, str(tool.folder / name), save_as_external_data=True, location=location, size_threshold=0)
    return tool.folder / name, tool.folder / location


def readable(path, size=512):
    out = onnx.load(str(path))
    return run(out, x=np.zeros((1, size), np.float32))


def check_reading_and_writing_changes_nothing(tool):
    """Unknown fields of every message, in bodies and functions, too."""
    def varint(n):
        return bytes([n & 127 | 128]) + varint(n >> 7) if n > 127 else bytes([n])

    def with_unknown(m):
        return m.SerializeToString() + bytes([0xFA, 0x3F, 3]) + b"abc"  # field 1023
    m = with_calls()
    m.graph.node[0].doc_string = "first"
    n = onnx.NodeProto.FromString(with_unknown(m.graph.node[0]))
    t = onnx.TensorProto.FromString(with_unknown(m.graph.initializer[0]))
    f = onnx.FunctionProto.FromString(with_unknown(m.functions[0]))
    m.graph.node[0].CopyFrom(n)
    m.graph.initializer[0].CopyFrom(t)
    m.functions[0].CopyFrom(f)
    raw = with_unknown(m)
    path = tool.folder / "u.onnx"
    path.write_bytes(raw)
    assert raw.count(b"abc") == 4 and varint(300) == b"\xac\x02"
    for flags in (("--passes", "none"), TRAIN, INFER, ("--annotate",)):
        for more in ((), ("--autocast-profile", "torch-cuda")):
            call(tool, path, "-o", "o.onnx", *flags, *more)
            least = 3 if more and "--passes" not in flags and "--annotate" not in flags else 4  # the function goes
            assert (tool.folder / "o.onnx").read_bytes().count(b"abc") >= least, (flags, more)
            call(tool, "o.onnx", "-o", "p.onnx", "--passes", "none")
            assert (tool.folder / "p.onnx").read_bytes() == (tool.folder / "o.onnx").read_bytes()


def check_data_of_the_input_are_not_written_to(tool):
    """NAME.data of the output may be what the input reads."""
    for profile in ("paint", "torch-cuda"):
        for mode in ("train", "infer"):
            source, data = with_data(tool, "o.onnx.data")
            before = data.read_bytes()
            call(tool, source, "-o", "o.onnx", "--mode", mode, "--autocast-profile", profile)
            assert data.read_bytes() == before
            readable(tool.folder / "o.onnx")
            call(tool, source, "-o", data, code=1)
            call(tool, source, "-o", "z.onnx", "--report", data, code=1)
            assert data.read_bytes() == before and not (tool.folder / "z.onnx").exists()
    onnx.save(chain(), str(tool.folder / "big.onnx.data"))  # a model of that name
    before = (tool.folder / "big.onnx.data").read_bytes()
    call(tool, "big.onnx.data", "-o", "big.onnx", "--external", "always")
    assert (tool.folder / "big.onnx.data").read_bytes() == before
    sub = tool.folder / "sub"
    sub.mkdir()
    source, data = with_data(tool, "same.onnx", "in.onnx")  # a data file that is called as the output is
    call(tool, source, "-o", "sub/same.onnx", *TRAIN)
    readable(sub / "same.onnx")


def check_files_are_told_apart(tool):
    onnx.save(chain(), str(tool.folder / "m.onnx"))
    np.savez(tool.folder / "d.npz", x=rng.standard_normal((2, 8)).astype(np.float32))
    (tool.folder / "l.yaml").write_text("allow: [+Softmax]")
    (tool.folder / "p.yaml").write_text("base: paint")
    os.link(tool.folder / "m.onnx", tool.folder / "hard.onnx")
    os.symlink("m.onnx", tool.folder / "soft.onnx")
    (tool.folder / "sub").mkdir()
    before = holds(tool.folder)
    for flags in (("-o", "m.onnx"), ("-o", "./m.onnx"), ("-o", "sub/../m.onnx"), ("-o", "hard.onnx"), ("-o", "soft.onnx"),
                  ("-o", "z.onnx", "--report", "z.onnx"), ("-o", "z.onnx", "--report", "sub/../z.onnx"), ("-o", "z.onnx", "--svg", "m.onnx"),
                  ("-o", "z.onnx", "--dot", "a", "--annotations", "a"), ("-o", "d.npz", "--verify", "d.npz"), ("-o", "d.npz", "--calib", "d.npz"),
                  ("-o", "z.onnx", "--lists", "l.yaml", "--report", "l.yaml"), ("-o", "p.yaml", "--autocast-profile", "p.yaml")):
        call(tool, "m.onnx", *flags, code=1)
        assert holds(tool.folder) == before, flags


def check_links_and_special_files(tool):
    """A link at the output is replaced and what it leads to stays; pipes and devices are no place for a file."""
    onnx.save(chain(), str(tool.folder / "m.onnx"))
    (tool.folder / "old").write_text("old")
    os.symlink("old", tool.folder / "link.onnx")
    call(tool, "m.onnx", "-o", "link.onnx")
    assert (tool.folder / "old").read_text() == "old" and not (tool.folder / "link.onnx").is_symlink()
    os.mkfifo(tool.folder / "pipe")
    for flags in (("-o", "pipe"), ("-o", "z.onnx", "--report", "pipe"), ("-o", "z.onnx", "--svg", "pipe")):
        call(tool, "m.onnx", *flags, code=5)
        assert stat.S_ISFIFO((tool.folder / "pipe").stat().st_mode)
    call(tool, "pipe", "-o", "z.onnx", code=5)
    for place in (".", "none/x.onnx", "m.onnx/x.onnx"):
        call(tool, "m.onnx", "-o", place, code=5)
    os.mkfifo(tool.folder / "device")
    os.symlink("device", tool.folder / "to-device")
    call(tool, "m.onnx", "-o", "to-device", code=5)
    assert not (tool.folder / "z.onnx").exists()


def check_names_of_files(tool):
    names = ["a b.onnx", "ü 模型.onnx", "new\nline.onnx", "'\"$x.onnx", "é" * 120 + ".onnx", "-x.onnx", os.fsdecode(b"bad\xff.onnx")]
    for name in names:
        onnx.save(chain(), str(tool.folder / "m.onnx"))
        shutil.move(tool.folder / "m.onnx", tool.folder / name)
        call(tool, "-o", f"./{name}.out"[:240], "--report", "r.json", "--svg", "p.svg", "--external", "always", "--", f"./{name}")
        json.loads((tool.folder / "r.json").read_text())
        assert (tool.folder / f"./{name}.out"[:240]).exists()


def check_a_disk_that_is_full(tool):
    """What was there stays, whole."""
    source, _ = with_data(tool, "w.bin")
    target = tool.folder / "out"
    target.mkdir()
    for flags in (INFER, TRAIN, (*TRAIN, "--external", "always"), (*INFER, "--external", "never"), ("--autocast-profile", "torch-cuda"),
                  (*INFER, "--autocast-profile", "torch-cpu")):
        for limit in (0, 100, 4096, 300000):
            (target / "x.onnx").write_bytes(b"old")
            call(tool, source, "-o", "out/x.onnx", *flags, code=5,
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
            assert holds(target) == {"x.onnx": b"old"}, (flags, limit)
    (target / "x.onnx").unlink()
    call(tool, source, "-o", "out/x.onnx", *INFER)
    before = holds(target)  # a model and its data: both stay
    call(tool, source, "-o", "out/x.onnx", *INFER, "--to", "bf16", code=5,
         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (524288 - 1, 524288 - 1)))
    assert holds(target) == before
    shutil.rmtree(target)
    target.mkdir()
    onnx.save(chain(), str(tool.folder / "m.onnx"))
    call(tool, "m.onnx", "-o", "out/m.onnx", "--report", "out/r.json", code=5,
         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
    assert not holds(target)


def check_a_run_that_is_killed(tool):
    """Old or new and nothing else, whenever it ends."""
    size = 3000
    source, _ = with_data(tool, "w.bin", size=size)
    target = tool.folder / "out"
    target.mkdir()
    flags = [*INFER, "--external", "never"]
    whole = time.monotonic()
    call(tool, source, "-o", "out/x.onnx", *flags)
    whole = time.monotonic() - whole
    new = holds(target)["x.onnx"]
    for number, how in enumerate([signal.SIGTERM, signal.SIGKILL, signal.SIGINT] * 4):
        (target / "x.onnx").write_bytes(b"old")
        run = subprocess.Popen([tool.path, source, "-o", "out/x.onnx", *flags], cwd=tool.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(whole * number / 12)
        run.send_signal(how)
        run.wait()
        found = holds(target)
        assert found in ({"x.onnx": b"old"}, {"x.onnx": new}), {k: len(d) for k, d in found.items()}


def check_two_runs_at_once(tool):
    source, _ = with_data(tool, "w.bin")
    runs = [subprocess.Popen([tool.path, source, "-o", "x.onnx", *INFER, *more], cwd=tool.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            for more in [()] * 6]
    for r in runs:
        assert r.wait() == 0, r.stderr.read()
    readable(tool.folder / "x.onnx")
    assert not [p for p in holds(tool.folder) if "tmp" in p]


def check_memory_is_that_of_one_tensor(tool):
    """8 matrices of 32 MiB in a data file, all of them equal, by every way through the tool. Offsets are whole pages, the input stays."""
    size, count = 32 << 20, 8
    m = model([N("MatMul", ["x" if i == 0 else f"h{i}", f"W{i}"], [f"h{i + 1}" if i + 1 < count else "y"], f"mm{i}") for i in range(count)],
              [v("x", ("n", 4096))], [v("y", ("n", 4096))])
    for i in range(count):
        t = m.graph.initializer.add(name=f"W{i}", data_type=T.FLOAT, data_location=T.EXTERNAL, dims=[2048, 4096] if i % 2 else [4096, 2048])
        for key, value in (("location", "w.bin"), ("offset", i * size), ("length", size)):
            t.external_data.add(key=key, value=str(value))
    onnx.save(m, str(tool.folder / "m.onnx"))
    with open(tool.folder / "w.bin", "wb") as f:
        f.truncate(size * count)
    before = (tool.folder / "w.bin").stat()

    def peak(source, target, *flags):
        small = ("import os, sys\npid = os.spawnv(os.P_NOWAIT, sys.argv[1], sys.argv[1:])\n_, status, used = os.wait4(pid, 0)\n"
                 "print(used.ru_maxrss)\nsys.exit(os.waitstatus_to_exitcode(status))")  # this process is larger than the limit
        command = [sys.executable, "-S", "-E", "-c", small, tool.path, source, "-o", target, *flags]
        done = subprocess.run(command, cwd=tool.folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert int(done.stdout.split()[-1]) < 150 << 10, (flags, done.stdout)
        out = onnx.load(str(tool.folder / target), load_external_data=False)
        for t in out.graph.initializer:
            at = {e.key: e.value for e in t.external_data}
            if at:
                assert int(at["offset"]) % 4096 == 0 and "/" not in at["location"], at
                assert (tool.folder / target).parent.joinpath(at["location"]).stat().st_size >= int(at["offset"]) + int(at["length"])

    for profile in ("paint", "torch-cuda"):
        (tool.folder / "o").mkdir()
        for mode in (INFER, TRAIN):
            peak("m.onnx", "o/o.onnx", "--autocast-profile", profile, *mode)
        peak("o/o.onnx", "o/b.onnx", "--to", "fp32")
        peak("m.onnx", "o/o.onnx", "--autocast-profile", profile, *INFER)
        if profile == "paint":
            peak("o/o.onnx", "o/again.onnx", *INFER)
            peak("o/o.onnx", "o/train.onnx", *TRAIN, "--external", "always")
            assert filecmp.cmp(tool.folder / "o/o.onnx.data", tool.folder / "o/again.onnx.data", shallow=False)
        peak("o/o.onnx", "o/b.onnx", "--to", "fp32")
        shutil.rmtree(tool.folder / "o")
    after = (tool.folder / "w.bin").stat()
    assert (before.st_mtime_ns, before.st_size, before.st_blocks) == (after.st_mtime_ns, after.st_size, after.st_blocks)


if __name__ == "__main__":
    main(globals())
