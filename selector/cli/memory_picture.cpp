#include "selector/cli/memory_picture.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "regions/base/text.hpp"

namespace shardfit::cli {

using memory::kTerms;
using memory::Term;

namespace {

constexpr char kLetters[] = "PMOGUgbrARatLoBicklS";
static_assert(sizeof(kLetters) - 1 == kTerms, "a letter a term");

constexpr int kAxis = 11;  // "  64.0 GiB "

}  // namespace

Curve curve_of(const memory::Trace& trace, int columns) {
  Curve c;
  c.context_bytes = static_cast<double>(trace.context_bytes);
  c.capacity_bytes = trace.capacity_bytes;
  int last = 1;
  for (const auto& p : trace.points) last = std::max(last, p.step);
  std::vector<const memory::TracePoint*> points;
  for (const auto& p : trace.points)
    if (p.step == last && p.phase != memory::Phase::kLoad) points.push_back(&p);
  if (points.empty())
    for (const auto& p : trace.points) points.push_back(&p);
  const auto height = [](const memory::TracePoint& p) {
    double sum = 0;
    for (const auto b : p.terms) sum += static_cast<double>(b);
    return sum;
  };
  const size_t n = points.size(), wanted = std::min(n, static_cast<size_t>(std::max(columns, 1)));
  for (size_t i = 0; i < wanted; ++i) {
    const memory::TracePoint* highest = nullptr;
    for (size_t j = i * n / wanted; j < (i + 1) * n / wanted; ++j)
      if (!highest || height(*points[j]) > height(*highest)) highest = points[j];
    if (!highest) continue;
    c.moments.push_back({highest->label, highest->phase, highest->terms, height(*highest)});
    c.peak_bytes = std::max(c.peak_bytes, c.moments.back().bytes);
  }
  return c;
}

double picture_top(const std::vector<const Curve*>& curves, double flattest) {
  double peak = 1, capacity = 0;
  for (const auto* c : curves) {
    peak = std::max(peak, c->peak_bytes + c->context_bytes);
    capacity = std::max(capacity, c->capacity_bytes);
  }
  return capacity > 0 && capacity < flattest * peak ? std::max(peak, capacity) * 1.04 : peak * 1.04;
}

std::vector<std::string> picture_lines(const Curve& c, double top, int rows) {
  std::vector<std::string> out;
  const size_t width = c.moments.size();
  const int capacity_row =
      c.capacity_bytes > 0 && c.capacity_bytes < top ? static_cast<int>(std::floor(c.capacity_bytes / top * rows)) : -1;
  for (int row = rows - 1; row >= 0; --row) {
    const double level = (row + 0.5) / rows * top;
    std::string line = row % 4 == 0 || row == rows - 1 ? fmt::format("{:>10} ", format_bytes((row + 0.5) / rows * top))
                                                       : std::string(kAxis, ' ');
    line += row == capacity_row ? '=' : '|';
    for (const auto& m : c.moments) {
      char mark = row == capacity_row ? '-' : ' ';
      double at = c.context_bytes;
      if (level <= at) mark = '.';
      for (size_t t = 0; t < kTerms; ++t) {
        const double next = at + static_cast<double>(m.terms[t]);
        if (level > at && level <= next) mark = kLetters[t];
        at = next;
      }
      line += mark;
    }
    out.push_back(std::move(line));
  }
  out.push_back(std::string(kAxis, ' ') + "+" + std::string(width, '-'));
  // Phases: a tick where one begins, its name where there is room.
  std::string names(kAxis + 1 + width, ' ');
  for (size_t i = 0; i < width;) {
    size_t end = i;
    while (end < width && c.moments[end].phase == c.moments[i].phase) ++end;
    std::string name = "'" + std::string(memory::name_of(c.moments[i].phase));
    if (name.size() > end - i) name.resize(end - i);
    names.replace(kAxis + 1 + i, name.size(), name);
    i = end;
  }
  out.push_back(names);
  return out;
}

std::string picture_legend(const std::vector<const Curve*>& curves) {
  std::vector<std::string> words;
  for (size_t t = 0; t < kTerms; ++t) {
    bool occurs = false;
    for (const auto* c : curves)
      for (const auto& m : c->moments)
        occurs |= m.terms[t] > 0 && static_cast<double>(m.terms[t]) > 0.002 * c->peak_bytes;
    if (occurs) words.push_back(std::string(1, kLetters[t]) + " " + std::string(memory::name_of(static_cast<Term>(t))));
  }
  words.emplace_back(". context and communicators");
  std::string out;
  size_t column = 0;
  for (const auto& w : words) {
    if (column > 0 && column + w.size() > 96) out += "\n", column = 0;
    out += (column == 0 ? "  " : ", ") + w;
    column += w.size() + 2;
  }
  return out + "\n";
}

}  // namespace shardfit::cli
