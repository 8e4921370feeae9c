#include "pricing/sqlite.hpp"

#include <sqlite3.h>

#include "regions/base/error.hpp"

namespace shardfit::pricing {

Database::Database(const std::string& file, Mode mode) : file_(file) {
  const int flags = mode == Mode::kRead    ? SQLITE_OPEN_READONLY
                    : mode == Mode::kWrite ? SQLITE_OPEN_READWRITE
                                           : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE;
  if (sqlite3_open_v2(file.c_str(), &db_, flags, nullptr) != SQLITE_OK) {
    const std::string why = db_ ? sqlite3_errmsg(db_) : "out of memory";
    sqlite3_close(db_);
    throw Error("database", "", "cannot be opened: " + why, "check the file and its folder's permissions", kExitFailed)
        .in_file(file);
  }
  sqlite3_busy_timeout(db_, 10000);
}

Database::~Database() { sqlite3_close(db_); }

void Database::fail(const std::string& doing) const {
  const int code = sqlite3_errcode(db_);
  throw Error(
      "database", "", doing + ": " + sqlite3_errmsg(db_),
      code == SQLITE_NOTADB || code == SQLITE_CORRUPT ? "the file is not a database of shardfit; move it away" : "",
      kExitFailed)
      .in_file(file_);
}

void Database::execute(const std::string& sql) {
  if (sqlite3_exec(db_, sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) fail("writing");
}

Statement::Statement(Database& db, const std::string& sql) : db_(db) {
  if (sqlite3_prepare_v2(db.handle(), sql.c_str(), -1, &statement_, nullptr) != SQLITE_OK) db.fail("reading");
}

Statement::~Statement() { sqlite3_finalize(statement_); }

void Statement::bind(int index, const std::string& value) {
  sqlite3_bind_text(statement_, index, value.data(), static_cast<int>(value.size()), SQLITE_TRANSIENT);
}
void Statement::bind(int index, std::int64_t value) { sqlite3_bind_int64(statement_, index, value); }
void Statement::bind(int index, const std::optional<double>& value) {
  if (value) sqlite3_bind_double(statement_, index, *value);
  else sqlite3_bind_null(statement_, index);
}

bool Statement::step() {
  const int code = sqlite3_step(statement_);
  if (code == SQLITE_ROW) return true;
  if (code != SQLITE_DONE) db_.fail("reading");
  return false;
}

void Statement::run() {
  while (step()) {
  }
  reset();
}

void Statement::reset() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

std::string Statement::text(int column) const {
  const auto* t = sqlite3_column_text(statement_, column);
  return t ? std::string(reinterpret_cast<const char*>(t),
                         static_cast<size_t>(sqlite3_column_bytes(statement_, column)))
           : "";
}

std::int64_t Statement::integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::optional<double> Statement::number(int column) const {
  if (sqlite3_column_type(statement_, column) == SQLITE_NULL) return std::nullopt;
  return sqlite3_column_double(statement_, column);
}

}  // namespace shardfit::pricing
