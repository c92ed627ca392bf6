// Mixture-of-experts layers: tensors against formulas, kernels against counts in kernel traces of core_r0.19.0 with TE
// 2.20, parameters against measured runs.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>

#include "large_experts.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"

namespace moe_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Kernel;
using model::Piece;
using model::Step;

namespace {

constexpr std::int64_t S = 4096, h = 4096, q = 4096, kv = 1024, heads = 32, f = 14336, E = 8, k = 2, n = S * k;

}  // namespace

TEST_CASE("what a layer keeps: attention, norm output, router, permutation maps, rows, both activations") {
  const std::int64_t attention = S * (2 * h + 2 * h + 4 + 2 * q + 4 * kv + 2 * q + 4 * heads) + 16;
  const std::int64_t router = S * (8 * k + 4 * k + 4 * E) + 4 * S * (2 * E + 1);
  const std::int64_t experts = n * (2 * h + 4 * f + 2 * f + 4 + 2 * 4);
  CHECK(saved(layer(test::build(large_experts()))) == attention + S * (2 * h + 2 * h + 4) + router + experts);
}

// Bytes a token that autograd keeps of TopKRouter.routing besides the gating's input: Megatron Core's module executed
// on a CPU under torch.autograd.graph.saved_tensors_hooks.
TEST_CASE("what the router keeps is what its module's autograd graph saves") {
  struct Row {
    std::vector<const char*> settings;
    std::int64_t of_expert, of_choice, of_token;
  };
  const char *none = "moe_aux_loss_coeff=0", *sigmoid = "moe_router_score_function=sigmoid",
             *before = "moe_router_pre_softmax=true", *root = "moe_router_score_function=sqrtsoftplus",
             *z = "moe_z_loss_coeff=0.001", *one = "moe_router_topk=1", *half = "moe_router_dtype=none",
             *bias = "moe_router_enable_expert_bias=true", *main = "megatron_core=main";
  const Row rows[] = {
      {{none}, 0, 12, 0},
      {{}, 4, 12, 0},
      {{none, half}, 0, 12, 0},
      {{none, before}, 4, 8, 0},
      {{before}, 8, 8, 0},
      {{none, before, one}, 4, 8, 0},
      {{none, sigmoid}, 4, 12, 4},
      {{none, sigmoid, half}, 4, 12, 4},
      {{none, sigmoid, bias}, 4, 12, 4},
      {{sigmoid}, 8, 12, 8},
      {{none, sigmoid, one}, 4, 8, 0},
      {{none, z}, 4, 12, 4},
      {{none, z, half}, 2, 12, 2},
      {{none, root, main}, 8, 12, 4},
      {{none, root, half, main}, 8, 12, 4},
      {{root, main}, 12, 12, 8},
  };
  const auto kept = [](const Row& row) {
    auto s = with(large_experts(), {"moe_router_force_load_balancing=false"});
    for (const auto* setting : row.settings) scenario::set(s, setting);
    const auto stages = test::build(s);
    const Piece& piece = layer(stages);
    std::map<std::uint32_t, std::int64_t> live;
    for (const auto& step : piece.forward) {
      const auto& owner = stages.owners[piece.tensors[step.index < piece.tensors.size() ? step.index : 0].owner];
      if (step.kind == Step::Kind::allocate && owner.starts_with("router."))
        live[step.index] = piece.tensors[step.index].bytes.value;
      if (step.kind == Step::Kind::free) live.erase(step.index);
    }
    std::int64_t sum = 0;
    for (const auto& [index, bytes] : live) sum += bytes;
    return std::pair(sum, s.model.moe_router_topk);
  };
  for (const Row& row : rows) {
    std::string all;
    for (const auto* setting : row.settings) all += std::string(setting) + " ";
    CAPTURE(all);
    const auto [bytes, choices] = kept(row);
    CHECK(bytes == S * (E * row.of_expert + choices * row.of_choice + row.of_token));
  }
}

