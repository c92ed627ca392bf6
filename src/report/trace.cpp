// Chrome trace events (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a process a
// pipeline rank, a thread a stream; thread 0 shows the ops of the schedule over the kernels of the compute stream; a
// counter shows allocated memory.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "format.hpp"
#include "nodes.hpp"
#include "pipewright/report.hpp"

namespace pipewright::report {
namespace {

using timeline::NodeKind;

constexpr int schedule_thread = 0;
int thread_of(timeline::Lane lane) { return static_cast<int>(lane) + 1; }

std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

/// Where the text goes: as it is, or packed block by block, so that a large trace is never held as text. gzip with an
/// empty header (no name, no time): the same text gives the same bytes.
class Sink {
 public:
  explicit Sink(bool packs) : packs_(packs) {
    constexpr int gzip_window = 15 + 16, memory_level = 8;
    if (packs_ &&
        deflateInit2(&stream_, Z_BEST_SPEED, Z_DEFLATED, gzip_window, memory_level, Z_DEFAULT_STRATEGY) != Z_OK)
      throw InternalError("zlib cannot start");
  }
  ~Sink() {
    if (packs_) deflateEnd(&stream_);
  }
  Sink(const Sink&) = delete;
  Sink& operator=(const Sink&) = delete;

  std::string& text() {
    constexpr std::size_t block = std::size_t{1} << 20U;
    if (packs_ && text_.size() > block) pack(Z_NO_FLUSH);
    return text_;
  }
  std::string finish() {
    if (!packs_) return std::move(text_);
    pack(Z_FINISH);
    return std::move(packed_);
  }

 private:
  void pack(int flush) {
    stream_.next_in = reinterpret_cast<Bytef*>(text_.data());
    stream_.avail_in = static_cast<uInt>(text_.size());
    int result = Z_OK;
    do {
      std::array<Bytef, std::size_t{1} << 16U> out;
      stream_.next_out = out.data();
      stream_.avail_out = static_cast<uInt>(out.size());
      result = deflate(&stream_, flush);
      packed_.append(reinterpret_cast<const char*>(out.data()), out.size() - stream_.avail_out);
    } while (stream_.avail_out == 0);
    if (flush == Z_FINISH && result != Z_STREAM_END) throw InternalError("zlib cannot pack the whole text");
    text_.clear();
  }

  const bool packs_;
  z_stream stream_{};
  std::string text_, packed_;
};

class Writer {
 public:
  Writer(const predict::Prediction& prediction, const predict::Run& run, bool packs)
      : prediction_(prediction), run_(run), nodes_(run), sink_(packs) {}

  std::string text() {
    find_limit();
    const std::string kernels =
        until_ < prediction_.step_ns ? fmt::format("those that begin in the first {} ms", ms(until_)) : "all";
    fmt::format_to(std::back_inserter(sink_.text()),
                   "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"scenario\":{},\"profile\":{},\"kernels\":{}}},\n"
                   "\"traceEvents\":[\n",
                   quoted(prediction_.scenario), quoted(prediction_.profile + " (" + prediction_.origins.text() + ")"),
                   quoted(kernels));
    for (int rank = 0; rank < run_.timeline.graph.ranks; ++rank) {
      names(rank);
      ops(rank);
      for (const auto node : nodes_.of_rank(rank)) event(node);
    }
    sink_.text() += "\n]}\n";
    return sink_.finish();
  }

 private:
  template <class... T>
  void line(fmt::format_string<T...> format, T&&... values) {
    std::string& out = sink_.text();
    if (begun_) out += ",\n";
    begun_ = true;
    fmt::format_to(std::back_inserter(out), format, std::forward<T>(values)...);
  }

  /// Perfetto opens some hundred thousand events at once: beyond that, kernels are shown at the begin of the step only;
  /// ops and transfers always.
  void find_limit() {
    constexpr std::size_t most_kernels = 400'000;
    const auto& graph = run_.timeline.graph;
    std::vector<std::int64_t> starts;
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      if (graph.labels[node].kind == NodeKind::kernel) starts.push_back(run_.timeline.times.start[node]);
    }
    if (starts.size() <= most_kernels) return;
    const auto limit = starts.begin() + most_kernels;
    std::nth_element(starts.begin(), limit, starts.end());
    until_ = *limit;
  }

