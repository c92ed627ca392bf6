// What every rank holds of a model, whatever it is split over: all ranks together hold the model once (what tensor
// parallelism replicates as often as it says), and its optimizer's states once.
#include "parameters.hpp"

#include <map>
#include <numeric>
#include <random>
#include <string>

#include "../draws.hpp"
#include "pipewright/scenario/derived.hpp"
#include "shards.hpp"
#include "support.hpp"

namespace parameters_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Parameter;

namespace {

const auto gpu = profile::data_sheet("h200-sxm").device;

struct Held {
  std::int64_t split = 0, replicated = 0, experts = 0;  ///< of one rank of each pipeline stage
};

model::ChunkShape shape_of(const scenario::Scenario& s, const model::Dimensions& d, const scenario::Stage& stage) {
  model::ChunkShape shape;
  for (const auto layer : stage.layers) shape.layers.push_back(model::shape_of(s, d, layer));
  const bool last = !stage.layers.empty() && stage.layers.back() + 1 == s.model.num_layers;
  shape.embedding = stage.embedding;
  shape.head = stage.loss;
  shape.mtp_layers = stage.mtp_layers;
  shape.final_norm = d.mtp_layers > 0 ? last : stage.loss;
  shape.shares_embedding = !s.model.untie_embeddings_and_output_weights;
  return shape;
}

Held held(const scenario::Scenario& s) {
  const model::Dimensions d(s, gpu);
  Held sum;
  for (std::int64_t rank = 0; rank < d.pp; ++rank)
    for (std::int64_t chunk = 0; chunk < scenario::num_chunks(s); ++chunk)
      for (const Parameter& p : model::chunk_parameters(d, s, shape_of(s, d, scenario::stage(s, rank, chunk))))
        (p.expert ? sum.experts : p.replicated ? sum.replicated : sum.split) += p.elements;
  return sum;
}

std::int64_t optimizer_bytes(const scenario::Scenario& s) {
  const auto stages = pipewright::test::build(s);
  std::int64_t sum = 0;
  for (const auto& rank : stages.ranks)
    for (const auto& tensor : rank.optimizer_state)
      if (stages.owners[tensor.owner] == "optimizer moments") sum += tensor.bytes.value;
  return sum;
}

struct Family {
  const char* name;
  std::initializer_list<const char*> settings;
  std::vector<std::int64_t> tensor;
};

// Two groups of keys and values: with TP 4 and 8 ranks share them.
const Family families[] = {
    {"grouped", {"num_query_groups=2"}, {1, 2, 4, 8}},
    {"biases", {"num_query_groups=2", "add_qkv_bias=true", "qk_layernorm=true"}, {1, 2, 4, 8}},
    {"gated", {"num_query_groups=2", "attention_output_gate=true", "qk_layernorm=true"}, {1, 2, 4, 8}},
    {"latent",
     {"multi_latent_attention=true", "q_lora_rank=512", "kv_lora_rank=256", "qk_head_dim=64", "qk_pos_emb_head_dim=32",
      "v_head_dim=64", "rope_type=yarn", "num_query_groups=none", "qk_layernorm=true"},
     {1, 2, 4}},
};

scenario::Scenario small(std::initializer_list<const char*> settings) {
  return with(with(llama70b(), {"num_layers=4", "hidden_size=1024", "ffn_hidden_size=2048", "num_attention_heads=16",
                                "kv_channels=64", "seq_length=1024", "vocab_size=4096", "global_batch_size=512",
                                "pipeline_model_parallel_size=1", "tensor_model_parallel_size=1",
                                "sequence_parallel=false", "num_gpus=64"}),
              settings);
}

void split(scenario::Scenario& s, std::int64_t tensor, std::int64_t pipeline) {
  scenario::set(s, "tensor_model_parallel_size=" + std::to_string(tensor));
  scenario::set(s, tensor > 1 ? "sequence_parallel=true" : "sequence_parallel=false");
  scenario::set(s, "pipeline_model_parallel_size=" + std::to_string(pipeline));
}

const std::initializer_list<const char*> experts = {"num_moe_experts=8",
                                                    "moe_router_topk=2",
                                                    "moe_ffn_hidden_size=512",
                                                    "moe_shared_expert_intermediate_size=512",
                                                    "moe_grouped_gemm=true",
                                                    "moe_permute_fusion=true",
                                                    "moe_token_dispatcher_type=alltoall"};

}  // namespace

