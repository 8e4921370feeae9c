// The curve of memory over one optimizer step, for a terminal and as SVG.
#pragma once
#include <string>
#include <vector>

#include "selector/memory/trace.hpp"

namespace shardfit::cli {

// What both pictures draw: the points of the steady step (the last one recorded), at most `columns` of them, each the
// highest moment of its stretch.
struct Curve {
  struct Moment {
    std::string label;
    memory::Phase phase = memory::Phase::kLoad;
    memory::TermBytes terms{};
    double bytes = 0;  // sum of terms
  };
  std::vector<Moment> moments;
  double context_bytes = 0, capacity_bytes = 0, peak_bytes = 0;
};
Curve curve_of(const memory::Trace& trace, int columns);

// Top of the vertical axis for curves drawn to one scale, bytes. The capacity is inside unless it is more than
// `flattest` times the highest peak.
double picture_top(const std::vector<const Curve*>& curves, double flattest = 2.5);
// Lines of equal width, without newlines; each column shows by letters what is alive, '-' the capacity. The last lines
// name the phases.
std::vector<std::string> picture_lines(const Curve& curve, double top, int rows);
// "P parameters", ... for the terms that occur.
std::string picture_legend(const std::vector<const Curve*>& curves);

// Stacked areas over the step, phases as bands, the capacity as a dashed line; one panel a curve, to one scale.
std::string memory_svg(const std::vector<std::pair<std::string, const Curve*>>& panels);

}  // namespace shardfit::cli
