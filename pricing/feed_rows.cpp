#include "pricing/feed_rows.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "pricing/csv.hpp"
#include "pricing/money.hpp"
#include "regions/base/error.hpp"
#include "regions/base/json.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"
#include "regions/countries.hpp"

namespace shardfit::pricing {
namespace {

bool blank(const std::string& text) {
  return text.empty() || text == "nan" || text == "NaN" || text == "None" || text == "null";
}

// The columns of one row, from a JSON object or from a line of CSV.
class Cells {
 public:
  Cells(const Json& object, FeedRow& out) : object_(&object), out_(out) {}
  Cells(const std::vector<std::string>& header, const std::vector<std::string>& cells, FeedRow& out)
      : header_(&header), cells_(&cells), out_(out) {}

  bool has_column(std::string_view key) const {
    return object_ ? object_->contains(std::string(key))
                   : std::find(header_->begin(), header_->end(), key) != header_->end();
  }

  std::string text(const char* key) const {
    std::string t;
    if (object_) {
      const auto v = object_->find(key);
      if (v == object_->end() || v->is_null()) return "";
      t = v->is_string() ? trim(v->get_ref<const std::string&>()) : v->dump();
    } else {
      const auto at = std::find(header_->begin(), header_->end(), key);
      if (at == header_->end()) return "";
      t = trim((*cells_)[static_cast<size_t>(at - header_->begin())]);
    }
    return blank(t) ? "" : t;
  }

  // A number, or nothing. Zero is "unknown" in every field asked for this way.
  std::optional<double> number(const char* key) const {
    const std::string t = text(key);
    if (t.empty()) return std::nullopt;
    char* end = nullptr;
    const double v = std::strtod(t.c_str(), &end);
    if (end == t.c_str() || *end != '\0' || !std::isfinite(v)) {
      out_.unreadable.push_back(std::string(key) + " \"" + t.substr(0, 40) + "\" is not a number");
      return std::nullopt;
    }
    if (v < 0) out_.unreadable.push_back(std::string(key) + " " + t + " is below 0");
    if (v == 0) out_.zeros.push_back(key);
    return v == 0 ? std::nullopt : std::optional(v);
  }

