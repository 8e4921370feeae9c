// The one error type of the house: thrown inside, caught at the edges (command main, plugin hooks, rank main).
#pragma once
#include <exception>
#include <string>

namespace shardfit {

// Exit statuses every command shares (docs/commands.md).
inline constexpr int kExitDone = 0;
inline constexpr int kExitFailed = 1;       // something failed on the way
inline constexpr int kExitBadInput = 2;     // bad input or usage
inline constexpr int kExitNothingFits = 3;  // nothing satisfies the limits

struct Error : std::exception {
  std::string code;     // stable snake_case word: "unknown_key", "file_missing", "out_of_range", ...
  std::string file;     // file the value came from, "" when not from a file
  std::string where;    // JSON pointer ("/plan/micro_batch"), "line 12", "column Price"; may be ""
  std::string message;  // what is wrong, naming value and limit, without a full stop
  std::string remedy;   // what to do, without a full stop; may be ""
  int exit_status = kExitBadInput;

  Error(std::string code, std::string where, std::string message, std::string remedy = "",
        int exit_status = kExitBadInput);
  Error& in_file(
      std::string name);  // names the file unless one is named already; for rethrowing at the place that knows it
  // One line: "FILE: WHERE: MESSAGE; REMEDY".
  const char* what() const noexcept override { return line_.c_str(); }

 private:
  void compose();
  std::string line_;
};

}  // namespace shardfit
