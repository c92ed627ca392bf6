// Chrome trace events (https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU), as Perfetto
// reads them: slices of one thread may nest, never overlap; arrows begin and end inside slices; counters are a
// process's.
#include "pipewright/trace.hpp"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "facts.hpp"
#include "format.hpp"
#include "memory_clock.hpp"
#include "nodes.hpp"
#include "pipewright/reading.hpp"

namespace pipewright::report {
namespace {

using timeline::NodeKind;

/// Threads of a rank from top to bottom. A stream whose slices overlap (transfers issued as a group) gets further ones.
constexpr int schedule_thread = 0, host_thread = 1, waits_thread = 2, first_stream = 10, threads_of_stream = 10;
int thread_of(timeline::Lane lane) { return first_stream + threads_of_stream * static_cast<int>(lane); }

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
  Writer(const predict::Prediction& prediction, const predict::Run& run,
         const std::vector<predict::RankHistory>& memory, bool packs)
      : prediction_(prediction),
        run_(run),
        memory_(memory),
        nodes_(run),
        sink_(packs),
        threads_(run.timeline.graph.size()) {}

  Trace make(std::size_t most_kernels) {
    Trace trace;
    trace.left_out = thin(most_kernels);
    fmt::format_to(std::back_inserter(sink_.text()),
                   "{{\"displayTimeUnit\":\"ms\",\"otherData\":{{\"scenario\":{},\"profile\":{},\"left out\":{}}},\n"
                   "\"traceEvents\":[\n",
                   quoted(prediction_.scenario), quoted(prediction_.profile + " (" + prediction_.origins.text() + ")"),
                   quoted(trace.left_out.empty() ? "nothing" : trace.left_out));
    const auto gaps = timeline::gaps(run_.timeline, run_.stages, run_.program);
    for (int rank = 0; rank < run_.timeline.graph.ranks; ++rank) {
      spread(rank);
      names(rank, trace.left_out);
      ops(rank);
      host(rank);
    }
    for (const auto& gap : gaps) wait(gap);
    for (int rank = 0; rank < run_.timeline.graph.ranks; ++rank) {
      for (const auto node : nodes_.of_rank(rank)) event(node);
      counters(rank);
    }
    sink_.text() += "\n]}\n";
    trace.text = sink_.finish();
    return trace;
  }

 private:
  template <class... T>
  void line(fmt::format_string<T...> format, T&&... values) {
    std::string& out = sink_.text();
    if (begun_) out += ",\n";
    begun_ = true;
    fmt::format_to(std::back_inserter(out), format, std::forward<T>(values)...);
  }

  /// The shortest kernels go until there are few enough; what is left is spread over the whole step.
  std::string thin(std::size_t most) {
    const auto& graph = run_.timeline.graph;
    const auto& times = run_.timeline.times;
    std::vector<std::int64_t> lengths;
    for (std::uint32_t node = 0; node < graph.size(); ++node)
      if (graph.labels[node].kind == NodeKind::kernel) lengths.push_back(times.end[node] - times.start[node]);
    if (lengths.size() <= most) return "";
    std::nth_element(lengths.begin(), lengths.end() - static_cast<std::ptrdiff_t>(most), lengths.end());
    least_ns_ = lengths[lengths.size() - most] + 1;
    std::int64_t left = 0, left_ns = 0, all_ns = 0;
    for (const auto ns : lengths) {
      all_ns += ns;
      if (ns < least_ns_) ++left, left_ns += ns;
    }
    return fmt::format(
        "kernels shorter than {:.3f} us: {} of {}, {} of the kernels' time (ops, waits, transfers and hosts "
        "are all there; --report shows every kernel)",
        ns_to_us(least_ns_), left, lengths.size(), share(left_ns, all_ns));
  }

  bool shown(std::uint32_t node) const {
    const auto& times = run_.timeline.times;
    return run_.timeline.graph.labels[node].kind == NodeKind::transfer ||
           times.end[node] - times.start[node] >= least_ns_;
  }

  std::int64_t begin(std::uint32_t node) const {
    return run_.timeline.graph.labels[node].kind == NodeKind::transfer ? nodes_.posted(node)
                                                                       : run_.timeline.times.start[node];
  }

