// Chrome trace events (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU): a process a
// pipeline rank, a thread a stream; thread 0 shows the ops of the schedule over the kernels of the compute stream.
#include <fmt/format.h>
#include <zlib.h>

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

class Writer {
 public:
  Writer(const predict::Prediction& prediction, const predict::Run& run)
      : prediction_(prediction), run_(run), nodes_(run) {}

  std::string text() {
    out_ = fmt::format(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"scenario\":{},\"profile\":{}}},\n\"traceEvents\":[\n",
        quoted(prediction_.scenario), quoted(prediction_.profile + " (" + prediction_.origin + ")"));
    for (int rank = 0; rank < run_.timeline.graph.ranks; ++rank) {
      names(rank);
      ops(rank);
      for (const auto node : nodes_.of_rank(rank)) event(node);
    }
    out_.erase(out_.size() - 2);  // the last comma
    out_ += "\n]}\n";
    return std::move(out_);
  }

 private:
  template <class... T>
  void line(fmt::format_string<T...> format, T&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<T>(values)...);
    out_ += ",\n";
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
         static_cast<double>(start) / 1e3, static_cast<double>(end - start) / 1e3, quoted(what), kind, arguments);
  }

  void ops(int rank) {
    for (const auto& block : nodes_.blocks(rank)) {
      timeline::Label label;
      label.rank = static_cast<std::uint16_t>(rank);
      label.instruction = block.instruction;
      label.phase = block.phase & 3U;
      slice(rank, schedule_thread, block.start, block.end, nodes_.op(label), "op", "");
    }
  }

  void event(std::uint32_t node) {
    const auto& label = run_.timeline.graph.labels[node];
    const auto& times = run_.timeline.times;
    const int rank = label.rank, thread = thread_of(label.lane);
    if (const auto* kernel = nodes_.kernel(label)) {
      const char* kind = kernel->recompute                          ? "recompute"
                         : label.purpose == model::Purpose::compute ? "compute"
                                                                    : "communication";
      slice(rank, thread, times.start[node], times.end[node], kernel->name, kind,
            fmt::format(R"("op":{})", quoted(nodes_.op(label))));
    } else if (label.kind == NodeKind::transfer) {
      const std::int64_t posted = nodes_.posted(node);
      slice(rank, thread, posted, times.end[node], nodes_.what(label), "p2p",
            fmt::format(R"("waits for the other side us":{:.3f})",
                        static_cast<double>(times.start[node] - posted) / 1e3));
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
           labels[node].rank, thread_of(labels[node].lane), static_cast<double>(at) / 1e3, receive,
           *phase == 'f' ? R"(,"bp":"e")" : "");
    };
    arrow(*send, "s", times.start[*send]);
    arrow(receive, "f", times.end[receive]);
  }

  const predict::Prediction& prediction_;
  const predict::Run& run_;
  Nodes nodes_;
  std::string out_;
};

/// gzip with an empty header (no name, no time), so that the same text gives the same bytes.
std::string packed(std::string_view text) {
  z_stream stream{};
  constexpr int gzip_window = 15 + 16, memory_level = 8;
  if (deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, gzip_window, memory_level, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw InternalError("zlib cannot start");
  }
  std::string out(deflateBound(&stream, static_cast<uLong>(text.size())), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  const int result = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw InternalError("zlib cannot pack the whole text");
  return out;
}

}  // namespace

std::string trace(const predict::Prediction& prediction, const predict::Run& run) {
  return Writer(prediction, run).text();
}

void write_maybe_packed(const std::string& path, std::string_view text) {
  if (path.ends_with(".gz")) {
    write_file(path, packed(text));
  } else {
    write_file(path, text);
  }
}

}  // namespace pipewright::report
