// Streams, kernels with their helpers, landmarks.
#include <algorithm>

#include "matcher.hpp"

namespace pipewright::traces {

Matcher::Matcher(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns,
                 const Order& order)
    : trace_(trace), kinds_(kinds), patterns_(patterns), order_(order) {
  meanings_.reserve(trace.names.size());
  for (const auto& name : trace.names) {
    meanings_.push_back(meaning_of(name));
    iterated_.push_back(is_of_tensor_iterator(name));
    eager_.push_back(is_eager(name));
  }
}

Mapping Matcher::run() {
  find_streams();
  for (const auto& pattern : patterns_) {
    for (const auto& e : pattern.compute) {
      if (!e.operation.starts_with("gemm.grouped")) continue;
      group_ = static_cast<std::size_t>(e.kernel->key.dims.front());
      has_experts_ = true;
    }
  }
  walk(result_.compute_stream, false);
  map_other_streams();
  if (beside_ != none) walk(beside_, true);
  find_accumulations();
  sort_exchanges();
  std::sort(result_.operations.begin(), result_.operations.end(), [&](const Mapped& a, const Mapped& b) {
    const auto& x = trace_.activities[a.main];
    const auto& y = trace_.activities[b.main];
    return std::make_tuple(x.stream != result_.compute_stream, a.main) <
           std::make_tuple(y.stream != result_.compute_stream, b.main);
  });
  collect_unmapped();
  return std::move(result_);
}

void Matcher::find_streams() {
  std::map<std::int64_t, std::int64_t> busy, landmarks;
  std::set<std::int64_t> others, exchanges, works;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    const Activity& a = trace_.activities[i];
    if (kinds_[i] == "ep") exchanges.insert(a.stream);
    if (kinds_[i] != "comp") continue;
    busy[a.stream] += a.duration;
    const Meaning& meaning = meanings_[a.name];
    const std::string operation = meaning.operations.empty() ? "" : meaning.operations.front();
    const bool product = operation.starts_with("gemm") || operation.starts_with("moe.router.gemm");
    if (!product && meaning.role != Role::after && operation != "memset") others.insert(a.stream);
    if (is_landmark(operation) && !product) landmarks[a.stream] += 1;
    if (!operation.starts_with("copy.")) works.insert(a.stream);
  }
  std::int64_t most = -1;
  for (const auto& [stream, ns] : busy) {
    if ((landmarks.empty() || landmarks.contains(stream)) && ns > most) most = ns, result_.compute_stream = stream;
  }
  for (const auto& [stream, ns] : busy) {
    if (stream != result_.compute_stream && !others.contains(stream)) grouped_.insert(stream);
  }
  const auto exchanges_heads = [](const Expected& e) {
    return e.kernel->purpose == model::Purpose::cp && e.operation == "all_to_all";
  };
  for (const auto& [stream, ns] : busy) {
    if (stream == result_.compute_stream || works.contains(stream)) continue;
    if (std::any_of(patterns_.begin(), patterns_.end(), [&](const Pattern& p) {
          return std::any_of(p.elsewhere.begin(), p.elsewhere.end(), exchanges_heads);
        }))
      copying_.insert(stream);
  }
  const bool nodes = std::any_of(patterns_.begin(), patterns_.end(), [](const Pattern& p) { return p.beside; });
  for (const auto stream : exchanges) {
    if (nodes && stream != result_.compute_stream) beside_ = stream;
  }
}

void Matcher::walk(std::int64_t stream, bool beside) {
  stream_ = stream;
  on_beside_ = beside;
  units_.clear();
  landmarks_.clear();
  tiles_.clear();
  gather_units();
  gather_landmarks();
  tile();
  align();
}

bool Matcher::is_of_stream(std::size_t i) const {
  const Activity& a = trace_.activities[i];
  if (a.stream == stream_) return true;
  return !on_beside_ && (grouped_.contains(a.stream) || (copying_.contains(a.stream) && kinds_[i] == "comp"));
}

const Meaning& Matcher::meaning(const Activity& a) {
  static const Meaning to_gpu{Role::main, {"copy.h2d"}}, from_gpu;
  if (a.engine == Engine::h2d) return to_gpu;
  if (a.engine == Engine::d2h) return from_gpu;
  const Meaning& plain = meanings_[a.name];
  if (!has_experts_ || !grouped_.contains(a.stream) || plain.role != Role::main) return plain;
  Meaning& result = experts_[a.name];
  if (result.operations.empty()) {
    std::string layout = plain.operations.front();
    if (layout == "moe.router.gemm.forward") layout = "gemm.bf16.tn";
    result = {Role::main, {"gemm.grouped" + layout.substr(std::string("gemm").size())}};
  }
  return result;
}

std::string Matcher::landmark_of(const Meaning& meaning) const {
  for (const auto& operation : meaning.operations) {
    if (on_beside_ ? is_beside_landmark(operation)
                   : (&operation == meaning.operations.data() && is_landmark(operation)))
      return operation;
  }
  return {};
}

void Matcher::gather_units() {
  constexpr std::int64_t longest_helper = 5000;  // ns; a longer memset or fill is an operation of its own
  std::vector<std::uint32_t> waiting;
  for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
    const Activity& a = trace_.activities[i];
    if (!is_of_stream(i) || kinds_[i] == "p2p") continue;
    const Meaning& meaning = this->meaning(a);
    if (meaning.role == Role::before && (a.duration < longest_helper || meaning.operations.empty())) {
      waiting.push_back(i);
    } else if (meaning.role == Role::after && waiting.empty() && !units_.empty()) {
      units_.back().activities.push_back(i);
    } else {
      Unit unit{i, std::move(waiting), &meaning, {}};
      unit.activities.push_back(i);
      unit.landmark = landmark_of(meaning);
      units_.push_back(std::move(unit));
      waiting.clear();
    }
  }
}

void Matcher::gather_landmarks() {
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const auto& name = units_[i].landmark;
    if (name.empty()) continue;
    Landmark mark{i, 1, &name};
    if (name.starts_with("gemm.grouped")) {
      while (mark.size < group_ && i + 1 < units_.size() && units_[i + 1].landmark == name) ++i, ++mark.size;
    } else if (is_run(name)) {
      while (i + 1 < units_.size() && can_be(units_[i + 1], name)) ++i, ++mark.size;
    }
    landmarks_.push_back(mark);
  }
}

bool Matcher::can_be(const Unit& unit, const std::string& operation) const {
  if (operation == eager_operation) return eager_[trace_.activities[unit.main].name];
  constexpr std::int64_t longest_small = 30000;  // ns
  if (operation == "small" && trace_.activities[unit.main].duration > longest_small) return false;
  const auto& all = unit.meaning->operations;
  return std::find(all.begin(), all.end(), operation) != all.end();
}

Mapping match(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns,
              const Order& order) {
  return Matcher(trace, kinds, patterns, order).run();
}

}  // namespace pipewright::traces
