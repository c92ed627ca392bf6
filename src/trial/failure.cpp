// Why a run ended, by name: the line of its log that says so, and what its process said last before it.
#include <algorithm>
#include <csignal>
#include <deque>

#include "log_lines.hpp"
#include "pipewright/regex.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

struct Sign {
  std::string_view words;
  Cause cause;
};

/// What PyTorch, NCCL, Transformer Engine, argparse, Hydra, Python and Slurm print; the first that a line holds names
/// it.
constexpr Sign kSigns[] = {
    {"CUDA out of memory", Cause::out_of_memory},
    {"OutOfMemoryError", Cause::out_of_memory},
    {"CUDA error: out of memory", Cause::out_of_memory},
    {"_STATUS_ALLOC_FAILED", Cause::out_of_memory},
    {"No space left on device", Cause::full_disk},
    {"Disk quota exceeded", Cause::full_disk},
    {"oom_kill event", Cause::host_memory},
    {"oom-kill event", Cause::host_memory},
    {"DefaultCPUAllocator: ", Cause::host_memory},
    {"Cannot allocate memory", Cause::host_memory},
    {"MemoryError", Cause::host_memory},
    {"error: unrecognized arguments", Cause::unknown_flag},
    {"error: ambiguous option", Cause::unknown_flag},
    {"unexpected keyword argument", Cause::unknown_flag},
    {"OverridesError", Cause::unknown_flag},
    {"Could not override", Cause::unknown_flag},
    {"error: argument ", Cause::refused_value},
    {"ModuleNotFoundError", Cause::missing},
    {"ImportError", Cause::missing},
    {"FileNotFoundError", Cause::missing},
    {"can't open file", Cause::missing},
    {"Address already in use", Cause::port_in_use},
    {"EADDRINUSE", Cause::port_in_use},
    {"DUE TO TIME LIMIT", Cause::time_limit},
    {"collective operation timeout", Cause::nccl_timeout},
    {"Timeout at NCCL work", Cause::nccl_timeout},
    {"timeout: WorkNCCL(", Cause::nccl_timeout},
    {"NCCL communicator was aborted", Cause::nccl},
    {"NCCL error", Cause::nccl},
    {"ncclRemoteError", Cause::nccl},
    {"ncclSystemError", Cause::nccl},
    {"ncclInternalError", Cause::nccl},
    {"DistBackendError", Cause::nccl},
    {"DistNetworkError", Cause::connection},
    {"DistStoreError", Cause::connection},
    {"RendezvousTimeoutError", Cause::connection},
    {"RendezvousConnectionError", Cause::connection},
    {"Connection closed by", Cause::connection},
    {"Connection reset by peer", Cause::connection},
    {"recvValue failed", Cause::connection},
    {"CUDA error: ", Cause::cuda},
    {"CUDA Error: ", Cause::cuda},  // Transformer Engine's
    {"cuBLAS Error: ", Cause::cuda},
    {"cuDNN Error: ", Cause::cuda},
    {"CUBLAS_STATUS_", Cause::cuda},
    {"CUDNN_STATUS_", Cause::cuda},
    {"AssertionError", Cause::assertion},
    {"Assertion failed", Cause::assertion},  // Transformer Engine's
};

Cause named_by(std::string_view line) {
  // NCCL's own words of an allocation that failed.
  if (holds(line, "Cuda failure")) return holds(line, "out of memory") ? Cause::out_of_memory : Cause::cuda;
  if (line.starts_with("[W") || holds(line, "Warning")) return Cause::none;  // a warning ends no run
  for (const auto& sign : kSigns)
    if (holds(line, sign.words)) return sign.cause;
  return Cause::none;
}

/// A line of a traceback through unfused attention (Transformer Engine's backends.py, Megatron's
/// dot_product_attention.py), or what NVTE_DEBUG has Transformer Engine say.
constexpr std::string_view kUnfused[] = {"torch.baddbmm(", "self.scale_mask_softmax(",
                                         "Selected backend = UnfusedDotProductAttention",
                                         "Running with UnfusedDotProductAttention"};

/// One process's end is told by the others as their own: a lower number is nearer to the root.
int distance_from_root(Cause cause) {
  switch (cause) {
    case Cause::out_of_memory:
      return 0;
    case Cause::full_disk:
    case Cause::host_memory:
      return 1;
    case Cause::unknown_flag:
    case Cause::refused_value:
    case Cause::missing:
    case Cause::port_in_use:
    case Cause::assertion:
    case Cause::exception:
      return 2;
    case Cause::cuda:
      return 3;
    case Cause::time_limit:
      return 4;
    case Cause::killed:
    case Cause::crash:
      return 5;
    case Cause::nccl_timeout:
      return 6;
    case Cause::nccl:
      return 7;
    case Cause::connection:
      return 8;
    case Cause::aborted:
    case Cause::none:
      break;
  }
  return 9;
}

/// Of an exit status as launchers tell it (-9) or as shells do (137).
Cause of_signal(int status) {
  switch (status < 0 ? -status : status > 128 ? status - 128 : 0) {
    case SIGKILL:
      return Cause::killed;
    case SIGILL:
    case SIGBUS:
    case SIGFPE:
    case SIGSEGV:
      return Cause::crash;
    case SIGABRT:
      return Cause::aborted;
    default:
      return Cause::none;
  }
}

/// A line without what a launcher puts before it: torchrun's --tee and PyTorch's excepthook ("[rank3]: "), srun -l
/// ("3: ").
struct Said {
  std::string speaker, words, whole;

