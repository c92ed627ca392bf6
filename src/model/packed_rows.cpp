// A kernel of attention whose sequences have several lengths (thd) does the work of all its pairs of query and key. It
// is timed as one of equal sequences with as many pairs, so at the rate that was measured near that length:
//
//   row       |--a--|----------b----------|-c-|        pairs = a(a+1)/2 + b(b+1)/2 + c(c+1)/2
//   timed as  |----L----|----L----|----L----|          L from  tokens (L + 1) / 2 = pairs
//
// With a ring of context parallelism every step of it has its share of every sequence; with an exchange of heads (a2a)
// a rank sees whole rows.
#include "packed_rows.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"
#include "pipewright/versions.hpp"

namespace pipewright::model {
namespace {

constexpr std::size_t most_kinds = 16;  ///< of microbatches: each is another kernel to time

std::vector<std::pair<std::int32_t, std::int32_t>> runs_of(std::vector<std::int32_t> microbatches) {
  std::ranges::sort(microbatches);
  std::vector<std::pair<std::int32_t, std::int32_t>> runs;
  for (const std::int32_t m : microbatches) {
    if (!runs.empty() && runs.back().second == m)
      ++runs.back().second;
    else
      runs.emplace_back(m, m + 1);
  }
  return runs;
}

/// Transformer Engine runs cuDNN's graph of so many sequences (2.16.1 common/fused_attn/utils.cu:511-526).
Int sequences_of_graph(Int sequences) {
  constexpr Int least = 32, doubles_to = 512;
  return sequences > doubles_to
             ? (sequences + doubles_to - 1) / doubles_to * doubles_to
             : std::max(least, static_cast<Int>(std::bit_ceil(static_cast<std::uint64_t>(sequences))));
}

/// The fused rotary embedding has a block for every position up to the longest sequence's end, of every sequence; from
/// 2.19 on a block for every token where that is far less (common/fused_rope/fused_rope.cu:329-350).
Int empty_blocks_of_rope(const scenario::Scenario& s, const scenario::Boundaries& row) {
  constexpr Int threshold = 2, least_waste = 65'536;
  const Int cp = s.settings.context_parallel_size, tokens = s.model.seq_length / cp;
  const Int blocks = row.sequences * row.longest, empty = std::max<Int>(0, blocks - tokens);
  const bool by_token = scenario::te_version(s.software).at_least(2, 19);
  return by_token && blocks > threshold * cp * tokens && empty >= least_waste ? 0 : empty;
}

/// `row`: of sequences that Transformer Engine lays out; `window`: tokens that a query sees.
EqualSequences equal_sequences(double length, Int tokens, Int row, double window) {
  const auto pairs = [&](double n) { return scenario::pairs_of(n, window); };
  EqualSequences as;
  as.length = std::max<Int>(1, std::llround(length));
  const auto each = static_cast<double>(as.length), all = static_cast<double>(tokens);
  as.batch = std::max<Int>(1, std::llround(all / each));
  as.share = all / length * pairs(length) / (static_cast<double>(as.batch) * pairs(each));
  as.empty = std::max<Int>(0, row - sequences_of_graph(as.batch));
  as.beyond_fewest = row - sequences_of_graph(1);
  return as;
}

/// Of two kinds of packed rows.
bool same_work(const Kernel& a, const Kernel& b) {
  return a.key == b.key && a.share == b.share && a.launches == b.launches && a.empty == b.empty;
}

}  // namespace

void launch_of_rows(PieceBuilder& w, const Dimensions& d, const Kernel& kernel,
                    const std::function<void(Kernel&, const PackedRows&)>& change) {
  std::vector<Kernel> kinds;
  for (const PackedRows& rows : d.packed) change(kinds.emplace_back(kernel), rows);
  if (kinds.empty()) return w.launch(kernel);
  if (std::ranges::adjacent_find(kinds, std::not_fn(same_work)) == kinds.end())
    return w.launch(std::move(kinds.front()));
  for (std::size_t k = 0; k < kinds.size(); ++k) w.launch(std::move(kinds[k]), d.packed[k].microbatches);
}

void roll_packed(PieceBuilder& w, const Dimensions& d, const std::string& name, Int bytes) {
  constexpr int kernels = 3, values = 4;
  const auto of_sequences = [&](Kernel kernel, int each, int less) {
    launch_of_rows(w, d, kernel, [&](Kernel& of_kind, const PackedRows& rows) {
      of_kind.launches = each * static_cast<int>(rows.slices) - less;
      if (!of_kind.key.family.empty()) of_kind.share = of_kind.launches;
    });
  };
  Kernel small;
  small.key = {"small", {}};
  w.launch(name + " copied", {"copy.d2d", {bytes}});
  w.eager();
  w.launch(name + " first sequence's begin to host", {"small", {}});
  w.eager();
  w.synchronize(Stream::compute);
  small.name = name + " of sequences shifted";
  small.host_family = "roll";
  of_sequences(small, kernels, 0);
  of_sequences(host_work(name + " sequences' ends read", "roll"), values, 2);
  w.synchronize(Stream::compute);  // the last of these values
  w.launch(name + " summed", {"small", {}});
  w.eager();
}

std::vector<PackedRows> packed_rows(const scenario::Scenario& scenario, Int tokens, Int parts) {
  const auto packing = scenario::packing(scenario);
  if (!packing) return {};
  const auto& lengths = packing->lengths;
  std::vector<std::int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  const auto of = [&](std::int32_t m) { return lengths[static_cast<std::size_t>(m)]; };
  std::ranges::stable_sort(order, {}, of);
  const std::size_t kinds = std::min(most_kinds, order.size());
  // A row of one sequence is rotated at once.
  const auto rotated_in_parts = [&](const scenario::Boundaries& row) {
    return row.longest < scenario.model.seq_length;
  };
  Int longest = 1;
  for (const auto& row : packing->boundaries)
    if (rotated_in_parts(row)) longest = std::max(longest, row.longest / scenario.settings.context_parallel_size);
  std::vector<PackedRows> result;
  for (std::size_t k = 0; k < kinds; ++k) {
    const auto from = order.begin() + static_cast<std::ptrdiff_t>(k * order.size() / kinds);
    const auto to = order.begin() + static_cast<std::ptrdiff_t>((k + 1) * order.size() / kinds);
    double length = 0, windowed = 0, blocks = 0, sequences = 0, rotated = 0, slices = 0;
    for (auto m = from; m != to; ++m) {
      const auto& row = packing->boundaries[static_cast<std::size_t>(*m)];
      length += of(*m);
      if (!packing->windowed.empty()) windowed += packing->windowed[static_cast<std::size_t>(*m)];
      blocks += static_cast<double>(empty_blocks_of_rope(scenario, row));
      sequences += static_cast<double>(sequences_of_graph(row.sequences));
      rotated += static_cast<double>(rotated_in_parts(row) ? row.sequences : 1);
      slices += static_cast<double>(row.sequences);
    }
    const auto mean = [&](double sum) { return std::llround(sum / static_cast<double>(to - from)); };
    const double shared = static_cast<double>(to - from) * static_cast<double>(parts);
    PackedRows rows;
    rows.attention = equal_sequences(length / shared, tokens, mean(sequences), static_cast<double>(tokens));
    if (!packing->windowed.empty())
      rows.windowed = equal_sequences(windowed / shared, tokens, mean(sequences),
                                      static_cast<double>(scenario::window_of(scenario)));
    rows.empty_blocks = mean(blocks);
    rows.sequences = mean(rotated);
    rows.slices = mean(slices);
    rows.longest = longest;
    rows.microbatches = runs_of({from, to});
    result.push_back(std::move(rows));
  }
  return result;
}

}  // namespace pipewright::model
