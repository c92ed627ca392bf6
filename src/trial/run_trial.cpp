// One candidate: predicted, run, read back.
#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ended.hpp"
#include "pipewright/capture.hpp"
#include "pipewright/import.hpp"
#include "pipewright/process.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/trial.hpp"
#include "pipewright/validate.hpp"

namespace pipewright::trial {
namespace {

namespace fs = std::filesystem;

int pp_rank_of(const scenario::Scenario& s, int rank) {  // order tp-cp-ep-dp-pp
  return static_cast<int>(rank /
                          std::max<scenario::Int>(1, s.cluster.num_gpus / s.settings.pipeline_model_parallel_size));
}

/// A log, or what it held when its run was asked to end; of one that is longer than any that was meant, its beginning
/// and its end.
std::string log_text(const std::string& path, std::optional<std::uintmax_t> held) {
  constexpr std::streamoff half = 64 << 20;
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return "";
  std::streamoff size = file.tellg();
  if (held) size = std::min(size, static_cast<std::streamoff>(std::min<std::uintmax_t>(*held, INT64_MAX)));
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
  Recordings(const Options& options, fs::path folder) : folder_(std::move(folder)), wanted_(options.record) {
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

  /// What shows that its attention is not the scenario's (traces::other_attention).
  std::optional<std::string> read(Run& run, const fs::path& folder) const {
    std::optional<std::string> other_attention;
    if (!wanted_ || !fs::exists(folder)) return other_attention;
    const auto exchanges = traces::exchanges_of(run.candidate.scenario);
    for (const auto& path : recordings_in(folder)) {
      try {
        const auto trace = traces::read(path);
        run.recorded.emplace_back(trace.rank, traces::summarise(trace, exchanges));
        if (!other_attention) other_attention = traces::other_attention(run.candidate.scenario, trace);
      } catch (const UsageError& error) {
        run.notes.push_back(error.what());
      }
    }
    std::sort(run.recorded.begin(), run.recorded.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    return other_attention;
  }

 private:
  /// Of an earlier trial's run they are gathered already.
  static std::vector<std::string> recordings_in(const fs::path& folder) {
    auto files = capture::gather(folder.string());
    if (!files.empty()) return files;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().filename().string().rfind("rec.r", 0) == 0) files.push_back(entry.path().string());
    return files;
  }

  fs::path folder_;
  bool wanted_;
  std::vector<std::pair<std::string, std::string>> variables_;
};

/// Steps that count, or of a program that prints none the longest span of the recorded one.
void time_steps(Run& run, const Log& log) {
  run.steps = steps_of(log);
  run.step_ms = median(run.steps.samples_ms);
  if (run.step_ms || run.recorded.empty()) return;
  double longest = 0;
  for (const auto& [rank, summary] : run.recorded) longest = std::max(longest, summary.span_us / 1e3);
  run.step_ms = longest;
  run.from_recording = true;
}

/// The scenario with the run's own section `measured:` (formats: a step alone, its source, memory by pipeline rank).
scenario::Scenario measured_scenario(const Run& run) {
  auto scenario = run.candidate.scenario;
  scenario.search = {};
  auto& measured = scenario.measured.emplace();
  measured.step_ms = std::round(*run.step_ms * 1e3) / 1e3;
  measured.source =
      fmt::format("pipewright trial, {}: {}", run.candidate.name,
                  run.from_recording ? "span of a recorded step"
                                     : fmt::format("median of steps {} to {}", first_counted_step, run.steps.done));
  for (const auto& memory : run.memory) {
    const auto most = [&](auto& by_rank, Bytes bytes) {
      auto& peak = by_rank[pp_rank_of(scenario, memory.rank)];
      peak = std::max(peak, bytes);
    };
    most(measured.peak_allocated_bytes_by_rank, memory.allocated);
    most(measured.peak_reserved_bytes_by_rank, memory.reserved);
    // The recorder's library holds memory of its own there.
    if (memory.outside && run.recorded.empty()) most(measured.outside_allocator_bytes_by_rank, *memory.outside);
  }
  return scenario;
}

/// A log that speaks of more ranks than the candidate has is another run's.
void leave_out_foreign_ranks(Run& run) {
  const auto gpus = run.candidate.scenario.cluster.num_gpus;
  const auto foreign = [&](const auto& memory) { return memory.rank >= gpus; };
  if (std::erase_if(run.memory, foreign) + std::erase_if(run.recorded, [&](const auto& r) { return r.first >= gpus; }) >
      0)
    run.notes.push_back(fmt::format("the run has more ranks than the {} GPUs of what was predicted", gpus));
}

/// Why there is no step time.
std::string without_time(const Run& run, const Failure& failure) {
  if (run.steps.unusual > 0)
    return fmt::format(
        "in none of its steps from {} on did the optimizer step with a finite loss (Megatron's \"number of skipped "
        "iterations\" and \"nan iterations\"): of fp16 an --initial-loss-scale that fits, or more --steps",
        first_counted_step);
  const std::string why =
      run.steps.apart > 1
          ? fmt::format("prints a step time for every {} steps, their mean; --log-interval 1 in COMMAND prints each",
                        run.steps.apart)
          : fmt::format(
                "ended without a step time: neither \"elapsed time per iteration\" of its step {} or later "
                "nor a recorded step (steps printed: {}; --log-interval 1 in COMMAND prints each)",
                first_counted_step, run.steps.done);
  return why + (failure.named ? "; its log says: " + failure.reason : "");
}

void judge(Run& run, const Ended& ended, const Failure& failure, const Options& options) {
  const auto end_with = [&](const Failure& why, const std::string& more = {}) {
    run.status = why.status;
    run.cause = why.cause;
    run.reason = why.reason + more;
    run.lines = why.lines;
  };
  const bool all_steps = run.steps.done >= options.steps;
  const auto killed =
      fmt::format("still running after {:.0f} s, {} steps done; killed", options.limit_s, run.steps.done);
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
    run.reason = without_time(run, failure);
  } else {
    run.status = Status::ok;
  }
}

/// Everything that a run left, read: the same for one that has just ended and for one of an earlier trial.
void read_back(Run& run, const Ended& ended, const Recordings& recordings, const fs::path& recorded,
               const Options& options, const profile::Profiles& profiles) {
  const std::string text = log_text(run.log, ended.log_bytes);
  const Log log = read_log(text);
  run.memory = log.memory;
  auto attention = recordings.read(run, recorded);
  leave_out_foreign_ranks(run);
  time_steps(run, log);
  const Failure failure = failure_of(text, ended.status);
  judge(run, ended, failure, options);
  if (!attention && !failure.unfused.empty()) attention = traces::told_unfused(run.candidate.scenario, failure.unfused);
  if (attention) run.notes.push_back(*attention);
  if (const auto others = not_of(run.candidate.scenario, text); !others.empty()) {
    run.status = Status::failed;
    run.cause = Cause::none;
    run.lines.clear();
    run.reason = "the program runs something else: " + fmt::format("{}", fmt::join(others, "; ")) +
                 " (does COMMAND hand {flags} on, and set none of it again?)";
  }
  if (run.step_ms && run.steps.unusual > 0)
    run.notes.push_back(fmt::format("{} of its steps do not count: the optimizer did not step, or the loss was NaN",
                                    run.steps.unusual));
  if (run.status != Status::ok) run.step_ms.reset();
  if (run.step_ms && !run.from_recording)  // the recorder slows hosts
    run.host_factor = validate::host_factor_of(measured_scenario(run), profiles, run.prediction);
}

/// What the candidate itself decides stays so; a lost connection or a killed worker may not come again.
bool settled(const Run& run) { return run.status == Status::ok || run.status == Status::out_of_memory; }

/// The files of a candidate: of a run under way beside those of an earlier one, which go when it has settled more.
/// Where of two runs one was measured and one ran out of memory, both stay: memory is near its limit.
class Files {
 public:
  Files(const std::string& folder, std::string name) : folder_(folder), name_(std::move(name)) {}

