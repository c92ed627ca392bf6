// The table that nccl-tests prints (src/util.cu: writeDeviceReport, writeResultHeader, writeBenchmarkLineBody), of any
// version that lists its ranks: columns go by the header's names, as their number differs between versions.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "nccl_runs.hpp"
#include "pipewright/regex.hpp"

namespace pipewright::nccl_tests {
namespace {

std::vector<std::string> words(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> result;
  for (std::string word; in >> word;) result.push_back(word);
  return result;
}

double number(const std::string& word, const Position& at, const std::string& column) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc() || end != word.data() + word.size() || !(value >= 0))
    throw UsageError(at, column, fmt::format("\"{}\" is no number", word));
  return value;
}

/// Columns of a table, in order: "size", "count", ..., "time", "algbw", "busbw", "#wrong", "time", ...
Row row(const std::vector<std::string>& columns, const std::vector<std::string>& fields, const Position& at) {
  // After the columns may follow a date, in the column "timestamp" or not.
  const bool dated = !columns.empty() && columns.back() == "timestamp";
  const std::size_t wanted = columns.size() + (dated ? 1 : 0);
  if (fields.size() != wanted)
    throw UsageError(
        at, {}, fmt::format("a row of {} fields under a head of {} columns: is it cut off?", fields.size(), wanted));
  Row result;
  result.at = at;
  result.bytes = static_cast<std::int64_t>(number(fields.front(), at, "size"));
  for (std::size_t i = 0; i < columns.size(); ++i) {
    const std::string& name = columns[i];
    if (fields[i] == "N/A" || name == "timestamp") continue;
    if (name == "time") result.us.push_back(number(fields[i], at, name));
    if (name == "busbw") result.busbw.push_back(number(fields[i], at, name));
    if (name == "algbw" && result.algbw == 0) result.algbw = number(fields[i], at, name);
    if (name == "#wrong" && number(fields[i], at, name) > 0)
      throw UsageError(at, name, "the transfer gave wrong data: its time says nothing");
  }
  return result;
}

/// What launchers put before a line: "[1,0]<stdout>:" of mpirun --tag-output, "0: " of srun --label.
std::string without_label(std::string line) {
  static const Regex label(R"(^(?:\[\d+,\d+\](?:<\w+>)?:?|\s*\d+:)\s?(.*)$)");
  if (!line.empty() && line.back() == '\r') line.pop_back();
  const auto found = label.first_in(line);
  return found.empty() ? line : found[1];
}

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  void read(const std::string& content) {
    std::istringstream in(content);
    std::string line;
    for (int n = 1; std::getline(in, line); ++n) {
      line = without_label(std::move(line));
      const Position at{path_, n};
      if (line.empty()) continue;
      if (line.front() == '#')
        remark(line, at);
      else
        other(line, at);
    }
  }
  std::vector<Run> take() { return std::move(runs_); }

 private:
  void remark(const std::string& line, const Position& at) {
    static const Regex version(R"(^# nccl-tests version \S+ .*nccl-library=(\d{1,6})$)");
    static const Regex starting(R"(^# Collective test starting: (\S+))");
    static const Regex head(R"(^# nThread \d+ nGpus \d+ .*warmup iters: \d+ iters: (\d{1,9}))");
    static const Regex rank(
        R"(^#\s+Rank\s+\d+\s+(?:Group\s+(-?\d+)\s+)?Pid\s+\d+ on\s+(\S+) device\s+(\d{1,6}) \[[^\]]*\]\s*(.*)$)");
    static const Regex cut(R"(^#\s*Rank.*\.\.\.$)"), columns(R"(^#\s+size\s+count\s+type\s)");
    if (const auto number_of = version.first_in(line); !number_of.empty()) nccl_ = number_of[1];
    if (const auto named = starting.first_in(line); !named.empty()) program_ = named[1];
    if (const auto iterations = head.first_in(line); !iterations.empty()) begin(at, std::stoi(iterations[1]));
    if (cut.found_in(line))
      throw UsageError(at, "Rank", "the list of ranks is cut off: run one process a GPU (-g 1 -t 1)");
    if (const auto gpu = rank.first_in(line); !gpu.empty()) {
      if (runs_.empty())
        throw UsageError(at, {}, "a rank before the line \"# nThread ...\": the output's head is missing");
      runs_.back().gpus.push_back({gpu[1], gpu[2], gpu[4], std::stoll(gpu[3])});
    }
    if (columns.found_in(line)) {
      columns_ = words(line.substr(1));
      if (std::ranges::find(columns_, "cputime") != columns_.end())
        throw UsageError(at, "cputime", "times of the CPU (-C 1) are not those of the transfer");
    }
  }

  /// One run of several groups may print its head once a group, with the ranks after all of them.
  void begin(const Position& at, int iterations) {
    const bool again = !runs_.empty() && runs_.back().gpus.empty() && columns_.empty();
    if (!again) runs_.push_back({at, program_, {}, {}, iterations, nccl_});
    columns_.clear();
    program_.clear();
  }

  /// Rows; a command line that was printed; NCCL's own messages.
  void other(const std::string& line, const Position& at) {
    static const Regex command(
        R"((?:^|[\s/])((?:all_gather|reduce_scatter|all_reduce|alltoallv?|sendrecv|broadcast|reduce|gather|scatter|hypercube)_perf\w*)(?:\s|$))");
    const auto fields = words(line);
    const bool counts = !fields.empty() && fields.front().find_first_not_of("0123456789") == std::string::npos;
    if (counts && !runs_.empty() && !columns_.empty()) {
      runs_.back().rows.push_back(row(columns_, fields, at));
    } else if (const auto named = command.first_in(line); !named.empty()) {
      program_ = named[1];
    }
  }

  std::string path_, program_, nccl_;
  std::vector<Run> runs_;
  std::vector<std::string> columns_;  ///< of the run's table, once its head was read
};

}  // namespace

std::vector<Run> read_text(const std::string& path, const std::string& content) {
  Reader reader(path);
  reader.read(content);
  return reader.take();
}

}  // namespace pipewright::nccl_tests
