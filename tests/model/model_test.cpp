// Layers, embedding and head against the formulas of reference 5.1 and against themselves: what is born dies.
#include <algorithm>
#include <cmath>
#include <random>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace model_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

constexpr std::int64_t tokens = 8192, h = 8192, q = 8192, kv = 1024, f = 28672, heads = 64, t = 4;

}  // namespace

TEST_CASE("a bf16 layer saves what reference 5.1 says") {
  const auto s = llama70b();
  const auto stages = test::build(s);
  const std::int64_t formula = tokens / t * (8 * h + 4 * q + 4 * kv + 6 * f + 4 * heads + 8);
  CHECK(formula == 562577408);
  CHECK(saved(inner_layer(stages)) == formula + 16);  // and the generator state of the attention
}

TEST_CASE("without sequence parallelism the norms keep every token") {
  const auto stages = test::build(with(llama70b(), {"sequence_parallel=false"}));
  const std::int64_t formula = tokens * (8 * h + 8) + tokens / t * (4 * q + 4 * kv + 6 * f + 4 * heads);
  CHECK(saved(inner_layer(stages)) == formula + 16);
}

TEST_CASE("recompute removes what it should, core attention adds because v is a view") {
  const auto saved_with = [](std::initializer_list<const char*> settings) {
    return saved(inner_layer(test::build(with(llama70b(), settings))));
  };
  const std::int64_t none = saved_with({});
  const std::int64_t row = tokens / t;
  CHECK(none - saved_with({"recompute_granularity=selective", "recompute_modules=[mlp]"}) == row * (2 * h + 6 * f + 4));
  CHECK(saved_with({"recompute_granularity=selective", "recompute_modules=[core_attn]"}) - none ==
        row * (2 * (q + kv) - 4 * heads) - 16);
  CHECK(saved_with({"recompute_granularity=selective", "recompute_modules=[layernorm]"}) == none);
  CHECK(saved_with({"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"}) ==
        row * 2 * h);
}

TEST_CASE("FP8 saves norm outputs and the second linear layer's input in one byte") {
  const auto s = with(llama70b(), {"fp8=hybrid", "fp8_recipe=tensorwise"});
  const std::int64_t formula = tokens / t * (6 * h + 4 * q + 4 * kv + 5 * f + 4 * heads + 8);
  CHECK(saved(inner_layer(test::build(s))) == formula + 16);
}