TEST_CASE("recompute drops what its module says") {
  const auto saved_with = [](std::initializer_list<const char*> settings) {
    return saved(layer(test::build(with(large_experts(), settings))));
  };
  const auto none = saved_with({});
  const auto drops = [&](const char* modules) {
    return none - saved_with({"recompute_granularity=selective", modules});
  };
  CHECK(drops("recompute_modules=[moe_act]") == 2 * n * f);
  CHECK(drops("recompute_modules=[layernorm]") == S * (2 * h + 4));
  const std::int64_t routed = S * (8 * k + 4 * k + 4 * E) + 4 * S * (2 * E + 1) + n * (2 * h + 6 * f + 12);
  CHECK(drops("recompute_modules=[moe]") == routed);
  const auto shared = saved_with({"moe_shared_expert_intermediate_size=2048"});
  CHECK(shared - none == S * 6 * 2048);
  CHECK(saved_with({"moe_shared_expert_intermediate_size=2048", "recompute_granularity=selective",
                    "recompute_modules=[shared_experts]"}) == none);
}

TEST_CASE("a router's products are of its type: three of bf16, or with casts to fp32 and back") {
  auto experts = large_experts();
  const auto of = [&](const char* dtype) {
    scenario::set(experts, std::string("moe_router_dtype=") + dtype);
    const auto stages = test::build(experts);
    const auto& piece = layer(stages);
    std::vector<int> launches;
    for (const char* family : {"moe.router.gemm.bf16.tn", "moe.router.gemm.forward"})
      launches.push_back(launched(piece, piece.forward, family));
    for (const char* family : {"moe.router.gemm.bf16.nn", "moe.router.gemm.bf16.nt", "moe.router.gemm.backward"})
      launches.push_back(launched(piece, piece.backward, family));
    return launches;
  };
  CHECK(of("none") == std::vector<int>{2, 0, 2, 1, 0});
  CHECK(of("fp32") == std::vector<int>{0, 2, 0, 0, 7});
}

TEST_CASE(
    "shared experts without the fused activation keep the gate's activation, and the other half with its offset") {
  const auto kept = [](std::initializer_list<const char*> settings) {
    const auto all = [&](const char* shared) {
      return saved(layer(test::build(with(with(large_experts(), settings), {shared}))));
    };
    return all("moe_shared_expert_intermediate_size=2048") - all("moe_shared_expert_intermediate_size=none");
  };
  CHECK(kept({}) == S * 6 * 2048);
  CHECK(kept({"bias_activation_fusion=false"}) == S * 10 * 2048);
  CHECK(kept({"bias_activation_fusion=false", "moe_shared_expert_overlap=true"}) == S * 8 * 2048);
}

TEST_CASE("launches of a layer as the kernel trace counts them") {
  const auto stages = test::build(large_experts());
  const auto& piece = layer(stages);
  CHECK(launched(piece, piece.forward, "moe.router.gemm") == 2);
  CHECK(launched(piece, piece.forward, "moe.router.topk") == 29);
  CHECK(launched(piece, piece.forward, "all_gather") == 1);
  CHECK(launched(piece, piece.forward, "copy.d2h") == 4);
  CHECK(launched(piece, piece.forward, "moe.row_id_map") == 3);
  CHECK(launched(piece, piece.forward, "moe.permute") == 1);
  CHECK(launched(piece, piece.forward, "all_to_all") == 3);
  CHECK(launched(piece, piece.forward, "moe.sort_chunks") == 2);
  CHECK(launched(piece, piece.forward, "gemm.grouped.bf16.tn") == 16);
  CHECK(launched(piece, piece.forward, "moe.swiglu") == 1);
  CHECK(launched(piece, piece.forward, "moe.unpermute") == 1);
  CHECK(launched(piece, piece.backward, "moe.router.topk") == 13);
  CHECK(launched(piece, piece.backward, "moe.router.gemm") == 7);
  CHECK(launched(piece, piece.backward, "all_to_all") == 3);
  CHECK(launched(piece, piece.backward, "gemm.grouped.bf16.nn") == 16);
  CHECK(launched(piece, piece.backward, "gemm.grouped.bf16.nt.acc_f32") == 16);
  CHECK(launched(piece, piece.backward, "moe.swiglu") == 2);
  const auto waits = std::count_if(piece.forward.begin(), piece.forward.end(),
                                   [](const Step& step) { return step.kind == Step::Kind::synchronize; });
  CHECK(waits == 1);
}

