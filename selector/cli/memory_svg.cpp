#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "regions/base/text.hpp"
#include "selector/cli/memory_picture.hpp"

namespace shardfit::cli {

using memory::kTerms;

namespace {

// Tableau's ten colours and their light forms, in the order of memory::Term.
constexpr std::array<const char*, kTerms> kColours = {
    "#1f77b4", "#aec7e8", "#ff7f0e", "#2ca02c", "#98df8a", "#9467bd", "#c5b0d5", "#8c564b", "#d62728", "#ff9896",
    "#e377c2", "#f7b6d2", "#bcbd22", "#dbdb8d", "#7f7f7f", "#c7c7c7", "#17becf", "#9edae5", "#ffbb78", "#c49c94"};
constexpr double kWidth = 760, kHeight = 320, kLeft = 80, kTop = 40, kGap = 110;

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

struct Panel {
  const Curve& curve;
  double y0, top;
  double x(size_t i) const {
    return kLeft + kWidth * static_cast<double>(i) / static_cast<double>(std::max<size_t>(curve.moments.size() - 1, 1));
  }
  double y(double bytes) const { return y0 + kHeight * (1 - bytes / top); }
};

// A tick distance of 1, 2 or 5 times a power of two's GiB that gives 4 to 10 ticks.
double tick_of(double top) {
  double tick = 1073741824.0;
  while (top / tick > 10) tick *= 2;
  while (top / tick < 4) tick /= 2;
  return tick;
}

void draw(std::string& svg, const Panel& p, const std::string& title) {
  const auto& moments = p.curve.moments;
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"14\" font-weight=\"bold\">{}</text>\n", kLeft,
                     p.y0 - 14, escaped(title));
  for (size_t i = 0, band = 0; i < moments.size(); ++band) {
    size_t end = i;
    while (end < moments.size() && moments[end].phase == moments[i].phase) ++end;
    const double left = p.x(i), right = p.x(std::min(end, moments.size() - 1));
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"/>\n", left, p.y0,
                       std::max(right - left, 0.5), kHeight, band % 2 ? "#f2f2f2" : "#fafafa");
    svg += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" transform=\"rotate(35 {:.1f} {:.1f})\">{}</text>\n", left + 2,
        p.y0 + kHeight + 14, left + 2, p.y0 + kHeight + 14, memory::name_of(moments[i].phase));
    i = end;
  }
  std::vector<double> floor(moments.size(), p.curve.context_bytes);
  const auto area = [&](const std::vector<double>& upper, const char* colour, const std::string& name) {
    std::string points;
    for (size_t i = 0; i < moments.size(); ++i) points += fmt::format("{:.1f},{:.1f} ", p.x(i), p.y(upper[i]));
    for (size_t i = moments.size(); i-- > 0;) points += fmt::format("{:.1f},{:.1f} ", p.x(i), p.y(floor[i]));
    svg += fmt::format("<polygon points=\"{}\" fill=\"{}\" stroke=\"none\"><title>{}</title></polygon>\n", points,
                       colour, name);
  };
  if (p.curve.context_bytes > 0) {
    const auto context = floor;
    std::fill(floor.begin(), floor.end(), 0.0);
    area(context, "#404040", "context and communicators");
    floor = context;
  }
  for (size_t t = 0; t < kTerms; ++t) {
    std::vector<double> upper = floor;
    bool any = false;
    for (size_t i = 0; i < moments.size(); ++i)
      upper[i] += static_cast<double>(moments[i].terms[t]), any |= moments[i].terms[t] > 0;
    if (!any) continue;
    area(upper, kColours[t], std::string(memory::name_of(static_cast<memory::Term>(t))));
    floor = std::move(upper);
  }
  for (double level = 0; level <= p.top; level += tick_of(p.top)) {
    svg += fmt::format(
        "<line x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#000\" stroke-opacity=\"0.15\"/>\n",
        kLeft, kLeft + kWidth, p.y(level), p.y(level));
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" font-size=\"10\" text-anchor=\"end\">{}</text>\n", kLeft - 6,
                       p.y(level) + 3, format_bytes(level));
  }
  if (p.curve.capacity_bytes > 0 && p.curve.capacity_bytes <= p.top) {
    const double y = p.y(p.curve.capacity_bytes);
    svg += fmt::format(
        "<line x1=\"{:.0f}\" x2=\"{:.0f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#d00\" stroke-width=\"1.5\" stroke-dasharray=\"6 4\"/>\n",
        kLeft, kLeft + kWidth, y, y);
    svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.1f}\" font-size=\"10\" fill=\"#d00\">capacity {}</text>\n", kLeft + 4,
                       y - 4, format_gib(p.curve.capacity_bytes));
  }
}

}  // namespace

std::string memory_svg(const std::vector<std::pair<std::string, const Curve*>>& panels) {
  std::vector<const Curve*> curves;
  for (const auto& [title, curve] : panels) curves.push_back(curve);
  const double top = picture_top(curves, 1e18), legend_x = kLeft + kWidth + 24;
  const double height = kTop + static_cast<double>(panels.size()) * (kHeight + kGap), width = legend_x + 220;
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\">\n",
      width, height);
  svg += fmt::format("<rect width=\"{:.0f}\" height=\"{:.0f}\" fill=\"#fff\"/>\n", width, height);
  double y = kTop;
  for (const auto& [title, curve] : panels) {
    if (!curve->moments.empty()) draw(svg, {*curve, y, top}, title);
    y += kHeight + kGap;
  }
  double at = kTop;
  for (size_t t = 0; t < kTerms; ++t) {
    const bool occurs = std::any_of(curves.begin(), curves.end(), [&](const Curve* c) {
      return std::any_of(c->moments.begin(), c->moments.end(), [&](const auto& m) { return m.terms[t] > 0; });
    });
    if (!occurs) continue;
    svg += fmt::format(
        "<rect x=\"{:.0f}\" y=\"{:.0f}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.0f}\" y=\"{:.0f}\" font-size=\"11\">{}</text>\n",
        legend_x, at, kColours[t], legend_x + 18, at + 10, memory::name_of(static_cast<memory::Term>(t)));
    at += 18;
  }
  return svg + "</svg>\n";
}

}  // namespace shardfit::cli
