// `schedule`: every rank's program in the text form of src/schedule/SYNTAX.md.
#include <fmt/format.h>

#include "format.hpp"
#include "pipewright/report.hpp"
#include "to_json.hpp"

namespace pipewright::report {

std::string schedule_text(const schedule::Program& program, bool hooks, bool frees) {
  const auto& config = program.config;
  std::string out = counted(config.stages, "stage") + ", " + counted(config.microbatches, "microbatch");
  if (config.chunks) {
    out += fmt::format(", {} a rank, groups of {}", counted(*config.chunks, "chunk"),
                       counted(schedule::group_size(config), "microbatch"));
  }
  out += config.batched ? ", batched transfers\n" : config.overlap_p2p ? ", overlapped transfers\n" : "\n";
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    const auto& rank = program.ranks[r];
    out += fmt::format("\nrank {} (warm-up {})\n", r, rank.warmup);
    out += wrapped(fmt::format("  {}", fmt::join(schedule::text(rank, hooks, frees), " "))) + "\n";
  }
  return out;
}

std::string schedule_json(const schedule::Program& program, bool hooks, bool frees, const Stamp* stamp) {
  const auto& config = program.config;
  Json warmup = Json::array(), ranks = Json::array();
  for (const auto& rank : program.ranks) {
    warmup.push_back(rank.warmup);
    ranks.push_back(schedule::text(rank, hooks, frees));
  }
  Json json = {{"p", config.stages}, {"v", nullptr}, {"m", config.microbatches}, {"N", nullptr}};
  if (config.chunks) {
    json["v"] = *config.chunks;
    json["N"] = schedule::group_size(config);
  }
  json["warmup"] = warmup;
  json["ranks"] = ranks;
  // One rank a line: readable, and diffs stay small.
  std::string out = "{";
  if (stamp != nullptr) {
    const Json head = stamped(Json::object(), *stamp);
    for (const auto& [key, value] : head.items()) out += fmt::format("\"{}\": {}, ", key, value.dump());
  }
  for (const char* key : {"p", "v", "m", "N", "warmup"}) out += fmt::format("\"{}\": {}, ", key, json[key].dump());
  out += "\"ranks\": [";
  for (std::size_t r = 0; r < ranks.size(); ++r) out += (r == 0 ? "\n" : ",\n") + ranks[r].dump();
  return out + "]}\n";
}

}  // namespace pipewright::report
