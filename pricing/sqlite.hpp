// SQLite behind two small classes: a connection and a prepared statement. Every failure is an Error that names the
// file.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

struct sqlite3;
struct sqlite3_stmt;

namespace shardfit::pricing {

class Database {
 public:
  enum class Mode { kRead, kWrite, kCreate };  // kRead: an existing file, untouched; kCreate: made if it is not there
  Database(const std::string& file, Mode mode);
  ~Database();
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  void execute(const std::string& sql);  // one or more statements without results
  sqlite3* handle() const { return db_; }
  const std::string& file() const { return file_; }
  [[noreturn]] void fail(const std::string& doing) const;

 private:
  sqlite3* db_ = nullptr;
  std::string file_;
};

class Statement {
 public:
  Statement(Database& db, const std::string& sql);
  ~Statement();
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  void bind(int index, const std::string& value);  // from 1
  void bind(int index, std::int64_t value);
  void bind(int index, const std::optional<double>& value);
  bool step();  // true: a row is there
  void run();   // step to the end and reset
  void reset();
  std::string text(int column) const;  // from 0; "" for NULL
  std::int64_t integer(int column) const;
  std::optional<double> number(int column) const;  // nullopt for NULL

 private:
  Database& db_;
  sqlite3_stmt* statement_ = nullptr;
};

}  // namespace shardfit::pricing
