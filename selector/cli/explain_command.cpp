// shardfit explain: where the memory of a job is over one optimizer step, and where its time goes.
#include <fmt/format.h>

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "selector/cli/advice_text.hpp"
#include "selector/cli/estimate_table.hpp"
#include "selector/cli/job_setting.hpp"
#include "selector/cli/memory_picture.hpp"
#include "selector/cli/parse.hpp"
#include "selector/decide/table.hpp"

namespace shardfit::cli {

namespace {

constexpr int kRows = 18, kFinest = 1200;
constexpr size_t kAxisColumns = 11;  // of a picture's line: the scale, which the left picture has

struct Explained {
  JobSetting setting;
  search::Estimated estimated;
  memory::Trace trace;
  Curve curve;
  std::string name;  // the plan in words
};

Explained explained(const std::string& job, const std::string& plan, const std::string& host, const std::string& family,
                    int columns) {
  Explained e{.setting = load_job_setting(job, plan, host, family)};
  e.estimated = search::estimate(e.setting.setting());
  e.estimated.estimate.assumed.insert(e.estimated.estimate.assumed.begin(), e.setting.assumed.begin(),
                                      e.setting.assumed.end());
  const auto s = e.setting.setting();
  e.trace = memory::trace_memory({.job = s.job, .plan = s.plan, .model = s.model, .device = s.device, .host = s.host});
  e.curve = curve_of(e.trace, columns);
  e.name = decide::plan_words(e.setting.plan);
  return e;
}

// Where load, step 1 and the steady step are fullest: a job may die in its second step only, when optimizer states are there.
std::string highest_moments(const Curve& c) {
  int last = 0;
  for (const auto& h : c.highest) last = std::max(last, h.step);
  std::string out;
  for (const auto& h : c.highest)
    out += fmt::format("  {:<19} {:>11} allocated at \"{}\" ({})\n", h.step == 0 ? "load" : h.step < last ? "step 1" : "every further step", format_gib(h.bytes), h.label, memory::name_of(h.phase));
  return out;
}

std::string capacity_line(const Curve& c, double top) {
  if (c.capacity_bytes <= 0) return "";
  return fmt::format("  capacity {}{}\n", format_gib(c.capacity_bytes),
                     c.capacity_bytes < top ? ": the line of dashes" : ", above the picture");
}

std::string side_by_side(const Explained& a, const Explained& b, bool colours) {
  const double top = picture_top({&a.curve, &b.curve});
  const auto left = picture_lines(a.curve, top, kRows, colours), right = picture_lines(b.curve, top, kRows, colours);
  std::string out = fmt::format("A  {}\nB  {}\n\n", a.name, b.name);
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) out += left[i] + "   " + right[i].substr(kAxisColumns) + "\n";
  out += picture_legend({&a.curve, &b.curve}, colours) + capacity_line(a.curve, top);

  std::map<std::string, std::pair<std::int64_t, std::int64_t>> terms;
  for (const auto& t : a.estimated.estimate.memory.terms) terms[t.name].first += t.bytes;
  for (const auto& t : b.estimated.estimate.memory.terms) terms[t.name].second += t.bytes;
  std::vector<std::pair<std::string, std::pair<std::int64_t, std::int64_t>>> rows(terms.begin(), terms.end());
  std::stable_sort(rows.begin(), rows.end(), [](const auto& x, const auto& y) {
    return std::max(x.second.first, x.second.second) > std::max(y.second.first, y.second.second);
  });
  const auto gib = [](std::int64_t bytes) { return format_gib(static_cast<double>(bytes)); };
  const auto row = [&](const std::string& name, const std::string& x, const std::string& y,
                       const std::string& difference) {
    return fmt::format("  {:<28} {:>14} {:>14} {:>14}\n", name, x, y, difference);
  };
  out += "\n" + row("", "A", "B", "B - A");
  for (const auto& [name, bytes] : rows)
    out += row(name, gib(bytes.first), gib(bytes.second), gib(bytes.second - bytes.first));
  const auto &ma = a.estimated.estimate.memory, &mb = b.estimated.estimate.memory;
  out += row("device peak", gib(ma.device_peak), gib(mb.device_peak), gib(mb.device_peak - ma.device_peak));
  out += row("95 % bound", gib(ma.device_peak_high), gib(mb.device_peak_high),
             gib(mb.device_peak_high - ma.device_peak_high));
  out += row("fits", a.estimated.estimate.fits, b.estimated.estimate.fits, "");
  out += row("host, a node", gib(ma.host), gib(mb.host), gib(mb.host - ma.host));
  const auto &ta = a.estimated.estimate.time, &tb = b.estimated.estimate.time;
  const auto seconds = [](const std::optional<TimeEstimate>& t) {
    return t ? format_duration(t->step) : std::string("unknown");
  };
  out += row("step", seconds(ta), seconds(tb), ta && tb ? fmt::format("x {:.2f}", tb->step / ta->step) : "");
  if (ta && tb) {
    for (const auto& [name, x] : ta->parts) {
      const double y = tb->parts.contains(name) ? tb->parts.at(name) : 0;
      if (x > 0 || y > 0) out += row("  " + name, format_duration(x), format_duration(y), "");
    }
    out += row("tokens/s a GPU", fmt::format("{:.0f}", ta->tokens_per_second_per_gpu),
               fmt::format("{:.0f}", tb->tokens_per_second_per_gpu), "");
  }
  return out;
}

// The estimate's record with the points of the steady step under "timeline".
OrderedJson explained_json(const Explained& e) {
  auto record = to_json(e.estimated.estimate);
  auto& timeline = record["timeline"] = OrderedJson::array();
  int last = 1;
  for (const auto& p : e.trace.points) last = std::max(last, p.step);
  for (const auto& p : e.trace.points) {
    if (p.step != last || p.phase == memory::Phase::kLoad) continue;
    OrderedJson terms = OrderedJson::object();
    for (std::size_t i = 0; i < p.terms.size(); ++i)
      if (p.terms[i] > 0) terms[std::string(memory::name_of(static_cast<memory::Term>(i)))] = p.terms[i];
    timeline.push_back({{"at", p.label},
                        {"phase", memory::name_of(p.phase)},
                        {"allocated", p.allocated},
                        {"terms", std::move(terms)}});
  }
  return record;
}

}  // namespace

