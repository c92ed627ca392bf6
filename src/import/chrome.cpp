// torch.profiler's Chrome trace (Kineto's output_json.cpp: "traceEvents" with cat, ts and dur in us, args.correlation),
// and kernel lists: {"names": [...], "rows": [[index into names, stream, start us, duration us], ...]}.
#include <simdjson.h>

#include <cmath>

#include "json_stream.hpp"
#include "read_trace.hpp"

namespace pipewright::traces {
namespace {

namespace dom = simdjson::dom;  // validates whole values, and picks the CPU's kernels at run time

class JsonReader {
 public:
  explicit JsonReader(const std::string& path) : builder_(path) {}

  Trace read() {
    stream_json(builder_.trace.file, [&](const std::string& key, std::string_view value, bool element) {
      at_ = element ? key + "[" + std::to_string(counts_[key]++) + "]" : key;
      dom::element parsed;
      // The streamer guarantees the padding.
      if (const auto error = parser_.parse(value.data(), value.size(), false).get(parsed))
        throw wrong({}, std::string("not JSON: ") + simdjson::error_message(error));
      handle(key, parsed, element);
    });
    if (rows_.empty() && !names_.empty()) throw refuse("the list has no kernels: \"rows\" is empty or missing");
    if (rows_.empty() && counts_["traceEvents"] == 0)
      throw refuse("neither a Chrome trace (traceEvents) nor a kernel list (names, rows)");
    for (const auto& [index, activity] : rows_) {
      if (index >= names_.size()) throw refuse("a row names kernel " + std::to_string(index) + ", which is not listed");
      auto timed = activity;
      timed.engine = engine(names_[index]);
      builder_.add(timed, names_[index], 0, -1);
    }
    // Before baseTimeNanoseconds came up (PyTorch 2.3) times were counted from 1970.
    constexpr std::int64_t year_2000 = 946'684'800'000'000'000;  // ns
    if (earliest_ > year_2000) base_ = base_.value_or(0);
    if (counts_["traceEvents"] > 0) builder_.clock_from = base_;
    return builder_.finish();
  }

 private:
  void handle(const std::string& key, dom::element value, bool element) {
    if (key == "traceEvents" && element) {
      event(value);
    } else if (key == "names" && element) {
      names_.emplace_back(as<std::string_view>(value, {}, "a kernel's name"));
    } else if (key == "rows" && element) {
      row(value);
    } else if (key == "deviceProperties" && element) {
      const auto device = as<dom::object>(value, {}, "an object");
      if (builder_.trace.device.empty()) {
        builder_.trace.device = std::string(field<std::string_view>(device, "name", "a string"));
        builder_.trace.memory = Bytes(field<std::int64_t>(device, "totalGlobalMem", "bytes"));
      }
    } else if (key == "distributedInfo") {
      distributed(as<dom::object>(value, {}, "an object"));
    } else if (key == "cuda_runtime_version") {
      const auto v = as<std::int64_t>(value, {}, "a number as 13000");  // 13.0
      builder_.trace.versions["cuda"] = std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
    } else if (key == "baseTimeNanoseconds") {
      base_ = as<std::int64_t>(value, {}, "nanoseconds");
      if (*base_ < 0 || *base_ > latest_time) throw wrong({}, "a time that makes no sense");
    }
  }

  void distributed(dom::object info) {
    constexpr std::int64_t most = 1'000'000;
    if (const auto rank = maybe<std::int64_t>(info, "rank", "a rank")) {
      if (*rank < 0 || *rank >= most) throw wrong("rank", "expected a rank, found " + std::to_string(*rank));
      builder_.rank = static_cast<int>(*rank);
    }
    if (const auto world = maybe<std::int64_t>(info, "world_size", "a number of ranks")) {
      if (*world < 1 || *world > most)
        throw wrong("world_size", "expected a number of ranks, found " + std::to_string(*world));
      builder_.trace.world_size = *world;
    }
    if (const auto nccl = maybe<std::string_view>(info, "nccl_version", "a string"))
      builder_.trace.versions["nccl"] = std::string(*nccl);
    const auto groups = maybe<dom::array>(info, "pg_config", "a list of process groups");
    if (!groups) return;
    for (const dom::element group : *groups) {
      dom::object of;
      std::string_view description;
      std::int64_t size = 0;  // older versions name groups otherwise
      if (group.get(of) || of.at_key("pg_desc").get(description) || of.at_key("pg_size").get(size)) continue;
      builder_.trace.groups[std::string(description)].push_back(size);
    }
  }

  static Engine engine(std::string_view name) {
    if (name.starts_with("Memset")) return Engine::memset;
    if (!name.starts_with("Memcpy")) return Engine::kernel;
    if (name.find("DtoH") != std::string_view::npos) return Engine::d2h;
    return name.find("HtoD") != std::string_view::npos ? Engine::h2d : Engine::d2d;
  }

  std::int64_t nanoseconds(double us, const std::string& key) const {
    if (!(std::abs(us_to_ns(us)) < static_cast<double>(latest_time)))
      throw wrong(key, "a time that makes no sense: " + std::to_string(us) + " us");
    return std::llround(us_to_ns(us));
  }
  std::int64_t duration(double us, const std::string& key) const {
    if (us < 0) throw wrong(key, "a negative duration: " + std::to_string(us) + " us");
    return nanoseconds(us, key);
  }