 private:
  const Json* object_ = nullptr;
  const std::vector<std::string>*header_ = nullptr, *cells_ = nullptr;
  FeedRow& out_;
};

// A number that follows `'name':` in the text of a python dictionary.
std::optional<double> after(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  if (at == std::string::npos) return std::nullopt;
  size_t p = at + name.size();
  while (p < text.size() && (text[p] == '\'' || text[p] == '"' || text[p] == ':' || text[p] == ' ')) ++p;
  char* end = nullptr;
  const double v = std::strtod(text.c_str() + p, &end);
  return end == text.c_str() + p ? std::nullopt : std::optional(v);
}

void read_skypilot(const Cells& c, FeedRow& f, const std::string& feed) {
  PriceRow& r = f.row;
  const size_t dash = feed.find('-');
  r.provider = regions::provider_slug(
      feed.compare(0, 8, "skypilot") == 0 && dash != std::string::npos ? feed.substr(dash + 1) : feed);
  r.instance = c.text("InstanceType");
  r.gpu = c.text("AcceleratorName");
  r.gpu_count = c.number("AcceleratorCount");
  r.vcpus = c.number("vCPUs");
  r.ram_gib = c.number("MemoryGiB");
  r.on_demand_per_hour = c.number("Price");
  r.spot_per_hour = c.number("SpotPrice");
  r.region = c.text("Region");
  f.zone = c.text("AvailabilityZone");
  r.local_nvme_gb = c.number("LocalDiskSize");
  std::erase(f.zeros, "LocalDiskSize");  // no disk is no disk
  r.as_of = c.text("AsOf");
  f.currency_column = c.has_column("Currency");
  r.currency = f.currency_column ? c.text("Currency") : "USD";
  if (const std::string text = c.text("GpuInfo"); !text.empty()) {
    f.one_memory_mib = after(text, "SizeInMiB");
    f.total_memory_mib = after(text, "TotalGpuMemoryInMiB");
    if (f.one_memory_mib == 0.0) f.one_memory_mib.reset(), f.zeros.push_back("GpuInfo.SizeInMiB");
    if (f.total_memory_mib == 0.0) f.total_memory_mib.reset(), f.zeros.push_back("GpuInfo.TotalGpuMemoryInMiB");
  }
  r.source = feed;
}

void read_gpuhunt(const Cells& c, FeedRow& f) {
  PriceRow& r = f.row;
  r.provider = regions::provider_slug(c.text("provider"));
  r.instance = c.text("instance_name");
  r.gpu = c.text("gpu_name");
  r.gpu_count = c.number("gpu_count");
  std::erase(f.zeros, "gpu_count");  // a machine without GPUs says so by 0
  if (!r.gpu_count) r.gpu.clear();
  r.gpu_memory_gb = c.number("gpu_memory");
  if (r.gpu_memory_gb) f.one_memory_mib = *r.gpu_memory_gb * 1024;
  r.vcpus = c.number("cpu");
  r.ram_gib = c.number("memory");
  r.region = c.text("location");
  const std::string spot = to_lower(c.text("spot"));
  (spot == "true" || spot == "1" ? r.spot_per_hour : r.on_demand_per_hour) = c.number("price");
  r.currency = "USD";
  r.as_of = c.text("as_of");
  r.source = "gpuhunt";
}

void read_book_columns(const Cells& c, FeedRow& f) {
  PriceRow& r = f.row;
  r.provider = c.text("provider");
  r.instance = c.text("instance_sku");
  r.gpu = c.text("gpu_type");
  r.gpu_count = c.number("gpu_count");
  r.gpu_memory_gb = c.number("gpu_mem");
  if (r.gpu_memory_gb) f.one_memory_mib = *r.gpu_memory_gb * 1024;
  r.vcpus = c.number("vcpus");
  r.ram_gib = c.number("ram_gib");
  r.local_nvme_gb = c.number("local_nvme_gb");
  r.region = c.text("region");
  r.country = c.text("country");
  r.on_demand_per_hour = c.number("on_demand_per_hour");
  r.spot_per_hour = c.number("spot_per_hour");
  // Egress may really be free.
  r.egress_per_gb = c.number("egress_per_gb");
  if (std::erase(f.zeros, "egress_per_gb")) r.egress_per_gb = 0.0;
  std::erase(f.zeros, "local_nvme_gb");
  f.currency_column = true;
  r.currency = c.text("currency");
  r.as_of = c.text("date");
  r.source = c.text("source");
  r.quality = c.text("quality");
  r.note = c.text("note");
}

// Fills a row from its columns, whichever feed's they are.
void read_columns(FeedRow& f, const Cells& c, const std::string& where) {
  if (c.has_column("AcceleratorName") || c.has_column("InstanceType")) {
    if (f.feed.empty())
      throw Error("unknown_feed", where, "the rows do not say who sells", "name the feed: --feed skypilot-aws");
    read_skypilot(c, f, f.feed);
  } else if (c.has_column("instance_name") && c.has_column("location")) {
    read_gpuhunt(c, f);
    if (f.feed.empty()) f.feed = "gpuhunt";
  } else if (c.has_column("instance_sku") || c.has_column("on_demand_per_hour")) {
    read_book_columns(c, f);
    if (f.feed.empty()) f.feed = "snapshot";
  } else {
    throw Error(
        "unknown_feed", where,
        "the columns are those of no feed that is known" + (f.feed.empty() ? "" : " (\"" + f.feed + "\")"),
        "known: the price book's own columns (provider, instance_sku, gpu_type, ...), SkyPilot catalogues (--feed skypilot-aws), gpuhunt");
  }
  if (f.row.country.empty())
    if (const auto country = regions::country_of_region(f.row.provider, f.row.region)) f.row.country = *country;
}

// JSON lines: the first character is '{' and a line ends its object.
bool is_json_lines(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos || text[first] != '{') return false;
  const std::string_view line = text.substr(first, text.find('\n', first) - first);
  return Json::accept(line);
}

}  // namespace

