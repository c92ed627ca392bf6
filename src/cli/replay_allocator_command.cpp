// pipewright replay-allocator: recorded allocator events through PyTorch's caching allocator, as it was or otherwise.
#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "commands.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/report.hpp"

namespace pipewright::cli {
namespace {

struct ReplayAllocatorOptions {
  std::string recording, json;
  std::optional<std::string> conf;
};

std::string text(const memory::Replay& r) {
  std::vector<std::string> header = {"", "bytes", "GiB"};
  if (r.recorded) header.insert(header.end(), {"recorded", "GiB "});
  Table table(header);
  const auto add = [&](const char* what, Bytes memory::AllocatorTotals::*of) {
    const Bytes replayed = r.totals.*of;
    std::vector<std::string> row = {what, fmt::format("{}", replayed.value), fmt::format("{:.2f}", gib(replayed))};
    if (r.recorded) {
      const Bytes recorded = *r.recorded.*of;
      row.insert(row.end(), {fmt::format("{}", recorded.value), fmt::format("{:.2f}", gib(recorded))});
    }
    table.add(row);
  };
  using Totals = memory::AllocatorTotals;
  add("peak allocated", &Totals::peak_allocated);
  add("peak reserved", &Totals::peak_reserved);
  add("allocated at the end", &Totals::allocated);
  add("reserved at the end", &Totals::reserved);
  auto out = fmt::format("{} events, {} segments at the end, {} frees of unknown addresses skipped\n{}", r.events,
                         r.segments, r.unknown_frees, table.text());
  const auto differs = r.differs();
  for (const auto& what : differs) out += "differs from the recording: " + what + "\n";
  if (!differs.empty())
    out += "note: memory that was allocated before the recording began, or by another allocator, is not in its rows\n";
  if (r.recorded && r.as_recorded && differs.empty()) out += "as recorded, to the byte\n";
  if (r.given_back > 0)
    out += fmt::format("note: the process gave cached memory back {} times; the replay gives back all of it\n",
                       r.given_back);
  if (r.out_of_memory > 0)
    out += fmt::format("note: {} allocations failed in the recording (oom); they are not replayed\n", r.out_of_memory);
  return out;
}

nlohmann::ordered_json json_of(const memory::Replay& r) {
  const auto totals = [](const memory::AllocatorTotals& t) -> nlohmann::ordered_json {
    return {{"allocated_bytes", t.allocated.value},
            {"reserved_bytes", t.reserved.value},
            {"peak_allocated_bytes", t.peak_allocated.value},
            {"peak_reserved_bytes", t.peak_reserved.value}};
  };
  nlohmann::ordered_json json = {{"events", r.events},
                                 {"peak_allocated_bytes", r.totals.peak_allocated.value},
                                 {"peak_reserved_bytes", r.totals.peak_reserved.value},
                                 {"reserved_bytes", r.totals.reserved.value},
                                 {"segments", r.segments},
                                 {"unknown_frees", r.unknown_frees},
                                 {"allocated_bytes", r.totals.allocated.value},
                                 {"as_recorded", r.as_recorded},
                                 {"given_back", r.given_back},
                                 {"out_of_memory", r.out_of_memory}};
  json["recorded"] = r.recorded ? totals(*r.recorded) : nlohmann::ordered_json();
  json["recorded_segments"] = r.recorded_segments ? nlohmann::ordered_json(*r.recorded_segments) : nullptr;
  json["differs"] = r.differs();
  return json;
}

void run(const ReplayAllocatorOptions& options) {
  const auto replay = memory::replay(read_file(options.recording), options.recording, options.conf);
  if (!options.json.empty()) write_result(options.json, report::stamped(json_of(replay).dump(1)));
  if (options.json != "-") write_result("-", text(replay));
}

}  // namespace

void add_replay_allocator(Command& app, Outcome&) {
  auto& command = app.add_subcommand("replay-allocator", "Replay recorded events of PyTorch's caching allocator");
  const auto options = std::make_shared<ReplayAllocatorOptions>();
  command.add_option("RECORDING", options->recording, "recorded events (.mem.json, .mem.json.gz)").required();
  command.add_option("--conf", options->conf, "another PYTORCH_CUDA_ALLOC_CONF than the recorded one");
  add_json_option(command, options->json);
  command.footer("Example:\n  pipewright replay-allocator run.r0.mem.json.gz --conf expandable_segments:True");
  command.callback([options] { run(*options); });
}

}  // namespace pipewright::cli
