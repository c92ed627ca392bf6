// One candidate: predicted, run, read back.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "ended.hpp"
#include "pipewright/capture.hpp"
#include "pipewright/import.hpp"
#include "pipewright/process.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

namespace fs = std::filesystem;

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

int pp_rank_of(const scenario::Scenario& s, int rank) {  // order tp-cp-ep-dp-pp
  return static_cast<int>(rank /
                          std::max<scenario::Int>(1, s.cluster.num_gpus / s.settings.pipeline_model_parallel_size));
}

/// A log; of one that is longer than any that was meant, its beginning and its end.
std::string log_text(const std::string& path) {
  constexpr std::streamoff half = 64 << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  const std::streamoff size = file.tellg();
  std::string text;
  const auto add = [&](std::streamoff from, std::streamoff to) {
    const auto before = text.size();
    text.resize(before + static_cast<std::size_t>(to - from));
    file.seekg(from);
    file.read(text.data() + before, to - from);
    text.resize(before + static_cast<std::size_t>(file.gcount()));
  };
  if (size <= 2 * half) {
    add(0, std::max<std::streamoff>(size, 0));
  } else {
    add(0, half);
    text += "\n";
    add(size - half, size);
  }
  return text;
}

/// What its processes recorded, rank by rank.
class Recordings {
 public:
  Recordings(const Options& options, const std::string& name) : folder_(fs::path(options.folder) / (name + ".rec")) {
    if (!options.record) return;
    capture::Attach how;
    how.first_step = how.last_step = recorded_step;
    how.step_kernel = options.step_kernel;
    how.step_range = options.step_range;
    how.folder = folder_.string();
    variables_ = capture::recorder_environment(how);
  }

  /// Before a run: no older one's remain.
  void prepare() const {
    if (!can()) return;
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }

  bool can() const { return !variables_.empty(); }
  const std::vector<std::pair<std::string, std::string>>& variables() const { return variables_; }

  void read(Run& run) const {
    if (!can() || !fs::exists(folder_)) return;
    const bool experts = run.candidate.scenario.settings.expert_model_parallel_size > 1;
    for (const auto& path : capture::gather(folder_.string())) {
      try {
        const auto trace = traces::read(path);
        run.recorded.emplace_back(trace.rank, traces::summarise(trace, experts));
      } catch (const UsageError& error) {
        run.notes.push_back(error.what());
      }
    }
    std::sort(run.recorded.begin(), run.recorded.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  }

 private:
  fs::path folder_;
  std::vector<std::pair<std::string, std::string>> variables_;
};

/// Steps that count, or of a program that prints none the longest span of the recorded one.
void time_steps(Run& run, const Log& log) {
  for (const auto& [step, ms] : log.steps)
    if (step >= first_counted_step) run.samples_ms.push_back(ms);
  run.step_ms = median(run.samples_ms);
  if (run.step_ms || run.recorded.empty()) return;
  double longest = 0;
  for (const auto& [rank, summary] : run.recorded) longest = std::max(longest, summary.span_us / 1e3);
  run.step_ms = longest;
  run.from_recording = true;
}

/// The scenario with the run's own section `measured:` (formats: a step alone, its source, peaks by pipeline rank).
void write_scenario(const Run& run, const Options& options) {
  auto scenario = run.candidate.scenario;
  scenario.search = {};
  scenario.measured.reset();
  const std::string how = run.from_recording
                              ? "span of a recorded step"
                              : fmt::format("median of steps {} to {}", first_counted_step, options.steps);
  std::string text = scenario::write(scenario);
  text += fmt::format("measured:\n  step_ms: {:.3f}\n  source: 'pipewright trial, {}: {}'\n", *run.step_ms,
                      run.candidate.name, how);
  std::map<int, Bytes> peaks;
  for (const auto& memory : run.memory) {
    auto& peak = peaks[pp_rank_of(scenario, memory.rank)];
    peak = std::max(peak, memory.allocated);
  }
  if (!peaks.empty()) text += "  peak_allocated_bytes_by_rank:\n";
  for (const auto& [rank, peak] : peaks) text += fmt::format("    {}: {}\n", rank, peak.value);
  write_file((fs::path(options.folder) / (run.candidate.name + ".yaml")).string(), text);
}

/// A log that speaks of more ranks than the candidate has is another run's.
void leave_out_foreign_ranks(Run& run) {
  const auto gpus = run.candidate.scenario.cluster.num_gpus;
  const auto foreign = [&](const auto& memory) { return memory.rank >= gpus; };
  if (std::erase_if(run.memory, foreign) + std::erase_if(run.recorded, [&](const auto& r) { return r.first >= gpus; }) >
      0)
    run.notes.push_back(fmt::format("the run has more ranks than the {} GPUs of what was predicted", gpus));
}

void judge(Run& run, const Ended& ended, const Failure& failure, const Log& log, const Options& options) {
  const auto end_with = [&](const Failure& why, const std::string& more = {}) {
    run.status = why.status;
    run.cause = why.cause;
    run.reason = why.reason + more;
    run.lines = why.lines;
  };
  const bool all_steps = !log.steps.empty() && log.steps.back().first >= options.steps;
  const auto killed =
      fmt::format("still running after {:.0f} s, {} steps done; killed", options.limit_s, log.steps.size());
  run.status = Status::failed;
  if (ended.interrupted) {
    run.status = Status::interrupted;
  } else if (ended.timed_out &&
             failure.status == Status::out_of_memory) {  // the other ranks wait for the one that died
    end_with(failure, "; " + killed);
  } else if (ended.timed_out && all_steps && run.step_ms) {
    run.status = Status::ok;
    run.notes.push_back(killed + ": {steps} in COMMAND says where to end");
  } else if (ended.timed_out) {
    if (failure.named) end_with(failure);
    run.status = Status::timed_out;
    run.reason = killed + (failure.named ? "; its log says: " + failure.reason : "");
  } else if (ended.status != 0 || (!run.step_ms && failure.status == Status::out_of_memory)) {
    end_with(failure);
  } else if (!run.step_ms) {
    if (failure.named) end_with(failure);
    run.reason = fmt::format(
        "ended without a step time: neither \"elapsed time per iteration\" of step {} or later "
        "in its output nor a recorded step{}",
        first_counted_step, failure.named ? "; its log says: " + failure.reason : "");
  } else {
    run.status = Status::ok;
  }
}

/// Everything that a run left, read: the same for one that has just ended and for one of an earlier trial.
void read_back(Run& run, const Ended& ended, const Recordings& recordings, const Options& options) {
  const std::string text = log_text(run.log);
  const Log log = read_log(text);
  run.memory = log.memory;
  recordings.read(run);
  leave_out_foreign_ranks(run);
  time_steps(run, log);
  judge(run, ended, failure_of(text, ended.status), log, options);
  if (run.status != Status::ok) run.step_ms.reset();
}

/// What was measured is told in any case, also where it cannot be kept: on a full disk for instance.
template <class Write>
void write_or_note(Run& run, const Write& write) {
  try {
    write();
  } catch (const UsageError& error) {
    run.notes.push_back(std::string("not kept: ") + error.what());
  } catch (const fs::filesystem_error& error) {
    run.notes.push_back(std::string("not kept: ") + error.what());
  }
}

}  // namespace

