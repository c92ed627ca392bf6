// Where results go.
#include <cstdio>

#include "commands.hpp"
#include "pipewright/base.hpp"

namespace pipewright::cli {

void write_result(const std::string& path, std::string_view text) {
  if (path != "-") return write_file(path, text);
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) {
    throw UsageError("standard output cannot be written");
  }
}

}  // namespace pipewright::cli
