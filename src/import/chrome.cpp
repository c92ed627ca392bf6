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
    try {
      stream_json(builder_.trace.file, [&](const std::string& key, std::string_view value, bool element) {
        // The streamer guarantees the padding.
        values_ = element && key == key_ ? values_ + 1 : 0;
        key_ = key;
        element_ = element;
        handle(key, parser_.parse(value.data(), value.size(), false), element);
      });
    } catch (const simdjson::simdjson_error& error) {
      throw UsageError({builder_.trace.file, 0}, element_ ? key_ + "[" + std::to_string(values_) + "]" : key_,
                       error.error() == simdjson::INCORRECT_TYPE  ? "a value of another type than traces have there"
                       : error.error() == simdjson::NO_SUCH_FIELD ? "lacks a key that traces have there"
                                                                  : std::string("not JSON: ") + error.what());
    }
    if (rows_.empty() && !names_.empty()) throw refuse("the list has no kernels: \"rows\" is empty or missing");
    if (rows_.empty() && !events_) throw refuse("neither a Chrome trace (traceEvents) nor a kernel list (names, rows)");
    for (const auto& [index, activity] : rows_) {
      if (index >= names_.size()) throw refuse("a row names kernel " + std::to_string(index) + ", which is not listed");
      auto timed = activity;
      timed.engine = engine(names_[index]);
      builder_.add(timed, names_[index], 0, -1);
    }
    return builder_.finish();
  }

 private:
  void handle(const std::string& key, dom::element value, bool element) {
    if (key == "traceEvents" && element) {
      events_ = true;
      event(value);
    } else if (key == "names" && element) {
      names_.emplace_back(std::string_view(value.get_string()));
    } else if (key == "rows" && element) {
      row(value);
    } else if (key == "deviceProperties" && element) {
      dom::object device = value.get_object();
      if (builder_.trace.device.empty()) {
        builder_.trace.device = std::string(std::string_view(device.at_key("name").get_string()));
        builder_.trace.memory = Bytes(device.at_key("totalGlobalMem").get_int64());
      }
    } else if (key == "distributedInfo") {
      distributed(value.get_object());
    } else if (key == "cuda_runtime_version") {
      const std::int64_t v = value.get_int64();  // 13000: 13.0
      builder_.trace.versions["cuda"] = std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
    }
  }

  void distributed(dom::object info) {
    std::int64_t rank = 0;
    if (info.at_key("rank").get(rank) == simdjson::SUCCESS && rank >= 0 && rank < 1'000'000) {
      builder_.rank = static_cast<int>(rank);
    }
    std::int64_t world = 0;
    if (info.at_key("world_size").get(world) == simdjson::SUCCESS && world > 0) builder_.trace.world_size = world;
    std::string_view nccl;
    if (info.at_key("nccl_version").get(nccl) == simdjson::SUCCESS) {
      builder_.trace.versions["nccl"] = std::string(nccl);
    }
  }

  static Engine engine(std::string_view name) {
    if (name.starts_with("Memset")) return Engine::memset;
    if (!name.starts_with("Memcpy")) return Engine::kernel;
    if (name.find("DtoH") != std::string_view::npos) return Engine::d2h;
    return name.find("HtoD") != std::string_view::npos ? Engine::h2d : Engine::d2d;
  }

  std::int64_t nanoseconds(double us) const {
    if (!(std::abs(us) < 9e12)) throw refuse("a time that makes no sense: " + std::to_string(us) + " us");
    return std::llround(us_to_ns(us));
  }

  void event(dom::element value) {
    dom::object object = value.get_object();
    std::string_view category;
    if (object.at_key("cat").get(category) != simdjson::SUCCESS) return;
    const bool gpu = category == "kernel" || category == "gpu_memset" || category == "gpu_memcpy";
    const bool call = category == "cuda_runtime" || category == "cuda_driver";
    if (!gpu && !call) return;
    if (std::string_view(object.at_key("ph").get_string()) != "X") return;
    const std::int64_t start = nanoseconds(object.at_key("ts").get_double());
    const std::int64_t duration = nanoseconds(object.at_key("dur").get_double());
    if (call) {
      const std::int64_t thread = object.at_key("tid").get_int64();
      dom::object args = object.at_key("args").get_object();
      std::int64_t correlation = 0;
      if (args.at_key("correlation").get(correlation) != simdjson::SUCCESS) return;
      builder_.add_launch(correlation, {start, duration, thread});
      return;
    }
    Activity activity;
    activity.start = start;
    activity.duration = duration;
    const std::string name(std::string_view(object.at_key("name").get_string()));
    activity.engine = engine(name);
    dom::object args = object.at_key("args").get_object();
    activity.stream = args.at_key("stream").get_int64();
    // Copies between GPUs name two devices; their own is the one whose stream they are in.
    std::int64_t device = 0;
    if (args.at_key("device").get(device) != simdjson::SUCCESS &&
        args.at_key("inDevice").get(device) != simdjson::SUCCESS &&
        args.at_key("fromDevice").get(device) != simdjson::SUCCESS)
      throw refuse("a kernel or copy without a device: " + name);
    std::int64_t correlation = -1;
    if (args.at_key("correlation").get(correlation) != simdjson::SUCCESS) correlation = -1;
    std::string_view collective;
    if (args.at_key("Collective name").get(collective) == simdjson::SUCCESS) {
      if (collective.starts_with("all_to_all")) activity.exchange = Exchange::all_to_all;
      if (collective == "send" || collective == "recv") activity.exchange = Exchange::pipeline;
    }
    builder_.add(activity, name, device, correlation);
  }

  void row(dom::element value) {
    std::array<double, 4> cells{};
    std::size_t n = 0;
    for (auto cell : value.get_array()) {
      if (n == 0 && cell.is_string())
        throw refuse("rows begin with words: a recording of PyTorch's allocator is for `pipewright replay-allocator`");
      if (n < cells.size()) cells[n] = cell.get_double();
      ++n;
    }
    if (n != cells.size()) throw refuse("a row of " + std::to_string(n) + " instead of 4 numbers");
    if (!(cells[0] >= 0 && cells[0] < 1e9 && std::abs(cells[1]) < 1e15)) throw refuse("a row with a wrong index");
    Activity activity;
    activity.stream = std::llround(cells[1]);
    activity.start = nanoseconds(cells[2]);
    activity.duration = nanoseconds(cells[3]);
    rows_.emplace_back(static_cast<std::size_t>(cells[0]), activity);
  }

  UsageError refuse(const std::string& why) const { return UsageError({builder_.trace.file, 0}, {}, why); }

  TraceBuilder builder_;
  dom::parser parser_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::size_t, Activity>> rows_;
  std::string key_;  ///< of the value at hand, and where it stands in its list
  std::size_t values_ = 0;
  bool element_ = false, events_ = false;
};

}  // namespace

Trace read_json(const std::string& path) { return JsonReader(path).read(); }

}  // namespace pipewright::traces
