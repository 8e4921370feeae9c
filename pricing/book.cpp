#include "pricing/book.hpp"

#include <fcntl.h>
#include <sqlite3.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <unordered_map>

#include <fmt/format.h>

#include "embedded/prices_snapshot_csv.hpp"
#include "pricing/csv.hpp"
#include "pricing/gpu_types.hpp"
#include "pricing/sqlite.hpp"
#include "pricing/validators.hpp"
#include "regions/base/error.hpp"
#include "regions/base/text.hpp"
#include "regions/base/time.hpp"
#include "regions/catalogue.hpp"

namespace shardfit::pricing {
namespace {

constexpr const char* kSchema =
    "CREATE TABLE prices (key TEXT NOT NULL, as_of TEXT NOT NULL, imported_at TEXT NOT NULL, provider TEXT, instance TEXT, gpu TEXT, gpu_count REAL, gpu_memory_gb REAL, vcpus REAL, "
    "ram_gib REAL, local_nvme_gb REAL, region TEXT, country TEXT, currency TEXT, on_demand REAL, spot REAL, egress REAL, source TEXT, quality TEXT, note TEXT, verdict TEXT, rules TEXT, why TEXT);"
    "CREATE INDEX by_key ON prices (key, as_of, imported_at);"
    "PRAGMA user_version = 1;";
constexpr const char* kColumns =
    "as_of, imported_at, provider, instance, gpu, gpu_count, gpu_memory_gb, vcpus, ram_gib, local_nvme_gb, region, country, currency, on_demand, spot, egress, source, quality, note, verdict, "
    "rules, why";

std::filesystem::path database(const std::string& state_dir) { return std::filesystem::path(state_dir) / "prices.db"; }

PriceRow read_row(const Statement& s) {
  PriceRow r;
  int c = 0;
  r.as_of = s.text(c++);
  r.imported_at = s.text(c++);
  r.provider = s.text(c++);
  r.instance = s.text(c++);
  r.gpu = s.text(c++);
  r.gpu_count = s.number(c++);
  r.gpu_memory_gb = s.number(c++);
  r.vcpus = s.number(c++);
  r.ram_gib = s.number(c++);
  r.local_nvme_gb = s.number(c++);
  r.region = s.text(c++);
  r.country = s.text(c++);
  r.currency = s.text(c++);
  r.on_demand_per_hour = s.number(c++);
  r.spot_per_hour = s.number(c++);
  r.egress_per_gb = s.number(c++);
  r.source = s.text(c++);
  r.quality = s.text(c++);
  r.note = s.text(c++);
  const std::string verdict = s.text(c++);
  r.verdict = verdict == "rejected"  ? Verdict::kRejected
              : verdict == "flagged" ? Verdict::kFlagged
                                     : Verdict::kAccepted;
  const std::string rules = s.text(c++);
  if (!rules.empty()) r.rules = split(rules, ',');
  r.why = s.text(c++);
  return r;
}

void write_row(Statement& s, const PriceRow& r, const std::string& imported_at) {
  int c = 1;
  s.bind(c++, key_of(r));
  s.bind(c++, r.as_of);
  s.bind(c++, imported_at);
  for (const auto* t : {&r.provider, &r.instance, &r.gpu}) s.bind(c++, *t);
  for (const auto* v : {&r.gpu_count, &r.gpu_memory_gb, &r.vcpus, &r.ram_gib, &r.local_nvme_gb}) s.bind(c++, *v);
  for (const auto* t : {&r.region, &r.country, &r.currency}) s.bind(c++, *t);
  for (const auto* v : {&r.on_demand_per_hour, &r.spot_per_hour, &r.egress_per_gb}) s.bind(c++, *v);
  for (const auto* t : {&r.source, &r.quality, &r.note}) s.bind(c++, *t);
  s.bind(c++, std::string(to_string(r.verdict)));
  s.bind(c++, join(r.rules, ","));
  s.bind(c++, r.why);
  s.run();
}

std::string insert_sql() {
  return std::string("INSERT INTO prices (key, ") + kColumns +
         ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)";
}

const std::vector<FeedRow>& parsed_snapshot() {
  static const std::vector<FeedRow> rows =
      read_feed_file(embedded::prices_snapshot_csv(), "shipped snapshot", "snapshot");
  return rows;
}

std::vector<PriceRow> judged_snapshot(const GpuTypes* types) {
  auto rows = parsed_snapshot();
  JudgeOptions o;
  o.types = types;
  o.check_age = false;
  judge(rows, o);
  std::vector<PriceRow> out;
  out.reserve(rows.size());
  for (auto& f : rows) out.push_back(std::move(f.row));
  return out;
}

std::pair<std::int64_t, std::string> age_of(const PriceRow& r) {
  return {parse_time(r.as_of).value_or(0), r.imported_at};
}

bool same(const std::string& a, const std::string& b) { return to_lower(a) == to_lower(b); }

bool matches(const PriceRow& r, const BookQuery& q, const std::set<std::string>* gpu_keys, const GpuTypes* types) {
  if (!q.provider.empty() && !same(r.provider, q.provider) &&
      regions::provider_slug(r.provider) != regions::provider_slug(q.provider))
    return false;
  if (!q.instance.empty() && !same(r.instance, q.instance)) return false;
  if (!q.region.empty()) {
    const std::string id = regions::provider_slug(r.provider) + "/" + r.region;
    if (!same(r.region, q.region) && !same(id, q.region)) return false;
  }
  if (!q.gpu.empty()) {
    bool hit = to_lower(r.gpu).find(to_lower(q.gpu)) != std::string::npos;
    if (!hit && gpu_keys && types)
      for (const auto* t : types->candidates(r.gpu, r.gpu_memory_gb)) hit |= gpu_keys->count(t->key) > 0;
    if (!hit) return false;
  }
  return true;
}

std::set<std::string> keys_of(const BookQuery& q, const GpuTypes* types) {
  std::set<std::string> keys;
  if (types && !q.gpu.empty())
    for (const auto* t : types->candidates(q.gpu)) keys.insert(t->key);
  return keys;
}

}  // namespace

