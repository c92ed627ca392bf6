// Rows of a step, see packing.hpp.
#include "pipewright/scenario/packing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <queue>
#include <tuple>

#include "lengths.hpp"
#include "pipewright/chance.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::scenario {
namespace {

/// More sequences than this stand for all: every n-th of the sorted ones.
constexpr Int most_sequences = 65'536;
constexpr std::size_t many_rows = 100'000, most_rows = 1'000'000;  ///< of a step

/// The inverse of pairs_of: equal sequences of how many tokens have so many pairs a token, `most` at most.
double length_of(double pairs_each, Int window, Int most) {
  const auto w = static_cast<double>(window);
  if (2 * pairs_each <= w + 1) return 2 * pairs_each - 1;
  const double left = w - pairs_each;  // w (w - 1) / (2 L)
  return left * 2 * static_cast<double>(most) <= w * (w - 1) ? static_cast<double>(most) : w * (w - 1) / (2 * left);
}

/// What of a scenario decides its rows.
struct Question {
  Int tokens, multiple, batch, ranks, microbatches, together, window;
  bool separate_padding, cuts, whole_padding, pads_boundaries;
  std::string algorithm, order;
  Strings lengths;
  friend auto operator<=>(const Question&, const Question&) = default;
};

Question question(const Scenario& s) {
  const auto& o = s.settings;
  const Int cp = o.context_parallel_size, dp = std::max<Int>(1, data_parallel_size(s));
  Question q;
  q.tokens = s.model.seq_length;
  q.multiple = cp > 1 ? 2 * cp : 1;
  q.batch = o.global_batch_size;
  q.ranks = dp;
  q.microbatches = num_microbatches(s);
  // Inside every layer of experts all ranks of their group wait for each other.
  q.together = s.model.num_moe_experts ? std::clamp<Int>(expert_tensor_parallel_size(s) * o.expert_model_parallel_size /
                                                             (o.tensor_model_parallel_size * cp),
                                                         1, dp)
                                       : 1;
  const Int window = window_of(s);
  q.window = window > 0 ? std::min(window, q.tokens) : q.tokens;
  q.separate_padding = s.software.megatron_bridge.has_value();
  q.cuts = !q.separate_padding;
  q.whole_padding = o.packing_algorithm == "none";
  q.pads_boundaries = o.pad_cu_seqlens && q.separate_padding;  // Megatron-LM pads none
  q.algorithm = o.packing_algorithm;
  q.order = o.pack_order;
  q.lengths = o.sequence_lengths;
  return q;
}

struct Row {
  double pairs = 0, windowed = 0;
  Int filled = 0;
  Int own = 0, longest_own = 0;  ///< sequences but padding
  Boundaries boundaries{0, 0};
};

class Packer {
 public:
  Packer(const Question& q, Packing& result) : q_(q), result_(result) {}

  std::vector<Row> rows() {
    std::vector<Ints> ready;
    Ints single;
    for (Ints& row : sampled()) {
      if (row.size() > 1) {
        ready.push_back(std::move(row));
        continue;
      }
      if (row.front() <= q_.tokens || q_.cuts) single.push_back(std::min(row.front(), q_.tokens));
      if (row.front() > q_.tokens) ++result_.too_long;
    }
    if (q_.algorithm == "none") {
      for (const Int length : single) ready.push_back({length});
    } else {
      if (q_.algorithm == "first_fit_shuffle") Chance(1).shuffle(single);
      if (q_.algorithm == "first_fit_decreasing") std::ranges::sort(single, std::greater());
      for (Ints& row : first_fit(single)) ready.push_back(std::move(row));
    }
    std::vector<Row> rows;
    for (const Ints& row : ready) rows.push_back(filled(row));
    return rows;
  }

 private:
  std::vector<Ints> sampled() {
    const auto counts = length_counts(q_.lengths);
    Int all = 0;
    for (const auto& [row, count] : counts) all += count;
    const Int taken = std::min(all, most_sequences);
    std::vector<Ints> list;
    Int before = 0;  // the i-th taken stands in the middle of its share
    auto at = counts.begin();
    for (Int i = 0; i < taken; ++i) {
      const auto place =
          static_cast<Int>((static_cast<double>(i) + 0.5) / static_cast<double>(taken) * static_cast<double>(all));
      while (before + at->second <= place) before += at->second, ++at;
      list.push_back(at->first);
      result_.sequences += std::ssize(at->first);
    }
    return list;
  }