  void event(dom::element value) {
    const auto object = as<dom::object>(value, {}, "an event");
    std::string_view category;
    if (object.at_key("cat").get(category) != simdjson::SUCCESS) return;
    const bool gpu = category == "kernel" || category == "gpu_memset" || category == "gpu_memcpy";
    const bool call = category == "cuda_runtime" || category == "cuda_driver";
    if (category == "user_annotation") mark(object);
    if (category == "cpu_op") builder_.trace.operators = true;
    if (!gpu && !call) return;
    if (field<std::string_view>(object, "ph", "a string") != "X") return;
    const std::int64_t start = nanoseconds(field<double>(object, "ts", "microseconds"), "ts");
    const std::int64_t duration = this->duration(field<double>(object, "dur", "microseconds"), "dur");
    const auto args = field<dom::object>(object, "args", "an object");
    if (call) {
      const auto thread = field<std::int64_t>(object, "tid", "a thread's number");
      if (const auto correlation = maybe<std::int64_t>(args, "correlation", "a number"))
        builder_.add_launch(*correlation, {start, duration, thread});
      return;
    }
    Activity activity;
    activity.start = start;
    activity.duration = duration;
    earliest_ = std::min(earliest_, start);
    const std::string name(field<std::string_view>(object, "name", "a string"));
    activity.engine = engine(name);
    activity.stream = field<std::int64_t>(args, "args.stream", "a stream's number");
    // Copies between GPUs name two devices; their own is the one whose stream they are in. A GPU's events have its
    // number for their process, too.
    std::int64_t device = 0;
    if (args.at_key("device").get(device) != simdjson::SUCCESS &&
        args.at_key("inDevice").get(device) != simdjson::SUCCESS &&
        args.at_key("fromDevice").get(device) != simdjson::SUCCESS &&
        object.at_key("pid").get(device) != simdjson::SUCCESS)
      throw wrong("args.device", "a kernel or copy without a device: " + name);
    const auto correlation = maybe<std::int64_t>(args, "args.correlation", "a number").value_or(-1);
    std::string_view collective;
    if (args.at_key("Collective name").get(collective) == simdjson::SUCCESS) {
      if (collective.starts_with("all_to_all")) activity.exchange = Exchange::all_to_all;
      if (collective == "send" || collective == "recv") activity.exchange = Exchange::pipeline;
    }
    builder_.add(activity, name, device, correlation);
  }

  /// torch.profiler marks its steps.
  void mark(dom::object object) {
    std::string_view name;
    if (object.at_key("name").get(name) == simdjson::SUCCESS && name.starts_with("ProfilerStep#"))
      builder_.trace.steps.emplace_back(name);
  }

  void row(dom::element value) {
    std::array<double, 4> cells{};
    std::size_t n = 0;
    for (const dom::element cell : as<dom::array>(value, {}, "a list of numbers")) {
      if (n == 0 && cell.is_string())
        throw refuse("rows begin with words: a recording of PyTorch's allocator is for `pipewright replay-allocator`");
      if (n < cells.size()) cells[n] = as<double>(cell, {}, "a row of numbers");
      ++n;
    }
    if (n != cells.size()) throw wrong({}, "a row of " + std::to_string(n) + " instead of 4 numbers");
    if (!(cells[0] >= 0 && cells[0] < 1e9 && std::abs(cells[1]) < 1e15)) throw wrong({}, "a row with a wrong index");
    Activity activity;
    activity.stream = std::llround(cells[1]);
    activity.start = nanoseconds(cells[2], {});
    activity.duration = duration(cells[3], {});
    rows_.emplace_back(static_cast<std::size_t>(cells[0]), activity);
  }

  /// A value as what it should be: a number, a string, an object.
  template <class T>
  T as(dom::element value, const std::string& key, const char* expected) const {
    T result{};
    if (value.get(result) == simdjson::SUCCESS) return result;
    throw wrong(key, std::string("expected ") + expected + ", found " + simdjson::minify(value).substr(0, 60));
  }
  /// A member; `path` ends with its name. nullopt: there is none.
  template <class T>
  std::optional<T> maybe(dom::object object, const std::string& path, const char* expected) const {
    dom::element found;
    if (object.at_key(std::string_view(path).substr(path.rfind('.') + 1)).get(found) != simdjson::SUCCESS)
      return std::nullopt;
    return as<T>(found, path, expected);
  }
  template <class T>
  T field(dom::object object, const std::string& path, const char* expected) const {
    if (const auto found = maybe<T>(object, path, expected)) return *found;
    throw wrong(path, std::string("is missing: expected ") + expected);
  }

  /// Of the value that is read, or of a member of it.
  UsageError wrong(const std::string& key, const std::string& why) const {
    return UsageError({builder_.trace.file, 0}, key.empty() ? at_ : at_ + "." + key, why);
  }
  UsageError refuse(const std::string& why) const { return UsageError({builder_.trace.file, 0}, {}, why); }

  TraceBuilder builder_;
  dom::parser parser_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::size_t, Activity>> rows_;
  std::string at_;                             ///< the value that is read: "traceEvents[7]"
  std::map<std::string, std::size_t> counts_;  ///< elements so far, by array
  std::optional<std::int64_t> base_;           ///< baseTimeNanoseconds
  std::int64_t earliest_ = INT64_MAX;          ///< ns, of the GPU's activities
};

}  // namespace

Trace read_json(const std::string& path) { return JsonReader(path).read(); }

}  // namespace pipewright::traces
