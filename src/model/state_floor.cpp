// The least that layers and ends hold for good, whatever stage they are on: what add_state writes for their parameters
// without what a stage pads, rounds and holds besides.
#include <algorithm>

#include "parameters.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/derived.hpp"
#include "shards.hpp"

namespace pipewright::model {
namespace {

/// Of a data-parallel rank; the one that owns most of the optimizer's state has the mean at least.
double held(const Dimensions& d, const scenario::Scenario& s, const Parameter& p) {
  const auto copy = [&](bool columnwise) {
    return static_cast<double>((p.fp8 ? d.precision : p.precision).weight_bytes(p.weight_out, p.weight_in, columnwise));
  };
  const auto elements = static_cast<double>(p.elements);
  const bool outside = p.fp8 && d.precision.parameters_outside_buffers();
  double bytes = outside             ? copy(false) + copy(true)
                 : p.fp8 && p.frozen ? copy(false)
                                     : static_cast<double>(d.precision.buffered_bytes(p.elements, p.fp8));
  if (p.fp8 && d.precision.recipe == Recipe::nvfp4) bytes += copy(false) - elements / 2;  // scales
  if (p.fp8 && !outside && d.precision.two_copies()) bytes += copy(true);
  if (p.precision.quantized() && !p.fp8) bytes += copy(false) + (p.precision.two_copies() ? copy(true) : 0);
  if (p.frozen) return bytes;
  bytes += elements * static_cast<double>(d.gradient_bytes);
  if (s.settings.optimizer_cpu_offload) return bytes;
  const auto types = optimizer_types(s);
  const bool shared = s.settings.use_distributed_optimizer || d.muon_dealt;
  const auto ranks = static_cast<double>(!shared ? 1 : p.expert ? d.moe.edp : d.dp * d.cp);
  return bytes + elements / ranks * static_cast<double>(types.main + types.first + (d.muon ? 0 : types.second));
}

}  // namespace

LeastState least_state(const scenario::Scenario& s, const profile::Device& gpu) {
  const Dimensions d(s, gpu);
  LeastState least;
  least.layers.resize(static_cast<std::size_t>(s.model.num_layers), Bytes(0));
  if (d.fsdp) return least;  // shards of units
  const auto of = [&](const ChunkShape& shape) {
    double bytes = 0;
    for (const auto& parameter : chunk_parameters(d, s, shape)) bytes += held(d, s, parameter);
    return bytes;
  };
  std::vector<std::pair<LayerShape, Bytes>> known;  // few kinds
  for (Int layer = 0; layer < s.model.num_layers; ++layer) {
    const LayerShape shape = shape_of(s, d, layer);
    auto at = std::ranges::find(known, shape, &std::pair<LayerShape, Bytes>::first);
    if (at == known.end()) {
      ChunkShape one;
      one.layers = {shape};
      at = known.insert(at, {shape, Bytes(static_cast<std::int64_t>(of(one)))});
    }
    least.layers[static_cast<std::size_t>(layer)] = at->second;
  }
  ChunkShape embedding, head;
  embedding.embedding = true;
  head.head = true;
  head.shares_embedding = !s.model.untie_embeddings_and_output_weights;
  least.embedding = Bytes(static_cast<std::int64_t>(of(embedding)));
  least.head = Bytes(static_cast<std::int64_t>(of(head)));
  return least;
}

}  // namespace pipewright::model
