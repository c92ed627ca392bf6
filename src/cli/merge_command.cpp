// pipewright merge: the parts of a sweep that ran on several machines as the one that one machine would have made.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "commands.hpp"
#include "embedded.hpp"
#include "pipewright/base.hpp"
#include "pipewright/report.hpp"

namespace pipewright::cli {

void add_merge(Command& app, Outcome& outcome) {
  struct MergeOptions {
    std::vector<std::string> files;
    std::string json;
  };
  auto& command = app.add_subcommand("merge", "Put the parts of a sweep together (sweep --part K/N)");
  const auto options = std::make_shared<MergeOptions>();
  command.add_option("FILES", options->files, "what sweep --part wrote with --json, all parts in any order")
      .required()
      .expected(1, 20'000);
  command.add_option("--json", options->json, "write JSON to this file (-: standard output)").required();
  command.footer(
      "The same bytes as the sweep in one process. Exit status 1: no combination is legal and modelled.\n\nExample:\n"
      "  pipewright merge part*.json --json sweep.json");
  command.callback([options, &outcome] {
    std::vector<std::pair<std::string, std::string>> texts;
    for (const auto& file : options->files) texts.emplace_back(file, content_of(file));
    const std::string merged = report::merged_sweeps(texts);
    const auto json = nlohmann::json::parse(merged);
    const auto& rows = json.at("rows");
    const bool any =
        std::any_of(rows.begin(), rows.end(), [](const auto& row) { return !row.at("step_time_ms").is_null(); });
    outcome.status = any ? 0 : 1;
    write_result(options->json, merged);
  });
}

}  // namespace pipewright::cli
