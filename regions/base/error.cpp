#include "regions/base/error.hpp"

#include <utility>

namespace shardfit {

Error::Error(std::string c, std::string w, std::string m, std::string r, int status)
    : code(std::move(c)), where(std::move(w)), message(std::move(m)), remedy(std::move(r)), exit_status(status) {
  if (remedy.empty() && code == "wrong_type") remedy = "write it in that form";  // the message says which
  compose();
}

Error& Error::in_file(std::string name) {
  if (file.empty()) file = std::move(name);
  compose();
  return *this;
}

void Error::compose() {
  line_.clear();
  for (const std::string* part : {&file, &where})
    if (!part->empty()) line_ += *part + ": ";
  line_ += message;
  if (!remedy.empty()) line_ += "; " + remedy;
  for (char& c : line_)
    if (c == '\n' || c == '\r') c = ' ';
}

}  // namespace shardfit