TEST_CASE("experts' rows are quantized one expert after the other, with delayed scaling in one kernel") {
  for (const std::string recipe : {"tensorwise", "delayed", "blockwise"}) {
    for (const std::int64_t experts : {4, 8, 16, 64}) {
      CAPTURE(recipe);
      CAPTURE(experts);
      auto s = with(large_experts(), {"fp8=hybrid"});
      s.settings.fp8_recipe = recipe;
      s.model.num_moe_experts = experts;
      const auto stages = test::build(s);
      const auto local = experts / s.settings.expert_model_parallel_size;
      const auto one_by_one = recipe == "delayed" ? 1 : local;
      for (const std::string tensor : {"fc1_input", "fc2_input", "fc2_gradient", "fc1_gradient"}) {
        CAPTURE(tensor);
        double casts = 0, off_tiles = 0;
        int maxima = 0, in_call = 0;
        std::int64_t rows = 0;
        for (const auto& kernel : layer(stages).kernels) {
          if (!kernel.name.starts_with("experts." + tensor + " ")) continue;
          const bool amax = kernel.key.family == "amax";
          if (amax) maxima += static_cast<int>(kernel.share);
          if (kernel.key.family == "cast_transpose.fp8.general") off_tiles += kernel.share;
          if (!amax) casts += kernel.share, rows = std::max(rows, kernel.key.dims.at(0));
          if (kernel.within_call) in_call += kernel.launches;
        }
        CHECK(casts == static_cast<double>(one_by_one));
        // Padded to 16 rows, every other expert has no multiple of the 32 that a tuned cast needs.
        CHECK(off_tiles == (recipe == "tensorwise" ? static_cast<double>(local) / 2 : 0));
        CHECK(maxima == (recipe == "tensorwise" ? local : 0));
        CHECK(in_call == (one_by_one - 1) * (recipe == "tensorwise" ? 4 : 1));
        CHECK(rows * one_by_one >= n);
        CHECK(rows * one_by_one <= n + 129 * local);  // padded, and rounded up
      }
    }
  }
}

TEST_CASE("rows that are the same in every step are cast by the kernel for any shape where they fill no tiles of 32") {
  const auto casts = [](std::int64_t sequence, const char* recipe) {
    auto s = with(large_experts(), {"fp8=hybrid", "moe_expert_capacity_factor=1.0",
                                    "moe_pad_expert_input_to_capacity=true", "moe_token_drop_policy=probs"});
    s.settings.fp8_recipe = recipe;
    s.model.seq_length = sequence;
    const auto stages = test::build(s);
    std::map<std::string, double> counts;
    for (const auto& kernel : layer(stages).kernels)
      if (kernel.key.family.starts_with("cast_transpose")) counts[kernel.key.family] += kernel.share;
    return counts;
  };
  // Capacity: a quarter of the tokens (2 of 8 experts), from both ranks.
  for (const std::int64_t sequence : {4096, 4128, 4160, 4192, 6272}) {
    CAPTURE(sequence);
    const bool off = sequence / 4 * 2 % 32 != 0, dense_off = sequence % 32 != 0;
    auto counts = casts(sequence, "tensorwise");
    CHECK((counts["cast_transpose.fp8.general"] > 0) == (off || dense_off));
    CHECK(counts["cast_transpose.fp8"] > 0);  // weights, and rows of attention
    CHECK(casts(sequence, "blockwise").empty());
  }
}

TEST_CASE("experts' squared ReLU is the kernel for any shape where shared experts call the function first") {
  for (const char* shared : {"moe_shared_expert_intermediate_size=none", "moe_shared_expert_intermediate_size=3712"}) {
    for (const char* fused : {"use_fused_weighted_squared_relu=false", "use_fused_weighted_squared_relu=true"}) {
      CAPTURE(shared);
      CAPTURE(fused);
      const auto s = with(large_experts(), {"activation_func=squared_relu", "gated_linear_unit=false",
                                            "bias_activation_fusion=false", shared, fused});
      const auto stages = test::build(s);
      std::map<std::string, int> experts;
      for (const auto& kernel : layer(stages).kernels)
        if (kernel.key.family.starts_with("squared_relu") && kernel.name.starts_with("experts"))
          ++experts[kernel.key.family];
      const bool any = std::string(shared).ends_with("3712") && std::string(fused).ends_with("false");
      const std::string family = any ? "squared_relu.any_width" : "squared_relu";
      CHECK(experts == std::map<std::string, int>{{family + ".forward", 1}, {family + ".backward", 1}});
    }
  }
}

