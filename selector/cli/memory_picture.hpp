// The curve of memory over one optimizer step, for a terminal and as SVG.
#pragma once
#include <string>
#include <vector>

#include "selector/memory/trace.hpp"

namespace shardfit::cli {

// What the pictures draw: points of the timeline, at most `columns` of them, each the highest moment of its stretch.
struct Curve {
  struct Moment {
    std::string label;
    memory::Phase phase = memory::Phase::kLoad;
    int step = 1;              // 0: load
    memory::TermBytes terms{};
    double bytes = 0;          // sum of terms
  };
  std::vector<Moment> moments;
  std::vector<Moment> highest; // of load, of step 1 and of the steady step, where they were recorded
  double context_bytes = 0, capacity_bytes = 0, peak_bytes = 0;
};
// `every_step`: load, step 1 (in which optimizer states appear) and the steady step; else the steady step alone.
Curve curve_of(const memory::Trace& trace, int columns, bool every_step = false);

// Top of the vertical axis for curves drawn to one scale, bytes. The capacity is inside unless it is more than
// `flattest` times the highest peak.
double picture_top(const std::vector<const Curve*>& curves, double flattest = 2.5);
// Lines of equal width (escapes of colour aside), without newlines; each column shows by letters what is alive, '-' the capacity, a 'v'
// above the picture the peak. The last lines name the phases.
std::vector<std::string> picture_lines(const Curve& curve, double top, int rows, bool colours = false);
// "P parameters", ... for the terms that occur.
std::string picture_legend(const std::vector<const Curve*>& curves, bool colours = false);

// Stacked areas over load, step 1 and the steady step, phases as bands, the peak marked, the capacity as a dashed line; one panel a
// curve, to one scale. Follows the reader's light or dark setting.
std::string memory_svg(const std::vector<std::pair<std::string, const Curve*>>& panels);

}  // namespace shardfit::cli
