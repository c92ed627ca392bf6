// Streams, kernels with their helpers, landmarks.
#include <algorithm>
#include <iterator>
#include <utility>

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
  std::set<std::int64_t> others, exchanges, works, layers, parts;
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    const Activity& a = trace_.activities[i];
    if (kinds_[i] == "ep") exchanges.insert(a.stream);
    if (kinds_[i] != "comp") continue;
    busy[a.stream] += a.duration;
    const Meaning& meaning = meanings_[a.name];
    const std::string operation = meaning.operations.empty() ? "" : meaning.operations.front();
    const bool product = operation.starts_with("gemm") || operation.starts_with("moe.router.gemm");
    if (!product && meaning.role != Role::after && operation != "memset") others.insert(a.stream);
    const bool attention = operation.starts_with("attention");
    if (is_landmark(operation) && !product) landmarks[a.stream] += 1;
    if (is_landmark(operation) && !product && !attention) layers.insert(a.stream);
    if (product || attention) parts.insert(a.stream);
    if (!operation.starts_with("copy.")) works.insert(a.stream);
  }
  std::int64_t most = -1;
  for (const auto& [stream, ns] : busy) {
    if ((landmarks.empty() || landmarks.contains(stream)) && ns > most) most = ns, result_.compute_stream = stream;
  }
  for (const auto& [stream, ns] : busy) {
    if (stream == result_.compute_stream) continue;
    if (!others.contains(stream))
      grouped_.insert(stream);
    else if (parts.contains(stream) && !layers.contains(stream))
      parallel_.insert(stream);
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
  gather_groups();
  gather_landmarks();
  tile();
  align();
}

bool Matcher::is_of_stream(std::size_t i) const {
  const Activity& a = trace_.activities[i];
  if (a.stream == stream_) return true;
  return !on_beside_ && (grouped_.contains(a.stream) || (parallel_.contains(a.stream) && kinds_[i] == "comp") ||
                         (copying_.contains(a.stream) && kinds_[i] == "comp"));
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

Unit* Matcher::helped_by(std::uint32_t activity, const std::vector<std::uint32_t>& waiting) {
  constexpr std::size_t streams = 8;  // that work at once: of a group, of shared experts, of the layer
  const auto same = [&](std::uint32_t i) { return trace_.activities[i].stream == trace_.activities[activity].stream; };
  if (std::ranges::any_of(waiting, same)) return nullptr;
  for (std::size_t n = 1; n <= std::min(streams, units_.size()); ++n)
    if (Unit& unit = units_[units_.size() - n]; same(unit.main)) return &unit;
  return nullptr;
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
    } else if (Unit* before = meaning.role == Role::after ? helped_by(i, waiting) : nullptr; before != nullptr) {
      before->activities.push_back(i);
    } else {
      Unit unit{i, std::move(waiting), &meaning, {}};
      unit.activities.push_back(i);
      unit.landmark = landmark_of(meaning);
      units_.push_back(std::move(unit));
      waiting.clear();
    }
  }
}

/// Products of a group still start while the compute stream sums gradients (of biases): that counts as behind them.
void Matcher::gather_groups() {
  std::vector<Unit> result;
  result.reserve(units_.size());
  for (std::size_t i = 0; i < units_.size(); ++i) {
    const std::string group = units_[i].landmark;
    if (!group.starts_with("gemm.grouped")) {
      result.push_back(std::move(units_[i]));
      continue;
    }
    std::vector<Unit> between, behind;
    std::size_t size = 0;
    for (; i < units_.size() && size < group_; ++i) {
      Unit& unit = units_[i];
      if (unit.landmark == group) {
        ++size;
        std::move(between.begin(), between.end(), std::back_inserter(behind));
        between.clear();
        result.push_back(std::move(unit));
      } else if (unit.landmark.empty()) {
        between.push_back(std::move(unit));
      } else {
        break;
      }
    }
    --i;
    std::move(behind.begin(), behind.end(), std::back_inserter(result));
    std::move(between.begin(), between.end(), std::back_inserter(result));
  }
  units_ = std::move(result);
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
