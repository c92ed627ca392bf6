// How many parameters a model has, as it would lie on one GPU.
#include "pipewright/parameter_count.hpp"

#include "parameters.hpp"

namespace pipewright::model {
namespace {

Int elements(const scenario::Scenario& s) {
  const Dimensions d(s, profile::assumed_device());
  ChunkShape whole;
  for (Int layer = 0; layer < s.model.num_layers; ++layer) whole.layers.push_back(shape_of(s, d, layer));
  whole.embedding = whole.head = whole.final_norm = true;
  whole.mtp_layers = d.mtp_layers;
  whole.shares_embedding = !s.model.untie_embeddings_and_output_weights;
  Int sum = 0;
  for (const Parameter& p : chunk_parameters(d, s, whole)) sum += p.elements;
  return sum;
}

}  // namespace

ParameterCount parameter_count(const scenario::Scenario& scenario) {
  scenario::Scenario s = scenario;
  auto& o = s.settings;
  o.tensor_model_parallel_size = o.pipeline_model_parallel_size = o.context_parallel_size = 1;
  o.expert_model_parallel_size = 1;
  o.expert_tensor_parallel_size.reset();
  o.virtual_pipeline_model_parallel_size.reset();
  o.pipeline_model_parallel_layout.reset();
  o.sequence_parallel = o.fp8_dot_product_attention = false;
  o.fp8.reset(), o.fp4.reset();  // which the assumed device may lack
  s.model.make_vocab_size_divisible_by = 1;
  ParameterCount count;
  count.all = count.of_a_token = elements(s);
  if (s.model.num_moe_experts.value_or(0) > s.model.moe_router_topk) {
    s.model.num_moe_experts = s.model.moe_router_topk;
    count.of_a_token = elements(s);
  }
  return count;
}

}  // namespace pipewright::model
