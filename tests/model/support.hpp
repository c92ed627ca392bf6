// What the tests of the model share: a scenario, and the two ways to look at a piece.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "../on_h200.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::model::test {

/// Llama 3 70B at sequence 8192 on TP 4 with sequence parallelism, bf16.
inline scenario::Scenario llama70b() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 80, hidden_size: 8192, ffn_hidden_size: 28672, num_attention_heads: 64, num_query_groups: 8,
  seq_length: 8192, vocab_size: 128256, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {tensor_model_parallel_size: 4, pipeline_model_parallel_size: 4, sequence_parallel: true, micro_batch_size: 1,
  global_batch_size: 16, bf16: true, use_distributed_optimizer: true, grad_reduce_in_fp32: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0, apply_rope_fusion: true,
  bias_activation_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 32, gpus_per_node: 8}
)",
                         "llama70b.yaml");
}

inline scenario::Scenario with(scenario::Scenario s, const std::vector<const char*>& settings) {
  for (const auto* setting : settings) scenario::set(s, setting);
  return s;
}

/// A layer that is neither the first nor the last of its chunk.
inline const Piece& inner_layer(const Stages& stages) { return stages.pieces[stages.ranks[1].chunks[0].pieces[1]]; }

/// Bytes that a forward pass leaves for the backward pass, the input included, the output not.
inline std::int64_t saved(const Piece& piece) {
  std::map<std::uint32_t, std::int64_t> live = {{Piece::input, piece.tensors[Piece::input].bytes.value}};
  for (const auto& step : piece.forward) {
    if (step.kind == Step::Kind::allocate) live[step.index] = piece.tensors[step.index].bytes.value;
    if (step.kind == Step::Kind::free) live.erase(step.index);
  }
  live.erase(Piece::output);
  std::int64_t total = 0;
  for (const auto& [index, bytes] : live) total += bytes;
  return total;
}

/// What an optimizer's update holds of an owner in passing, after each of its steps; `first` of all.
inline std::vector<std::int64_t> in_update(const Stages& stages, const Rank& rank, const std::string& owner,
                                           bool first) {
  std::vector<std::int64_t> held;
  std::vector<bool> alive(rank.in_update.size());
  std::int64_t sum = 0;
  for (const auto& [does, index] : rank.update) {
    using Does = UpdateStep::Kind;
    if (does != Does::make) {
      const bool was = alive[index];
      alive[index] = does == Does::allocate || (does == Does::allocate_first && first);
      const auto& tensor = rank.in_update[index];
      if (stages.owners[tensor.owner] == owner) sum += (alive[index] - was) * tensor.bytes.value;
    }
    held.push_back(sum);
  }
  return held;
}

inline std::int64_t most_in_update(const Stages& stages, const Rank& rank, const std::string& owner) {
  const auto held = in_update(stages, rank, owner, false);
  return held.empty() ? 0 : *std::ranges::max_element(held);
}

/// Every tensor of the piece is allocated before it is freed, once, and gone at the end.
inline void check_balance(const Piece& piece) {
  CAPTURE(piece.name);
  std::map<std::uint32_t, int> holders = {{Piece::input, 1}, {Piece::output_gradient, 1}};
  std::vector<const std::vector<Step>*> lists = {&piece.forward, &piece.backward, &piece.weight_gradient};
  for (const auto& node : piece.nodes) lists.push_back(&node.forward);
  for (auto node = piece.nodes.rbegin(); node != piece.nodes.rend(); ++node) {
    lists.push_back(&node->backward);
    lists.push_back(&node->weight_gradient);
  }
  for (const auto* list : lists) {
    for (const auto& step : *list) {
      if (step.kind == Step::Kind::allocate) {
        CHECK(holders[step.index] == 0);
        ++holders[step.index];
      } else if (step.kind == Step::Kind::free) {
        CHECK(holders[step.index] == 1);
        --holders[step.index];
      } else if (step.kind == Step::Kind::launch) {
        CHECK(step.index < piece.kernels.size());
      }
    }
  }
  for (const auto& [index, count] : holders) {
    CAPTURE(index);
    const bool outlives = index == Piece::output || index == Piece::input_gradient || index == Piece::output_gradient ||
                          (index == Piece::input && piece.name == "embedding");
    if (!outlives) CHECK(count == 0);
  }
}

/// The profile knows every family and its dimensions; what has none costs the host alone.
inline void check_families(const std::vector<Kernel>& kernels) {
  for (const auto& kernel : kernels) {
    CAPTURE(kernel.name);
    CAPTURE(kernel.key.family);
    if (kernel.key.family.empty()) {  // no time on the GPU: then it costs the host
      CHECK(!kernel.host_family.empty());
      continue;
    }
    CHECK(profile::family(kernel.key.family).dims.size() == kernel.key.dims.size());
    for (const auto size : kernel.key.dims) CHECK(size > 0);
  }
}

/// Every piece and every kernel of all ranks.
inline void check_all(const Stages& stages) {
  for (const auto& piece : stages.pieces) check_balance(piece);
  for (const auto& piece : stages.pieces) check_families(piece.kernels);
  for (const auto& rank : stages.ranks) {
    check_families(rank.finalize);
    check_families(rank.optimizer);
    for (const auto& chunk : rank.chunks) {
      check_families(chunk.gradient_sync);
      check_families(chunk.parameter_gather);
    }
  }
}

/// Every variant of a scenario, each given by the settings that differ.
inline void check_variants(const scenario::Scenario& base, const std::vector<std::vector<const char*>>& variants) {
  for (const auto& settings : variants) {
    auto s = base;
    std::string all;
    for (const auto* setting : settings) {
      all += std::string(setting) + " ";
      scenario::set(s, setting);
    }
    CAPTURE(all);
    check_all(pipewright::test::build(s));
  }
}

/// Parameters over all pipeline ranks, of one tensor-parallel rank.
inline std::int64_t parameters(const Stages& stages) {
  std::int64_t sum = 0;
  for (const auto& rank : stages.ranks) {
    for (const auto& chunk : rank.chunks) sum += chunk.parameters;
  }
  return sum;
}

}  // namespace pipewright::model::test
