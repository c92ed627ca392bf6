#include "match.hpp"

#include <algorithm>
#include <optional>
#include <set>

namespace pipewright::traces {
namespace {

/// A kernel with its helpers.
struct Unit {
  std::uint32_t main;
  std::vector<std::uint32_t> activities;
  const Meaning* meaning;
  std::string landmark;  ///< its operation, if it is one
};

/// A row of `size` units that is one landmark (runs are many kernels).
struct Landmark {
  std::size_t first, size;
  const std::string* operation;
};

class Matcher {
 public:
  Matcher(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns)
      : trace_(trace), kinds_(kinds), patterns_(patterns) {
    meanings_.reserve(trace.names.size());
    for (const auto& name : trace.names) meanings_.push_back(meaning_of(name));
  }

  Mapping run() {
    find_streams();
    for (const auto& pattern : patterns_) {
      for (const auto& e : pattern.compute) {
        if (e.operation.starts_with("gemm.grouped")) group_ = static_cast<std::size_t>(e.kernel->key.dims.front());
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

 private:
  static constexpr std::int64_t none = INT64_MIN;

  struct Tile {
    const Pattern* pattern;
    std::size_t first;  ///< landmark
  };

  /// An operation that is not where its tile expects it.
  struct Lost {
    const Expected* expected;
    const Pattern* pattern;
    std::size_t instance;
  };

  /// Compute: the busiest with norms or attention. Beside it, with expert-parallel overlap, the one of all-to-alls.
  /// Grouped GEMMs: those that run nothing but matrix products.
  void find_streams() {
    std::map<std::int64_t, std::int64_t> busy, landmarks;
    std::set<std::int64_t> others, exchanges;
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
    }
    std::int64_t most = -1;
    for (const auto& [stream, ns] : busy) {
      if ((landmarks.empty() || landmarks.contains(stream)) && ns > most) most = ns, result_.compute_stream = stream;
    }
    for (const auto& [stream, ns] : busy) {
      if (stream != result_.compute_stream && !others.contains(stream)) grouped_.insert(stream);
    }
    const bool nodes = std::any_of(patterns_.begin(), patterns_.end(), [](const Pattern& p) { return p.beside; });
    for (const auto stream : exchanges) {
      if (nodes && stream != result_.compute_stream) beside_ = stream;
    }
  }

  /// One stream against its patterns.
  void walk(std::int64_t stream, bool beside) {
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

  bool is_of_stream(const Activity& a) const {
    return a.stream == stream_ || (!on_beside_ && grouped_.contains(a.stream));
  }

  /// What a kernel is; a matrix product on a stream of its own is an expert's.
  const Meaning& meaning(const Activity& a) {
    static const Meaning to_gpu{Role::main, {"copy.h2d"}}, from_gpu;
    if (a.engine == Engine::h2d) return to_gpu;
    if (a.engine == Engine::d2h) return from_gpu;
    const Meaning& plain = meanings_[a.name];
    if (!grouped_.contains(a.stream) || plain.role != Role::main) return plain;
    Meaning& result = experts_[a.name];
    if (result.operations.empty()) {
      std::string layout = plain.operations.front();
      if (layout == "moe.router.gemm.forward") layout = "gemm.bf16.tn";
      result = {Role::main, {"gemm.grouped" + layout.substr(std::string("gemm").size())}};
    }
    return result;
  }

  std::string landmark_of(const Meaning& meaning) const {
    for (const auto& operation : meaning.operations) {
      if (on_beside_ ? is_beside_landmark(operation)
                     : (&operation == meaning.operations.data() && is_landmark(operation)))
        return operation;
    }
    return {};
  }

  void gather_units() {
    constexpr std::int64_t longest_helper = 5000;  // ns; a longer memset or fill is an operation of its own
    std::vector<std::uint32_t> waiting;
    for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
      const Activity& a = trace_.activities[i];
      if (!is_of_stream(a) || kinds_[i] == "p2p") continue;
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

  void gather_landmarks() {
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

  bool can_be(const Unit& unit, const std::string& operation) const {
    constexpr std::int64_t longest_small = 30000;  // ns
    if (operation == "small" && trace_.activities[unit.main].duration > longest_small) return false;
    const auto& all = unit.meaning->operations;
    return std::find(all.begin(), all.end(), operation) != all.end();
  }

  bool fits(const Pattern& pattern, std::size_t at) const {
    if (pattern.beside != on_beside_ || pattern.landmarks.empty()) return false;
    if (on_beside_ && !same_side(pattern, at)) return false;
    if (at + pattern.landmarks.size() > landmarks_.size()) return false;
    for (std::size_t i = 0; i < pattern.landmarks.size(); ++i) {
      if (pattern.compute[pattern.landmarks[i]].operation != *landmarks_[at + i].operation) return false;
    }
    return true;
  }

  /// Forward and backward nodes are launched by different threads.
  bool same_side(const Pattern& pattern, std::size_t at) const {
    if (forward_thread_ < 0) return true;
    const bool forward = trace_.activities[units_[landmarks_[at].first].main].launch.thread == forward_thread_;
    return forward == (pattern.pass == Pass::forward);
  }

  /// covered[i]: most landmarks from i on that tiles can cover; of equal coverings the one with the fewest tiles.
  void tile() {
    struct Best {
      std::size_t covered = 0, tiles = 0;
      const Pattern* pattern = nullptr;
    };
    std::vector<Best> best(landmarks_.size() + 1);
    for (std::size_t i = landmarks_.size(); i-- > 0;) {
      best[i] = {best[i + 1].covered, best[i + 1].tiles, nullptr};
      for (const Pattern& pattern : patterns_) {
        if (!fits(pattern, i)) continue;
        const Best& rest = best[i + pattern.landmarks.size()];
        const Best with{rest.covered + pattern.landmarks.size(), rest.tiles + 1, &pattern};
        if (with.covered > best[i].covered || (with.covered == best[i].covered && with.tiles < best[i].tiles)) {
          best[i] = with;
        }
      }
    }
    for (std::size_t i = 0; i < landmarks_.size();) {
      const Pattern* pattern = best[i].pattern;
      if (pattern != nullptr) tiles_.push_back({pattern, i});
      i += pattern != nullptr ? pattern->landmarks.size() : 1;
    }
    if (on_beside_) return;
    for (const auto& t : tiles_) {
      if (t.pattern->pass == Pass::forward) {
        forward_thread_ = trace_.activities[units_[landmarks_[t.first].first].main].launch.thread;
      }
    }
    if (std::none_of(tiles_.begin(), tiles_.end(), [](const Tile& t) { return t.pattern->pass != Pass::step; })) {
      refuse();
    }
  }

  [[noreturn]] void refuse() const {
    std::string wanted, found;
    for (const std::size_t l : patterns_.front().landmarks) wanted += " " + patterns_.front().compute[l].operation;
    for (std::size_t i = 0; i < std::min<std::size_t>(landmarks_.size(), patterns_.front().landmarks.size()); ++i) {
      found += " " + *landmarks_[i].operation;
    }
    throw UsageError({trace_.file, 0}, {},
                     "the kernels of the scenario's layers are not in the trace: " + patterns_.front().name + " runs" +
                         wanted + "; the trace begins with" + (found.empty() ? " none of these" : found));
  }

  void map(const Expected& expected, const Tile& tile, std::size_t instance, std::size_t first, std::size_t size) {
    Mapped mapped{&expected, tile.pattern, instance, units_[first].main, {}, true, {}};
    // The last launch ends what the host spends on an operation of many kernels of one size.
    const bool ends = expected.operation.starts_with("gemm.grouped") || expected.operation.starts_with("moe.router");
    for (std::size_t u = first; u < first + size; ++u) {
      const auto& a = units_[u].activities;
      mapped.activities.insert(mapped.activities.end(), a.begin(), a.end());
      const auto& so_far = trace_.activities[mapped.main];
      const auto& next = trace_.activities[units_[u].main];
      if (ends ? next.launch.start > so_far.launch.start : next.duration > so_far.duration) {
        mapped.main = units_[u].main;
      }
    }
    result_.operations.push_back(std::move(mapped));
  }

  /// What stands between two landmarks of the trace, and the operations that the tiles expect there.
  struct Gap {
    struct Wanted {
      const Expected* expected;
      const Tile* tile;
      std::size_t instance;
    };
    std::vector<Wanted> wanted;
    std::vector<std::size_t> units;
  };

  void align() {
    const std::size_t first_instance = result_.instances.size();
    Gap gap;
    std::size_t unit = 0;
    const auto units_until = [&](std::size_t end) {
      for (; unit < end; ++unit) gap.units.push_back(unit);
    };
    std::size_t landmark = 0;
    const auto unknown_landmarks_until = [&](std::size_t end) {
      for (; landmark < end; ++landmark) {
        units_until(landmarks_[landmark].first);
        close(gap);
        unit += landmarks_[landmark].size;
      }
    };
    for (std::size_t t = 0; t < tiles_.size(); ++t) {
      const Tile& tile = tiles_[t];
      unknown_landmarks_until(tile.first);
      const auto& compute = tile.pattern->compute;
      for (std::size_t i = 0, l = 0; i < compute.size(); ++i) {
        if (l == tile.pattern->landmarks.size() || i != tile.pattern->landmarks[l]) {
          gap.wanted.push_back({&compute[i], &tile, first_instance + t});
          continue;
        }
        const Landmark& mark = landmarks_[tile.first + l];
        units_until(mark.first);
        close(gap);
        map(compute[i], tile, first_instance + t, mark.first, mark.size);
        unit = mark.first + mark.size;
        ++l;
        ++landmark;
      }
      result_.instances.push_back(tile.pattern);
    }
    unknown_landmarks_until(landmarks_.size());
    units_until(units_.size());
    close(gap);
  }

  void close(Gap& gap) {
    // Collectives first, among themselves: a loss over a split vocabulary is one operation with three inside.
    const auto is_collective = [&](std::size_t unit) {
      const auto& kind = kinds_[units_[unit].main];
      return kind != "comp" && kind != "h2d" && kind != "d2h";
    };
    const auto wants_collective = [](const Gap::Wanted& w) {
      return w.expected->kernel->purpose != model::Purpose::compute;
    };
    for (const bool collective : {true, false}) {
      Gap part;
      for (const auto& w : gap.wanted) {
        if (wants_collective(w) == collective) part.wanted.push_back(w);
      }
      for (const auto u : gap.units) {
        if (is_collective(u) == collective) part.units.push_back(u);
      }
      align(std::move(part));
    }
    gap = {};
  }

  /// Operations and units of a gap in order; what is left is aligned again, because autograd may swap neighbours.
  void align(Gap gap) {
    const std::size_t before = result_.operations.size();
    while (!gap.wanted.empty() && align_in_order(gap)) {
    }
    std::erase_if(gap.wanted, [&](const Gap::Wanted& w) { return join(w, before); });
    sort_copies(before);
    // Small kernels may run elsewhere: AccumulateGrad of a norm's weight, on the stream on which DDP made it.
    for (const auto& w : gap.wanted)
      if (w.expected->operation != "small") lost_.push_back({w.expected, w.tile->pattern, w.instance});
  }

  /// Neighbouring copies of a pass (a CUDA graph's gradients) may come in another order: the longer is the larger.
  void sort_copies(std::size_t first) {
    std::map<std::size_t, std::vector<std::size_t>> copies;
    for (std::size_t i = first; i < result_.operations.size(); ++i) {
      const Mapped& m = result_.operations[i];
      if (m.expected->operation == "copy.d2d" && m.activities.size() == 1) copies[m.instance].push_back(i);
    }
    const auto bytes = [](const Expected* e) { return e->kernel->key.dims.front(); };
    for (const auto& [instance, indices] : copies) {
      std::vector<const Expected*> expected;
      for (const auto i : indices) expected.push_back(result_.operations[i].expected);
      std::stable_sort(expected.begin(), expected.end(), [&](auto a, auto b) { return bytes(a) < bytes(b); });
      auto by_time = indices;
      std::stable_sort(by_time.begin(), by_time.end(), [&](auto a, auto b) {
        return trace_.activities[result_.operations[a].main].duration <
               trace_.activities[result_.operations[b].main].duration;
      });
      for (std::size_t i = 0; i < by_time.size(); ++i) result_.operations[by_time[i]].expected = expected[i];
    }
  }

  /// Whether a kernel of those mapped from `first` on does the operation along with the one before it.
  bool join(const Gap::Wanted& wanted, std::size_t first) {
    for (std::size_t i = first; i < result_.operations.size(); ++i) {
      Mapped& m = result_.operations[i];
      const auto& joined = meanings_[trace_.activities[m.main].name].joined;
      const std::size_t n = m.joined.size();
      if (m.instance != wanted.instance || n >= joined.size() || joined[n] != wanted.expected->operation) continue;
      if (wanted.expected != m.expected + 1 + n) continue;  // neighbours in the pattern
      m.joined.push_back(wanted.expected);
      return true;
    }
    return false;
  }

  /// AccumulateGrad of an embedding runs on the stream on which DDP made it, too: the stream's longest sums are those
  /// of the largest table, a whole number a pass (two, where the head's gradient of a tied table is added, too).
  void find_accumulations() {
    const auto is_sum = [](const Lost& l) {
      return l.expected->operation == "add" && l.pattern->pass != Pass::forward;
    };
    std::map<std::int64_t, std::vector<Lost>, std::greater<>> tables;
    for (const auto& lost : lost_) {
      if (is_sum(lost)) tables[lost.expected->kernel->key.dims.front()].push_back(lost);
    }
    std::map<std::int64_t, std::vector<std::uint32_t>> streams;
    for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
      const Activity& a = trace_.activities[i];
      const auto& operations = meanings_[a.name].operations;
      if (!is_of_stream(a) && a.stream != beside_ && !operations.empty() && operations.front() == "add")
        streams[a.stream].push_back(i);
    }
    for (auto& [stream, found] : streams) {
      const auto ns = [&](std::uint32_t i) { return trace_.activities[i].duration; };
      std::sort(found.begin(), found.end(), [&](auto a, auto b) { return ns(a) > ns(b); });
      auto first = found.begin();
      for (auto table = tables.begin(); table != tables.end() && first != found.end(); table = tables.erase(table)) {
        const auto last = std::find_if(first, found.end(), [&](auto i) { return 2 * ns(i) < ns(*first); });
        const auto& sums = table->second;
        const std::size_t each = static_cast<std::size_t>(last - first) / sums.size();
        if (each * sums.size() != static_cast<std::size_t>(last - first)) break;
        std::sort(first, last);
        for (const Lost& sum : sums) {
          first += static_cast<std::ptrdiff_t>(each);
          const std::uint32_t i = *(first - 1);
          result_.operations.push_back({sum.expected, sum.pattern, sum.instance, i, {i}, false, {}});
        }
        std::erase_if(lost_,
                      [&](const Lost& l) { return is_sum(l) && l.expected->kernel->key.dims.front() == table->first; });
      }
    }
    for (const auto& lost : lost_) {
      ++result_.missing[lost.expected->kernel->name];
      result_.missing_copies += lost.expected->operation == "copy.strided";
    }
  }

  /// Maps the longest common subsequence of expected operations and units, where a run takes several units in a row,
  /// and removes it from the gap. False: nothing in common.
  bool align_in_order(Gap& gap) {
    const std::size_t n = gap.wanted.size(), m = gap.units.size();
    struct Cell {
      std::size_t score = 0, taken = 0;  // taken: units that operation i takes from unit j on
      bool skip_unit = false;
    };
    std::vector<std::vector<Cell>> best(n + 1, std::vector<Cell>(m + 1));
    for (std::size_t i = n; i-- > 0;) {
      const std::string& operation = gap.wanted[i].expected->operation;
      for (std::size_t j = m + 1; j-- > 0;) {
        Cell cell{best[i + 1][j].score, 0, false};
        if (j < m && best[i][j + 1].score > cell.score) cell = {best[i][j + 1].score, 0, true};
        for (std::size_t size = 1; j + size <= m && can_be(units_[gap.units[j + size - 1]], operation) &&
                                   same_thread(gap.units[j], gap.units[j + size - 1]);
             ++size) {
          // Units first; of equal numbers of them, the most operations that are named.
          const std::size_t score = best[i + 1][j + size].score + size * (n + 1) + (operation != "small");
          if (score >= cell.score) cell = {score, size, false};
          if (!is_run(operation)) break;
        }
        best[i][j] = cell;
      }
    }
    Gap left;
    std::size_t j = 0;
    for (std::size_t i = 0; i < n;) {
      const Cell& cell = best[i][j];
      if (cell.skip_unit) {
        left.units.push_back(gap.units[j++]);
        continue;
      }
      const auto& wanted = gap.wanted[i++];
      if (cell.taken == 0) {
        left.wanted.push_back(wanted);
      } else {
        map(*wanted.expected, *wanted.tile, wanted.instance, gap.units[j], cell.taken);
      }
      j += cell.taken;
    }
    left.units.insert(left.units.end(), gap.units.begin() + static_cast<std::ptrdiff_t>(j), gap.units.end());
    gap = std::move(left);
    return best[0][0].score > 0;
  }

  /// A run does not go from the forward thread to autograd's.
  bool same_thread(std::size_t a, std::size_t b) const {
    return trace_.activities[units_[a].main].launch.thread == trace_.activities[units_[b].main].launch.thread;
  }

  /// Copies and collectives that go beside the compute stream: by operation and order. They are told only where the
  /// streams' numbers of them are exactly what the tiles expect.
  void map_other_streams() {
    struct Slot {
      const Expected* expected;
      const Pattern* pattern;
      std::size_t instance;
    };
    std::map<std::pair<model::Stream, std::string>, std::vector<Slot>> wanted;
    for (std::size_t t = 0; t < tiles_.size(); ++t) {
      for (const auto& e : tiles_[t].pattern->elsewhere) {
        wanted[{e.kernel->stream, e.operation}].push_back({&e, tiles_[t].pattern, t});
      }
    }
    std::map<std::pair<std::int64_t, std::string>, std::vector<std::uint32_t>> found;
    for (std::uint32_t i = 0; i < trace_.activities.size(); ++i) {
      const Activity& a = trace_.activities[i];
      if (kinds_[i] == "p2p") {
        result_.pipeline.push_back(i);
      } else if (!is_of_stream(a) && a.stream != beside_) {
        const auto& operations = meanings_[a.name].operations;
        const std::string name = a.engine == Engine::d2h   ? "copy.d2h"
                                 : a.engine == Engine::h2d ? "copy.h2d"
                                 : operations.empty()      ? ""
                                                           : operations.front();
        found[{a.stream, name}].push_back(i);
      }
    }
    for (const auto& [where, slots] : wanted) {
      for (const auto& [stream, activities] : found) {
        if (stream.second != where.second || activities.size() != slots.size()) continue;
        for (std::size_t i = 0; i < slots.size(); ++i) {
          result_.operations.push_back(
              {slots[i].expected, slots[i].pattern, slots[i].instance, activities[i], {activities[i]}, false, {}});
        }
        found.erase(stream);
        break;
      }
    }
  }

  /// Neighbouring exchanges of a tile may come in either order: the longer is the larger.
  void sort_exchanges() {
    for (std::size_t i = 1; i < result_.operations.size(); ++i) {
      Mapped &a = result_.operations[i - 1], &b = result_.operations[i];
      if (a.instance != b.instance || a.expected->operation != "all_to_all" || b.expected->operation != "all_to_all") {
        continue;
      }
      const auto bytes = [](const Mapped& m) { return m.expected->kernel->key.dims.back(); };
      const auto ns = [&](const Mapped& m) { return trace_.activities[m.main].duration; };
      if ((bytes(a) < bytes(b)) != (ns(a) < ns(b))) std::swap(a.expected, b.expected);
    }
  }

  void collect_unmapped() {
    std::vector<bool> mapped(trace_.activities.size());
    for (const auto& o : result_.operations) {
      for (const auto a : o.activities) mapped[a] = true;
    }
    for (const auto a : result_.pipeline) mapped[a] = true;
    for (std::uint32_t i = 0; i < mapped.size(); ++i) {
      if (!mapped[i]) result_.unmapped.push_back(i);
    }
  }

  const Trace& trace_;
  const std::vector<std::string>& kinds_;
  const std::vector<Pattern>& patterns_;
  std::vector<Meaning> meanings_;
  std::map<std::uint32_t, Meaning> experts_;  ///< by name: of kernels on streams of grouped GEMMs
  std::set<std::int64_t> grouped_;
  std::size_t group_ = 1;  ///< GEMMs of a grouped one
  std::int64_t beside_ = none, stream_ = 0, forward_thread_ = -1;
  bool on_beside_ = false;
  std::vector<Unit> units_;
  std::vector<Landmark> landmarks_;
  std::vector<Tile> tiles_;
  std::vector<Lost> lost_;
  Mapping result_;
};

}  // namespace

Mapping match(const Trace& trace, const std::vector<std::string>& kinds, const std::vector<Pattern>& patterns) {
  return Matcher(trace, kinds, patterns).run();
}

}  // namespace pipewright::traces