TEST_CASE("tensor and pipeline parallel ranks hold the model once, also where several share a group of keys") {
  for (const auto& family : families) {
    CAPTURE(std::string(family.name));
    const Held whole = held(small(family.settings));
    for (const auto tensor : family.tensor)
      for (const std::int64_t pipeline : {1, 2, 4}) {
        CAPTURE(tensor);
        CAPTURE(pipeline);
        auto s = small(family.settings);
        split(s, tensor, pipeline);
        const Held part = held(s);
        // Latent attention's down projections are whole on every rank, and marked as replicated there.
        CHECK(part.split * tensor + part.replicated == whole.split + whole.replicated);
        check_all(pipewright::test::build(s));
      }
  }
}

TEST_CASE("experts are held once, and their optimizer's states once, whatever ranks they are split over") {
  for (const char* version : {"0.16.0", "0.18.2", "0.19.0", "dev", "main"})
    for (const std::int64_t tensor : {1, 2, 4})
      for (const std::int64_t expert : {1, 2, 8})
        for (const std::int64_t expert_tensor : {std::int64_t{1}, tensor}) {
          CAPTURE(std::string(version));
          CAPTURE(tensor);
          CAPTURE(expert);
          CAPTURE(expert_tensor);
          auto s = with(small({}), experts);
          scenario::set(s, std::string("megatron_core=") + version);
          split(s, tensor, 1);
          scenario::set(s, "expert_model_parallel_size=" + std::to_string(expert));
          scenario::set(s, "expert_tensor_parallel_size=" + std::to_string(expert_tensor));
          const std::int64_t layers = 4, all = layers * 8 * 3 * 512 * 1024;
          const Held part = held(s);
          const bool reads_tensor = std::string(version) == "0.19.0" || std::string(version) == "main";
          const bool own = expert > 1 || (reads_tensor && expert_tensor != tensor);
          CHECK(part.experts == (own ? all / (expert * expert_tensor) : 0));
          // Of 64 ranks each has its share of the experts' states, and of the rest's among its tensor-parallel lane.
          const std::int64_t copies = own ? 64 / (expert * expert_tensor) : 64 / tensor;
          const std::int64_t dense = part.split + part.replicated - (own ? 0 : all / (expert * expert_tensor));
          const double expected =
              8.0 * (static_cast<double>(dense) * static_cast<double>(tensor) / 64 +
                     static_cast<double>(all) / static_cast<double>(expert * expert_tensor * copies));
          CHECK(static_cast<double>(optimizer_bytes(s)) == doctest::Approx(expected).epsilon(0.01));
        }
}

TEST_CASE("Megatron-FSDP knows experts by their names: they are a group of their own, on whatever ranks") {
  for (const char* version : {"0.17.0", "0.19.0"}) {
    auto s = with(small({"use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim_grads_params"}), experts);
    scenario::set(s, std::string("megatron_core=") + version);
    CHECK(held(s).experts == std::int64_t{4} * 8 * 3 * 512 * 1024);
  }
}

TEST_CASE("an embedding of which another stage has a copy is a bucket alone in shared buffers, in either copy") {
  for (const bool distributed : {false, true})
    for (const bool tied : {false, true})
      for (const std::int64_t depths : {0, 1})
        for (const std::int64_t pipeline : {1, 2}) {
          CAPTURE(distributed);
          CAPTURE(tied);
          CAPTURE(depths);
          CAPTURE(pipeline);
          auto s = small({});
          split(s, 1, pipeline);
          s.model.untie_embeddings_and_output_weights = !tied;
          if (depths > 0) s.model.mtp_num_layers = depths;
          const model::Dimensions d(s, gpu);
          const std::int64_t words = 4096 * 1024;
          for (std::int64_t rank = 0; rank < pipeline; ++rank) {
            const auto list = model::chunk_parameters(d, s, shape_of(s, d, scenario::stage(s, rank, 0)));
            const auto shared = std::ranges::count_if(list, &Parameter::shared_embedding);
            CHECK(shared == (pipeline > 1 && (tied || depths > 0) ? 1 : 0));
            const auto buffers = model::layout(list, 0, 32, 32, distributed, false);
            std::int64_t alone = 0;
            for (const auto& [begin, end] : buffers.at(0).buckets) alone += end - begin == words;
            CHECK(alone == (distributed ? shared : 0));
          }
        }
}

