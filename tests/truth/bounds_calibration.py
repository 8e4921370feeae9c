#!/usr/bin/env python3
"""How far measured peaks lie from the estimates, by what is known of a job, and what a bound from other sources' runs would have covered.

    python3 bounds_calibration.py CASES.jsonl ESTIMATES.jsonl          (ESTIMATES from memory_dump)

For each class (the estimate's "known") over all runs with a measured allocated peak, and with a reserved or device peak where the class
has fewer than four of those: u = measured / estimate - 1. (What record_stream holds back, which "active" counts, has a bound of its own.)
  above   width that holds 95 % of runs to come: the larger of the observed 95th percentile (order statistic) and the normal prediction
          bound mean + t(0.95, n-1) * s * sqrt(1 + 1/n), by which few runs give a wide bound
  below   the same of -u at 80 %: a wrong "no" costs less than a wrong "yes"
  left out: for each source the width from the class's other sources, floor 5 %, and how many of the source's own runs it holds
  held    runs of quality A whose allocated_peak_high is not below the measured allocated peak, with the widths in use (bounds.cpp)
"""
import json, math, sys

GIB = 2 ** 30
FIELD = {"allocated": "allocated_peak", "active": "allocated_peak", "reserved": "reserved_peak", "device": "device_peak"}
FLOOR = 0.05
# Student's t at 95 % and 80 % one-sided, by degrees of freedom
T95 = [None, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812]
T80 = [None, 1.376, 1.061, 0.978, 0.941, 0.920, 0.906, 0.896, 0.889, 0.883, 0.879]


def width(u, t, q):
    n = len(u)
    if n == 0:
        return None
    order = sorted(u)[min(n - 1, math.ceil(q * n) - 1)]
    if n < 2:
        return order
    mean = sum(u) / n
    s = math.sqrt(sum((x - mean) ** 2 for x in u) / (n - 1))
    return max(order, mean + (t[n - 1] if n - 1 < len(t) else {0.95: 1.645, 0.8: 0.842}[q]) * s * math.sqrt(1 + 1 / n))


def main():
    cases = [json.loads(line) for line in open(sys.argv[1])]
    estimates = {d["id"]: d for d in map(json.loads, open(sys.argv[2]))}
    runs, held = {}, [0, 0]
    for c in cases:
        e, m = estimates.get(c["id"], {}), c["measured"]
        if c.get("doubt") or "memory" not in e:
            continue
        readings = [(m.get("metric"), m.get("gib"))] + [(a["metric"], a["gib"]) for a in c.get("also", []) if "step 1" not in a.get("when", "")]
        for metric, gib in readings:
            if metric not in FIELD or not gib:
                continue
            tensors = FIELD[metric] == "allocated_peak"
            stages = e["memory"]["by_stage"] if m.get("rank") == "last" else []
            u = gib / ((stages[-1] if stages else e["memory"])[FIELD[metric]] / GIB) - 1
            if metric != "active":
                runs.setdefault(e["known"], []).append((tensors, c["source"].split(" ")[0].split("@")[0], u, c["id"]))
            if tensors and c["quality"] == "A" and not stages:
                held[1] += 1
                held[0] += gib <= e["memory"]["allocated_peak_high"] / GIB
    print(f"{'class':30s} {'runs':>4s} {'of':12s} {'sources':>7s} {'most':>6s} {'above':>6s} {'below':>6s}  left out: source (held of runs, width)")
    for name, all_runs in sorted(runs.items(), key=lambda kv: -len(kv[1])):
        tensors = [r for r in all_runs if r[0]]
        use = tensors if len(tensors) >= 4 else all_runs
        u = [r[2] for r in use]
        sources = sorted({r[1] for r in use})
        out = []
        for s in sources:
            others, own = [r[2] for r in use if r[1] != s], [r[2] for r in use if r[1] == s]
            w = max(FLOOR, width(others, T95, 0.95)) if others else None
            out.append(f"{s} ({'-' if w is None else sum(x <= w for x in own)} of {len(own)}, {'-' if w is None else f'{100 * w:.0f} %'})")
        print(f"{name:30s} {len(u):4d} {'allocated' if use is tensors else 'all metrics':12s} {len(sources):7d} {100 * max(u):5.1f}% {100 * width(u, T95, 0.95):5.1f}% "
              f"{100 * width([-x for x in u], T80, 0.8):5.1f}%  " + "; ".join(out))
    print(f"allocated_peak_high holds {held[0]} of {held[1]} measured allocated peaks of quality A")


if __name__ == "__main__":
    main()