  void name(int rank, int thread, const char* text) {
    line(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", rank, thread, text);
    line(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", rank, thread,
         thread);
  }

  void names(int rank) {
    line(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"pipeline rank {}"}}}})", rank, rank);
    line(R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})", rank, rank);
    name(rank, schedule_thread, "schedule");
    std::set<timeline::Lane> used;
    for (const auto node : nodes_.of_rank(rank)) used.insert(run_.timeline.graph.labels[node].lane);
    used.erase(timeline::Lane::host);
    for (const auto lane : used) name(rank, thread_of(lane), lane_name(lane));
  }

  void slice(int rank, int thread, std::int64_t start, std::int64_t end, const std::string& what, const char* kind,
             const std::string& arguments) {
    line(R"({{"ph":"X","pid":{},"tid":{},"ts":{:.3f},"dur":{:.3f},"name":{},"cat":"{}","args":{{{}}}}})", rank, thread,
         ns_to_us(start), ns_to_us(end - start), quoted(what), kind, arguments);
  }

  void ops(int rank) {
    for (const auto& block : nodes_.blocks(rank)) {
      timeline::Label label;
      label.rank = static_cast<std::uint16_t>(rank);
      label.instruction = block.instruction;
      label.phase = block.phase & 3U;
      slice(rank, schedule_thread, block.start, block.end, nodes_.op(label), "op", "");
      memory(rank, block);
    }
  }

  /// Allocated bytes follow the host; drawn where the op ends on the GPU.
  void memory(int rank, const Block& block) {
    const auto& after = prediction_.ranks.at(static_cast<std::size_t>(rank)).walk.after_instruction;
    if (block.phase != 0 || block.instruction >= after.size()) return;
    line(R"({{"ph":"C","pid":{},"ts":{:.3f},"name":"allocated memory","args":{{"GiB":{:.3f}}}}})", rank,
         ns_to_us(block.end), gib(after[block.instruction]));
  }

  void event(std::uint32_t node) {
    const auto& label = run_.timeline.graph.labels[node];
    const auto& times = run_.timeline.times;
    const int rank = label.rank, thread = thread_of(label.lane);
    if (const auto* kernel = nodes_.kernel(label)) {
      if (times.start[node] >= until_) return;
      const char* kind = kernel->recompute                          ? "recompute"
                         : label.purpose == model::Purpose::compute ? "compute"
                                                                    : "communication";
      slice(rank, thread, times.start[node], times.end[node], kernel->name, kind,
            fmt::format(R"("op":{})", quoted(nodes_.op(label))));
    } else if (label.kind == NodeKind::transfer) {
      const std::int64_t posted = nodes_.posted(node);
      slice(rank, thread, posted, times.end[node], nodes_.what(label), "p2p",
            fmt::format(R"("waits for the other side us":{:.3f})", ns_to_us(times.start[node] - posted)));
      flow(node);
    }
  }

  /// An arrow from the sender's slice to the receiver's, drawn when the receiver is met.
  void flow(std::uint32_t receive) {
    const auto& labels = run_.timeline.graph.labels;
    const auto& times = run_.timeline.times;
    if (timeline::sends(labels[receive].part().type)) return;
    const auto send = nodes_.other_side(receive);
    if (!send) return;
    const auto arrow = [&](std::uint32_t node, const char* phase, std::int64_t at) {
      line(R"({{"ph":"{}","pid":{},"tid":{},"ts":{:.3f},"id":{},"name":"transfer","cat":"p2p"{}}})", phase,
           labels[node].rank, thread_of(labels[node].lane), ns_to_us(at), receive, *phase == 'f' ? R"(,"bp":"e")" : "");
    };
    arrow(*send, "s", times.start[*send]);
    arrow(receive, "f", times.end[receive]);
  }

  const predict::Prediction& prediction_;
  const predict::Run& run_;
  Nodes nodes_;
  Sink sink_;
  bool begun_ = false;
  std::int64_t until_ = INT64_MAX;
};

}  // namespace

std::string trace(const predict::Prediction& prediction, const predict::Run& run, bool packed) {
  return Writer(prediction, run, packed).text();
}

}  // namespace pipewright::report
