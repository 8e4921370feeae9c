#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "regions/base/text.hpp"
#include "selector/cli/memory_picture.hpp"

namespace shardfit::cli {

using memory::kTerms;

namespace {

// By kind, in the order of memory::Term: states blue and green, gathered parameters violet, activations red and orange, loss yellow,
// the rest grey and brown; readable on white and on black.
constexpr std::array<const char*, kTerms> kColours = {"#3b6fb6", "#8fb3de", "#3aa6a0", "#4f9d4f", "#9bcf8e", "#7b5ea7",
                                                      "#b39ad1", "#a07a9c", "#d1495b", "#e8846b", "#f2a65a", "#f7c99b",
                                                      "#d9b310", "#eadb8a", "#8a8f98", "#b8bcc4", "#1fa2b8", "#86d0dc",
                                                      "#c98f54", "#a3785a"};
constexpr double kWidth = 820, kHeight = 300, kLeft = 76, kTop = 58, kStrip = 20, kLegend = 290, kPanel = kTop + kHeight + kStrip + 40;

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else if (c == '"') out += "&quot;";
    else if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out;
}

// A tick distance of 1, 2 or 5 times a power of ten (or of two below one GiB) that gives 4 to 10 ticks.
double tick_of(double top) {
  constexpr double kGiB = 1073741824.0;
  if (top < 4 * kGiB) {
    double tick = 1;
    while (top / tick > 8) tick *= 2;
    return tick;
  }
  double tick = kGiB;
  for (int i = 0; top / tick > 8; ++i) tick *= i % 3 == 1 ? 2.5 : 2;
  return tick;
}

const char* step_words(int step, int last) { return step == 0 ? "load" : step < last ? "step 1" : "every further step"; }
const char* short_phase(memory::Phase p) {
  static constexpr const char* kShort[] = {"load", "fwd", "loss", "bwd", "clip", "opt", "save"};
  return kShort[static_cast<size_t>(p)];
}

class Panel {
 public:
  Panel(const Curve& curve, double y0, double top) : c_(curve), y0_(y0), top_(top) {
    for (size_t i = 0; i < c_.moments.size(); ++i)
      if (c_.moments[i].bytes > c_.moments[peak_].bytes) peak_ = i;
  }

  std::string drawn(const std::string& title) {
    text(kLeft, y0_ - 34, title, "font-size=\"15\" font-weight=\"600\"");
    const auto& p = c_.moments[peak_];
    text(kLeft, y0_ - 16,
         fmt::format("peak {} at \"{}\" ({}), of it {} context and communicators", format_gib(p.bytes + c_.context_bytes), p.label,
                     memory::name_of(p.phase), format_gib(c_.context_bytes)),
         "font-size=\"12\" class=\"soft\"");
    ticks();
    areas();
    phases();
    capacity();
    mark_peak();
    legend();
    return std::move(svg_);
  }

 private:
  double x(size_t i) const { return kLeft + kWidth * static_cast<double>(i) / static_cast<double>(std::max<size_t>(c_.moments.size(), 1)); }
  double y(double bytes) const { return y0_ + kHeight * (1 - bytes / top_); }

  void text(double at_x, double at_y, const std::string& words, const std::string& how) {
    svg_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" {}>{}</text>\n", at_x, at_y, how, escaped(words));
  }

