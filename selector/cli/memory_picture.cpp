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

// Colours of a terminal with 256 of them: states blue and green, gathered parameters violet, activations red and orange, loss yellow.
constexpr int kColours[kTerms] = {68, 110, 73, 71, 114, 97, 140, 139, 167, 173, 209, 216, 178, 186, 245, 250, 37, 80, 180, 137};

std::string coloured(const std::string& text, std::size_t term) { return fmt::format("\033[38;5;16;48;5;{}m{}\033[0m", kColours[term], text); }

}  // namespace

Curve curve_of(const memory::Trace& trace, int columns, bool every_step) {
  Curve c;
  c.context_bytes = static_cast<double>(trace.context_bytes);
  c.capacity_bytes = trace.capacity_bytes;
  int last = 1;
  for (const auto& p : trace.points) last = std::max(last, p.step);
  std::vector<Curve::Moment> points;
  for (const auto& p : trace.points) {
    Curve::Moment m{p.label, p.phase, p.phase == memory::Phase::kLoad ? 0 : p.step, p.terms, 0};
    for (const auto b : p.terms) m.bytes += static_cast<double>(b);
    auto same = std::find_if(c.highest.begin(), c.highest.end(), [&](const auto& h) { return h.step == m.step; });
    if (same == c.highest.end()) c.highest.push_back(m);
    else if (m.bytes > same->bytes) *same = m;
    if (every_step || m.step == last) points.push_back(std::move(m));
  }
  // Phases of a single point (loss, optimizer step) get columns enough to be seen.
  const size_t room = std::max<size_t>(1, points.size() / 32);
  for (size_t i = 0; i < points.size();) {
    size_t end = i;
    while (end < points.size() && points[end].phase == points[i].phase && points[end].step == points[i].step) ++end;
    if (end - i < room) points.insert(points.begin() + static_cast<std::ptrdiff_t>(i), room - (end - i), Curve::Moment(points[i])), end = i + room;
    i = end;
  }
  const size_t n = points.size(), wanted = std::min(n, static_cast<size_t>(std::max(columns, 1)));
  for (size_t i = 0; i < wanted; ++i) {
    const auto begin = points.begin() + static_cast<std::ptrdiff_t>(i * n / wanted), end = points.begin() + static_cast<std::ptrdiff_t>((i + 1) * n / wanted);
    c.moments.push_back(*std::max_element(begin, end, [](const auto& a, const auto& b) { return a.bytes < b.bytes; }));
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

std::vector<std::string> picture_lines(const Curve& c, double top, int rows, bool colours) {
  std::vector<std::string> out;
  const size_t width = c.moments.size();
  const int capacity_row =
      c.capacity_bytes > 0 && c.capacity_bytes < top ? static_cast<int>(std::floor(c.capacity_bytes / top * rows)) : -1;
  const auto peak = std::max_element(c.moments.begin(), c.moments.end(), [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
  if (peak != c.moments.end()) {
    const auto column = static_cast<size_t>(peak - c.moments.begin());
    std::string line(kAxis + 1 + width, ' ');
    line[kAxis + 1 + column] = 'v';
    const std::string words = format_gib(peak->bytes + c.context_bytes);
    if (column + 1 + words.size() < width) line.replace(kAxis + 3 + column, words.size(), words, 0, width - column - 2);
    else if (column >= words.size() + 1) line.replace(kAxis + column - words.size(), words.size(), words);
    out.push_back(line.substr(0, kAxis + 1 + width));
  }
  for (int row = rows - 1; row >= 0; --row) {
    const double level = (row + 0.5) / rows * top;
    std::string line = row % 4 == 0 || row == rows - 1 ? fmt::format("{:>10} ", format_bytes(level)) : std::string(kAxis, ' ');
    line += row == capacity_row ? '=' : '|';
    std::string run;           // of letters of one term, coloured together
    size_t run_term = kTerms;
    const auto flush = [&] {
      line += colours && run_term < kTerms && !run.empty() ? coloured(run, run_term) : run;
      run.clear();
    };
    for (const auto& m : c.moments) {
      char mark = row == capacity_row ? '-' : ' ';
      size_t term = kTerms;
      double at = c.context_bytes;
      if (level <= at) mark = '.';
      for (size_t t = 0; t < kTerms; ++t) {
        const double next = at + static_cast<double>(m.terms[t]);
        if (level > at && level <= next) mark = kLetters[t], term = t;
        at = next;
      }
      if (term != run_term) flush(), run_term = term;
      run += mark;
    }
    flush();
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

std::string picture_legend(const std::vector<const Curve*>& curves, bool colours) {
  std::vector<std::pair<std::string, size_t>> words;   // and the letter's term
  for (size_t t = 0; t < kTerms; ++t) {
    bool occurs = false;
    for (const auto* c : curves)
      for (const auto& m : c->moments)
        occurs |= m.terms[t] > 0 && static_cast<double>(m.terms[t]) > 0.002 * c->peak_bytes;
    if (occurs) words.emplace_back(memory::name_of(static_cast<Term>(t)), t);
  }
  std::string out;
  size_t column = 0;
  const auto add = [&](const std::string& letter, const std::string& name, size_t length) {
    if (column > 0 && column + length > 96) out += "\n", column = 0;
    out += (column == 0 ? "  " : ", ") + letter + " " + name;
    column += length + 2;
  };
  for (const auto& [name, t] : words) {
    const std::string letter(1, kLetters[t]);
    add(colours ? coloured(letter, t) : letter, name, name.size() + 2);
  }
  add(".", "context and communicators", 27);
  return out + "\n";
}

}  // namespace shardfit::cli
