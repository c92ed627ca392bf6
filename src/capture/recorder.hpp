// What an attached process records: kernels, copies, launches and NVTX ranges of a window of training steps.
//
//   step 1            step 2            step 3  <- window 2:3 ->  step 4
//   ─[f b f b .. O]─┬─[f b f b .. O t]─┬─[f b f b .. O t]─┬─[f ...
//                   └ a step ends after its optimizer's kernels (O) and what belongs to their tail (t: copies of
//                     parameters, all-gathers); or where an NVTX range of a given name begins and ends
//
// Only the window is kept: what lies before it is dropped as soon as its steps are over.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "pipewright/regex.hpp"

namespace pipewright::capture {

struct Window {
  int first = 3, last = 4;  ///< steps, counted from 1; both are recorded
  /// Names (mangled, any case) of the kernels that end a step. Empty: optimizers of PyTorch, apex and Transformer
  /// Engine; several such kernels belong to one step until a matrix product runs between them.
  std::string step_kernel;
  std::string step_range;  ///< NVTX range that is one step; instead of kernels
};

class Recorder {
 public:
  enum class Engine : std::uint8_t { kernel, memset, d2d, d2h, h2d };
  struct Activity {
    std::uint32_t name = 0;
    Engine engine = Engine::kernel;
    std::uint32_t device = 0, stream = 0, correlation = 0;
    std::int64_t start = 0, end = 0;  ///< ns
  };
  struct Call {
    std::uint32_t correlation = 0, thread = 0;
    std::int64_t start = 0, end = 0;
  };
  struct Range {
    std::uint32_t name = 0;
    std::int64_t start = 0, end = 0;
  };

  explicit Recorder(Window window);

  std::uint32_t intern(std::string_view name);
  void add(const Activity& activity) { fresh_.push_back(activity); }
  void add(const Call& call) { calls_.push_back(call); }
  void add(const Range& range) { ranges_.push_back(range); }
  void dropped(std::size_t records) { dropped_ += records; }

  /// Takes in what was added. True: the window is complete. `ended`: no more will come.
  bool update(bool ended);
  /// Steps of the window that are complete.
  int steps() const { return static_cast<int>(ends_.size()) - window_.first + 1; }
  /// The recording: steps of the window that are complete; if none is, everything (a program without steps). `about`:
  /// lines "key<TAB>value" for its head.
  std::string text(const std::map<std::string, std::string>& about) const;

 private:
  enum class Kind : std::uint8_t { other, ends_step, between, tail };
  Kind kind_of(std::uint32_t name);
  void find_steps_by_kernel(bool ended);
  void find_steps_by_range();
  void forget();
  std::int64_t begin() const;

  Window window_;
  Regex step_kernel_;
  std::vector<std::string> names_;
  std::vector<std::optional<Kind>> kinds_;
  std::unordered_map<std::string, std::uint32_t> index_;
  std::vector<Activity> activities_, fresh_;  // the former sorted by start
  std::vector<Call> calls_;
  std::vector<Range> ranges_;
  std::vector<std::int64_t> ends_;  // of the steps so far, ns
  std::size_t dropped_ = 0;
};

}  // namespace pipewright::capture