  void ticks() {
    for (double level = 0; level <= top_; level += tick_of(top_)) {
      svg_ += fmt::format("<line class=\"grid\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft, kLeft + kWidth, y(level), y(level));
      const bool whole = tick_of(top_) >= 1073741824.0;
      text(kLeft - 8, y(level) + 4, whole ? fmt::format("{:.0f} GiB", level / 1073741824.0) : format_bytes(level), "font-size=\"11\" text-anchor=\"end\" class=\"soft\"");
    }
  }

  // Each moment is a step of its own: what is alive between two points of the timeline.
  void area(const std::vector<double>& lower, const std::vector<double>& upper, const char* colour, const std::string& name) {
    std::string points;
    const size_t n = c_.moments.size();
    for (size_t i = 0; i < n; ++i) points += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", x(i), y(upper[i]), x(i + 1), y(upper[i]));
    for (size_t i = n; i-- > 0;) points += fmt::format("{:.1f},{:.1f} {:.1f},{:.1f} ", x(i + 1), y(lower[i]), x(i), y(lower[i]));
    svg_ += fmt::format("<polygon points=\"{}\" fill=\"{}\"><title>{}</title></polygon>\n", points, colour, escaped(name));
  }

  void areas() {
    const size_t n = c_.moments.size();
    std::vector<double> floor(n, 0.0), upper(n, c_.context_bytes);
    if (c_.context_bytes > 0) area(floor, upper, "#555b66", "context and communicators");
    floor = upper;
    for (size_t t = 0; t < kTerms; ++t) {
      bool any = false;
      for (size_t i = 0; i < n; ++i) upper[i] += static_cast<double>(c_.moments[i].terms[t]), any |= c_.moments[i].terms[t] > 0;
      if (any) area(floor, upper, kColours[t], std::string(memory::name_of(static_cast<memory::Term>(t))));
      floor = upper;
    }
  }

  // A strip of phases under the picture, and above it which step it is.
  void phases() {
    const auto& m = c_.moments;
    int last = 0;
    for (const auto& q : m) last = std::max(last, q.step);
    for (size_t i = 0, band = 0; i < m.size(); ++band) {
      size_t end = i;
      while (end < m.size() && m[end].phase == m[i].phase && m[end].step == m[i].step) ++end;
      const double left = x(i), width = x(end) - left;
      svg_ += fmt::format("<rect class=\"band{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\"><title>{}</title></rect>\n", band % 2, left, y0_ + kHeight + 4, width, kStrip,
                          memory::name_of(m[i].phase));
      const std::string name(memory::name_of(m[i].phase)), brief = short_phase(m[i].phase);
      const auto fits = [&](const std::string& w) { return width > 6.4 * static_cast<double>(w.size()) + 4; };
      if (fits(name) || fits(brief)) text(left + width / 2, y0_ + kHeight + 4 + kStrip - 6, fits(name) ? name : brief, "font-size=\"11\" text-anchor=\"middle\"");
      i = end;
    }
    for (size_t i = 0; i < m.size();) {
      size_t end = i;
      while (end < m.size() && m[end].step == m[i].step) ++end;
      if (i > 0) svg_ += fmt::format("<line class=\"step\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1:.1f}\" y2=\"{2:.1f}\"/>\n", x(i), y0_, y0_ + kHeight + kStrip + 22);
      const std::string words = step_words(m[i].step, last);
      if (x(end) - x(i) > 6.4 * static_cast<double>(words.size())) text((x(i) + x(end)) / 2, y0_ + kHeight + kStrip + 20, words, "font-size=\"11\" text-anchor=\"middle\" class=\"soft\"");
      i = end;
    }
  }

  void capacity() {
    if (c_.capacity_bytes <= 0 || c_.capacity_bytes > top_) return;
    const double at = y(c_.capacity_bytes);
    svg_ += fmt::format("<line class=\"limit\" x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n", kLeft, kLeft + kWidth, at, at);
    text(kLeft + 6, at - 5, "the device gives " + format_gib(c_.capacity_bytes), "font-size=\"11\" class=\"limit-text\"");
  }

  void mark_peak() {
    const double at_x = (x(peak_) + x(peak_ + 1)) / 2, at_y = y(c_.moments[peak_].bytes + c_.context_bytes);
    svg_ += fmt::format("<circle class=\"peak\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4.5\"/>\n", at_x, at_y);
    const bool left_side = at_x > kLeft + kWidth - 90;
    text(at_x + (left_side ? -8 : 8), std::max(at_y - 7, y0_ + 10), format_gib(c_.moments[peak_].bytes + c_.context_bytes),
         fmt::format("font-size=\"12\" font-weight=\"600\" text-anchor=\"{}\" class=\"halo\"", left_side ? "end" : "start"));
  }

  // What is alive at the peak, in the order of the stack.
  void legend() {
    const double left = kLeft + kWidth + 24;
    double at = y0_ + 4;
    text(left + 18, at, "alive at the peak", "font-size=\"11\" class=\"soft\"");
    at += 18;
    const auto row = [&](const char* colour, const std::string& name, double bytes) {
      svg_ += fmt::format("<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{}\"/>\n", left, at - 10, colour);
      text(left + 18, at, name, "font-size=\"12\"");
      text(left + kLegend - 34, at, bytes > 0 ? format_bytes(bytes) : "-", "font-size=\"12\" text-anchor=\"end\"");
      at += 17;
    };
    for (size_t t = kTerms; t-- > 0;) {
      const bool occurs = std::any_of(c_.moments.begin(), c_.moments.end(), [&](const auto& m) { return static_cast<double>(m.terms[t]) > 0.002 * c_.peak_bytes; });
      if (occurs) row(kColours[t], std::string(memory::name_of(static_cast<memory::Term>(t))), static_cast<double>(c_.moments[peak_].terms[t]));
    }
    if (c_.context_bytes > 0) row("#555b66", "context and communicators", c_.context_bytes);
  }

  const Curve& c_;
  const double y0_, top_;
  size_t peak_ = 0;
  std::string svg_;
};

constexpr const char* kStyle = R"(<style>
text { fill: #1c2128 } .soft { fill: #59636e } .paper { fill: #ffffff } .grid { stroke: #1c2128; stroke-opacity: 0.12 }
.band0 { fill: #e7eaee } .band1 { fill: #d3d8de } .step { stroke: #59636e; stroke-dasharray: 2 3 }
.limit { stroke: #c62828; stroke-width: 1.5; stroke-dasharray: 7 4 } .limit-text { fill: #c62828 }
.peak { fill: #ffffff; stroke: #1c2128; stroke-width: 2 } .halo { stroke: #ffffff; stroke-width: 3; paint-order: stroke }
@media (prefers-color-scheme: dark) {
text { fill: #e6e9ee } .soft { fill: #a4adb8 } .paper { fill: #14171c } .grid { stroke: #ffffff; stroke-opacity: 0.16 }
.band0 { fill: #2a3038 } .band1 { fill: #3a424c } .step { stroke: #a4adb8 } .limit { stroke: #ff6b6b } .limit-text { fill: #ff6b6b }
.peak { fill: #14171c; stroke: #e6e9ee } .halo { stroke: #14171c }
}
</style>
)";

}  // namespace

std::string memory_svg(const std::vector<std::pair<std::string, const Curve*>>& panels) {
  std::vector<const Curve*> curves;
  for (const auto& [title, curve] : panels) curves.push_back(curve);
  const double top = picture_top(curves, 3);
  const double width = kLeft + kWidth + kLegend, height = static_cast<double>(panels.size()) * kPanel;
  std::string svg = fmt::format("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"Helvetica, Arial, sans-serif\">\n", width, height);
  svg += kStyle;
  svg += fmt::format("<rect class=\"paper\" width=\"{:.0f}\" height=\"{:.0f}\"/>\n", width, height);
  double y = kTop;
  for (const auto& [title, curve] : panels) {
    if (!curve->moments.empty()) svg += Panel(*curve, y, top).drawn(title);
    y += kPanel;
  }
  return svg + "</svg>\n";
}

}  // namespace shardfit::cli