TEST_CASE("experts of a layer in 16 bits have the rows that the model's recipe pads") {
  const auto rows_of = [](const Piece& piece) {
    for (const auto& kernel : piece.kernels)
      if (kernel.name == "experts.fc1 forward") return kernel.key.dims.at(1);
    return std::int64_t{0};
  };
  for (const char* recipe : {"fp8_recipe=tensorwise", "fp8_recipe=blockwise"}) {
    const auto s = with(large_experts(), {"fp8=hybrid", recipe, "first_last_layers_bf16=true"});
    const auto stages = test::build(s);
    const auto& pieces = stages.ranks[0].chunks[0].pieces;
    const Piece &first = stages.pieces[pieces[1]], &second = stages.pieces[pieces[2]];
    CHECK(launched(first, first.forward, "gemm.grouped.bf16") > 0);
    CHECK(launched(second, second.forward, "gemm.grouped.bf16") == 0);
    CHECK(rows_of(first) > n);
    CHECK(rows_of(first) == rows_of(second));
  }
}

TEST_CASE("parameters of measured runs") {
  const auto of_rank = [](const scenario::Scenario& s, std::size_t rank) {
    std::int64_t sum = 0;
    const auto stages = test::build(s);
    for (const auto& chunk : stages.ranks[rank].chunks) sum += chunk.parameters;
    return sum;
  };
  CHECK(of_rank(large_experts(), 0) == 3117580288);
  CHECK(of_rank(large_experts(), 1) == 3117584384);
  CHECK(of_rank(with(large_experts(), {"num_layers=12"}), 0) == 4610834432);
  const auto small =
      with(large_experts(), {"hidden_size=2048", "ffn_hidden_size=6144", "num_query_groups=4", "num_moe_experts=32",
                             "moe_router_topk=8", "moe_ffn_hidden_size=768", "kv_channels=128", "qk_layernorm=true"});
  CHECK(of_rank(small, 0) == 443302912);
  CHECK(of_rank(small, 1) == 443304960);
}

TEST_CASE("experts have buffers of their own, sharded over expert data parallel ranks") {
  // Eight GPUs: dense gradients are reduced over 4 ranks, those of experts over 2.
  const auto stages = test::build(with(large_experts(), {"num_gpus=8"}));
  const auto count = [&](std::int64_t ranks) {
    const auto& list = stages.ranks[0].finalize;
    return std::count_if(list.begin(), list.end(), [&](const Kernel& kernel) {
      return kernel.key.family.starts_with("reduce_scatter") && kernel.key.dims.front() == ranks;
    });
  };
  CHECK(count(4) == 2);
  CHECK(count(2) == 2);
  CHECK(test::build(large_experts()).ranks[0].optimizer_state.size() > 0);
}

TEST_CASE("load imbalance scales the rows of the busiest rank") {
  const auto rows = [](const char* imbalance) {
    const auto stages = test::build(with(large_experts(), {imbalance}));
    for (const auto& kernel : layer(stages).kernels) {
      if (kernel.key.family == "gemm.grouped.bf16.tn") return kernel.key.dims[1];
    }
    return std::int64_t{0};
  };
  CHECK(rows("moe_load_imbalance=1") == n);
  CHECK(rows("moe_load_imbalance=1.25") == n * 5 / 4);
  CHECK(rows("moe_load_imbalance=3") == 2 * n);  // all rows of both ranks, no more
}