FeedRow read_feed_row(const std::string& feed, const nlohmann::json& cells, const std::string& where) {
  if (!cells.is_object())
    throw Error("wrong_type", where, "a row of a feed is an object of its columns, not " + brief(cells));
  FeedRow f;
  f.feed = feed;
  f.raw = cells.dump(-1, ' ', false, Json::error_handler_t::replace);
  read_columns(f, Cells(cells, f), where);
  return f;
}

std::vector<FeedRow> read_feed_file(std::string_view text, const std::string& file, const std::string& feed) {
  std::vector<FeedRow> out;
  try {
    if (is_json_lines(text)) {
      int number = 0;
      for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string_view line = text.substr(at, end - at);
        at = end + 1;
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string where = "line " + std::to_string(number);
        Json j;
        try {
          j = parse_json(line);
        } catch (const Error&) {
          throw Error("bad_json", where, "the line is not JSON", "one JSON object a line");
        }
        if (!j.is_object()) throw Error("wrong_type", where, "an object is needed, not " + brief(j));
        const auto word = [&](const char* key) {
          const auto it = j.find(key);
          if (it == j.end() || it->is_null()) return std::string();
          return it->is_string() ? it->get<std::string>() : it->dump();
        };
        const std::string name = word("feed").empty() ? feed : word("feed");
        FeedRow f = read_feed_row(name, j.contains("feed_row") ? j["feed_row"] : j,
                                  where + (j.contains("feed_row") ? "/feed_row" : ""));
        f.id = word("id");
        if (j.contains("feed_row")) {
          f.has_peers = true;
          if (j.contains("peers") && j["peers"].is_array())
            for (const auto& p : j["peers"])
              f.peers.push_back(read_feed_row(name, p, where + "/peers/" + std::to_string(f.peers.size())));
          if (const std::string now = word("now"); !now.empty()) {
            f.now = parse_time(now);
            if (!f.now)
              throw Error("bad_time", where + "/now", "time \"" + now + "\" cannot be read",
                          "write it as 2026-08-22T00:00:00Z");
          }
        }
        out.push_back(std::move(f));
      }
    } else if (const size_t first = text.find_first_not_of(" \t\r\n");
               first != std::string_view::npos && (text[first] == '[' || text[first] == '{')) {
      const Json root = parse_json(text, file);
      const Json& list = root.is_object() && root.contains("rows") ? root["rows"] : root;
      if (!list.is_array()) throw Error("wrong_type", "", "a list of price rows is needed, not " + brief(list));
      for (const auto& item : list) {
        out.push_back(read_feed_row(feed, item, "/" + std::to_string(out.size())));
      }
    } else {
      CsvReader csv(text, file);
      std::vector<std::string> header, cells;
      if (!csv.next(header)) throw Error("bad_csv", "", "the file is empty", "a CSV needs a line of column names");
      for (auto& h : header) h = trim(h);
      while (csv.next(cells)) {
        const std::string where = "line " + std::to_string(csv.line());
        if (cells.size() != header.size())
          throw Error("bad_csv", where,
                      std::to_string(cells.size()) + " cells under " + std::to_string(header.size()) + " column names",
                      "quote cells that hold a comma");
        FeedRow& f = out.emplace_back();
        f.feed = feed;
        f.raw = join(cells, "\x1f");
        read_columns(f, Cells(header, cells, f), where);
      }
    }
  } catch (Error& e) {
    throw e.in_file(file);
  }
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].id.empty()) out[i].id = std::to_string(i + 1);
  return out;
}

}  // namespace shardfit::pricing
