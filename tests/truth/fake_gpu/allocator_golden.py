#!/usr/bin/env python3
"""Golden results of PyTorch's own caching allocator for pseudo-random sequences of allocations and frees; run by fake_gpu.py.

    allocator_golden.py OUT.jsonl

A line: the case, [allocated, reserved] after every 250 operations, the peaks, and the operation at which memory ran out (or -1).
The sequence follows from the seed by the generator below; tests/selector/memory/allocator_golden_test.cpp repeats it. In cases
that record, a third of the allocations is recorded on another stream; a free of one of those waits for the next synchronisation,
which comes every 64 operations.
"""
import json, os, sys
import torch                                        # before the processes of the cases are forked; nothing touches CUDA till then

SIZES = {"small": (4, 19), "middle": (19, 23), "large": (22, 28), "mixed": (4, 27)}   # powers of two, log-uniform
MIB = 1 << 20


class Random:
    def __init__(self, seed):
        self.x = seed

    def next(self, bound):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        return (self.x >> 33) % bound


def size_of(random, kind):
    if kind == "repeat":                            # a few sizes again and again, as in training
        k = random.next(12)
        return (k + 1) * (k + 1) * (k + 3) * 40961
    low, high = SIZES[kind]
    k = low + random.next(high - low + 1)
    return (1 << k) + random.next(1 << k)


def run(case):
    torch.cuda.init()
    streams = [torch.cuda.default_stream()] + [torch.cuda.Stream() for _ in range(case["streams"] - 1)]
    random, live, points, ran_out = Random(case["seed"]), [], [], -1
    for i in range(case["operations"]):
        grow = random.next(100) < (60 if len(live) < case["live"] else 40)
        if grow or not live:
            n, s = size_of(random, case["kind"]), random.next(case["streams"])
            recorded = case["records"] and random.next(3) == 0
            try:
                with torch.cuda.stream(streams[s]):
                    t = torch.empty(n, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                ran_out = i
                break
            if recorded:
                t.record_stream(streams[(s + 1) % case["streams"]])
            live.append(t)
        else:
            k = random.next(len(live))
            live[k] = live[-1]
            live.pop()
        t = None
        if case["records"] and i % 64 == 63:
            torch.cuda.synchronize()
        if i % 250 == 249:
            points.append([torch.cuda.memory_allocated(), torch.cuda.memory_reserved()])
    return json.dumps(dict(case, points=points, peaks=[torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()], ran_out=ran_out,
                          torch=torch.__version__))


def in_process(case):
    """Limit and expandable segments are settings of a process."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.environ.update(FAKEGPU_MEMORY_MIB=str(case["limit_mib"] or 900000), FAKEGPU_CONTEXT_MIB="0", FAKEGPU_EVENT_LAG="-1",
                          PYTORCH_CUDA_ALLOC_CONF=f"expandable_segments:{bool(case['expandable'])}")
        try:
            os.write(write, run(case).encode() + b"\n")
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as f:
        line = f.read()
    os.waitpid(child, 0)
    return json.loads(line)


def main():
    seed = 0
    with open(sys.argv[1], "w") as out:
        for expandable in (0, 1):
            for kind, live in (("small", 600), ("middle", 120), ("large", 60), ("mixed", 150), ("repeat", 80)):
                for streams, tight, records in ((1, 0, 0), (3, 0, 0), (1, 1.3, 0), (3, 1.1, 0), (2, 0, 1), (3, 1.3, 1)):
                    seed += 1
                    case = dict(seed=seed, kind=kind, streams=streams, operations=3000, live=live, expandable=expandable, limit_mib=0, records=records)
                    done = in_process(case)
                    if tight:                       # so little that cached segments must go back again and again
                        done = in_process(dict(case, limit_mib=int(done["peaks"][0] * tight / MIB / 2) * 2))
                    out.write(json.dumps(done).replace(" ", "") + "\n")
                    out.flush()


main()
