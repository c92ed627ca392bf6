// Landmarks tiled with patterns.
#include <algorithm>

#include "matcher.hpp"

namespace pipewright::traces {

bool Matcher::fits(const Pattern& pattern, std::size_t at) const {
  if (pattern.beside != on_beside_ || pattern.landmarks.empty()) return false;
  if (on_beside_ && !same_side(pattern, at)) return false;
  if (at + pattern.landmarks.size() > landmarks_.size()) return false;
  for (std::size_t i = 0; i < pattern.landmarks.size(); ++i) {
    if (pattern.compute[pattern.landmarks[i]].operation != *landmarks_[at + i].operation) return false;
  }
  return true;
}

bool Matcher::same_side(const Pattern& pattern, std::size_t at) const {
  if (forward_thread_ < 0) return true;
  const bool forward = trace_.activities[units_[landmarks_[at].first].main].launch.thread == forward_thread_;
  return forward == (pattern.pass == Pass::forward);
}

void Matcher::tile() {
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
  tell_twins_apart();
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

bool Matcher::alike(const Pattern& a, const Pattern& b) const {
  return a.pass == b.pass && a.part == b.part && a.node == b.node &&
         std::equal(a.landmarks.begin(), a.landmarks.end(), b.landmarks.begin(), b.landmarks.end(),
                    [&](std::size_t x, std::size_t y) { return a.compute[x].operation == b.compute[y].operation; });
}

void Matcher::tell_twins_apart() {
  std::set<std::pair<Pass, int>> sides;  // with patterns alike
  for (std::size_t i = 0; i < patterns_.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (patterns_[i].pass != Pass::step && alike(patterns_[i], patterns_[j]))
        sides.insert({patterns_[i].pass, patterns_[i].part});
  for (const auto& [pass, part] : sides) {
    const auto here = [&, pass = pass, part = part](const Pattern& p) {
      return p.pass == pass && p.part == part && p.beside == on_beside_;
    };
    std::vector<Tile*> tiles;
    for (auto& tile : tiles_)
      if (here(*tile.pattern)) tiles.push_back(&tile);
    std::vector<std::vector<const Pattern*>> runs;
    for (const auto& pieces : order_) {
      auto& run = runs.emplace_back();
      for (const std::uint32_t piece : pieces)
        for (const auto& pattern : patterns_)
          if (here(pattern) && pattern.piece == piece) run.push_back(&pattern);
      if (pass != Pass::forward) std::reverse(run.begin(), run.end());
    }
    std::stable_sort(runs.begin(), runs.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
    put_in_order(tiles, runs);
  }
}

void Matcher::put_in_order(const std::vector<Tile*>& tiles, const std::vector<std::vector<const Pattern*>>& runs) {
  // Tiles from `at` on against a run from `from` on; how many: 0 where one is of another kind. Only the trace's end
  // cuts.
  const auto fitting = [&](const std::vector<const Pattern*>& run, std::size_t from, std::size_t at) {
    std::size_t n = 0;
    for (; from + n < run.size() && at + n < tiles.size(); ++n)
      if (!alike(*run[from + n], *tiles[at + n]->pattern)) return std::size_t{0};
    return n;
  };
  for (std::size_t at = 0; at < tiles.size();) {
    std::size_t size = 0, begin = 0;
    const std::vector<const Pattern*>* best = nullptr;
    const auto look = [&](bool within) {
      for (const auto& run : runs)
        for (std::size_t from = 0; from < (within ? run.size() : std::min<std::size_t>(1, run.size())); ++from) {
          const std::size_t n = fitting(run, from, at);
          if (n > size) size = n, begin = from, best = &run;
        }
    };
    // A trace may begin within a chunk, and within a piece: what is left of that may look like another.
    look(at == 0);
    if (size == 0) look(true);
    for (std::size_t n = 0; n < size; ++n) tiles[at + n]->pattern = (*best)[begin + n];
    at += std::max<std::size_t>(size, 1);
  }
}

void Matcher::refuse() const {
  std::string wanted, found;
  for (const std::size_t l : patterns_.front().landmarks) wanted += " " + patterns_.front().compute[l].operation;
  for (std::size_t i = 0; i < std::min<std::size_t>(landmarks_.size(), patterns_.front().landmarks.size()); ++i) {
    found += " " + *landmarks_[i].operation;
  }
  throw UsageError({trace_.file, 0}, {},
                   "the kernels of the scenario's layers are not in the trace: " + patterns_.front().name + " runs" +
                       wanted + "; the trace begins with" + (found.empty() ? " none of these" : found));
}

}  // namespace pipewright::traces
