// What stands between two landmarks, aligned with what the tiles expect there.
#include <algorithm>
#include <numeric>
#include <utility>

#include "matcher.hpp"

namespace pipewright::traces {
void Matcher::map(const Expected& expected, const Tile& tile, std::size_t instance,
                  std::span<const std::size_t> units) {
  Mapped mapped{&expected, tile.pattern, instance, units_[units.front()].main, {}, true, {}};
  // The last launch ends what the host spends on an operation of many kernels of one size.
  const bool ends = expected.operation.starts_with("gemm.grouped") || expected.operation.starts_with("moe.router");
  for (const std::size_t u : units) {
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

void Matcher::align() {
  spare_.clear();
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
      std::vector<std::size_t> run(mark.size);
      std::iota(run.begin(), run.end(), mark.first);
      map(compute[i], tile, first_instance + t, run);
      unit = mark.first + mark.size;
      ++l;
      ++landmark;
    }
    result_.instances.push_back(tile.pattern);
  }
  unknown_landmarks_until(landmarks_.size());
  units_until(units_.size());
  close(gap);
  find_late(first_instance);
}

void Matcher::close(Gap& gap) {
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

void Matcher::align(Gap gap) {
  const std::size_t before = result_.operations.size();
  take_scan(gap);
  take_casts(gap);
  // A gated delta rule's states are computed among its other kernels, and measured apart.
  std::stable_partition(gap.units.begin(), gap.units.end(), [&](std::size_t unit) {
    return units_[unit].meaning->operations.size() == 1 &&
           units_[unit].meaning->operations.front().starts_with("gated_delta.state");
  });
  while (!gap.wanted.empty() && align_in_order(gap)) {
  }
  std::erase_if(gap.wanted, [&](const Gap::Wanted& w) { return join(w, before); });
  sort_copies(before);
  // Small kernels may run elsewhere: AccumulateGrad of a norm's weight, on the stream on which DDP made it.
  for (const auto& w : gap.wanted) lost_.push_back({w.expected, w.tile->pattern, w.instance});
  for (const auto u : gap.units) spare_.insert(u);
}

void Matcher::find_late(std::size_t first_instance) {
  std::erase_if(lost_, [&](const Lost& lost) {
    const auto& operation = lost.expected->operation;
    if (lost.instance < first_instance || operation == "small" || is_run(operation)) return false;
    const std::size_t t = lost.instance - first_instance;
    const std::size_t next = t + 1 < tiles_.size() ? tiles_[t + 1].first + 1 : landmarks_.size();
    const std::size_t begin = landmarks_[tiles_[t].first].first,
                      end = next < landmarks_.size() ? landmarks_[next].first : units_.size();
    auto best = spare_.end();
    for (auto u = spare_.lower_bound(begin); u != spare_.end() && *u < end; ++u)
      if (can_be(units_[*u], operation) && (best == spare_.end() || trace_.activities[units_[*u].main].duration >
                                                                        trace_.activities[units_[*best].main].duration))
        best = u;
    if (best == spare_.end()) return false;
    const std::size_t unit = *best;
    map(*lost.expected, tiles_[t], lost.instance, std::span(&unit, 1));
    spare_.erase(best);
    return true;
  });
}

void Matcher::take_scan(Gap& gap) {
  const auto wanted = [&](std::size_t unit) -> const std::string* {
    for (const auto& operation : units_[unit].meaning->operations)
      if (operation.starts_with("mamba.") &&
          std::ranges::any_of(gap.wanted, [&](const auto& w) { return w.expected->operation == operation; }))
        return &operation;
    return nullptr;
  };
  const auto end = std::find_if(gap.units.rbegin(), gap.units.rend(), wanted).base();  // behind the last of the scan
  static const std::string groups = "mamba.groups.backward";
  std::map<std::string, std::vector<std::size_t>> taken;
  std::vector<std::size_t> left;
  const std::string *owner = nullptr, *next = nullptr;  // of ATen's kernels from here on; of the first of them
  for (auto unit = gap.units.begin(); unit != end; ++unit) {
    if (const auto* named = wanted(*unit); named != nullptr) {
      // Of groups are sums of the gradients of B and C and of their products, each behind the kernel that makes them.
      const auto& name = trace_.names[trace_.activities[units_[*unit].main].name];
      const bool summed = name.starts_with("_chunk_state_bwd_db") || name.starts_with("_chunk_scan_bwd_dc");
      owner = named;
      next = summed ? &groups : named;
      taken[*owner].push_back(*unit);
    } else if (owner != nullptr) {
      taken[*std::exchange(next, owner)].push_back(*unit);
    } else {
      left.push_back(*unit);
    }
  }
  left.insert(left.end(), end, gap.units.end());
  gap.units = std::move(left);
  std::erase_if(gap.wanted, [&](const Gap::Wanted& w) {
    const auto found = taken.find(w.expected->operation);
    if (found == taken.end()) return false;
    map(*w.expected, *w.tile, w.instance, found->second);
    taken.erase(found);
    return true;
  });
  for (const auto& [operation, units] : taken) gap.units.insert(gap.units.end(), units.begin(), units.end());
}

void Matcher::take_casts(Gap& gap) {
  const auto enough = [&](const std::string& operation) {
    std::size_t wanted = 0;
    for (const auto& w : gap.wanted)
      if (w.expected->operation == operation && w.expected->kernel->launches > 1)
        wanted += static_cast<std::size_t>(w.expected->kernel->launches);
    const auto found = std::ranges::count_if(gap.units, [&](auto u) { return can_be(units_[u], operation); });
    return wanted <= static_cast<std::size_t>(found);
  };
  std::map<std::string, bool> known;
  for (const auto& w : gap.wanted)
    if (const auto [at, is_new] = known.try_emplace(w.expected->operation); is_new) at->second = enough(at->first);
  std::erase_if(gap.wanted, [&](const Gap::Wanted& w) {
    const auto& operation = w.expected->operation;
    const bool casts = operation == "amax" || operation.starts_with("cast_transpose.fp8") ||
                       operation.starts_with("cast.fp8") || operation.starts_with("quantize.");
    const auto launches = static_cast<std::size_t>(w.expected->kernel->launches);
    if (!casts || launches < 2 || !known.at(operation)) return false;
    std::vector<std::size_t> taken, left;
    for (const auto u : gap.units)
      (taken.size() < launches && can_be(units_[u], operation) ? taken : left).push_back(u);
    if (taken.empty()) return false;
    map(*w.expected, *w.tile, w.instance, taken);
    gap.units = std::move(left);
    return true;
  });
}

void Matcher::sort_copies(std::size_t first) {
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

bool Matcher::join(const Gap::Wanted& wanted, std::size_t first) {
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

bool Matcher::align_in_order(Gap& gap) {
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
      const std::size_t whole = j < m ? whole_of(*gap.wanted[i].expected, units_[gap.units[j]]) : 0;
      for (std::size_t size = 1; j + size <= m && can_be(units_[gap.units[j + size - 1]], operation) &&
                                 same_thread(gap.units[j], gap.units[j + size - 1]);
           ++size) {
        if (size < whole) continue;
        // Units first; of equal numbers of them, the most operations that are named.
        const std::size_t score = best[i + 1][j + size].score + size * (n + 1) + (operation != "small");
        if (score >= cell.score) cell = {score, size, false};
        if (whole > 0 || (!is_run(operation) && size == most_of(*gap.wanted[i].expected))) break;
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
      map(*wanted.expected, *wanted.tile, wanted.instance, std::span(gap.units).subspan(j, cell.taken));
    }
    j += cell.taken;
  }
  left.units.insert(left.units.end(), gap.units.begin() + static_cast<std::ptrdiff_t>(j), gap.units.end());
  gap = std::move(left);
  return best[0][0].score > 0;
}

std::size_t Matcher::whole_of(const Expected& expected, const Unit& unit) const {
  const auto& kernel = *expected.kernel;
  if (kernel.launches > 1 || kernel.key.dims.size() != 1) return 0;
  if (!iterated_[trace_.activities[unit.main].name]) return 0;
  return static_cast<std::size_t>(pieces_of(expected.operation, kernel.key.dims.front()));
}

std::size_t Matcher::most_of(const Expected& expected) {
  const bool one_by_one = expected.operation == "small" || expected.operation == eager_operation;
  return one_by_one ? static_cast<std::size_t>(std::max(1, expected.kernel->launches)) : 1;
}

bool Matcher::same_thread(std::size_t a, std::size_t b) const {
  return trace_.activities[units_[a].main].launch.thread == trace_.activities[units_[b].main].launch.thread;
}

}  // namespace pipewright::traces