  fs::path kept(const char* what) const { return folder_ / (name_ + what); }
  fs::path fresh(const char* what) const { return folder_ / (name_ + ".new" + what); }
  fs::path out_of_memory(const char* what) const { return folder_ / (name_ + ".oom" + what); }
  bool measured() const { return fs::exists(kept(".yaml")); }
  bool earlier() const { return measured() || fs::exists(kept(".ended.json")); }

  void replace() const {
    if (!measured() && fs::exists(fresh(".yaml")) && earlier())
      for (const char* what : ended_) set_aside(kept(what), what);
    fs::remove_all(kept(".rec"));  // a folder is not renamed over another
    for (const char* what : {".yaml", ".ended.json", ".log", ".rec"}) {
      if (fs::exists(fs::symlink_status(fresh(what))))
        fs::rename(fresh(what), kept(what));
      else
        fs::remove(kept(what));
    }
  }
  void set_aside() const {
    for (const char* what : ended_) set_aside(fresh(what), what);
  }
  void clear() const {
    for (const char* what : {".rec", ".ended.json", ".yaml"}) fs::remove_all(fresh(what));
  }
  /// Of another scenario.
  void forget() const {
    for (const char* what : {".yaml", ".ended.json"}) fs::remove(kept(what));
    for (const char* what : ended_) fs::remove(out_of_memory(what));
  }

 private:
  static constexpr std::array ended_ = {".ended.json", ".log"};
  void set_aside(const fs::path& file, const char* what) const {
    if (fs::exists(file)) fs::rename(file, out_of_memory(what));
  }