  explicit Said(std::string line) : whole(std::move(line)) {
    static const Regex prefix(R"(^((\[[a-z]+\d+\]|\d+): ?)+)");
    const bool maybe = whole.front() == '[' || (whole.front() >= '0' && whole.front() <= '9');
    const auto found = maybe ? prefix.first_in(whole) : std::vector<std::string>();
    if (!found.empty()) speaker = found.front();
    words = shortened(std::string_view(whole).substr(speaker.size()));
  }
};

class Reader {
 public:
  void line(std::string_view text) {
    std::string line = shortened(text);
    if (line.empty()) return;
    Said now(std::move(line));
    // torchrun's own report of a failed worker and srun's come last and say nothing but the worker's status.
    static const Regex worker(R"((?:failed \(|  )?exitcode *: (-?\d{1,9}))");
    if (holds(now.whole, "exitcode")) {
      if (const auto status = worker.first_in(now.whole); !status.empty()) workers_.push_back(std::stoi(status[1]));
      launcher_speaks_ |= holds(now.whole, "failed (exitcode");
    }
    judge(now);
    if (unfused_.empty() && std::ranges::any_of(kUnfused, [&](auto words) { return holds(now.words, words); }))
      unfused_ = now.words;
    if (launcher_speaks_ || holds(now.whole, "ChildFailedError") || holds(now.whole, "torch.distributed.elastic") ||
        now.whole.starts_with("srun: "))
      return;
    recent_.push_back(std::move(now));
    if (recent_.size() > most_recent) recent_.pop_front();
  }

  Failure end(int exit_status) const {
    Failure result = why(exit_status);
    result.unfused = unfused_;
    return result;
  }

 private:
  Failure why(int exit_status) const {
    // A worker that its launcher ended (SIGTERM) ended because another did.
    const auto own = std::find_if(workers_.begin(), workers_.end(), [](int s) { return s != 0 && s != -SIGTERM; });
    const int worker = own != workers_.end() ? *own : workers_.empty() ? 0 : workers_.front();
    Cause signal = of_signal(worker);
    if (signal == Cause::none) signal = of_signal(exit_status);
    if (best_.named && distance_from_root(best_.cause) <= distance_from_root(signal)) return best_;
    Failure result;
    result.cause = signal;
    result.reason = "exit status " + std::to_string(exit_status) +
                    (worker == 0 ? "" : " (a worker's: " + std::to_string(worker) + ")");
    if (best_.named) {  // what the others say of it
      result.reason += "; " + best_.reason;
      result.lines = best_.lines;
    } else if (recent_.empty()) {
      result.reason += ", nothing was printed";
    } else {
      result.reason += "; last line: " + recent_.back().whole;
      result.lines = before(recent_.back().speaker, recent_.size() - 1);
    }
    return result;
  }

  static constexpr std::size_t most_recent = 64, most_lines = 4;

  void judge(const Said& now) {
    static const Regex raised(R"(^([A-Za-z_.]*(Error|Exception|Interrupt)\b|\S+\.py: error: ))"),
        no_words(R"(^[A-Za-z_.]*$)");
    if (holds(now.words, "ChildFailedError")) return;
    const bool may_be = holds(now.words, "Error") || holds(now.words, "Exception") || holds(now.words, "Interrupt") ||
                        holds(now.words, ".py: error: ");
    const bool is_raised = may_be && raised.found_in(now.words);
    Cause cause = named_by(now.words);
    if (cause == Cause::none && is_raised) cause = Cause::exception;
    if (cause == Cause::none || distance_from_root(best_.cause) <= distance_from_root(cause)) return;
    best_.cause = cause;
    best_.status = cause == Cause::out_of_memory ? Status::out_of_memory : Status::failed;
    best_.named = true;
    best_.reason = now.whole;
    if (is_raised && no_words.found_in(now.words) && !recent_.empty())  // `assert x` without a text
      best_.reason += ": " + recent_.back().words;
    // Before what argparse refuses stands its usage.
    const bool usage = holds(now.words, ": error: ");
    best_.lines = usage ? std::vector<std::string>() : before(now.speaker, recent_.size());
  }

  /// The last lines before `end` of the same process: where a traceback stands.
  std::vector<std::string> before(std::string_view speaker, std::size_t end) const {
    std::vector<std::string> lines;
    for (std::size_t i = end; i-- > 0 && lines.size() < most_lines;)
      if (recent_[i].speaker == speaker) lines.push_back(recent_[i].whole);
    std::reverse(lines.begin(), lines.end());
    return lines;
  }

  Failure best_;
  std::deque<Said> recent_;
  std::vector<int> workers_;
  bool launcher_speaks_ = false;
  std::string unfused_;
};

}  // namespace

std::string_view name(Cause cause) {
  switch (cause) {
    case Cause::none:
      return "no reason given";
    case Cause::out_of_memory:
      return "out of memory";
    case Cause::full_disk:
      return "full disk";
    case Cause::host_memory:
      return "out of host memory";
    case Cause::unknown_flag:
      return "unknown flag";
    case Cause::refused_value:
      return "refused value";
    case Cause::missing:
      return "missing file or module";
    case Cause::port_in_use:
      return "port in use";
    case Cause::assertion:
      return "assertion";
    case Cause::exception:
      return "exception";
    case Cause::cuda:
      return "CUDA error";
    case Cause::time_limit:
      return "time limit of the scheduler";
    case Cause::killed:
      return "killed";
    case Cause::crash:
      return "crash";
    case Cause::nccl_timeout:
      return "NCCL timeout";
    case Cause::nccl:
      return "NCCL error";
    case Cause::connection:
      return "connection lost";
    case Cause::aborted:
      return "aborted";
  }
  return "";
}

Failure failure_of(std::string_view text, int exit_status) {
  Reader reader;
  each_line(text, [&](std::string_view line) { reader.line(line); });
  return reader.end(exit_status);
}

}  // namespace pipewright::trial