  Int padded(Int length) const { return (length + q_.multiple - 1) / q_.multiple * q_.multiple; }

  /// Each into the first row with room: a tree of the room that the rows below a node have at most.
  std::vector<Ints> first_fit(const Ints& lengths) const {
    std::size_t leaves = 1;
    while (leaves < lengths.size()) leaves *= 2;
    Ints room(2 * leaves, q_.tokens);
    std::vector<Ints> rows;
    for (const Int length : lengths) {
      const Int needs = std::min(padded(length), q_.tokens);
      std::size_t node = 1;
      while (node < leaves) node = room[2 * node] >= needs ? 2 * node : 2 * node + 1;
      const std::size_t row = node - leaves;
      if (row == rows.size()) rows.emplace_back();
      rows[row].push_back(length);
      room[node] -= needs;
      while (node > 1) node /= 2, room[node] = std::max(room[2 * node], room[2 * node + 1]);
    }
    return rows;
  }

  Row filled(const Ints& lengths) {
    Row row;
    Int left = q_.tokens, last = 0;
    for (const Int length : lengths) {
      if (length > left && !q_.cuts)
        throw UsageError({}, "settings.sequence_lengths",
                         fmt::format("a row that is packed already has more than seq_length ({}) tokens", q_.tokens));
      if (length > left) ++result_.too_long;
      last = std::min(padded(length), left);
      row.filled += std::min(length, left);
      add(row, last, 1);
      ++row.own;
      row.longest_own = std::max(row.longest_own, last);
      left -= last;
      if (left == 0) break;
    }
    row.boundaries = {row.own, row.longest_own};
    if (q_.whole_padding && lengths.size() == 1) {
      row.pairs = row.windowed = 0;
      add(row, q_.tokens, 1);
      row.boundaries = {1, q_.tokens};
    } else if (!q_.separate_padding) {
      add(row, last + left, 1);
      add(row, last, -1);
      row.boundaries.longest = std::max(row.longest_own, last + left);
    } else {
      if (q_.multiple == 1) add(row, left, 1);
      if (left > 0) row.boundaries = {row.own + 1, std::max(row.longest_own, left)};
    }
    return row;
  }

  void add(Row& row, Int length, double times) const {
    const auto n = static_cast<double>(length);
    row.pairs += times * pairs_of(n, n);
    row.windowed += times * pairs_of(n, static_cast<double>(q_.window));
  }

  const Question& q_;
  Packing& result_;
};

/// Pairs by data-parallel rank and microbatch.
using Deal = std::vector<std::vector<double>>;

/// What a group of ranks that wait for each other takes, microbatch by microbatch; of the busiest group.
std::vector<double> busiest(const Deal& deal, std::size_t together) {
  std::vector<double> most;
  for (std::size_t first = 0; first < deal.size(); first += together) {
    std::vector<double> slowest = deal[first];
    for (std::size_t r = first + 1; r < std::min(first + together, deal.size()); ++r)
      for (std::size_t m = 0; m < slowest.size(); ++m) slowest[m] = std::max(slowest[m], deal[r][m]);
    const auto sum = [](const std::vector<double>& all) { return std::accumulate(all.begin(), all.end(), 0.0); };
    if (most.empty() || sum(slowest) > sum(most)) most = std::move(slowest);
  }
  return most;
}

std::vector<double> dealt(std::vector<double> rows, const Question& q) {
  const auto ranks = static_cast<std::size_t>(q.ranks), each = static_cast<std::size_t>(q.microbatches);
  const auto together = static_cast<std::size_t>(q.together);
  if (q.order == "balanced") {
    std::ranges::sort(rows, std::greater());
    Deal deal(ranks);
    using Load = std::pair<double, std::size_t>;  // of a rank with room
    std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
    for (std::size_t r = 0; r < ranks; ++r) loads.emplace(0, r);
    for (const double row : rows) {  // to the rank with the least so far
      const auto [load, to] = loads.top();
      loads.pop();
      deal[to].push_back(row);
      if (deal[to].size() < each) loads.emplace(load + row, to);
    }
    return busiest(deal, together);
  }
  Chance chance(1);
  std::vector<std::pair<double, std::vector<double>>> found;
  const int deals = rows.size() > many_rows ? 11 : 101;
  for (int i = 0; i < deals; ++i) {
    chance.shuffle(rows);
    Deal deal(ranks);
    for (std::size_t r = 0; r < ranks; ++r)
      deal[r].assign(rows.begin() + static_cast<std::ptrdiff_t>(r * each),
                     rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * each));
    auto most = busiest(deal, together);
    found.emplace_back(std::accumulate(most.begin(), most.end(), 0.0), std::move(most));
  }
  const auto median = found.begin() + deals / 2;
  std::ranges::nth_element(found, median);
  return median->second;
}