  fs::path folder_;
  std::string name_;
};

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

/// Of a scenario file's text what decides its prediction, as written again; nullopt: it is none.
std::optional<std::string> essence(const std::string& text, const std::string& file) {
  try {
    auto scenario = scenario::parse(text, file);
    scenario.measured.reset();
    scenario.search = {};
    scenario.name.clear();
    return scenario::write(scenario);
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::string text_of(const fs::path& file) {  // read_file() would take it for an input, never to be replaced
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

namespace {

[[noreturn]] void refuse_folder(const std::string& why) { throw UsageError({"command line", 0}, "--out", why); }

}  // namespace

HeldFolder::HeldFolder(const std::string& folder) {
  std::error_code problem;
  fs::create_directories(folder, problem);
  if (problem || access(folder.c_str(), W_OK | X_OK) != 0)
    refuse_folder(folder + ": cannot write: " + (problem ? problem.message() : std::strerror(errno)));
  file_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Some file systems of clusters lock nothing; there as before.
  if (file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    ::close(file_);
    refuse_folder(folder + ": another trial is writing here: let it end, or give another folder");
  }
}
HeldFolder::~HeldFolder() {
  if (file_ >= 0) ::close(file_);
}

std::vector<std::string> open_folder(const std::string& folder, const std::vector<Candidate>& candidates,
                                     bool replace) {
  std::vector<std::string> others;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto& path = entry.path();
    if (!entry.is_regular_file() || path.extension() != ".yaml") continue;
    const auto found = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const auto& each) { return each.name == path.stem().string(); });
    if (found == candidates.end()) {
      others.push_back(path.filename().string());
    } else if (essence(text_of(path), path.string()) != essence(scenario::write(found->scenario), path.string())) {
      if (!replace)
        refuse_folder(path.string() + " was measured of another run than " + found->name +
                      " is here: give another folder, or --force to replace it");
      Files(folder, found->name).forget();
    }
  }
  std::sort(others.begin(), others.end());
  return others;
}

namespace {

void note_other_end(Run& run, const Files& files, const std::string& line) {
  if (run.status == Status::ok && kept_end(files.out_of_memory(".ended.json").string(), line))
    run.notes.push_back("another run of it ran out of memory: " + files.out_of_memory(".log").string());
}

}  // namespace

Run run(const Candidate& candidate, const profile::Profiles& profiles, const Options& options, std::stop_token stop,
        std::stop_token at_once) {
  Run result;
  result.candidate = candidate;
  result.prediction = predict::predict(candidate.scenario, profiles);
  if (stop.stop_requested()) return result;
  const Files files(options.folder, candidate.name);
  result.log = files.kept(".log").string();
  const Command command = fill(options.command, candidate, options.form, options.steps);
  const std::string line = shell_line(command);
  for (const auto& remark : command.remarks) result.notes.push_back("flags: " + remark);
  const Recordings recordings(options, files.fresh(".rec"));
  if (const auto ended = options.resume ? kept_end(files.kept(".ended.json").string(), line) : std::nullopt) {
    Run taken = result;
    read_back(taken, *ended, recordings, files.kept(".rec"), options, profiles);
    if (settled(taken)) {
      taken.notes.emplace_back("taken over from an earlier trial");
      note_other_end(taken, files, line);
      return taken;
    }
  }
  write_or_note(result, [&] { files.clear(), recordings.prepare(); });
  auto environment = command.environment;
  environment.insert(environment.end(), recordings.variables().begin(), recordings.variables().end());
  result.log = files.fresh(".log").string();
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
  if (ended.left_behind) result.notes.push_back("left processes behind when it ended; they were ended");
  if (ended.unkillable > 0)
    result.notes.push_back(
        fmt::format("{} of its processes cannot be killed and may hold their GPUs: what runs next "
                    "shares these",
                    ended.unkillable));
  read_back(result, ended, recordings, files.fresh(".rec"), options, profiles);
  if (!settled(result) && files.earlier()) {
    result.notes.push_back("what an earlier run has measured stays in " + options.folder);
    return result;
  }
  write_or_note(result, [&] {
    if (settled(result)) keep_end(files.fresh(".ended.json").string(), line, ended);
    if (result.status == Status::out_of_memory && files.measured()) {
      files.set_aside();
      result.log = files.out_of_memory(".log").string();
      result.notes.push_back("what an earlier run has measured stays in " + options.folder);
      return;
    }
    if (result.step_ms) write_file(files.fresh(".yaml").string(), scenario::write(measured_scenario(result)));
    files.replace();
    result.log = files.kept(".log").string();
  });
  note_other_end(result, files, line);
  return result;
}

}  // namespace pipewright::trial