  /// Every slice of a stream to the first of its threads that is free.
  void spread(int rank) {
    std::map<timeline::Lane, std::vector<std::uint32_t>> streams;
    for (const auto node : nodes_.of_rank(rank)) {
      const auto& label = run_.timeline.graph.labels[node];
      if ((label.kind == NodeKind::kernel || label.kind == NodeKind::transfer) && shown(node))
        streams[label.lane].push_back(node);
    }
    used_.clear();
    for (auto& [lane, slices] : streams) {
      std::stable_sort(slices.begin(), slices.end(), [&](auto a, auto b) { return begin(a) < begin(b); });
      std::vector<std::int64_t> ends;
      for (const auto node : slices) {
        std::size_t thread = 0;
        while (thread < ends.size() && ends[thread] > begin(node)) ++thread;
        if (thread == ends.size()) ends.push_back(0);
        ends[thread] = run_.timeline.times.end[node];
        threads_[node] = thread_of(lane) + static_cast<int>(std::min<std::size_t>(thread, threads_of_stream - 1));
        used_.emplace(threads_[node], lane_name(lane) + (thread == 0 ? "" : fmt::format(" ({})", thread + 1)));
      }
    }
  }

  void name(int rank, int thread, const std::string& text) {
    line(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":{}}}}})", rank, thread, quoted(text));
    line(R"({{"ph":"M","pid":{},"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})", rank, thread,
         thread);
  }

  void names(int rank, const std::string& left_out) {
    line(R"({{"ph":"M","pid":{},"name":"process_name","args":{{"name":"pipeline rank {}"}}}})", rank, rank);
    line(R"({{"ph":"M","pid":{},"name":"process_sort_index","args":{{"sort_index":{}}}}})", rank, rank);
    const auto r = static_cast<std::size_t>(rank);
    const char* memory =
        r < memory_.size() && memory_[r].eager ? "memory of the steps before CUDA graphs are captured" : "";
    const std::string left = left_out.empty() ? "" : "without " + left_out;
    const std::string labels = left + (left.empty() || *memory == 0 ? "" : "; ") + memory;
    if (!labels.empty())
      line(R"({{"ph":"M","pid":{},"name":"process_labels","args":{{"labels":{}}}}})", rank, quoted(labels));
    name(rank, schedule_thread, "schedule");
    name(rank, host_thread, "host");
    name(rank, waits_thread, "compute waits for");
    for (const auto& [thread, text] : used_) name(rank, thread, text);
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
    }
  }

  void host(int rank) {
    for (const auto& stay : host_stays(run_, nodes_, rank)) {
      if (stay.from == stay.to) continue;  // Perfetto would draw an instant
      const std::string op = nodes_.op(stay.label);
      slice(rank, host_thread, stay.from, stay.to,
            stay.synchronises ? "waits for the GPU"
            : op.empty()      ? "issues"
                              : "issues " + op,
            "host", op.empty() ? "" : R"("op":)" + quoted(op));
    }
  }

  /// Follows what held a node up to something that has a name.
  std::string cause(std::uint32_t node, int rank) const {
    const auto& labels = run_.timeline.graph.labels;
    std::optional<std::uint32_t> at = node;
    for (int steps = 0; at && steps < 64; at = nodes_.binding(*at), ++steps) {
      const auto& label = labels[*at];
      if (label.kind != NodeKind::kernel && label.kind != NodeKind::transfer) continue;
      const std::string op = nodes_.op(label);
      return fmt::format("{}{}{}", label.rank == rank ? "" : fmt::format("rank {}: ", label.rank), nodes_.what(label),
                         op.empty() || label.kind == NodeKind::transfer ? "" : " (" + op + ")");
    }
    return "";
  }

  void wait(const timeline::Gap& gap) {
    const bool named = gap.by != timeline::Label::none && gap.cause != timeline::Cause::host;
    const std::string by = named ? cause(gap.by, gap.rank) : "";
    slice(gap.rank, waits_thread, gap.start, gap.end, timeline::name(gap.cause), "wait",
          by.empty() ? "" : R"("for":)" + quoted(by));
  }

  /// The same for every slice of a kernel but for its op.
  const std::string& arguments(const timeline::Label& label, const model::Kernel& kernel) {
    auto& text = arguments_[&kernel];
    if (!text.empty()) return text;
    text = fmt::format(R"("family":{},"shape":{})", quoted(kernel.key.family), quoted(shape_text(kernel.key)));
    if (const auto bytes = bytes_of(kernel.key)) text += fmt::format(R"(,"bytes":{:.0f})", *bytes);
    if (const auto flop = flop_of(kernel.key); flop && *flop > 0) text += fmt::format(R"(,"flop":{:.0f})", *flop);
    if (!kernel.link.empty()) text += R"(,"link":)" + quoted(kernel.link);
    if (const auto* price = price_of(run_, label))
      text += fmt::format(R"(,"alone us":{:.3f},"time from":{})", ns_to_us(price->time.ns),
                          quoted(fmt::format("{}, {}{}{}", price->time.profile, profile::name(price->time.origin),
                                             price->time.note.empty() ? "" : ": ", price->time.note)));
    return text;
  }

  void event(std::uint32_t node) {
    const auto& label = run_.timeline.graph.labels[node];
    const auto& times = run_.timeline.times;
    const int rank = label.rank;
    if (const auto* kernel = nodes_.kernel(label)) {
      if (!shown(node)) return;
      const char* kind = kernel->recompute                          ? "recompute"
                         : label.purpose == model::Purpose::compute ? "compute"
                                                                    : "communication";
      slice(rank, threads_[node], times.start[node], times.end[node], kernel->name, kind,
            fmt::format(R"("op":{},{})", quoted(nodes_.op(label)), arguments(label, *kernel)));
    } else if (label.kind == NodeKind::transfer) {
      const std::int64_t posted = nodes_.posted(node);
      const bool to_next = timeline::to_next(label.part().type);
      const Bytes bytes = label.shapes ? Bytes() : run_.stages.carried(rank, label.part().chunk, to_next);
      slice(rank, threads_[node], posted, times.end[node], nodes_.what(label), "p2p",
            fmt::format(R"("op":{},"bytes":{},"waits for the other side us":{:.3f})", quoted(nodes_.op(label)),
                        bytes.value, ns_to_us(times.start[node] - posted)));
      flow(node);
    }
  }

  /// An arrow from the sender's slice to the receiver's, drawn when the receiver is met; inside both.
  void flow(std::uint32_t receive) {
    const auto& labels = run_.timeline.graph.labels;
    const auto& times = run_.timeline.times;
    if (timeline::sends(labels[receive].part().type)) return;
    const auto send = nodes_.other_side(receive);
    if (!send) return;
    const auto arrow = [&](std::uint32_t node, const char* phase, std::int64_t at) {
      line(R"({{"ph":"{}","pid":{},"tid":{},"ts":{:.3f},"id":{},"name":"transfer","cat":"p2p"{}}})", phase,
           labels[node].rank, threads_[node], ns_to_us(at), receive, *phase == 'f' ? R"(,"bp":"e")" : "");
    };
    arrow(*send, "s", times.start[*send]);
    arrow(receive, "f", std::max(nodes_.posted(receive), times.end[receive] - 1));
  }

  void counter(int rank, const char* what, std::int64_t at, Bytes bytes) {
    line(R"({{"ph":"C","pid":{},"ts":{:.3f},"name":"{}","args":{{"GiB":{:.4f}}}}})", rank, ns_to_us(at), what,
         gib(bytes));
  }

  void counters(int rank) {
    const auto r = static_cast<std::size_t>(rank);
    const auto& predicted = prediction_.ranks.at(r);
    const Bytes limit = prediction_.memory_limit - predicted.outside_allocator;
    // What is reserved may grow in another step than the one that is shown: in the capture of CUDA graphs.
    for (const std::int64_t at : {std::int64_t{0}, prediction_.step_ns}) {
      counter(rank, "limit of the allocator", at, limit);
      counter(rank, "most reserved in any step", at, predicted.walk.peak_reserved);
    }
    if (r >= memory_.size()) return;
    MemoryClock clock(run_, rank);
    Bytes reserved(-1);
    for (const auto& sample : memory_[r].samples) {
      const auto at = clock.of(sample);
      counter(rank, "allocated memory", at, sample.allocated);
      if (sample.reserved != reserved) counter(rank, "reserved memory", at, reserved = sample.reserved);
    }
  }

  const predict::Prediction& prediction_;
  const predict::Run& run_;
  const std::vector<predict::RankHistory>& memory_;
  Nodes nodes_;
  Sink sink_;
  std::vector<int> threads_;  ///< by node
  std::map<int, std::string> used_;
  std::map<const model::Kernel*, std::string> arguments_;
  bool begun_ = false;
  std::int64_t least_ns_ = 0;
};

}  // namespace

Trace trace(const predict::Prediction& prediction, const predict::Run& run,
            const std::vector<predict::RankHistory>& memory, bool packed, std::size_t most_kernels) {
  return Writer(prediction, run, memory, packed).make(most_kernels);
}

}  // namespace pipewright::report
