// shardfit prices import FILE | list | check FILE | update.
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "pricing/book.hpp"
#include "pricing/feed_rows.hpp"
#include "pricing/rates.hpp"
#include "pricing/site.hpp"
#include "pricing/validators.hpp"
#include "regions/base/error.hpp"
#include "regions/base/files.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"
#include "selector/cli/cluster_offers.hpp"
#include "selector/cli/parse.hpp"
#include "selector/cli/text_table.hpp"

namespace shardfit::cli {
namespace {

constexpr std::size_t kLargestFile = std::size_t{512} << 20;

void print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string read_input(const std::string& file) {
  if (file != "-") return read_file(file, kLargestFile);
  return std::string(std::istreambuf_iterator<char>(std::cin), {});
}

std::int64_t time_of(const std::string& text) {
  if (text.empty()) return now_seconds();
  const auto t = parse_time(text);
  if (!t) throw Error("bad_time", "--now", "time \"" + text + "\" cannot be read", "write it as 2026-08-22T00:00:00Z");
  return *t;
}

std::string amount(const std::optional<double>& v) { return v ? fmt::format("{:g}", *v) : "-"; }

std::string age(const std::string& as_of, std::int64_t now) {
  const auto t = as_of.empty() ? std::nullopt : parse_time(as_of);
  if (!t) return "unknown";
  const double days = static_cast<double>(now - *t) / 86400.0;
  return days < 2 ? fmt::format("{:.0f} h", std::max(0.0, days * 24)) : fmt::format("{:.0f} d", days);
}

OrderedJson to_json(const pricing::PriceRow& r) {
  const auto opt = [](const std::optional<double>& v) { return v ? OrderedJson(*v) : OrderedJson(); };
  const auto text = [](const std::string& v) { return v.empty() ? OrderedJson() : OrderedJson(v); };
  // clang-format off
  return {{"provider", r.provider}, {"instance_sku", r.instance}, {"gpu_type", text(r.gpu)}, {"gpu_count", opt(r.gpu_count)}, {"gpu_mem", opt(r.gpu_memory_gb)}, {"vcpus", opt(r.vcpus)}, {"ram_gib", opt(r.ram_gib)},
          {"region", text(r.region)}, {"country", text(r.country)}, {"currency", text(r.currency)}, {"on_demand_per_hour", opt(r.on_demand_per_hour)}, {"spot_per_hour", opt(r.spot_per_hour)},
          {"egress_per_gb", opt(r.egress_per_gb)}, {"date", text(r.as_of)}, {"source", text(r.source)}, {"quality", text(r.quality)}, {"note", text(r.note)}, {"imported_at", text(r.imported_at)},
          {"verdict", pricing::to_string(r.verdict)}, {"rules", r.rules}};
  // clang-format on
}

int check(const std::string& file, const std::string& feed, const std::string& now, bool json,
          const pricing::Site& site) {
  auto rows = pricing::read_feed_file(read_input(file), file, feed);
  const auto types = gpu_types();
  pricing::judge(rows, {.types = &types, .now = time_of(now), .max_age = site.price_max_age});
  int count[3] = {};
  std::string out;
  TextTable table({"<ROW", "<VERDICT", "<MACHINE", "<REGION", "<RULES", "<WHY"});
  for (const auto& f : rows) {
    ++count[static_cast<int>(f.row.verdict)];
    if (json)
      out +=
          OrderedJson{
              {"id", f.id}, {"verdict", pricing::to_string(f.row.verdict)}, {"rules", f.row.rules}, {"why", f.row.why}}
              .dump(-1, ' ', false, OrderedJson::error_handler_t::replace) +
          "\n";
    else if (f.row.verdict != pricing::Verdict::kAccepted)
      table.add({f.id, pricing::to_string(f.row.verdict),
                 f.row.provider + " " + (f.row.instance.empty() ? f.row.gpu : f.row.instance), f.row.region,
                 join(f.row.rules, ","), f.row.why});
  }
  if (!json)
    out = (table.empty() ? "" : table.text()) +
          fmt::format("{} rows: {} accepted, {} flagged, {} rejected\n", rows.size(), count[0], count[1], count[2]);
  print(out);
  return kExitDone;
}

int import(const std::string& file, const std::string& feed, const std::string& now, bool json,
           const pricing::Site& site) {
  const std::string text = read_input(file);
  std::error_code ec;
  if (text.find("<Cube") != std::string::npos && text.find('<') == text.find_first_not_of(" \t\r\n\xEF\xBB\xBF")) {
    const auto rates = pricing::Rates::parse(text, file);
    std::filesystem::create_directories(site.state_dir, ec);
    write_file_atomic(std::filesystem::path(site.state_dir) / "ecb_rates.xml", text);
    if (json) print(OrderedJson{{"rates", rates.per_euro().size() - 1}, {"date", rates.date()}}.dump() + "\n");
    else
      print(fmt::format("{} exchange rates of {} imported into {}\n", rates.per_euro().size() - 1, rates.date(),
                        site.state_dir));
    return kExitDone;
  }
  auto rows = pricing::read_feed_file(text, file, feed);
  const auto types = gpu_types();
  const std::int64_t at = time_of(now);
  // Age is no property of the row but of the day it is used on: it is judged then.
  pricing::judge(rows, {.types = &types, .now = at, .max_age = site.price_max_age, .check_age = false});
  std::vector<pricing::PriceRow> booked;
  booked.reserve(rows.size());
  for (auto& f : rows) {
    // A feed without dates says what it costs when it is read.
    if (f.row.as_of.empty()) f.row.as_of = format_time(at);
    booked.push_back(std::move(f.row));
  }
  const auto c = pricing::import_rows(site.state_dir, booked, at, &types);
  if (json)
    print(OrderedJson{{"rows", c.rows},
                      {"added", c.added},
                      {"known", c.known},
                      {"accepted", c.accepted},
                      {"flagged", c.flagged},
                      {"rejected", c.rejected},
                      {"book", site.state_dir + "/prices.db"}}
              .dump() +
          "\n");
  else
    print(fmt::format(
        "{} rows: {} added, {} known already; {} accepted, {} flagged, {} rejected (shardfit prices check {} says why)\n",
        c.rows, c.added, c.known, c.accepted, c.flagged, c.rejected, file));
  return kExitDone;
}

struct ListArguments {
  std::string provider, gpu, region, instance, now;
  bool all = false, history = false, json = false;
};

int list(const ListArguments& a, const pricing::Site& site) {
  const auto types = gpu_types();
  const auto book = pricing::Book::open(site.state_dir, &types);
  const pricing::BookQuery query{.provider = a.provider, .instance = a.instance, .region = a.region, .gpu = a.gpu};
  std::vector<pricing::PriceRow> rows;
  if (a.history) rows = book.history(query);
  else
    for (const auto* r : book.find(query)) rows.push_back(*r);
  const std::int64_t now = time_of(a.now);
  OrderedJson out = OrderedJson::array();
  TextTable table({"<PROVIDER", "<MACHINE", "<GPU", ">GPUS", "<REGION", "<COUNTRY", ">ON DEMAND", ">SPOT", "<CUR",
                   ">AGE", "<MARKS"});
  size_t hidden = 0;
  for (const auto& r : rows) {
    if (r.verdict == pricing::Verdict::kRejected && !a.all) {
      ++hidden;
      continue;
    }
    if (a.json) {
      out.push_back(to_json(r));
      continue;
    }
    std::string marks = join(r.rules, ",");
    if (r.verdict == pricing::Verdict::kRejected) marks = "rejected: " + marks;
    table.add({regions::provider_slug(r.provider), r.instance, r.gpu, amount(r.gpu_count), r.region, r.country,
               amount(r.on_demand_per_hour), amount(r.spot_per_hour), r.currency, age(r.as_of, now), marks});
  }
  if (a.json) {
    print(out.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n");
    return kExitDone;
  }
  if (!table.empty()) print(table.text());
  print(fmt::format("{} rows from {}{}\n", rows.size() - hidden, book.source(),
                    hidden ? fmt::format("; {} rejected rows not shown (--all)", hidden) : ""));
  return kExitDone;
}

}  // namespace

int prices_command(const Arguments& arguments) {
  CLI::App app{"The price book: import, list and check prices", "prices"};
  app.require_subcommand(1);
  std::string file, feed, now;
  bool json = false;
  ListArguments a;
  auto* i = app.add_subcommand(
      "import", "Book the rows of FILE: prices (CSV, JSON, JSON lines) or the ECB's exchange rates (XML)");
  auto* c = app.add_subcommand("check", "Judge the rows of FILE without booking them");
  for (auto* s : {i, c}) {
    s->add_option("FILE", file, "The file; - = standard input")->required();
    s->add_option(
        "--feed", feed,
        "Where the rows come from, as skypilot-aws, gpuhunt; needed where the columns do not tell the seller");
    s->add_option("--now", now, "Point in time by which rows age (RFC 3339; default: now)");
    s->add_flag("--json", json, "Print JSON, one object a line");
  }
  auto* l = app.add_subcommand("list", "The rows of the price book");
  l->add_option("--provider", a.provider, "Only this seller");
  l->add_option("--gpu", a.gpu, "Only this GPU");
  l->add_option("--region", a.region, "Only this region");
  l->add_option("--instance", a.instance, "Only this machine type");
  l->add_option("--now", a.now, "Point in time that ages are counted to (default: now)");
  l->add_flag("--all", a.all, "Rejected rows too");
  l->add_flag("--history", a.history, "Every row ever imported, oldest first");
  l->add_flag("--json", a.json, "Print JSON");
  auto* u = app.add_subcommand("update", "Fetch prices from the sellers (not in this version)");
  u->allow_extras();
  if (const auto status = parse(app, arguments)) return *status;

  if (*u)
    throw Error("not_available", "prices update", "this version fetches no feeds",
                "download the feed's file and book it with shardfit prices import FILE [--feed NAME]");
  const auto site = pricing::read_site();
  if (*c) return check(file, feed, now, json, site);
  if (*i) return import(file, feed, now, json, site);
  return list(a, site);
}

}  // namespace shardfit::cli