int explain_command(const Arguments& arguments) {
  CLI::App app{"Show where memory and time of a job go over one optimizer step", "explain"};
  std::string job_file, plan_file, other_file, host_file, svg_file, family;
  int width = 96;
  app.add_option("JOB", job_file, "Job file (JSON)")->required();
  app.add_option("--plan", plan_file, "Plan file (JSON); without it, one CPU rank of this machine");
  app.add_option("--compare", other_file, "A second plan, shown beside the first");
  app.add_option("--host", host_file, "Host file: the \"host\" object of an offer, or {\"host\", \"interconnect\"}");
  app.add_option("--svg", svg_file, "Also write the picture as SVG");
  app.add_option("--width", width, "Columns of the picture (default 96)")->check(CLI::Range(20, 400));
  app.add_option("--as", family, "Read the model as this family, whatever its config.json says");
  bool json = false;
  app.add_flag(
      "--json", json,
      "Print the estimate's record with a \"timeline\" instead of the picture; with --compare, {\"a\", \"b\"}");
  if (const auto status = parse(app, arguments)) return *status;
  const bool compare = !other_file.empty();
  const bool colours = isatty(STDOUT_FILENO) && !std::getenv("NO_COLOR");
  const auto a = explained(job_file, plan_file, host_file, family, compare ? width / 2 : width);
  std::string text;
  const auto title = [](const Explained& e) {
    return fmt::format("{} {:.2f} B, {} tokens: {}", e.setting.model->family, static_cast<double>(e.estimated.estimate.parameters_total) / 1e9, e.setting.job.sequence_length, e.name);
  };
  std::vector<std::pair<std::string, const Curve*>> panels = {{title(a), &a.curve}};
  std::optional<Explained> b;
  if (compare) {
    b = explained(job_file, other_file, host_file, family, width / 2);
    text = side_by_side(a, *b, colours);
    panels.emplace_back(title(*b), &b->curve);
  } else {
    const double top = picture_top({&a.curve});
    text = "Memory of the fullest GPU over one optimizer step: " + a.name + "\n\n";
    for (const auto& line : picture_lines(a.curve, top, kRows, colours)) text += line + "\n";
    text += picture_legend({&a.curve}, colours) + highest_moments(a.curve) + capacity_line(a.curve, top) + "\n" +
            estimate_table(a.setting, a.estimated);
    if (a.estimated.estimate.fits != "yes") text += advice_table(advice_for(a.setting)) + hints_table(hints_for(a.setting));
  }
  if (!svg_file.empty()) {
    const Curve fine = curve_of(a.trace, kFinest, true);
    panels[0].second = &fine;
    std::optional<Curve> other;
    if (b) panels[1].second = &other.emplace(curve_of(b->trace, kFinest, true));
    write_file_atomic(svg_file, memory_svg(panels));
  }
  if (json)
    text = (b ? OrderedJson{{"a", explained_json(a)}, {"b", explained_json(*b)}} : explained_json(a)).dump(2) + "\n";
  std::fwrite(text.data(), 1, text.size(), stdout);
  return kExitDone;
}

}  // namespace shardfit::cli
