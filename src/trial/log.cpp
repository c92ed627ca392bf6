// What a training loop prints: step times and memory (megatron/training/training.py, training_log; utils,
// report_memory).
#include <algorithm>

#include "log_lines.hpp"
#include "pipewright/regex.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

// As long as the numbers of a run: longer ones are no line of a training loop.
const std::string whole_group = R"((\d{1,9}))", number_group = R"((\d{1,12}(?:\.\d{0,12})?))";
// A number ends here: of "1,500.0" or "1e9" the beginning is none.
const std::string end_of_number = R"((?=[\s|]|$))";

Bytes of_mebibytes(const std::string& text) {
  return Bytes(static_cast<std::int64_t>(std::stod(text) * 1024 * 1024 + 0.5));
}
Bytes of_gigabytes(const std::string& text) { return Bytes(static_cast<std::int64_t>(std::stod(text) * 1e9 + 0.5)); }

/// Bridge prints a step twice, as seconds to a hundredth and in Megatron-LM's words (train_utils.py, training_log):
/// the former count where the latter are missing.
struct Lines {
  std::vector<std::pair<int, double>> exact, rounded;
  std::vector<int> unusual;
  int seconds = 0;

  void read(std::string_view line) {
    static const Regex megatron(R"(iteration\s+)" + whole_group + R"(\s*/.*elapsed time per iteration \(ms\): )" +
                                number_group + end_of_number),
        bridge("Step Time : " + number_group + "s" + end_of_number);
    static const Regex skipped(R"(number of (?:skipped|nan) iterations: +[1-9])");
    if (const auto m = megatron.first_in(line); !m.empty()) {
      add(exact, std::stoi(m[1]), std::stod(m[2]));
      if (skipped.found_in(line)) unusual.push_back(std::stoi(m[1]));
    } else if (const auto s = bridge.first_in(line); !s.empty()) {
      add(rounded, ++seconds, 1e3 * std::stod(s[1]));
    }
  }

 private:
  /// Where several ranks print, a step is still one.
  static void add(std::vector<std::pair<int, double>>& to, int step, double ms) {
    const auto known = [&](const auto& each) { return each.first == step; };
    if (ms > 0 && std::none_of(to.begin(), to.end(), known)) to.emplace_back(step, ms);
  }
};

/// Megatron-LM's line in MiB, Bridge's in units of 1e9 bytes.
void read_memory(std::string_view line, Log& log) {
  static const Regex megatron(R"(\[Rank )" + whole_group + R"(\].*max allocated: )" + number_group +
                              R"( \| reserved: )" + number_group + R"( \| max reserved: )" + number_group +
                              end_of_number + R"((?: \| total device memory used: )" + number_group + end_of_number +
                              ")?"),
      bridge(R"(\[Rank )" + whole_group + R"(\].* mem-max-allocated-gigabytes: )" + number_group + end_of_number +
             R"(.* mem-max-reserved-gigabytes: )" + number_group + end_of_number);
  RankMemory memory;
  if (const auto m = megatron.first_in(line); !m.empty()) {
    memory = {std::stoi(m[1]), of_mebibytes(m[2]), of_mebibytes(m[4]), {}};
    if (!m[5].empty()) memory.outside = of_mebibytes(m[5]) - of_mebibytes(m[3]);
  } else if (const auto b = bridge.first_in(line); !b.empty()) {
    memory = {std::stoi(b[1]), of_gigabytes(b[2]), of_gigabytes(b[3]), {}};
  } else {
    return;
  }
  const auto known =
      std::find_if(log.memory.begin(), log.memory.end(), [&](const auto& r) { return r.rank == memory.rank; });
  if (known == log.memory.end())
    log.memory.push_back(memory);
  else
    *known = memory;
}

/// Python without a buffer writes a line and its end apart: lines of several ranks become one.
template <class Each>
void each_rank(std::string_view line, const Each& body) {
  constexpr std::string_view begins = "[Rank ";
  for (std::size_t at = line.find(begins); at != std::string_view::npos;) {
    const auto next = line.find(begins, at + 1);
    body(line.substr(at, next - at));
    at = next;
  }
}

}  // namespace

std::string plain(std::string_view line) {
  std::string out;
  for (std::size_t at = 0; at < line.size(); ++at) {
    const auto byte = static_cast<unsigned char>(line[at]);
    if (byte == 0x1b && at + 1 < line.size()) {
      const bool title = line[++at] == ']';
      if (title) at = std::min(line.find('\a', at), line.size());
      if (line[at] == '[')  // parameters, then one letter
        while (++at < line.size() && (line[at] < '@' || line[at] > '~')) continue;
    } else if (byte >= ' ' || byte == '\t') {
      out += line[at];
    }
  }
  return out;
}

std::string shortened(std::string_view line) {
  constexpr std::size_t longest = 300;
  const auto from = line.find_first_not_of(" \t\r"), to = line.find_last_not_of(" \t\r");
  if (from == std::string_view::npos) return "";
  line = line.substr(from, to - from + 1);
  return std::string(line.substr(0, longest)) + (line.size() > longest ? "..." : "");
}

std::string_view name(Status status) {
  constexpr std::string_view names[] = {"ok", "out of memory", "failed", "timed out", "interrupted", "not run"};
  return names[static_cast<std::size_t>(status)];
}

Log read_log(std::string_view text) {
  Log log;
  Lines lines;
  // A line that is longer is no line of a training loop, and regular expressions recurse over its letters.
  constexpr std::size_t longest = 4096;
  each_line(text, [&](std::string_view line) {
    line = line.substr(0, longest);
    if (holds(line, "elapsed time per iteration") || holds(line, "Step Time :")) lines.read(line);
    if (holds(line, "max reserved:") || holds(line, "mem-max-reserved-gigabytes:"))
      each_rank(line, [&](std::string_view of_rank) { read_memory(of_rank, log); });
  });
  log.unusual = std::move(lines.unusual);
  log.steps = lines.exact.empty() ? std::move(lines.rounded) : std::move(lines.exact);
  return log;
}

Steps steps_of(const Log& log) {
  Steps steps;
  if (log.steps.empty()) return steps;
  auto sorted = log.steps;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 1; i < sorted.size(); ++i) {
    const int apart = sorted[i].first - sorted[i - 1].first;
    steps.apart = i == 1 ? apart : std::min(steps.apart, apart);
  }
  const int first = sorted.front().first;
  steps.done = sorted.back().first - first + steps.apart;
  const auto usual = [&](int step) { return std::count(log.unusual.begin(), log.unusual.end(), step) == 0; };
  for (const auto& [step, ms] : log.steps) {
    if (steps.apart != 1 || step - first + 1 < first_counted_step) continue;
    if (usual(step))
      steps.samples_ms.push_back(ms);
    else
      ++steps.unusual;
  }
  return steps;
}

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace pipewright::trial
