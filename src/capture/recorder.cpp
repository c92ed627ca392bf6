#include "recorder.hpp"

#include <algorithm>
#include <unordered_set>

namespace pipewright::capture {
namespace {

// Substrings of kernel names, mangled or not. torch.optim and apex: multi_tensor_apply_kernel<..., AdamFunctor>,
// FusedAdamMathFunctor, distributed_adam; matrix products of cuBLAS, cuDNN and Triton.
constexpr const char* kOptimizers = "adam|lamb|sgdfunctor|fusedsgd|lionfunctor|adagrad|muon";
constexpr const char* kMatrixProducts = "gemm|nvjet|cutlass|xmma|gemv|matmul";
// After the optimizer's kernels: copies of parameters to bf16, sums and all-gathers over data-parallel ranks.
constexpr const char* kTail = "copy|memcpy|allgather|allreduce|broadcast|reducescatter|multi_tensor|cast";

Regex pattern(const std::string& text) { return Regex(text, Regex::Case::ignored); }

}  // namespace

Recorder::Recorder(Window window)
    : window_(std::move(window)),
      step_kernel_(pattern(window_.step_kernel.empty() ? kOptimizers : window_.step_kernel)) {}

std::uint32_t Recorder::intern(std::string_view name) {
  const auto [it, fresh] = index_.try_emplace(std::string(name), static_cast<std::uint32_t>(names_.size()));
  if (fresh) {
    names_.emplace_back(name);
    kinds_.emplace_back();
  }
  return it->second;
}

Recorder::Kind Recorder::kind_of(std::uint32_t name) {
  auto& kind = kinds_[name];
  if (kind) return *kind;
  static const Regex between = pattern(kMatrixProducts), tail = pattern(kTail);
  const std::string& text = names_[name];
  if (step_kernel_.found_in(text))
    kind = Kind::ends_step;
  else if (!window_.step_kernel.empty() || between.found_in(text))
    kind = Kind::between;
  else
    kind = tail.found_in(text) ? Kind::tail : Kind::other;
  return *kind;
}

bool Recorder::update(bool ended) {
  if (!fresh_.empty()) {
    activities_.insert(activities_.end(), fresh_.begin(), fresh_.end());
    fresh_.clear();
    std::stable_sort(activities_.begin(), activities_.end(),
                     [](const Activity& a, const Activity& b) { return a.start < b.start; });
  }
  if (window_.step_range.empty())
    find_steps_by_kernel(ended);
  else
    find_steps_by_range();
  forget();
  return static_cast<int>(ends_.size()) >= window_.last;
}

void Recorder::find_steps_by_kernel(bool ended) {
  const std::int64_t known = ends_.empty() ? 0 : ends_.back();
  std::int64_t end = 0;  // of the step under way, once its optimizer has run
  bool open = false, in_tail = false;
  for (const Activity& a : activities_) {
    if (a.start < known) continue;
    const Kind kind = kind_of(a.name);
    if (kind == Kind::ends_step) {
      open = in_tail = true;
      end = std::max(end, a.end);
    } else if (open && kind == Kind::between) {
      ends_.push_back(end);
      open = in_tail = false;
      end = 0;
    } else if (open && in_tail && kind == Kind::tail) {
      end = std::max(end, a.end);
    } else {
      in_tail = false;
    }
  }
  if (open && ended) ends_.push_back(end);
}

void Recorder::find_steps_by_range() {
  const auto name = index_.find(window_.step_range);
  if (name == index_.end()) return;
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (const Range& r : ranges_)
    if (r.name == name->second) steps.emplace_back(r.start, r.end);
  std::sort(steps.begin(), steps.end());
  for (const auto& [start, end] : steps) {
    if (!ends_.empty() && start < ends_.back()) continue;
    ends_.push_back(end);
  }
}

std::int64_t Recorder::begin() const {
  const auto before = static_cast<std::size_t>(window_.first - 1);
  return before == 0 || ends_.size() < before ? 0 : ends_[before - 1];
}

/// Before the window, the last complete step is kept until the next one is: launches precede their kernels.
void Recorder::forget() {
  if (ends_.size() < 2) return;
  const std::size_t keep_from = std::min(ends_.size() - 1, static_cast<std::size_t>(std::max(window_.first - 1, 0)));
  if (keep_from == 0) return;
  const std::int64_t old = ends_[keep_from - 1];
  std::erase_if(activities_, [&](const Activity& a) { return a.start < old; });
  std::unordered_set<std::uint32_t> needed;
  for (const Activity& a : activities_) needed.insert(a.correlation);
  std::erase_if(calls_, [&](const Call& c) { return c.start < old && !needed.contains(c.correlation); });
  std::erase_if(ranges_, [&](const Range& r) {
    return r.end < old && (window_.step_range.empty() || names_[r.name] != window_.step_range);
  });
}

std::string Recorder::text(const std::map<std::string, std::string>& about) const {
  std::string out = "pipewright recording 1\n";
  const auto line = [&](char what, const auto&... fields) {
    out += what;
    ((
         out += '\t', out +=
                      [](const auto& f) {
                        if constexpr (std::is_convertible_v<decltype(f), std::string_view>)
                          return std::string(f);
                        else
                          return std::to_string(f);
                      }(fields)),
     ...);
    out += '\n';
  };
  for (const auto& [key, value] : about) line('M', key, value);
  const bool whole = steps() <= 0;
  const std::int64_t from = whole ? 0 : begin(),
                     to = whole ? INT64_MAX : ends_[std::min(ends_.size(), static_cast<std::size_t>(window_.last)) - 1];
  line('M', "steps", whole ? 0 : std::min(static_cast<int>(ends_.size()), window_.last) - window_.first + 1);
  line('M', "steps_seen", ends_.size());
  line('M', "dropped", dropped_);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    std::string name = names_[i];
    std::replace_if(
        name.begin(), name.end(), [](char c) { return c == '\n' || c == '\t'; }, ' ');
    line('N', i, name);
  }
  std::unordered_set<std::uint32_t> inside;
  for (const Activity& a : activities_) {
    if (a.start < from || a.start >= to) continue;
    inside.insert(a.correlation);
    line('A', static_cast<int>(a.engine), a.name, a.device, a.stream, a.start, a.end, a.correlation);
  }
  for (const Call& c : calls_)
    if (inside.contains(c.correlation)) line('L', c.correlation, c.thread, c.start, c.end);
  for (const Range& r : ranges_)
    if (r.end > from && r.start < to) line('R', r.name, r.start, r.end);
  out += "E\n";
  return out;
}

}  // namespace pipewright::capture
