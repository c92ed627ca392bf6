// Recordings of `pipewright capture -- COMMAND` (src/capture/recorder.cpp): lines of tab-separated fields.
//
//   pipewright recording 1
//   M key value              rank, device, memory, cuda, steps, steps_seen, dropped
//   N index name             names, mangled
//   A engine name device stream start end correlation          kernels and copies; engine as traces::Engine counts
//   L correlation thread start end                             launches
//   R name start end                                           NVTX ranges
//   E                                                          the end: without it the file was cut
#include <cxxabi.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <memory>

#include "read_trace.hpp"

namespace pipewright::traces {
namespace {

std::string demangled(const std::string& name) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status),
                                                         &std::free);
  return status == 0 && text ? text.get() : name;
}

class RecordingReader {
 public:
  explicit RecordingReader(const std::string& path) : path_(path), builder_(path) { note_input(path); }

  Trace read() {
    std::ifstream in(path_, std::ios::binary);
    bool ended = false;
    for (std::string text; !ended && std::getline(in, text);) {
      ++line_;
      if (line_ == 1) continue;  // read() has seen it
      split(text);
      ended = fields_[0] == "E";
      if (!ended) take();
    }
    if (!ended) throw refuse("the file ends in the middle: truncated");
    if (dropped_ > 0) throw refuse("CUPTI dropped " + std::to_string(dropped_) + " records; times would be wrong");
    if (steps_ == 0 && seen_ > 0) {
      throw refuse("the run ended after " + std::to_string(seen_) +
                   " steps, before the window that was to be recorded");
    }
    return builder_.finish();
  }

 private:
  void split(std::string_view text) {
    fields_.clear();
    for (std::size_t at = 0; at != std::string_view::npos;) {
      const auto tab = text.find('\t', at);
      fields_.emplace_back(text.substr(at, tab - at));
      at = tab == std::string_view::npos ? tab : tab + 1;
    }
  }

  std::int64_t number(std::size_t i, std::int64_t least = 0) const {
    std::int64_t value = 0;
    if (i < fields_.size()) {
      const auto& text = fields_[i];
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error == std::errc() && end == text.data() + text.size() && value >= least && value <= latest_time)
        return value;
    }
    throw refuse("field " + std::to_string(i) + " is no number");
  }

  const std::string& name(std::int64_t index) const {
    if (index < 0 || static_cast<std::size_t>(index) >= names_.size()) {
      throw refuse("names kernel " + std::to_string(index) + ", which is not listed");
    }
    return names_[static_cast<std::size_t>(index)];
  }

  void take() {
    const std::string& what = fields_[0];
    if (what == "M") {
      meta();
    } else if (what == "N") {
      if (number(1) != static_cast<std::int64_t>(names_.size()) || fields_.size() != 3)
        throw refuse("names not in order");
      names_.push_back(demangled(fields_[2]));
    } else if (what == "A") {
      Activity a;
      const auto engine = number(1);
      if (engine > static_cast<std::int64_t>(Engine::h2d)) throw refuse("no such engine: " + std::to_string(engine));
      a.engine = static_cast<Engine>(engine);
      a.stream = number(4);
      a.start = number(5);
      a.duration = number(6, -latest_time) - a.start;
      if (a.duration < 0) throw refuse("ends before it starts, a negative duration");
      builder_.add(a, name(number(2)), number(3), number(7));
    } else if (what == "L") {
      const auto start = number(3), end = number(4);
      if (end < start) throw refuse("ends before it starts, a negative duration");
      builder_.add_launch(number(1), {start, end - start, number(2)});
    } else if (what == "R") {
      builder_.trace.ranges.push_back({name(number(1)), number(2), number(3)});
    } else {
      throw refuse("begins with \"" + what + "\"");
    }
  }

  void meta() {
    if (fields_.size() != 3) throw refuse("a key and a value are expected");
    const std::string &key = fields_[1], &value = fields_[2];
    if (key == "rank" && !value.empty()) builder_.rank = static_cast<int>(std::min<std::int64_t>(number(2), 1'000'000));
    if (key == "device") builder_.trace.device = value;
    if (key == "memory") builder_.trace.memory = Bytes(number(2));
    if (key == "cuda") builder_.trace.versions["cuda"] = value;
    if (key == "steps") steps_ = number(2);
    if (key == "steps_seen") seen_ = number(2);
    if (key == "dropped") dropped_ = number(2);
  }

  UsageError refuse(const std::string& why) const { return UsageError({path_, line_}, {}, why); }

  std::string path_;
  TraceBuilder builder_;
  int line_ = 0;
  std::vector<std::string> fields_, names_;
  std::int64_t steps_ = 0, seen_ = 0, dropped_ = 0;
};

}  // namespace

Trace read_recording(const std::string& path) { return RecordingReader(path).read(); }

}  // namespace pipewright::traces