TEST_CASE("what is born dies, whatever the layer is made of; kernels have families") {
  const std::vector<std::vector<const char*>> variants = {
      {},
      {"sequence_parallel=false"},
      {"recompute_granularity=selective", "recompute_modules=[core_attn]"},
      {"recompute_granularity=selective", "recompute_modules=[mlp, core_attn]"},
      {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=3"},
      {"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=2"},
      {"fp8=hybrid", "fp8_recipe=tensorwise"},
      {"fp8=hybrid", "fp8_recipe=delayed", "recompute_granularity=selective", "recompute_modules=[mlp]"},
      {"fp8=hybrid", "fp8_recipe=blockwise", "sequence_parallel=false"},
      {"qk_layernorm=true"},
      {"qk_layernorm=true", "position_embedding_type=none"},
      {"position_embedding_type=none"},
      {"position_embedding_type=learned_absolute", "max_position_embeddings=8192", "normalization=LayerNorm"},
      {"hidden_dropout=0.1", "add_bias_linear=true", "gated_linear_unit=false"},
      {"add_bias_linear=true", "bias_activation_fusion=false"},
      {"add_bias_linear=true", "bias_activation_fusion=false", "gated_linear_unit=false",
       "recompute_granularity=selective", "recompute_modules=[mlp]"},
      {"hidden_dropout=0.1", "bias_dropout_fusion=false"},
      {"hidden_dropout=0.1", "bias_dropout_fusion=false", "recompute_granularity=full", "recompute_method=uniform",
       "recompute_num_layers=3"},
      {"gradient_accumulation_fusion=false"},
      {"tensor_model_parallel_size=1", "sequence_parallel=false", "micro_batch_size=2"},
      {"context_parallel_size=2"},
      {"tp_comm_overlap=true", "fp8=hybrid", "fp8_recipe=tensorwise"},
      {"defer_embedding_wgrad_compute=true"},
      {"cuda_graph_impl=transformer_engine", "cuda_graph_modules=[mlp]"},
      {"cross_entropy_loss_fusion=true", "cross_entropy_fusion_impl=te"},
  };
  check_variants(llama70b(), variants);
}

TEST_CASE("dropout apart from the residual saves the same mask, and is launched with its output apart") {
  for (const char* bias : {"add_bias_linear=false", "add_bias_linear=true"}) {
    CAPTURE(std::string(bias));
    const auto dropping = with(llama70b(), {"hidden_dropout=0.1", bias});
    const auto fused = test::build(with(dropping, {"bias_dropout_fusion=true"})),
               apart = test::build(with(dropping, {"bias_dropout_fusion=false"}));
    CHECK(saved(inner_layer(apart)) == saved(inner_layer(fused)));
    const auto outputs = [](const model::Stages& stages) {
      std::int64_t bytes = 0;
      for (const auto& tensor : inner_layer(stages).tensors)
        if (stages.owners.at(tensor.owner).find("after dropout") != std::string::npos) bytes += tensor.bytes.value;
      return bytes;
    };
    CHECK(outputs(fused) == 0);
    CHECK(outputs(apart) == 2 * 2 * tokens / t * h);
  }
}

TEST_CASE("without a fused activation fc1's bias is added by a kernel of its own, which keeps nothing") {
  for (const char* gated : {"gated_linear_unit=true", "gated_linear_unit=false"})
    for (const char* precision : {"fp8=none", "fp8=hybrid"}) {
      CAPTURE(std::string(gated));
      CAPTURE(std::string(precision));
      const auto apart = with(llama70b(), {gated, precision, "bias_activation_fusion=false"});
      const auto plain = test::build(apart), biased = test::build(with(apart, {"add_bias_linear=true"}));
      const auto adds = [](const model::Stages& stages) {
        std::int64_t columns = 0;
        const auto& layer = inner_layer(stages);
        for (const auto& step : layer.forward)
          if (step.kind == Step::Kind::launch && layer.kernels[step.index].name == "mlp.bias")
            columns += layer.kernels[step.index].key.dims.at(1);
        return columns;
      };
      CHECK(adds(plain) == 0);
      CHECK(adds(biased) == (std::string_view(gated).ends_with("true") ? 2 : 1) * 28672 / t);
      CHECK(adds(test::build(with(apart, {"add_bias_linear=true", "bias_activation_fusion=true"}))) == 0);
      CHECK(saved(inner_layer(biased)) == saved(inner_layer(plain)));
    }
}

TEST_CASE("parameters of all ranks are the model's") {
  const std::int64_t sum = parameters(test::build(llama70b()));
  const std::int64_t norms = (2 * 80 + 1) * h;  // every tensor-parallel rank has them whole
  CHECK((sum - norms) * t + norms == 70553706496);
}

TEST_CASE("collectives of sequence parallelism: two gathers and two scatters a pass, half of backward's beside GEMMs") {
  const auto stages = test::build(llama70b());
  const auto& layer = inner_layer(stages);
  const auto count = [&](const std::vector<Step>& steps, const std::string& family, model::Stream stream) {
    int n = 0;
    for (const auto& step : steps) {
      if (step.kind != Step::Kind::launch) continue;
      const auto& kernel = layer.kernels[step.index];
      n += kernel.key.family.starts_with(family) && kernel.stream == stream ? 1 : 0;
    }
    return n;
  };
  CHECK(count(layer.forward, "all_gather", model::Stream::compute) == 2);
  CHECK(count(layer.forward, "reduce_scatter", model::Stream::compute) == 2);
  CHECK(count(layer.backward, "all_gather", model::Stream::compute) == 2);
  CHECK(count(layer.backward, "all_gather", model::Stream::communication) == 2);
  CHECK(count(layer.backward, "reduce_scatter", model::Stream::communication) == 2);
  CHECK(count(layer.forward, "gemm", model::Stream::compute) == 4);
  CHECK(count(layer.backward, "gemm", model::Stream::compute) == 8);
}

TEST_CASE("model FLOPs by Megatron's formula") {
  // 6 x tokens x (parameters in GEMMs + causal attention): 8 sequences of 4096 through 16 layers of an 8B model.
  auto s = llama70b();
  for (const auto* setting : {"num_layers=16", "hidden_size=4096", "ffn_hidden_size=14336", "num_attention_heads=32",
                              "seq_length=4096", "vocab_size=32000", "global_batch_size=8"}) {
    scenario::set(s, setting);
  }
  const double weights = 16.0 * (4096.0 * (4096 + 2 * 1024) + 4096.0 * 4096 + 3.0 * 4096 * 14336) + 4096.0 * 32000;
  const double attention = 16.0 * 4096 * 4096;  // q x s, halved by the mask, doubled by QK and PV
  CHECK(model::step_flop(s) == doctest::Approx(6.0 * 8 * 4096 * (weights + attention)).epsilon(1e-12));
}

TEST_CASE("what is not modelled is refused with its key") {
  CHECK_THROWS_WITH_AS(test::build(with(llama70b(), {"fp8=hybrid", "fp8_recipe=mxfp8"})),
                       doctest::Contains("fp8_recipe"), UsageError);
  CHECK_THROWS_WITH_AS(test::build(with(llama70b(), {"ffn_hidden_size=1001"})), doctest::Contains("ffn_hidden_size"),
                       UsageError);
}

TEST_CASE("an activation without its fused kernel keeps gate, linear half and product beside fc1's output") {
  const auto fused = saved(inner_layer(test::build(llama70b())));
  CHECK(saved(inner_layer(test::build(with(llama70b(), {"bias_activation_fusion=false"})))) - fused ==
        tokens / t * 2 * 2 * f);
  check_all(test::build(with(llama70b(), {"bias_activation_fusion=false", "recompute_granularity=selective",
                                          "recompute_modules=[mlp]", "add_bias_linear=true"})));
}

TEST_CASE("the optimizer's state follows the types it is told") {
  const auto state = [](std::initializer_list<const char*> settings, const std::string& owner) {
    const auto stages = test::build(with(with(llama70b(), {"num_gpus=16"}), settings));
    std::int64_t bytes = 0;
    for (const auto* list :
         {&stages.ranks[1].optimizer_state, &stages.ranks[1].during_optimizer, &stages.ranks[1].after_update}) {
      for (const auto& tensor : *list) {
        if (stages.owners[tensor.owner] == owner) bytes += tensor.bytes.value;
      }
    }
    for (const auto& tensor : stages.ranks[1].construction.tensors) {
      if (stages.owners[tensor.owner] == owner) bytes += tensor.bytes.value;
    }
    return bytes;
  };
  const auto elements = test::build(with(llama70b(), {"num_gpus=16"})).ranks[1].chunks[0].parameters;
  CHECK(state({}, "optimizer moments") == 8 * elements);
  CHECK(state({}, "main parameters") == 4 * elements);
  CHECK(state({"optimizer=sgd"}, "optimizer moments") == 4 * elements);
  CHECK(state({"grad_reduce_in_fp32=false"}, "fp32 gradients") == 4 * elements);
  CHECK(state({"use_distributed_optimizer=false"}, "optimizer moments") == 8 * elements);
  const char* aware = "use_precision_aware_optimizer=true";
  CHECK(state({aware, "exp_avg_dtype=bf16", "exp_avg_sq_dtype=fp8"}, "optimizer moments") == 3 * elements);
  CHECK(state({aware}, "main parameters") == 2 * elements);
  CHECK(state({aware, "store_param_remainders=false"}, "main parameters") == 4 * elements);
  CHECK(state({aware, "grad_reduce_in_fp32=false"}, "fp32 gradients") == 0);
  // With a recipe that scales outside of Adam the fp32 main parameters stay Megatron's.
  CHECK(state({aware, "fp8=hybrid", "fp8_recipe=tensorwise"}, "main parameters") == 4 * elements);
  CHECK(state({aware, "fp8_recipe=tensorwise"}, "main parameters") == 4 * elements);
}

TEST_CASE("fp16 takes the loss scale out of the gradients before the norm") {
  const auto count = [](const model::Stages& stages, const std::string& name) {
    const auto& list = stages.ranks[0].optimizer;
    return std::count_if(list.begin(), list.end(), [&](const auto& kernel) { return kernel.name == name; });
  };
  CHECK(count(test::build(llama70b()), "gradient unscaling") == 0);
  const auto scaled = test::build(with(llama70b(), {"bf16=false", "fp16=true"}));
  CHECK(count(scaled, "gradient unscaling") == 1);
  CHECK(count(scaled, "infinities all-reduce") == 1);
}

TEST_CASE("learned positions and dropout of the embedding") {
  const auto embedding = [](std::initializer_list<const char*> settings) {
    return test::build(with(llama70b(), settings)).pieces.front();
  };
  CHECK(saved(embedding({"hidden_dropout=0.1"})) - saved(embedding({})) == tokens / t * h);
  const auto& all_reduced = embedding({"position_embedding_type=learned_absolute", "max_position_embeddings=8192"});
  const auto named = [](const Piece& piece, const std::string& family) {
    return std::count_if(piece.kernels.begin(), piece.kernels.end(),
                         [&](const auto& kernel) { return kernel.key.family.starts_with(family); });
  };
  CHECK(named(all_reduced, "all_reduce") == 1);
  CHECK(named(all_reduced, "reduce_scatter") == 0);
  CHECK(named(all_reduced, "embedding.backward") == 2);
}

TEST_CASE("TE's loss keeps its gradient in the logits before 2.18, in fp32 before 2.20, then a copy of the logits") {
  const auto head = [](const char* version) {
    auto s = with(llama70b(), {"cross_entropy_loss_fusion=true", "cross_entropy_fusion_impl=te"});
    s.software.transformer_engine = version;
    const auto stages = test::build(s);
    return saved(stages.pieces[stages.ranks[3].chunks[0].pieces.back()]);
  };
  CHECK(head("2.19.0") - head("2.17.0") == tokens * 128256 / t * 2);
  CHECK(head("2.20.2") - head("2.17.0") == tokens * (2 * 4 - 1));  // statistics of a row instead of the target's mask
  CHECK(head("main") == head("2.20.2"));
}

TEST_CASE("the most that the head holds, in logits: allocator events of each loss") {
  const auto most = [](std::initializer_list<const char*> settings) {
    const auto stages = test::build(with(llama70b(), settings));
    const auto& piece = stages.pieces[stages.ranks[3].chunks[0].pieces.back()];
    std::int64_t now = 0, forward = 0, backward = 0;
    const auto walk = [&](const std::vector<model::Step>& steps, std::int64_t& peak) {
      for (const auto& step : steps) {
        const auto bytes = [&] {
          const auto& tensor = piece.tensors[step.index];
          return tensor.home == model::Tensor::Home::cached ? 0 : tensor.bytes.value;
        };
        if (step.kind == model::Step::Kind::allocate) peak = std::max(peak, now += bytes());
        if (step.kind == model::Step::Kind::free) now -= bytes();
      }
    };
    walk(piece.forward, forward);
    walk(piece.backward, backward);
    const auto logits = tokens * 128256 / t;
    return std::pair(forward / logits, backward / logits);
  };
  CHECK(most({}) == std::pair<std::int64_t, std::int64_t>(6, 6));
  CHECK(most({"cross_entropy_loss_fusion=true"}) == std::pair<std::int64_t, std::int64_t>(10, 10));
  CHECK(most({"cross_entropy_loss_fusion=true", "cross_entropy_fusion_impl=te"}) ==
        std::pair<std::int64_t, std::int64_t>(4, 2));
}

namespace {

/// Memory outside the allocator as counts: digits of the result, from the right: once (context, framework, NCCL's
/// kernels), kernels of transfers; communicators of one rank and of several; their first collectives; peers.
/// `handle` bytes for a cuBLAS handle.
std::int64_t outside(const std::vector<const char*>& settings, int gpus, int rank = 0, int handle = 0) {
  profile::Profile p;
  const auto put = [&](const char* name, double value) {
    p.scalars[std::string("memory.outside.") + name] = {value, 0, profile::Origin::measured, "test"};
  };
  put("context_bytes", 1);
  put("framework_bytes", 1);
  put("cublas_handle_bytes", handle);
  put("nccl_library_bytes", 1);
  put("nccl_library_1_bytes", 5);
  put("nccl_transfer_library_bytes", 10);
  put("nccl_group_1_bytes", 100);
  put("nccl_group_bytes", 1000);
  put("nccl_collective_bytes", 10000);
  put("nccl_peers_2_bytes", 100000);
  auto s =
      with(llama70b(), {"tensor_model_parallel_size=1", "sequence_parallel=false", "pipeline_model_parallel_size=1",
                        "virtual_pipeline_model_parallel_size=none", "use_distributed_optimizer=true"});
  s.cluster.num_gpus = gpus;
  s = with(s, settings);
  return model::outside_allocator(s, profile::Profiles({p}), rank).value;
}

}  // namespace

TEST_CASE("communicators of stock Megatron on two GPUs, as runs of pretrain_gpt.py made them") {
  // world, data parallel, gradient norm; alone: tensor parallel (the batch's broadcast), model parallel.
  CHECK(outside({}, 2) == 33203);
  // world, gradient norm, model parallel, and two for the two ways of the pipeline; alone: tensor, data parallel.
  CHECK(outside({"pipeline_model_parallel_size=2", "batch_p2p_comm=false"}, 2, 1) == 135213);
  // world, gradient norm, model parallel, tensor parallel; alone: data parallel.
  CHECK(outside({"tensor_model_parallel_size=2", "sequence_parallel=true"}, 2) == 44103);
  // Userbuffers: eight gathered hidden states and four for reduce-scatters, and a communicator to set them up.
  const char* overlap = "tp_comm_overlap=true";
  const auto buffers = tokens * h;
  CHECK(outside({"tensor_model_parallel_size=2", "sequence_parallel=true", overlap}, 2) == 55103 + 24 * buffers);
  CHECK(outside(
            {"tensor_model_parallel_size=2", "sequence_parallel=true", overlap, "fp8=hybrid", "fp8_recipe=tensorwise"},
            2) == 55103 + 16 * buffers);
}

TEST_CASE("cuBLAS: a handle for each thread that multiplies by torch, two of the stage with the loss") {
  const auto handles = [](std::vector<const char*> settings, int rank) {
    settings.insert(settings.end(), {"pipeline_model_parallel_size=4", "batch_p2p_comm=false"});
    return outside(settings, 4, rank, 1) - outside(settings, 4, rank, 0);
  };
  for (int rank = 0; rank < 4; ++rank) {
    CAPTURE(rank);
    const bool loss = rank == 3;
    CHECK(handles({}, rank) == (loss ? 2 : 0));
    CHECK(handles({"num_moe_experts=8", "moe_router_topk=2"}, rank) == (loss ? 2 : 0));  // routers multiply by TE
    CHECK(handles({"attention_backend=unfused"}, rank) == 2);
    CHECK(handles({"optimizer=muon", "use_distributed_optimizer=false"}, rank) == (loss ? 2 : 1));
  }
}

TEST_CASE("the gradient norm has a communicator of its own where ranks share the optimizer's states, or of experts") {
  const char *whole = "use_distributed_optimizer=false", *clips = "clip_grad=1.0", *does_not = "clip_grad=0.0";
  const auto norm = [&](std::vector<const char*> settings) {
    auto without = settings;
    settings.push_back(clips), without.push_back(does_not);
    return outside(settings, 2) - outside(without, 2);
  };
  CHECK(norm({}) == 11000);
  CHECK(norm({whole}) == 0);  // the model-parallel group's
  CHECK(norm({whole, "optimizer=muon"}) == 0);
  CHECK(norm({whole, "optimizer=dist_muon"}) == 0);  // the world's
  CHECK(norm({whole, "num_moe_experts=8", "moe_router_topk=2"}) == 100);
}

TEST_CASE("tokens of experts' ranks are counted by a communicator, but not where each expert has as many") {
  std::vector<const char*> counted = {"num_moe_experts=8", "moe_router_topk=2", "expert_model_parallel_size=2",
                                      "moe_token_dispatcher_type=alltoall", "moe_expert_capacity_factor=1.0"};
  auto padded = counted;
  padded.push_back("moe_pad_expert_input_to_capacity=true");
  CHECK(outside(counted, 2) - outside(padded, 2) == 11000);
  for (auto* settings : {&counted, &padded}) settings->push_back("process_group_device_id=true");
  CHECK(outside(counted, 2) - outside(padded, 2) == 10000);  // made at once, and not used
}

TEST_CASE("communicators of losses, maxima and rings, as runs of pretrain_gpt.py on one and two GPUs made them") {
  using Settings = std::vector<const char*>;
  // What more settings add to those before: 100 a communicator of one rank, 11000 of two that reduce.
  const auto add = [&](const Settings& before, const Settings& more, int gpus) {
    Settings all = before;
    all.insert(all.end(), more.begin(), more.end());
    return outside(all, gpus) - outside(before, gpus);
  };
  // Alone: world, data parallel, gradient norm, tensor parallel, model parallel; less of NCCL's library.
  CHECK(outside({}, 1) == 507);
  const Settings experts = {"num_moe_experts=8", "moe_router_topk=2", "moe_token_dispatcher_type=alltoall"};
  const char *aux = "moe_router_load_balancing_type=aux_loss",
             *sequences = "moe_router_load_balancing_type=seq_aux_loss",
             *all = "moe_router_load_balancing_type=global_aux_loss", *weighs = "moe_aux_loss_coeff=0.01",
             *z = "moe_z_loss_coeff=0.001", *bias = "moe_router_enable_expert_bias=true",
             *scores = "moe_router_score_function=sigmoid";
  CHECK(add(experts, {aux}, 2) == 0);  // without a weight nothing is logged
  for (const char* type : {aux, sequences}) CHECK(add(experts, {type, weighs}, 2) == 100);
  const Settings split = {"num_moe_experts=8",
                          "moe_router_topk=2",
                          "tensor_model_parallel_size=2",
                          "sequence_parallel=true",
                          "expert_tensor_parallel_size=1",
                          "expert_model_parallel_size=2"};
  for (const char* type : {aux, sequences}) CHECK(add(split, {type, weighs}, 2) == 11000);
  const Settings once[] = {{z}, {all, weighs}, {bias, scores}, {z, bias, scores}, {z, all, weighs}};
  for (const Settings& more : once) {
    CHECK(add(experts, more, 2) == 11000);
    CHECK(add(experts, more, 1) == 100);
  }
  const Settings maxima = {"fp8=hybrid", "fp8_recipe=delayed"};
  CHECK(add({}, maxima, 2) == 11000);
  CHECK(add({}, maxima, 1) == 0);
  CHECK(add({}, {"fp8=hybrid", "fp8_recipe=tensorwise"}, 2) == 0);
  CHECK(add({}, {"fp8=hybrid", "fp8_recipe=delayed", "tp_only_amax_red=true"}, 2) == 0);
  CHECK(add(experts, {"fp8=hybrid", "fp8_recipe=delayed", z}, 2) == 11000);  // the same group
  // The last stage has the embedding, too: with multi-token prediction, or tied.
  const Settings stages = {"pipeline_model_parallel_size=2", "batch_p2p_comm=false"};
  for (const char* again : {"mtp_num_layers=1", "untie_embeddings_and_output_weights=false"})
    CHECK(add(stages, {again}, 2) == 11000);
  // A ring only sends and receives: its group makes a communicator without a collective, and peers.
  const Settings ring = {"context_parallel_size=2"};
  CHECK(add(ring, {"cp_comm_type=a2a"}, 2) == 10000);
}

TEST_CASE("userbuffers leave the multiprocessors of the configuration that Bridge's recipe names, else TE's 16") {
  const auto held = [](std::initializer_list<const char*> settings, const std::string& kernel) {
    const auto stages = test::build(with(with(llama70b(), {"tp_comm_overlap=true"}), settings));
    const auto& kernels = inner_layer(stages).kernels;
    const auto found = std::ranges::find(kernels, kernel, &model::Kernel::name);
    REQUIRE(found != kernels.end());
    return std::lround(132 * (1 - found->sm_share));
  };
  const char *bridge = "megatron_bridge=0.4.2", *fp8 = "fp8=hybrid", *by_tensor = "fp8_recipe=tensorwise";
  for (const char* kernel : {"mlp.fc1 dgrad", "mlp.fc1 wgrad", "attention.qkv wgrad", "mlp.fc2 forward"}) {
    CAPTURE(kernel);
    CHECK(held({}, kernel) == 16);
    CHECK(held({bridge, "sft=true"}, kernel) == 16);                            // its recipe names none
    CHECK(held({bridge, "hidden_size=4096", "kv_channels=64"}, kernel) == 16);  // nor does that of 8B
  }
  CHECK(held({bridge}, "mlp.fc1 dgrad") == 2);
  CHECK(held({bridge}, "attention.qkv wgrad") == 24);
  CHECK(held({bridge, fp8, by_tensor}, "mlp.fc1 wgrad") == 4);
  CHECK(held({bridge, fp8, by_tensor}, "mlp.fc2 forward") == 1);
  CHECK(held({bridge}, "mlp.fc1 forward") == 0);  // a ring over copy engines
}

TEST_CASE("a table of userbuffers in the scenario says what each product leaves, whoever wrote it") {
  const std::map<std::string, std::string> kernels = {
      {"qkv_dgrad", "attention.qkv dgrad"}, {"qkv_wgrad", "attention.qkv wgrad"},     {"fc1_dgrad", "mlp.fc1 dgrad"},
      {"fc1_wgrad", "mlp.fc1 wgrad"},       {"proj_fprop", "attention.proj forward"}, {"fc2_fprop", "mlp.fc2 forward"}};
  std::mt19937 random(17);
  for (int draw = 0; draw < 12; ++draw) {
    std::map<std::string, long> told;
    std::string table;
    for (const auto& [product, kernel] : kernels) {
      if (random() % 4 == 0) continue;  // Transformer Engine's
      const bool scatters = product.ends_with("fprop"), ring = scatters && random() % 2 == 0;
      told[product] = ring ? 1 : static_cast<long>(2 + random() % 30);
      table += (table.empty() ? "" : ", ") + product +
               (ring ? ": {method: ring_exchange, num_sm: 1, atomic_gemm: 0}"
                     : ": {method: " + std::string(scatters ? "pipeline" : "bulk") +
                           ", num_sm: " + std::to_string(told[product]) + "}");
    }
    CAPTURE(table);
    if (table.empty()) continue;
    const std::string setting = "tp_comm_overlap_cfg={" + table + "}";
    const auto s = with(
        llama70b(), {"tp_comm_overlap=true", draw % 2 == 0 ? "megatron_bridge=0.4.2" : "bf16=true", setting.c_str()});
    CHECK(scenario::unmodelled(s).empty());
    const auto stages = test::build(s);
    for (const auto& [product, kernel] : kernels) {
      const auto& all = inner_layer(stages).kernels;
      const auto found = std::ranges::find(all, kernel, &model::Kernel::name);
      REQUIRE(found != all.end());
      CHECK(std::lround(132 * (1 - found->sm_share)) == (told.contains(product) ? told.at(product) : 16));
    }
  }
  for (const char* other :
       {"{fc1_dgrad: {method: ring_exchange}}", "{fc1_fprop: {method: bulk, num_sm: 4}}", "{qkv_dgrad: {method: bulk}}",
        "{proj_fprop: {method: pipeline, num_sm: 16, atomic_gemm: 1}}",
        "{fc1_dgrad: {method: bulk, num_sm: 4, nobody_reads: 1}}", "{fc3_dgrad: {method: bulk, num_sm: 4}}",
        "overlap.yaml", "[bulk]"}) {
    CAPTURE(other);
    const std::string setting = std::string("tp_comm_overlap_cfg=") + other;
    const auto refused = scenario::unmodelled(with(llama70b(), {"tp_comm_overlap=true", setting.c_str()}));
    REQUIRE(refused.size() == 1);
    CHECK(refused.front().name == "tp_comm_overlap_cfg");
  }
}

TEST_CASE("Transformer Engine's products leave the multiprocessors that NVTE_EXT_MARGIN_SM says, nobody else's") {
  std::mt19937 random(23);
  const std::vector<std::vector<const char*>> kinds = {
      {"bf16=true"},
      {"fp8=hybrid", "fp8_recipe=tensorwise"},
      {"tp_comm_overlap=true", "megatron_bridge=0.4.2"},
      {"tp_comm_overlap=true", "fp8=hybrid", "fp8_recipe=tensorwise"},
      {"defer_embedding_wgrad_compute=true"},
      {"lora_target_modules=[linear_qkv, linear_fc1]"},
      {"num_moe_experts=8", "moe_grouped_gemm=true", "moe_shared_expert_intermediate_size=4096"},
      {"num_moe_experts=8", "moe_grouped_gemm=true", "fp8=hybrid", "fp8_recipe=tensorwise"}};
  for (const auto& kind : kinds) {
    auto s = llama70b();
    for (const auto* setting : kind) scenario::set(s, setting);
    CAPTURE(kind.front());
    const auto before = test::build(s);
    const long left = 1 + static_cast<long>(random() % 32);
    s.environment["NVTE_EXT_MARGIN_SM"] = std::to_string(left);
    CHECK(scenario::unmodelled(s).empty());
    const auto after = test::build(s);
    REQUIRE(before.pieces.size() == after.pieces.size());
    int products = 0;
    for (std::size_t p = 0; p < before.pieces.size(); ++p) {
      REQUIRE(before.pieces[p].kernels.size() == after.pieces[p].kernels.size());
      for (std::size_t k = 0; k < before.pieces[p].kernels.size(); ++k) {
        const model::Kernel &was = before.pieces[p].kernels[k], &is = after.pieces[p].kernels[k];
        CAPTURE(is.name);
        const auto& family = is.key.family;
        const bool by_torch = family.starts_with("gemm.lora.") || is.name.starts_with("head");
        const bool product = family.starts_with("gemm.") && !by_torch;
        products += product ? 1 : 0;
        CHECK(std::lround(132 * (was.sm_share - is.sm_share)) == (product ? left : 0));
      }
    }
    CHECK(products > 0);
  }
  for (const char* other : {"64", "-1", "all"}) {
    auto s = llama70b();
    s.environment["NVTE_EXT_MARGIN_SM"] = other;
    CHECK(scenario::unmodelled(s).size() == 1);
  }
}

TEST_CASE("a ring of partial sums ends with their sum, a pipelined scatter does not") {
  const auto sums = [](std::initializer_list<const char*> settings) {
    const auto stages =
        test::build(with(with(llama70b(), {"tp_comm_overlap=true", "fp8=hybrid", "fp8_recipe=tensorwise"}), settings));
    return std::ranges::count_if(inner_layer(stages).kernels,
                                 [](const auto& k) { return k.name.ends_with("sum of parts"); });
  };
  CHECK(sums({}) == 0);
  CHECK(sums({"megatron_bridge=0.4.2"}) == 2);  // proj and fc2
}

TEST_CASE("FP8 parameters: every shard that a rank owns is cast as one row in the optimizer step") {
  const auto step = [](std::initializer_list<const char*> settings) {
    return test::build(with(with(llama70b(), {"fp8=hybrid", "fp8_recipe=tensorwise", "use_distributed_optimizer=true"}),
                            settings))
        .ranks[1]
        .optimizer;
  };
  const auto count = [](const auto& kernels, const std::string& family) {
    return std::count_if(kernels.begin(), kernels.end(), [&](const auto& k) { return k.key.family == family; });
  };
  const auto with_parameters = step({"fp8_param=true"});
  CHECK(count(step({}), "cast_transpose.fp8.row") == 0);
  CHECK(count(with_parameters, "cast_transpose.fp8.row") > 0);
  CHECK(count(with_parameters, "cast_transpose.fp8.row") == count(with_parameters, "amax"));
}

TEST_CASE("the chunks at both ends fetch their microbatch, once; those between do not") {
  const auto fetches = [](const model::Stages& stages, const model::Chunk& chunk) {
    std::int64_t count = 0;
    for (const auto index : chunk.pieces)
      count += std::ranges::count(stages.pieces[index].kernels, "microbatch fetched", &model::Kernel::name);
    return count;
  };
  for (const char* ranks : {"1", "2", "4"})
    for (const char* chunks : {"1", "2"}) {
      CAPTURE(ranks);
      CAPTURE(chunks);
      auto s = with(llama70b(), {"tensor_model_parallel_size=1", "sequence_parallel=false"});
      scenario::set(s, std::string("pipeline_model_parallel_size=") + ranks);
      if (*chunks != '1' && *ranks != '1')
        scenario::set(s, std::string("virtual_pipeline_model_parallel_size=") + chunks);
      const auto stages = test::build(s);
      for (std::size_t rank = 0; rank < stages.ranks.size(); ++rank)
        for (std::size_t c = 0; c < stages.ranks[rank].chunks.size(); ++c) {
          const bool first = rank == 0 && c == 0;
          const bool last = rank + 1 == stages.ranks.size() && c + 1 == stages.ranks[rank].chunks.size();
          CHECK(fetches(stages, stages.ranks[rank].chunks[c]) == (first || last ? 1 : 0));
        }
    }
}

}  // namespace model_test
