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
  Table table({"", "bytes", "GiB"});
  const auto add = [&](const char* what, Bytes bytes) {
    table.add({what, fmt::format("{}", bytes.value), fmt::format("{:.2f}", gib(bytes))});
  };
  add("peak allocated", r.peak_allocated);
  add("peak reserved", r.peak_reserved);
  add("reserved at the end", r.reserved);
  return fmt::format("{} events, {} segments at the end, {} frees of unknown addresses skipped\n{}", r.events,
                     r.segments, r.unknown_frees, table.text());
}

void run(const ReplayAllocatorOptions& options) {
  const auto replay = memory::replay(read_file(options.recording), options.recording, options.conf);
  if (!options.json.empty()) {
    const nlohmann::ordered_json json = {{"events", replay.events},
                                         {"peak_allocated_bytes", replay.peak_allocated.value},
                                         {"peak_reserved_bytes", replay.peak_reserved.value},
                                         {"reserved_bytes", replay.reserved.value},
                                         {"segments", replay.segments},
                                         {"unknown_frees", replay.unknown_frees}};
    write_result(options.json, report::stamped(json.dump()));
  }
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
