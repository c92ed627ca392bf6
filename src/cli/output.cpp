// Where results go.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "embedded.hpp"
#include "pipewright/base.hpp"
#include "pipewright/regex.hpp"
#include "terminal.hpp"

namespace pipewright::cli {

void add_json_option(Command& command, std::string& file) {
  command.add_option("--json", file, "write JSON to this file (-: standard output, and nothing else)");
}

void add_report_option(Command& command, std::string& file) {
  command.add_option("--report", file, "write a self-contained HTML page (-: standard output)");
}

bool on_standard_output(const std::vector<std::pair<std::string, std::string>>& outputs) {
  std::string first;
  for (const auto& [option, path] : outputs) {
    if (path != "-") continue;
    if (!first.empty()) {
      throw UsageError({"command line", 0}, {}, first + " - and " + option + " - exclude each other");
    }
    first = option;
  }
  return !first.empty();
}

void require_writable(const std::vector<std::pair<std::string, std::string>>& outputs) {
  for (const auto& [option, path] : outputs)
    if (!path.empty() && path != "-") pipewright::require_writable(path);
}

void require_regex(const std::string& option, const std::string& text) {
  try {
    const Regex compiled(text);
  } catch (const std::invalid_argument&) {
    throw UsageError({"command line", 0}, option, "\"" + text + "\" is not a regular expression");
  }
}

std::string with_list(const std::string& json, const std::string& name, const std::vector<std::string>& list) {
  if (list.empty()) return json;
  auto document = nlohmann::ordered_json::parse(json);
  document[name] = list;
  return document.dump(1) + "\n";
}

void write_result(const std::string& path, std::string_view text) {
  if (path != "-") return write_file(path, text);
  if (Embedding* const host = embedding(); host != nullptr) {
    host->output += text;
    return;
  }
  // JSON, pages and packed traces are for programs.
  const bool plain = text.empty() || std::string_view("{[<\x1f").find(text.front()) != std::string_view::npos;
  const std::string shown = plain ? std::string(text) : dressed(text);
  if (std::fwrite(shown.data(), 1, shown.size(), stdout) != shown.size()) {
    throw UsageError("standard output cannot be written");
  }
}

}  // namespace pipewright::cli