std::string key_of(const PriceRow& r) {
  return regions::provider_slug(r.provider) + "|" + to_lower(r.region) + "|" + to_lower(r.instance) + "|" +
         to_lower(r.gpu) + "|" + (r.gpu_count ? fmt::format("{:g}", *r.gpu_count) : "?");
}

std::vector<PriceRow> snapshot_rows() {
  std::vector<PriceRow> out;
  for (const auto& f : parsed_snapshot()) out.push_back(f.row);
  return out;
}

Book Book::shipped(const GpuTypes* types) {
  Book b;
  b.source_ = "shipped snapshot";
  b.types_ = types;
  return b;
}

Book Book::open(const std::string& state_dir, const GpuTypes* types) {
  Book b = shipped(types);
  std::error_code ec;
  if (!state_dir.empty() && std::filesystem::exists(database(state_dir), ec))
    b.file_ = b.source_ = database(state_dir).string();
  return b;
}

const std::vector<PriceRow>& Book::rows() const {
  if (rows_) return *rows_;
  auto rows = std::make_shared<std::vector<PriceRow>>();
  // The newest of each key: by its own date, then by when it came.
  std::unordered_map<std::string, size_t> newest;
  for (auto& r : all_rows()) {
    const auto [it, fresh] = newest.emplace(key_of(r), rows->size());
    if (fresh) {
      rows->push_back(std::move(r));
      continue;
    }
    PriceRow& old = (*rows)[it->second];
    if (age_of(r) >= age_of(old)) old = std::move(r);
  }
  rows_ = rows;
  return *rows_;
}

std::vector<PriceRow> Book::all_rows() const {
  if (file_.empty()) return judged_snapshot(types_);
  std::vector<PriceRow> out;
  Database db(file_, Database::Mode::kRead);
  Statement s(db, std::string("SELECT ") + kColumns + " FROM prices ORDER BY rowid");
  while (s.step()) out.push_back(read_row(s));
  return out;
}

