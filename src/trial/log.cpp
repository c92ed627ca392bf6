// What a training loop prints: step times and memory (megatron/training/training.py, training_log; utils,
// report_memory), and the line that says why it ended.
#include <algorithm>

#include "pipewright/regex.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

// As long as the numbers of a run: longer ones are no line of a training loop.
const std::string whole_group = R"((\d{1,9}))", number_group = R"((\d{1,12}(?:\.\d{0,12})?))";

template <class Each>
void each_line(std::string_view text, const Each& body) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    body(text.substr(at, end - at));
    at = end + 1;
  }
}

bool holds(std::string_view line, std::string_view what) { return line.find(what) != std::string_view::npos; }

Bytes of_mebibytes(const std::string& text) {
  return Bytes(static_cast<std::int64_t>(std::stod(text) * 1024 * 1024 + 0.5));
}

void read_step(std::string_view line, Log& log) {
  static const Regex megatron(R"(iteration\s+)" + whole_group + R"(\s*/.*elapsed time per iteration \(ms\): )" +
                              number_group),
      bridge("Step Time : " + number_group + "s");
  if (const auto m = megatron.first_in(line); !m.empty())
    log.steps.emplace_back(std::stoi(m[1]), std::stod(m[2]));
  else if (const auto s = bridge.first_in(line); !s.empty())
    log.steps.emplace_back(log.steps.empty() ? 1 : log.steps.back().first + 1, 1e3 * std::stod(s[1]));
}

void read_memory(std::string_view line, Log& log) {
  static const Regex pattern(R"(\[Rank )" + whole_group + R"(\].*max allocated: )" + number_group +
                             R"( \| reserved: )" + number_group + R"( \| max reserved: )" + number_group +
                             R"((?: \| total device memory used: )" + number_group + ")?");
  const auto m = pattern.first_in(line);
  if (m.empty()) return;
  RankMemory memory{std::stoi(m[1]), of_mebibytes(m[2]), of_mebibytes(m[4]), {}};
  if (!m[5].empty()) memory.outside = of_mebibytes(m[5]) - of_mebibytes(m[3]);
  const auto known =
      std::find_if(log.memory.begin(), log.memory.end(), [&](const auto& r) { return r.rank == memory.rank; });
  if (known == log.memory.end())
    log.memory.push_back(memory);
  else
    *known = memory;
}

std::string shortened(std::string_view line) {
  constexpr std::size_t longest = 300;
  const auto from = line.find_first_not_of(" \t\r"), to = line.find_last_not_of(" \t\r");
  if (from == std::string_view::npos) return "";
  line = line.substr(from, to - from + 1);
  return std::string(line.substr(0, longest)) + (line.size() > longest ? "..." : "");
}

}  // namespace

std::string_view name(Status status) {
  constexpr std::string_view names[] = {"ok", "out of memory", "failed", "timed out", "interrupted", "not run"};
  return names[static_cast<std::size_t>(status)];
}

Log read_log(std::string_view text) {
  Log log;
  each_line(text, [&](std::string_view line) {
    if (holds(line, "elapsed time per iteration") || holds(line, "Step Time :")) read_step(line, log);
    if (holds(line, "max reserved:")) read_memory(line, log);
  });
  return log;
}

Failure failure_of(std::string_view text, int exit_status) {
  std::string memory, error, last;
  each_line(text, [&](std::string_view line) {
    const auto said = shortened(line);
    if (said.empty()) return;
    // torchrun's own report of a failed worker comes last and says nothing.
    const bool of_launcher = holds(said, "ChildFailedError") || holds(said, "torch.distributed.elastic") ||
                             holds(said, "======") || holds(said, "traceback :");
    if (!of_launcher) last = said;
    if (memory.empty() && (holds(said, "CUDA out of memory") || holds(said, "OutOfMemoryError"))) memory = said;
    static const Regex raised(R"(^(\[rank\d+\]: ?)?[A-Za-z_.]*(Error|Exception|Interrupt)\b)");
    if (error.empty() && !of_launcher && raised.found_in(said)) error = said;
  });
  if (!memory.empty()) return {Status::out_of_memory, memory};
  if (!error.empty()) return {Status::failed, error};
  return {Status::failed, "exit status " + std::to_string(exit_status) +
                              (last.empty() ? ", nothing was printed" : "; last line: " + last)};
}

}  // namespace pipewright::trial