TEST_CASE("rows that a rank receives vary as tokens drawn one by one do") {
  std::mt19937 random(7);
  for (const auto& [experts, ep, topk, fp8] :
       {std::tuple{8, 2, 2, false}, {16, 4, 4, false}, {64, 2, 8, false}, {8, 1, 2, true}, {16, 2, 4, true}}) {
    auto s = large_experts();
    for (const std::string& setting :
         {"num_moe_experts=" + std::to_string(experts), "moe_router_topk=" + std::to_string(topk),
          "expert_model_parallel_size=" + std::to_string(ep), "num_gpus=" + std::to_string(2 * ep),
          "gpus_per_node=" + std::to_string(2 * ep)})
      scenario::set(s, setting);
    if (fp8) scenario::set(s, "fp8=hybrid"), scenario::set(s, "fp8_recipe=tensorwise");
    CAPTURE(experts);
    CAPTURE(ep);
    const auto stages = test::build(s);
    constexpr int draws = 300;
    const int align = fp8 ? 16 : 1;
    double sum = 0, squares = 0;
    std::vector<int> order(static_cast<std::size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    for (int draw = 0; draw < draws; ++draw) {
      std::vector<int> rows(static_cast<std::size_t>(experts / ep));
      for (std::int64_t token = 0; token < S * ep; ++token)
        for (int choice = 0; choice < topk; ++choice) {
          std::uniform_int_distribution<int> rest(choice, experts - 1);
          std::swap(order[static_cast<std::size_t>(choice)], order[static_cast<std::size_t>(rest(random))]);
          if (const auto expert = static_cast<std::size_t>(order[static_cast<std::size_t>(choice)]);
              expert < rows.size())
            ++rows[expert];
        }
      double all = 0;
      for (const int of_expert : rows) all += (of_expert + align - 1) / align * align;
      sum += all, squares += all * all;
    }
    const double mean = sum / draws, deviation = std::sqrt(squares / draws - mean * mean);
    CHECK(layer(stages).row_spread == doctest::Approx(deviation / mean).epsilon(0.15));
  }
  auto fixed = large_experts();
  for (const char* setting : {"moe_expert_capacity_factor=1.0", "moe_pad_expert_input_to_capacity=true"})
    scenario::set(fixed, setting);
  CHECK(layer(test::build(fixed)).row_spread == 0);
}

TEST_CASE("token drop: every expert gets its capacity, whatever the imbalance, and nobody counts") {
  const auto stages =
      test::build(with(large_experts(), {"moe_expert_capacity_factor=1.5", "moe_pad_expert_input_to_capacity=true",
                                         "moe_load_imbalance=2"}));
  for (const auto& kernel : layer(stages).kernels) {
    if (kernel.key.family == "gemm.grouped.bf16.tn") CHECK(kernel.key.dims[1] == n * 3 / 2);
    CHECK(kernel.name.find("counts") == std::string::npos);
  }
}

TEST_CASE("expert-parallel groups that do not divide a node, counted one by one") {
  for (const int nodes : {1, 2, 3, 5})
    for (const int ep : {2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 40}) {
      const int gpus = 8 * nodes;
      if (gpus % ep != 0) continue;
      int fewest = ep;
      for (int first = 0; first < gpus; first += ep)
        for (int gpu = first; gpu < first + ep; ++gpu) {
          int together = 0;
          for (int other = first; other < first + ep; ++other) together += other / 8 == gpu / 8 ? 1 : 0;
          fewest = std::min(fewest, together);
        }
      auto s = with(large_experts(), {"pipeline_model_parallel_size=1", "virtual_pipeline_model_parallel_size=none",
                                      "overlap_p2p_comm=false"});
      for (const auto& [name, value] : {std::pair("num_gpus", gpus),
                                        {"gpus_per_node", 8},
                                        {"num_moe_experts", 120},
                                        {"expert_model_parallel_size", ep},
                                        {"global_batch_size", 120}})
        scenario::set(s, std::string(name) + "=" + std::to_string(value));
      CAPTURE(gpus);
      CAPTURE(ep);
      const auto stages = test::build(s);
      int seen = 0;
      for (const auto& piece : stages.pieces)
        for (const auto& kernel : piece.kernels) {
          if (!kernel.key.family.starts_with("all_to_all.")) continue;
          ++seen;
          CHECK(kernel.exchange.has_value() == (fewest < ep));
          if (kernel.exchange) CHECK(profile::ranks_in_domain({}, *kernel.exchange) == fewest);
        }
      CHECK(seen > 0);
    }
}

TEST_CASE("a flex dispatcher sends a token once to each GPU that has an expert of it") {
  const auto of = [](std::initializer_list<const char*> settings) {
    const auto stages = test::build(with(with(large_experts(), {"moe_token_dispatcher_type=flex"}), settings));
    std::vector<profile::Exchange> found;
    for (const auto& kernel : layer(stages).kernels)
      if (kernel.exchange && kernel.exchange->multiprocessors > 0) found.push_back(*kernel.exchange);
    return found;
  };
  const auto plain = of({});
  REQUIRE(plain.size() == 4);  // dispatch and combine, forward and backward
  using Kind = profile::Exchange::Kind;
  CHECK(std::count_if(plain.begin(), plain.end(), [](const auto& e) { return e.kind == Kind::dispatch; }) == 2);
  CHECK(plain[0].multiprocessors == 20);
  CHECK(plain[0].gpus_a_token > 1);
  CHECK(plain[0].gpus_a_token <= 2);  // expert parallel size
  CHECK(plain[0].domains_a_token == 1);
  CHECK(of({"gpus_per_node=1"})[0].domains_a_token == plain[0].gpus_a_token);
  // Choices that token drop masks are not sent.
  const double half = of({"moe_expert_capacity_factor=0.5"})[0].gpus_a_token;
  CHECK(half < plain[0].gpus_a_token);
  CHECK(half > plain[0].gpus_a_token / 2);
  CHECK(of({"moe_expert_capacity_factor=1.5"})[0].gpus_a_token == plain[0].gpus_a_token);
  CHECK(of({"moe_flex_dispatcher_backend=hybridep"})[0].multiprocessors == 24);
  CHECK(of({"moe_flex_dispatcher_backend=hybridep", "gpus_per_node=1"})[0].multiprocessors == 8);
  CHECK(of({"moe_flex_dispatcher_num_sms=32"})[0].multiprocessors == 32);
  CHECK_THROWS_WITH_AS(of({"moe_flex_dispatcher_backend=ncclep"}), doctest::Contains("nobody has published"),
                       UsageError);
}

TEST_CASE(
    "HybridEP pads experts' rows for FP8 while it sorts, in every version that has it; DeepEP leaves it to the layer") {
  const auto pads = [](const char* backend, const char* version) {
    auto s = with(large_experts(), {"moe_token_dispatcher_type=flex", "fp8=hybrid", "fp8_recipe=tensorwise"});
    s.settings.moe_flex_dispatcher_backend = backend;
    s.software.megatron_core = version;
    const auto stages = test::build(s);
    return std::ranges::any_of(layer(stages).kernels,
                               [](const auto& kernel) { return kernel.name.find("padding") != std::string::npos; });
  };
  for (const char* version : {"0.16.0", "0.17.0", "0.18.0", "0.19.0"}) {
    CAPTURE(version);
    CHECK_FALSE(pads("hybridep", version));
    CHECK(pads("deepep", version));
  }
}

TEST_CASE("what is born dies, whatever the experts are made of; kernels have families") {
  const std::vector<std::vector<const char*>> variants = {
      {},
      {"moe_token_dispatcher_type=allgather"},
      {"moe_token_dispatcher_type=flex"},
      {"moe_token_dispatcher_type=flex", "expert_model_parallel_size=1"},
      {"moe_token_dispatcher_type=flex", "moe_flex_dispatcher_backend=hybridep"},
      {"moe_token_dispatcher_type=flex", "moe_flex_dispatcher_backend=hybridep",
       "moe_permute_fusion_into_hybridep=true"},
      {"moe_token_dispatcher_type=flex", "overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true"},
      {"moe_token_dispatcher_type=flex", "gpus_per_node=1"},
      {"gpus_per_node=1"},
      {"moe_expert_capacity_factor=1.0", "moe_pad_expert_input_to_capacity=true"},
      {"moe_expert_capacity_factor=1.0", "fp8=hybrid", "fp8_recipe=tensorwise"},
      {"expert_model_parallel_size=1"},
      {"expert_model_parallel_size=1", "moe_token_dispatcher_type=allgather"},
      {"num_moe_experts=2", "moe_router_topk=1"},
      {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=8", "expert_tensor_parallel_size=2"},
      {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=8",
       "moe_shared_expert_intermediate_size=2048"},
      {"moe_shared_expert_intermediate_size=2048", "moe_shared_expert_gate=true"},
      {"moe_shared_expert_intermediate_size=2048", "moe_shared_expert_overlap=true"},
      {"moe_layer_freq=2"},
      {"moe_router_dtype=none", "moe_aux_loss_coeff=0"},
      {"moe_router_score_function=sigmoid", "moe_router_enable_expert_bias=true", "moe_router_num_groups=4",
       "moe_router_group_topk=2", "moe_router_topk_scaling_factor=2.5"},
      {"moe_router_fusion=true", "moe_z_loss_coeff=0.001"},
      {"fp8=hybrid", "fp8_recipe=tensorwise"},
      {"fp8=hybrid", "fp8_recipe=delayed", "moe_router_padding_for_quantization=true"},
      {"fp8=hybrid", "fp8_recipe=blockwise", "recompute_granularity=selective", "recompute_modules=[moe_act]"},
      {"recompute_granularity=selective", "recompute_modules=[moe, layernorm]"},
      {"recompute_granularity=selective", "recompute_modules=[moe_act, layernorm, core_attn, shared_experts]",
       "moe_shared_expert_intermediate_size=2048"},
      {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"},
      {"gradient_accumulation_fusion=false"},
      {"overlap_grad_reduce=true", "overlap_param_gather=true"},
      {"overlap_moe_expert_parallel_comm=true"},
      {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true"},
      {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true", "moe_layer_freq=2"},
      {"overlap_moe_expert_parallel_comm=true", "mtp_num_layers=1"},
      {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true", "mtp_num_layers=1"},
      {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true", "fp8=hybrid", "fp8_recipe=tensorwise",
       "moe_shared_expert_intermediate_size=2048"},
      {"overlap_moe_expert_parallel_comm=true", "recompute_granularity=selective",
       "recompute_modules=[moe_act, layernorm]"},
      {"overlap_moe_expert_parallel_comm=true", "recompute_granularity=selective",
       "recompute_modules=[moe_act, layernorm, core_attn]", "cuda_graph_impl=transformer_engine",
       "cuda_graph_modules=[attn, moe_router]"},
      {"overlap_moe_expert_parallel_comm=true", "delay_wgrad_compute=true", "moe_layer_freq=2",
       "cuda_graph_impl=transformer_engine", "cuda_graph_modules=[attn, moe_router, moe_preprocess]"},
      {"overlap_moe_expert_parallel_comm=true", "moe_token_dispatcher_type=flex",
       "moe_flex_dispatcher_backend=hybridep", "mtp_num_layers=1", "cuda_graph_impl=transformer_engine",
       "cuda_graph_modules=[moe_router, moe_preprocess]"},
      {"overlap_moe_expert_parallel_comm=true", "moe_latent_size=512", "cuda_graph_impl=transformer_engine",
       "cuda_graph_modules=[moe_router]"},
      {"overlap_moe_expert_parallel_comm=true", "moe_latent_size=512", "cuda_graph_impl=transformer_engine",
       "cuda_graph_modules=[moe_router, moe_preprocess]"},
  };
  check_variants(large_experts(), variants);
}

TEST_CASE("the optimizer step's loops run over shards, gradients' hooks over the weights of a group") {
  auto s = large_experts();
  s.settings.grad_reduce_in_fp32 = false;
  const auto stages = pipewright::test::build(s);
  // A stage has four layers: 32 weights of experts, all this rank's, and 5 others each, which two ranks share.
  for (const auto& rank : stages.ranks) {
    bool experts = false;
    for (const auto& kernel : rank.optimizer) {
      if (kernel.name == "gradients to fp32") CHECK((kernel.launches >= 32 + 10 && kernel.launches <= 32 + 24));
      experts |= kernel.name == "adam" && kernel.launches == 32;
    }
    CHECK(experts);
  }
  int groups = 0;
  for (const auto& kernel : layer(stages).kernels) {
    if (!kernel.name.starts_with("experts.fc") || !kernel.name.ends_with("wgrad")) continue;
    CHECK(kernel.parameters == 4);
    ++groups;
  }
  CHECK(groups == 2);
}

}  // namespace moe_test
