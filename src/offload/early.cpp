// What the groups alone tell, before a program is followed; see FineGrained.
#include <algorithm>
#include <set>
#include <string_view>

#include "pipewright/offload.hpp"

namespace pipewright::offload {

bool loses_track(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config) {
  const auto& o = scenario.settings;
  if (!o.fine_grained_activation_offloading || stages.paged_stash) return false;
  // A second pass takes what the first one's chunk is no longer given.
  if (config.microbatches * config.chunks.value_or(1) < 2) return false;
  const auto names_of = [&](const model::Chunk& chunk) {
    std::vector<std::string_view> names;
    for (const auto piece : chunk.pieces)
      for (const auto& group : stages.pieces[piece].groups) names.push_back(group.name);
    return names;
  };
  return std::ranges::any_of(stages.ranks, [&](const model::Rank& rank) {
    auto left = names_of(rank.chunks.back());  // that did not begin yet
    // As many groups are kept as a chunk has names: where others have names of their own, not all of these.
    const std::set<std::string_view> known(left.begin(), left.end());
    for (const auto& chunk : rank.chunks)
      for (const auto name : names_of(chunk))
        if (!known.contains(name)) return false;
    bool begun = false, moved = false, lost = false;
    int pending = 0;
    const auto hooks = [&](const model::Piece& piece, const std::vector<model::Step>& steps) {
      for (const auto& step : steps) {
        if (step.kind == model::Step::Kind::offload_begin) {
          lost = lost || (begun && pending == 0 && !moved);
          begun = true, ++pending;
          left.erase(std::ranges::find(left, piece.groups[step.index].name));
        } else if (step.kind == model::Step::Kind::offload_commit) {
          --pending;
          moved = moved || std::ranges::find(left, piece.groups[step.index].name) != left.end();
        }
      }
    };
    for (const auto index : rank.chunks.back().pieces) {
      const model::Piece& piece = stages.pieces[index];
      hooks(piece, piece.forward);
      for (const auto& node : piece.nodes) hooks(piece, node.forward);
    }
    return lost;
  });
}

}  // namespace pipewright::offload