TEST_CASE("buckets of one call wait for the last of them") {
  const auto buffers = [](bool fp8) {
    std::vector<model::Buffer> list(3);
    list[0].last_layers = {8, -1};
    list[1].fp8 = fp8;
    list[1].last_layers = {4, 0};
    list[2].expert = true;
    list[2].last_layers = {6, 2};
    return list;
  };
  const auto layers = [](const std::vector<model::Buffer>& list) {
    std::vector<std::vector<int>> all;
    for (const auto& buffer : list) all.push_back(buffer.last_layers);
    return all;
  };
  using Layers = std::vector<std::vector<int>>;
  auto single = buffers(true);
  model::group_buckets(single, true);
  CHECK(layers(single) == Layers{{-1, -1}, {-1, -1}, {2, 2}});
  auto joined = buffers(true);  // what is in 16 bits joins the last FP8 bucket
  model::group_buckets(joined, false);
  CHECK(layers(joined) == Layers{{-1, -1}, {4, -1}, {6, 2}});
  auto apart = buffers(false);
  model::group_buckets(apart, false);
  CHECK(layers(apart) == layers(buffers(false)));
}

TEST_CASE("queries of several groups are copied, those of one are a view; ranks that share a group gather it") {
  const auto launches = [](const model::Piece& piece, const std::vector<model::Step>& steps, const std::string& name) {
    std::int64_t count = 0;
    for (const auto& step : steps)
      count += step.kind == model::Step::Kind::launch && piece.kernels[step.index].name == name;
    return count;
  };
  for (const std::int64_t groups : {2, 4, 16}) {
    CAPTURE(groups);
    auto s = small({});
    s.model.num_query_groups = groups;
    split(s, 4, 4);
    const auto stages = pipewright::test::build(s);
    const auto& layer = stages.pieces[stages.ranks[1].chunks[0].pieces[0]];
    CHECK(launches(layer, layer.forward, "attention.q copy") == 0);
    CHECK(launches(layer, layer.forward, "attention.qkv groups all-gather") == (groups == 2));
    CHECK(launches(layer, layer.backward, "attention.qkv groups reduce-scatter") == (groups == 2));
  }
  auto s = small({"num_query_groups=8"});
  split(s, 4, 4);
  const auto stages = pipewright::test::build(s);
  const auto& layer = stages.pieces[stages.ranks[1].chunks[0].pieces[0]];
  CHECK(launches(layer, layer.forward, "attention.q copy") == 1);
}

// TE pytorch/optimizers/fused_adam.py: lists hold an fp32 copy of every such state of a group of parameters; from 2.13
// on not of bf16 moments if both are.
TEST_CASE("optimizer states that are not stored in fp32 are fp32 within the update, all of two groups at once") {
  struct Row {
    const char *first, *second, *main, *engine;
    std::int64_t copies;
  };
  const Row rows[] = {{"fp32", "fp32", "fp32", "2.20.2", 0}, {"bf16", "bf16", "fp32", "2.20.2", 0},
                      {"bf16", "bf16", "fp32", "2.13.0", 0}, {"bf16", "bf16", "fp32", "2.12.0", 2},
                      {"bf16", "fp32", "fp32", "2.20.2", 1}, {"fp8", "fp8", "fp32", "2.20.2", 2},
                      {"fp8", "fp16", "fp16", "2.20.2", 3},  {"bf16", "bf16", "fp16", "2.20.2", 1}};
  for (const Row& row : rows) {
    CAPTURE(std::string(row.first));
    CAPTURE(std::string(row.second));
    CAPTURE(std::string(row.main));
    CAPTURE(std::string(row.engine));
    auto s = small({"use_precision_aware_optimizer=true"});
    scenario::set(s, std::string("exp_avg_dtype=") + row.first);
    scenario::set(s, std::string("exp_avg_sq_dtype=") + row.second);
    scenario::set(s, std::string("main_params_dtype=") + row.main);
    scenario::set(s, std::string("transformer_engine=") + row.engine);
    const auto stages = pipewright::test::build(s);
    // Of matrices and norms, whose groups are read one after the other: a variable keeps the first until the second is.
    const Held all = held(s);
    const double shard = static_cast<double>(all.split + all.replicated) / 64;
    CHECK(static_cast<double>(
              pipewright::model::test::most_in_update(stages, stages.ranks[0], "optimizer states in fp32")) ==
          doctest::Approx(4.0 * static_cast<double>(row.copies) * shard).epsilon(0.001));
  }
}

