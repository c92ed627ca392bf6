// torch.profiler's Chrome trace (Kineto's output_json.cpp: "traceEvents" with cat, ts and dur in us, args.correlation),
// and kernel lists: {"names": [...], "rows": [[index into names, stream, start us, duration us], ...]}.
#include <simdjson.h>

#include <cmath>

#include "json_stream.hpp"
#include "read.hpp"

namespace pipewright::traces {
namespace {

namespace ondemand = simdjson::ondemand;

class JsonReader {
 public:
  explicit JsonReader(const std::string& path) : builder_(path) {}

  Trace read() {
    try {
      stream_json(builder_.trace.file, [&](const std::string& key, std::string_view value, bool element) {
        // The streamer guarantees the padding.
        auto document = parser_.iterate(value.data(), value.size(), value.size() + simdjson::SIMDJSON_PADDING);
        handle(key, document, element);
      });
    } catch (const simdjson::simdjson_error& error) {
      throw refuse(std::string("value number ") + std::to_string(values_) + ": " + error.what());
    }
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
  using Document = simdjson::simdjson_result<ondemand::document>;

  void handle(const std::string& key, Document& document, bool element) {
    ++values_;
    if (key == "traceEvents" && element) {
      events_ = true;
      event(document);
    } else if (key == "names" && element) {
      names_.emplace_back(std::string_view(document.get_string()));
    } else if (key == "rows" && element) {
      row(document);
    } else if (key == "deviceProperties" && element) {
      ondemand::object device = document.get_object();
      if (builder_.trace.device.empty()) {
        builder_.trace.device = std::string(std::string_view(device.find_field_unordered("name").get_string()));
        builder_.trace.memory = Bytes(device.find_field_unordered("totalGlobalMem").get_int64());
      }
    } else if (key == "distributedInfo") {
      distributed(document.get_object());
    } else if (key == "cuda_runtime_version") {
      const std::int64_t v = document.get_int64();  // 13000: 13.0
      builder_.trace.versions["cuda"] = std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
    }
  }

  void distributed(ondemand::object info) {
    std::int64_t rank = 0;
    if (info.find_field_unordered("rank").get(rank) == simdjson::SUCCESS && rank >= 0 && rank < 1'000'000) {
      builder_.rank = static_cast<int>(rank);
    }
    std::string_view nccl;
    if (info.find_field_unordered("nccl_version").get(nccl) == simdjson::SUCCESS) {
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
    return std::llround(us * 1e3);
  }

  void event(Document& document) {
    ondemand::object object = document.get_object();
    std::string_view category;
    if (object.find_field_unordered("cat").get(category) != simdjson::SUCCESS) return;
    const bool gpu = category == "kernel" || category == "gpu_memset" || category == "gpu_memcpy";
    const bool call = category == "cuda_runtime" || category == "cuda_driver";
    if (!gpu && !call) return;
    if (std::string_view(object.find_field_unordered("ph").get_string()) != "X") return;
    const std::int64_t start = nanoseconds(object.find_field_unordered("ts").get_double());
    const std::int64_t duration = nanoseconds(object.find_field_unordered("dur").get_double());
    if (call) {
      const std::int64_t thread = object.find_field_unordered("tid").get_int64();
      ondemand::object args = object.find_field_unordered("args").get_object();
      std::int64_t correlation = 0;
      if (args.find_field_unordered("correlation").get(correlation) != simdjson::SUCCESS) return;
      builder_.add_launch(correlation, {start, duration, thread});
      return;
    }
    Activity activity;
    activity.start = start;
    activity.duration = duration;
    const std::string name(std::string_view(object.find_field_unordered("name").get_string()));
    activity.engine = engine(name);
    ondemand::object args = object.find_field_unordered("args").get_object();
    activity.stream = args.find_field_unordered("stream").get_int64();
    const std::int64_t device = args.find_field_unordered("device").get_int64();
    std::int64_t correlation = -1;
    if (args.find_field_unordered("correlation").get(correlation) != simdjson::SUCCESS) correlation = -1;
    std::string_view collective;
    if (args.find_field_unordered("Collective name").get(collective) == simdjson::SUCCESS) {
      if (collective.starts_with("all_to_all")) activity.exchange = Exchange::all_to_all;
      if (collective == "send" || collective == "recv") activity.exchange = Exchange::pipeline;
    }
    builder_.add(activity, name, device, correlation);
  }

  void row(Document& document) {
    std::array<double, 4> cells{};
    std::size_t n = 0;
    for (auto cell : document.get_array()) {
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
  ondemand::parser parser_;
  std::vector<std::string> names_;
  std::vector<std::pair<std::size_t, Activity>> rows_;
  std::size_t values_ = 0;
  bool events_ = false;
};

}  // namespace

Trace read_json(const std::string& path) { return JsonReader(path).read(); }

}  // namespace pipewright::traces