/// What every row is told with pad_cu_seqlens.
Boundaries padded(const std::vector<Row>& rows, Int tokens) {
  Boundaries all{0, 0};
  for (const Row& row : rows) {
    all.sequences = std::max(all.sequences, row.own + 1);
    all.longest = std::max({all.longest, row.longest_own, tokens - row.filled});
  }
  return all;
}

Packing answer(const Question& q) {
  Packing result;
  auto rows = Packer(q, result).rows();
  result.rows = std::ssize(rows);
  if (rows.empty())
    throw UsageError({}, "settings.sequence_lengths", fmt::format("no sequence has at most {} tokens", q.tokens));
  double filled = 0;
  for (const Row& row : rows) filled += static_cast<double>(row.filled);
  result.fill = filled / static_cast<double>(rows.size()) / static_cast<double>(q.tokens);
  std::ranges::stable_sort(rows, {}, &Row::pairs);
  const auto slots = static_cast<std::size_t>(q.ranks * q.microbatches);
  if (slots > most_rows)
    throw UsageError({}, "settings.sequence_lengths",
                     fmt::format("a step of {} packed rows is too large, the limit is {}", slots, most_rows));
  std::vector<double> step;
  double sum = 0;
  for (std::size_t i = 0; i < slots; ++i) {
    const double place = (static_cast<double>(i) + 0.5) / static_cast<double>(slots);
    step.push_back(rows[static_cast<std::size_t>(place * static_cast<double>(rows.size()))].pairs);
    sum += step.back();
  }
  const auto length = [&](double of_row) { return 2 * of_row / static_cast<double>(q.tokens) - 1; };
  result.mean_length = length(sum / static_cast<double>(slots));
  const auto simulated = dealt(std::move(step), q);
  const Boundaries of_all = padded(rows, q.tokens);
  for (const double row : simulated) {
    result.lengths.push_back(length(row));
    // A rank's slowest row may be another's: rows of as many pairs are told apart by nothing else.
    const auto at = std::ranges::lower_bound(rows, row, {}, &Row::pairs);
    if (q.window < q.tokens)
      result.windowed.push_back(length_of(at->windowed / static_cast<double>(q.tokens), q.window, q.tokens));
    result.boundaries.push_back(q.pads_boundaries ? of_all : at->boundaries);
  }
  result.busiest = std::accumulate(simulated.begin(), simulated.end(), 0.0) / (sum / static_cast<double>(q.ranks));
  return result;
}

}  // namespace

double pairs_of(double length, double window) {
  const double growing = std::min(length, window);
  return growing * (growing + 1) / 2 + (length - growing) * window;
}

std::shared_ptr<const Packing> packing(const Scenario& scenario) {
  if (!scenario.settings.sft || scenario.settings.sequence_lengths.empty()) return nullptr;
  static std::mutex mutex;
  static std::map<Question, std::shared_ptr<const Packing>> known;  // a search asks the same again and again
  constexpr std::size_t most_known = 64;
  const Question asked = question(scenario);
  const std::scoped_lock lock(mutex);
  auto found = known.find(asked);
  if (found == known.end()) {
    if (known.size() == most_known) known.clear();
    try {
      found = known.emplace(asked, std::make_shared<const Packing>(answer(asked))).first;
    } catch (const UsageError& error) {
      throw UsageError(position(scenario, "settings.sequence_lengths"), "settings.sequence_lengths", error.message());
    }
  }
  return found->second;
}

bool rows_differ(const Scenario& scenario) {
  const auto rows = packing(scenario);
  return rows && std::ranges::any_of(rows->lengths, [&](double one) { return one != rows->lengths.front(); });
}

}  // namespace pipewright::scenario