std::vector<const PriceRow*> Book::find(const BookQuery& query) const {
  const auto keys = keys_of(query, types_);
  std::vector<const PriceRow*> out;
  for (const auto& r : rows())
    if (matches(r, query, &keys, types_)) out.push_back(&r);
  return out;
}

std::vector<PriceRow> Book::history(const BookQuery& query) const {
  const auto keys = keys_of(query, types_);
  std::vector<PriceRow> out;
  for (auto& r : all_rows())
    if (matches(r, query, &keys, types_)) out.push_back(std::move(r));
  std::stable_sort(out.begin(), out.end(), [](const PriceRow& a, const PriceRow& b) { return age_of(a) < age_of(b); });
  return out;
}

ImportCounts import_rows(const std::string& state_dir, const std::vector<PriceRow>& rows, std::int64_t now,
                         const GpuTypes* types) {
  namespace fs = std::filesystem;
  ImportCounts counts;
  std::error_code ec;
  fs::create_directories(state_dir, ec);
  if (ec)
    throw Error("file_unwritable", "", "the state folder cannot be made: " + ec.message(),
                "set state_dir in the site file to a folder you may write")
        .in_file(state_dir);
  // One import at a time: each begins with what the last one published.
  const fs::path lock_path = fs::path(state_dir) / "prices.lock";
  struct Lock {
    int fd = -1;
    ~Lock() {
      if (fd >= 0) ::close(fd);
    }
  } lock;
  lock.fd = ::open(lock_path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock.fd < 0)
    throw Error("file_unwritable", "", "cannot be written", "set state_dir in the site file to a folder you may write")
        .in_file(lock_path.string());
  for (int tries = 0; ::flock(lock.fd, LOCK_EX | LOCK_NB) != 0; ++tries) {
    if (tries >= 300)
      throw Error("busy", "", "another import has held the price book for 30 seconds", "try again", kExitFailed)
          .in_file(lock_path.string());
    ::usleep(100000);
  }
  const fs::path published = database(state_dir),
                 next = fs::path(state_dir) / fmt::format("prices.db.{}.new", ::getpid());
  struct Cleanup {
    fs::path path;
    ~Cleanup() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } cleanup{next};
  fs::remove(next, ec);
  if (fs::exists(published)) fs::copy_file(published, next);
  {
    const bool fresh = !fs::exists(next);
    Database db(next.string(), Database::Mode::kCreate);
    db.execute("PRAGMA journal_mode = MEMORY; PRAGMA synchronous = OFF; BEGIN");  // the file is not published until it
                                                                                  // is whole and on disk
    if (fresh) {
      db.execute(kSchema);
      Statement insert(db, insert_sql());
      for (const auto& r : judged_snapshot(types)) write_row(insert, r, "");
    }
    Statement insert(db, insert_sql());
    Statement known(
        db,
        "SELECT 1 FROM prices WHERE key = ? AND as_of = ? AND on_demand IS ? AND spot IS ? AND currency = ? AND verdict = ? AND ram_gib IS ? AND vcpus IS ?");
    const std::string imported_at = format_time(now);
    for (const auto& r : rows) {
      ++counts.rows;
      ++(r.verdict == Verdict::kRejected  ? counts.rejected
         : r.verdict == Verdict::kFlagged ? counts.flagged
                                          : counts.accepted);
      known.reset();
      known.bind(1, key_of(r));
      known.bind(2, r.as_of);
      known.bind(3, r.on_demand_per_hour);
      known.bind(4, r.spot_per_hour);
      known.bind(5, r.currency);
      known.bind(6, std::string(to_string(r.verdict)));
      known.bind(7, r.ram_gib);
      known.bind(8, r.vcpus);
      if (known.step()) {
        ++counts.known;
        continue;
      }
      known.reset();
      write_row(insert, r, imported_at);
      ++counts.added;
    }
    db.execute("COMMIT");
  }
  const int fd = ::open(next.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    ::fsync(fd);
    ::close(fd);
  }
  fs::permissions(next, fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read | fs::perms::others_read,
                  ec);
  fs::rename(next, published);
  const int folder = ::open(state_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder >= 0) {
    ::fsync(folder);
    ::close(folder);
  }
  return counts;
}

}  // namespace shardfit::pricing
