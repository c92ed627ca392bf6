// What following a program needs to know of a chunk.
#include "pipewright/follow.hpp"

#include <algorithm>
#include <climits>
#include <numeric>

namespace pipewright::model {
namespace {

/// Places of a chunk's pieces among its layers: -1 before the first, INT_MAX after the last. A piece may hold several
/// layers (full recompute); it counts as its first.
std::vector<int> ordinals_of(const Chunk& chunk) {
  std::vector<int> ordinals;
  const auto first = std::ranges::find_if(chunk.layers, [](int layer) { return layer >= 0; });
  for (auto layer = chunk.layers.begin(); layer != chunk.layers.end(); ++layer)
    ordinals.push_back(*layer >= 0 ? *layer - *first : layer < first ? -1 : INT_MAX);
  return ordinals;
}

bool is_layer(const Piece& piece) {
  using Name = schedule::Node::Name;
  return std::ranges::any_of(piece.nodes, [](const NodeSteps& node) {
    return node.name != Name::embed && node.name != Name::logits && node.name != Name::loss;
  });
}

}  // namespace

BucketOrder bucket_order(const Chunk& chunk) {
  BucketOrder order;
  order.buckets.resize(chunk.gradient_sync.size());
  std::iota(order.buckets.begin(), order.buckets.end(), 0U);
  order.complete.assign(chunk.pieces.size(), 0);
  const std::vector<int>& layers = chunk.gradient_sync_layers;
  if (layers.size() != order.buckets.size()) return order;
  // Buckets of several buffers (dense, experts) in the order in which backward completes them.
  std::ranges::stable_sort(order.buckets, std::greater(), [&](std::uint32_t bucket) { return layers[bucket]; });
  const auto ordinals = ordinals_of(chunk);
  for (std::size_t position = 0; position < ordinals.size(); ++position)
    order.complete[position] = static_cast<std::size_t>(std::ranges::count_if(
        layers, [&](int layer) { return ordinals[position] >= 0 && layer >= ordinals[position]; }));
  return order;
}

GatherOrder gather_order(const Chunk& chunk) {
  GatherOrder order;
  order.gathers.resize(chunk.parameter_gather.size());
  std::iota(order.gathers.rbegin(), order.gathers.rend(), 0U);  // the last bucket holds the first layers
  order.needed.assign(chunk.pieces.size(), order.gathers.size());
  const std::vector<int>& layers = chunk.parameter_gather_layers;
  if (layers.size() != order.gathers.size()) return order;
  std::ranges::stable_sort(order.gathers, std::less(), [&](std::uint32_t bucket) { return layers[bucket]; });
  // A bucket is needed by the first of its layers, in whichever of a piece's layers that is.
  const auto ordinals = ordinals_of(chunk);
  for (std::size_t position = 0; position + 1 < ordinals.size(); ++position)
    order.needed[position] = static_cast<std::size_t>(
        std::ranges::count_if(layers, [&](int layer) { return layer < ordinals[position + 1]; }));
  return order;
}

NodePlace place_of(const Stages& stages, const Chunk& chunk, const schedule::Node& node) {
  int further = node.layer;
  for (std::size_t position = 0; position < chunk.pieces.size(); ++position) {
    const Piece& piece = stages.pieces[chunk.pieces[position]];
    if (node.layer >= 0 && (!is_layer(piece) || further-- > 0)) continue;
    const auto found = std::ranges::find(piece.nodes, node.name, &NodeSteps::name);
    if (found == piece.nodes.end()) continue;
    const bool last = found + 1 == piece.nodes.end() || (found + 1)->name == schedule::Node::Name::loss;
    return {position, &*found, found == piece.nodes.begin(), last};
  }
  throw InternalError("the model has no piece for a node of the schedule");
}

}  // namespace pipewright::model