// The order decides where states come to lie among what the step has left free.
TEST_CASE("an update, drawn: a parameter's states are made one after the other, beside them what it passes by") {
  std::mt19937 random(5);
  const auto one_of = [&](const std::vector<std::string>& values) { return values[random() % values.size()]; };
  for (unsigned draw = 0; draw < pipewright::test::draws(60); ++draw) {
    auto s = small({"use_precision_aware_optimizer=true"});
    const int dp = 1 << random() % 3, pp = 1 << random() % 2;
    s.model.num_layers = pp * static_cast<std::int64_t>(1 + random() % 3);
    s.settings.pipeline_model_parallel_size = pp, s.settings.tensor_model_parallel_size = 1;
    s.settings.sequence_parallel = false, s.settings.virtual_pipeline_model_parallel_size.reset();
    s.cluster.num_gpus = dp * pp, s.settings.global_batch_size = 4 * dp;
    for (const char* key : {"exp_avg_dtype=", "exp_avg_sq_dtype="})
      scenario::set(s, key + one_of({"fp32", "fp16", "bf16", "fp8"}));
    scenario::set(s, "main_params_dtype=" + one_of({"fp32", "fp16"}));
    scenario::set(s, "transformer_engine=" + one_of({"2.12.0", "2.20.2"}));
    s.settings.store_param_remainders = random() % 2 == 0;
    const auto types = model::optimizer_types(s);
    CAPTURE(scenario::write(s));
    const auto stages = pipewright::test::build(s);
    using Does = model::UpdateStep::Kind;
    for (const auto& rank : stages.ranks) {
      const auto widened = pipewright::model::test::in_update(stages, rank, "optimizer states in fp32", true);
      const auto later = pipewright::model::test::in_update(stages, rank, "optimizer states in fp32", false);
      const std::size_t states = types.in_adam ? 3 : 2;
      REQUIRE(rank.optimizer_state.size() % states == 0);
      std::int64_t made = 0, elements = 0;  // of the parameters before
      for (std::size_t i = 0; i < rank.update.size(); ++i) {
        if (rank.update[i].kind != Does::make) continue;
        CHECK(rank.update[i].index == made);  // in order
        const auto nth = static_cast<std::size_t>(made++) % states;
        const auto& tensor = rank.optimizer_state[rank.update[i].index];
        CHECK(stages.owners[tensor.owner] == (nth == 2 ? "main parameters" : "optimizer moments"));
        // What of the parameters before is read in fp32 is alive, and of none else.
        CHECK(widened[i] == 4 * types.widened() * elements);
        CHECK(later[i] == widened[i]);
        if (nth + 1 == states) elements += tensor.bytes.value / (nth == 2 ? types.main : types.second);
      }
      CHECK(made == static_cast<std::int64_t>(rank.optimizer_state.size()));
      if (!widened.empty()) CHECK(widened.back() == 0);
      // The copy of a parameter passes by in the first update, where Adam makes whole main parameters.
      std::int64_t copies = 0;
      for (const auto& step : rank.update) copies += step.kind == Does::allocate_first;
      CHECK(copies == (types.in_adam && !types.remainders ? 2 * made / static_cast<std::int64_t>(states) : 0));
    }
  }
}

}  // namespace parameters_test
