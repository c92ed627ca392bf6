// A trace file of any form; what all forms must fulfil.
#include "read_trace.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "pipewright/pickle.hpp"
#include "pipewright/regex.hpp"

namespace pipewright::traces {

std::uint32_t TraceBuilder::intern(std::string_view name) {
  const auto [it, fresh] = index_.try_emplace(std::string(name), static_cast<std::uint32_t>(trace.names.size()));
  if (fresh) trace.names.emplace_back(name);
  return it->second;
}

void TraceBuilder::add(Activity activity, std::string_view name, std::int64_t device, std::int64_t correlation) {
  if (device_.value_or(device) != device) {
    throw UsageError({trace.file, 0}, {},
                     "holds kernels of GPUs " + std::to_string(*device_) + " and " + std::to_string(device) +
                         "; one trace a rank is needed");
  }
  device_ = device;
  activity.name = intern(name);
  trace.activities.push_back(activity);
  correlations_.push_back(correlation);
}

void TraceBuilder::add_launch(std::int64_t correlation, const Launch& launch) {
  // The outermost call counts: a runtime call around a driver call may be recorded under the same id.
  const auto [it, fresh] = launches_.try_emplace(correlation, launch);
  if (!fresh && launch.start < it->second.start) it->second = launch;
}

Trace TraceBuilder::finish() {
  auto& all = trace.activities;
  const auto refuse = [&](const std::string& why) { return UsageError({trace.file, 0}, {}, why); };
  const auto is_kernel = [](const Activity& a) { return a.engine == Engine::kernel; };
  if (std::none_of(all.begin(), all.end(), is_kernel)) throw refuse("the trace has no kernels");

  std::int64_t first = all.front().start, last = all.front().end(), busy = 0;
  for (const auto& a : all) {
    first = std::min(first, a.start);
    last = std::max(last, a.end());
    busy += a.duration;
  }
  constexpr std::int64_t an_hour = 3'600'000'000'000;
  if (last - first > an_hour) throw refuse("kernels more than an hour apart: the times make no sense");
  if (busy == 0) throw refuse("all kernels have duration 0");

  if (clock_from) trace.began = *clock_from + first;
  for (auto& range : trace.ranges) range.start -= first, range.end -= first;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (const auto found = launches_.find(correlations_[i]); found != launches_.end()) {
      all[i].launch = found->second;
      all[i].launch.start -= first;
    }
    all[i].start -= first;
  }
  std::stable_sort(all.begin(), all.end(), [](const Activity& a, const Activity& b) {
    return a.start != b.start ? a.start < b.start : a.stream < b.stream;
  });
  // Kernels of one stream run one after the other; timestamps of overlapping ones would count time twice.
  std::map<std::int64_t, std::int64_t> until;
  constexpr std::int64_t tolerance = 1000;  // rounding of lists to 0.1 us, programmatic dependent launch
  std::size_t overlapping = 0;
  for (const auto& a : all) {
    auto& end = until[a.stream];
    if (a.start + tolerance < end) ++overlapping;
    end = std::max(end, a.end());
  }
  if (overlapping * 100 > all.size()) throw refuse("kernels of one stream overlap: the times make no sense");

  const std::string stem = std::filesystem::path(trace.file).filename().string();
  if (const auto found = Regex(R"(\.r(\d{1,6})\.)").first_in(stem); !found.empty()) rank = std::stoi(found[1]);
  if (!rank) throw refuse("the rank is in neither the trace nor its name; name it like NAME.r0.json.gz");
  trace.rank = *rank;
  return std::move(trace);
}

Trace read(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) throw UsageError({path, 0}, {}, "cannot read: no such file");
  if (std::filesystem::is_directory(status)) throw UsageError({path, 0}, {}, "cannot read: this is a directory");
  if (!std::filesystem::is_regular_file(status))
    throw UsageError({path, 0}, {}, "cannot read: no regular file, and a trace is read more than once");
  constexpr std::string_view sqlite("SQLite format 3\0", 16);  // sqlite.org/fileformat.html, 1.3: the NUL belongs to it
  constexpr std::string_view recording = "pipewright recording 1\n";
  std::array<char, recording.size()> head{};
  std::ifstream(path, std::ios::binary).read(head.data(), head.size());
  const std::string_view begins(head.data(), head.size());
  if (begins.starts_with(sqlite)) return read_nsys(path);
  const auto refuse = [&](const std::string& why) { return UsageError({path, 0}, {}, why); };
  const auto extension = std::filesystem::path(path).extension().string();
  if (extension == ".nsys-rep" || extension == ".qdrep")
    throw refuse("a report of Nsight Systems; `nsys export --type sqlite` makes the database that is read");
  if (extension == ".sqlite" || extension == ".sqlite3" || extension == ".db")
    throw refuse("not an SQLite database, as its name says: its first bytes are others");
  if (is_pickle(begins)) throw refuse("a Python pickle, not a trace (a snapshot of torch.cuda.memory?)");
  return begins == recording ? read_recording(path) : read_json(path);
}

}  // namespace pipewright::traces
