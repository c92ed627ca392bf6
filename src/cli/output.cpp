// Where results go.
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "embedded.hpp"
#include "pipewright/base.hpp"
#include "pipewright/regex.hpp"
#include "pipewright/report.hpp"
#include "terminal.hpp"

namespace pipewright::cli {

void add_json_option(Command& command, std::string& file) {
  command.add_option("--json", file, "write JSON to this file (-: standard output, and nothing else)");
}

void add_report_option(Command& command, std::string& file) {
  command.add_option("--report", file, "write a self-contained HTML page (-: standard output)");
}

void KeptFile::add_to(Command& command, const std::string& what) {
  command.add_option("--out", path, what + " to write (-: standard output)").required();
  command.add_flag("--force", force, "replace the file");
}

void KeptFile::require_free(const std::string& other) const {
  if (other == "-") return;
  require_writable(other);  // an input of the same command is none, with --force neither
  std::error_code none;
  if (!force && std::filesystem::is_regular_file(other, none))
    throw UsageError({"command line", 0}, "--out", other + " exists; --force replaces it");
}

bool on_standard_output(const std::vector<std::pair<std::string, std::string>>& outputs) {
  namespace fs = std::filesystem;
  bool standard = false;
  for (auto one = outputs.begin(); one != outputs.end(); ++one) {
    const auto& [option, path] = *one;
    if (path.empty()) continue;
    standard |= path == "-";
    for (auto other = outputs.begin(); other != one; ++other) {
      std::error_code error;
      const bool same = path == "-" || other->second == "-"
                            ? path == other->second
                            : !other->second.empty() && (fs::weakly_canonical(fs::absolute(path), error) ==
                                                             fs::weakly_canonical(fs::absolute(other->second), error) ||
                                                         fs::equivalent(path, other->second, error));
      // What stands for a device takes one after the other.
      if (same && (path == "-" || !fs::exists(path) || fs::is_regular_file(path)))
        throw UsageError({"command line", 0}, {},
                         other->first + " " + other->second + " and " + option + " " + path + " exclude each other");
    }
    if (path != "-") require_writable(path);
  }
  return standard;
}

void require_regex(const std::string& option, const std::string& text) {
  try {
    const Regex compiled(text);
  } catch (const std::invalid_argument&) {
    throw UsageError({"command line", 0}, option, "\"" + text + "\" is not a regular expression");
  }
}

namespace {
bool answered = false;  ///< standard output holds a result
}

void answer_with_error(const Command& command, std::string_view kind, std::string_view message) {
  if (answered || embedding() != nullptr) return;
  for (const Option& option : command.options())
    if (option.name() == "--json" && option.given() == std::vector<std::string>{"-"}) {
      const nlohmann::ordered_json error = {{"error", {{"kind", kind}, {"message", message}}}};
      write_result("-", report::stamped(error.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"));
    }
}

void write_result(const std::string& path, std::string_view text) {
  if (path != "-") return write_file(path, text);
  if (Embedding* const host = embedding(); host != nullptr) {
    host->output += text;
    return;
  }
  // JSON, pages and packed traces are for programs.
  const bool plain = text.empty() || std::string_view("{[<\x1f").find(text.front()) != std::string_view::npos;
  answered = true;
  const std::string shown = plain ? std::string(text) : dressed(text);
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size()) {
    throw UsageError("standard output cannot be written");
  }
}

}  // namespace pipewright::cli