Run run(const Candidate& candidate, const profile::Profiles& profiles, const Options& options, std::stop_token stop,
        std::stop_token at_once) {
  Run result;
  result.candidate = candidate;
  result.prediction = predict::predict(candidate.scenario, profiles);
  if (stop.stop_requested()) return result;
  const fs::path folder = options.folder;
  result.log = (folder / (candidate.name + ".log")).string();
  const std::string end = (folder / (candidate.name + ".ended.json")).string();
  const Command command = fill(options.command, candidate, options.form, options.steps);
  const std::string line = shell_line(command);
  const Recordings recordings(options, candidate.name);
  if (const auto ended = options.resume ? kept_end(end, line) : std::nullopt) {
    Run taken = result;
    read_back(taken, *ended, recordings, options);
    // What the candidate itself decides stays so; a lost connection or a killed worker may not come again.
    if (taken.status == Status::ok || taken.status == Status::out_of_memory) {
      taken.notes.emplace_back("taken over from an earlier trial");
      return taken;
    }
  }
  std::error_code nothing_there;
  fs::create_directories(folder, nothing_there);  // where it fails, the log says so
  for (const auto& old : {end, (folder / (candidate.name + ".yaml")).string()}) fs::remove(old, nothing_there);
  write_or_note(result, [&] { recordings.prepare(); });
  auto environment = command.environment;
  environment.insert(environment.end(), recordings.variables().begin(), recordings.variables().end());
  Ended ended;
  try {
    ended = run_process({command.words, environment, result.log}, options.limit_s, stop, at_once);
  } catch (const UsageError& error) {
    if (error.where().file != result.log) throw;
    result.status = Status::failed;  // no log, no run; what ran before is kept
    result.reason = error.what();
    return result;
  }
  if (options.record && !recordings.can())
    result.notes.push_back("not recorded: this build has no recorder (it was configured without CUDA)");
  read_back(result, ended, recordings, options);
  if (!ended.interrupted) write_or_note(result, [&] { keep_end(end, line, ended); });
  if (result.step_ms) write_or_note(result, [&] { write_scenario(result, options); });
  return result;
}

}  // namespace pipewright::trial
