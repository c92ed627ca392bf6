// Hybrids: which layer is what, where the pattern's pipes cut, Mamba-2's parameters, what it keeps for backward and its
// peak against a measured module, and that every tensor is freed.
#include <random>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "support.hpp"

namespace hybrid_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

/// Nemotron-H 8B's layers, 11 of them.
scenario::Scenario nemotron_h() {
  return scenario::parse(R"(scenario: 1
model: {num_layers: 11, hidden_size: 4096, ffn_hidden_size: 21504, num_attention_heads: 32, num_query_groups: 8,
  kv_channels: 128, seq_length: 4096, vocab_size: 131072, normalization: RMSNorm, add_bias_linear: false,
  activation_func: squared_relu, untie_embeddings_and_output_weights: true, position_embedding_type: none,
  hybrid_layer_pattern: M-M-M-M*-M-, mamba_num_heads: 128, make_vocab_size_divisible_by: 128}
settings: {micro_batch_size: 1, global_batch_size: 8, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, hidden_dropout: 0.0, attention_dropout: 0.0}
cluster: {profile: h200-sxm, num_gpus: 1, gpus_per_node: 1}
)",
                         "nemotron_h.yaml");
}

bool launches(const Piece& piece, const std::string& family) {
  for (const auto& step : piece.forward)
    if (step.kind == Step::Kind::launch && piece.kernels[step.index].key.family == family) return true;
  return false;
}

/// By chunk the layers' letters, from the kernels that their forward passes launch.
std::vector<std::string> letters(const model::Stages& stages) {
  std::vector<std::string> chunks;
  for (const auto& rank : stages.ranks)
    for (const auto& chunk : rank.chunks) {
      chunks.emplace_back();
      for (std::size_t i = 0; i < chunk.pieces.size(); ++i) {
        if (chunk.layers[i] < 0) continue;
        const Piece& piece = stages.pieces[chunk.pieces[i]];
        const bool mamba = launches(piece, "mamba.chunks.forward"),
                   attention = launches(piece, "attention.forward.bf16"),
                   experts = launches(piece, "moe.router.topk.forward");
        CHECK(int{mamba} + int{attention} + int{experts} <= 1);
        chunks.back() += mamba ? 'M' : attention ? '*' : experts ? 'E' : '-';
      }
    }
  return chunks;
}

scenario::Scenario with_all(scenario::Scenario s, const std::vector<std::string>& settings) {
  for (const auto& setting : settings) scenario::set(s, setting);
  return s;
}

std::int64_t parameters_of(const scenario::Scenario& s) {
  std::int64_t all = 0;
  for (const auto& rank : pipewright::test::build(s).ranks)
    for (const auto& chunk : rank.chunks) all += chunk.parameters;
  return all;
}

/// Bytes alive after each step of a piece's backward pass, from what is alive before it.
std::int64_t backward_peak(const Piece& piece) {
  std::map<std::uint32_t, std::int64_t> live = {{Piece::input, piece.tensors[Piece::input].bytes.value}};
  std::int64_t most = 0;
  for (const auto* steps : {&piece.forward, &piece.backward}) {
    if (steps == &piece.backward) live[Piece::output_gradient] = piece.tensors[Piece::output_gradient].bytes.value;
    for (const auto& step : *steps) {
      if (step.kind == Step::Kind::allocate) live[step.index] = piece.tensors[step.index].bytes.value;
      if (step.kind == Step::Kind::free) live.erase(step.index);
      if (steps == &piece.forward) continue;
      std::int64_t now = 0;
      for (const auto& [index, bytes] : live) now += bytes;
      most = std::max(most, now);
    }
  }
  return most;
}

const Piece& mamba_layer(const model::Stages& stages) {
  for (const auto& piece : stages.pieces)
    if (launches(piece, "mamba.chunks.forward")) return piece;
  throw InternalError("no Mamba layer");
}

}  // namespace

TEST_CASE("every layer is what its letter says, on the stage where Megatron puts it, and frees what it allocates") {
  std::mt19937 random(2);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 40; ++round) {
    const int stages = 1 + below(3), chunks = stages == 1 ? 1 : 1 + below(2);
    const bool pipes = stages > 1 && round % 2 == 0;
    std::vector<std::string> segments;
    const int each = 1 + below(5);
    for (int i = 0; i < stages * (pipes ? chunks : 1); ++i) {
      segments.emplace_back();
      for (int layer = 0; layer < (pipes ? 1 + below(5) : each); ++layer) segments.back() += "MM-*E"[below(5)];
    }
    std::string pattern, flat;
    for (const auto& segment : segments) {
      if (pipes && !pattern.empty()) pattern += "|";
      pattern += segment;
      flat += segment;
    }
    const int t = 1 << below(3);
    auto s =
        with_all(nemotron_h(), {"hybrid_layer_pattern=\"" + pattern + "\"", "num_layers=" + std::to_string(flat.size()),
                                "pipeline_model_parallel_size=" + std::to_string(stages), "num_moe_experts=8",
                                "moe_ffn_hidden_size=1856", "moe_grouped_gemm=true", "moe_permute_fusion=true",
                                "moe_router_dtype=fp32", "tensor_model_parallel_size=" + std::to_string(t),
                                std::string("sequence_parallel=") + (t > 1 ? "true" : "false"),
                                "num_gpus=" + std::to_string(stages * t), "gpus_per_node=" + std::to_string(stages * t),
                                "micro_batch_size=" + std::to_string(1 + below(2)), "global_batch_size=24"});
    CAPTURE(pattern);
    REQUIRE_NOTHROW(scenario::check(s));
    for (const auto& more : std::vector<std::vector<std::string>>{
             {},
             {"fp8=hybrid", "fp8_recipe=tensorwise"},
             {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"},
             {"recompute_granularity=selective", "recompute_modules=[core_attn, mlp, moe_act]"}}) {
      const auto built = pipewright::test::build(with_all(s, more));
      for (const auto& piece : built.pieces) check_balance(piece);
      if (!more.empty()) continue;
      const auto found = letters(built);
      REQUIRE(found.size() == segments.size());
      for (std::size_t i = 0; i < segments.size(); ++i) {  // chunks stand by rank, segments by stage
        const auto per_rank = segments.size() / static_cast<std::size_t>(stages);
        CHECK(found[i % static_cast<std::size_t>(stages) * per_rank + i / static_cast<std::size_t>(stages)] ==
              segments[i]);
      }
    }
  }
}

TEST_CASE("parameters of a Mamba-2 mixer, as Megatron counted them in a recorded run") {
  CHECK(parameters_of(nemotron_h()) == 2'544'717'696);  // tests/real/n_mamba.yaml's log
  const std::int64_t h = 4096, inner = 128 * 64, shared = 2 * 8 * 128;
  const std::int64_t mamba = h + h * (2 * inner + shared + 128) + 5 * (inner + shared) + 3 * 128 + inner + inner * h;
  CHECK(parameters_of(with(nemotron_h(), {"hybrid_layer_pattern=MM-M-M-M*-M-", "num_layers=12"})) -
            parameters_of(nemotron_h()) ==
        mamba);
}

TEST_CASE("published models have as many parameters as their names and cards say") {
  struct Published {
    const char* pattern;
    std::vector<const char*> sizes;
    double billions, within;
  };
  for (const auto& [pattern, sizes, billions, within] : std::initializer_list<Published>{
           // Megatron Bridge's recipes/nemotronh; Nemotron-H's report, arXiv 2504.03624: 8.1, 47.0, 56.3.
           {"M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-", {}, 8.1, 0.05},
           {"M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-"
            "M*-M-"
            "M-M-M-M-",
            {"hidden_size=8192", "ffn_hidden_size=32768", "num_attention_heads=64", "mamba_num_heads=256",
             "mamba_state_dim=256"},
            56,
            0.6},
           {"M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            {"hidden_size=4480", "ffn_hidden_size=15680", "num_attention_heads=40", "mamba_head_dim=80"},
            8.9,
            0.1},
           {"M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M*-M-M-M-M-",
            {"hidden_size=5120", "ffn_hidden_size=20480", "num_attention_heads=40", "mamba_head_dim=80"},
            12.3,
            0.1},
           {"MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            {"hidden_size=2688", "ffn_hidden_size=1856", "num_query_groups=2", "mamba_num_heads=64",
             "num_moe_experts=128", "moe_ffn_hidden_size=1856", "moe_shared_expert_intermediate_size=3712",
             "moe_router_topk=6", "moe_grouped_gemm=true"},
            31.6,
            0.1}}) {
    auto s = nemotron_h();
    scenario::set(s, "num_layers=" + std::to_string(std::string(pattern).size()));
    scenario::set(s, "hybrid_layer_pattern=" + std::string(pattern));
    for (const char* size : sizes) scenario::set(s, size);
    CAPTURE(pattern);
    REQUIRE_NOTHROW(scenario::check(s));
    CHECK(static_cast<double>(parameters_of(s)) / 1e9 == doctest::Approx(billions).epsilon(within / billions));
    CHECK_NOTHROW(scenario::refuse_unmodelled(s));
  }
}

// One module of Megatron's on an H200 (mamba_ssm 2.3.2, MambaMixer alone, 4096 tokens): torch.cuda.memory_allocated
// after forward 421676544, most in backward 1239468032. The allocator leaves up to 1 MiB of a block unsplit: twice
// there.
TEST_CASE("what a Mamba-2 mixer keeps and needs, against a measured module") {
  const auto stages = pipewright::test::build(nemotron_h());
  const Piece& layer = mamba_layer(stages);
  const std::int64_t boundary = 2 * 4096 * 4096, unsplit = 1 << 20, block = 512;
  const auto rounded = [&](std::int64_t bytes) { return (bytes + block - 1) / block * block; };
  std::map<std::uint32_t, std::int64_t> live;
  for (const auto& step : layer.forward) {
    if (step.kind == Step::Kind::allocate) live[step.index] = rounded(layer.tensors[step.index].bytes.value);
    if (step.kind == Step::Kind::free) live.erase(step.index);
  }
  std::int64_t kept = 0;  // the layer's output stands for the module's
  for (const auto& [index, bytes] : live) kept += bytes;
  CHECK(kept == 421'676'544 - unsplit);
  // The module kept out_proj's gradient; its input and its output's gradient were there before.
  const std::int64_t measured = 1'239'468'032 - 2 * unsplit, out_proj = 2 * 8192 * 4096;
  const std::int64_t predicted = backward_peak(layer) - 2 * boundary + out_proj;
  CHECK(std::abs(static_cast<double>(predicted) / static_cast<double>(measured) - 1) < 0.002);
}

TEST_CASE("patterns that Megatron does not take are refused") {
  const auto refused = [](std::initializer_list<const char*> settings) {
    try {
      scenario::check(with(nemotron_h(), settings));
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK(refused({"num_layers=11"}).empty());
  CHECK(refused({"hybrid_layer_pattern=M-M"}).find("has 3 layers, num_layers is 11") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M-X*-M-"}).find("'X' is not a valid layer symbol") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M-M*-ME"}).find("num_moe_experts is not set") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M|M*-M-", "num_layers=10"}).find("builds the first alone") !=
        std::string::npos);
  const std::initializer_list<const char*> two = {"pipeline_model_parallel_size=2", "num_gpus=2", "num_layers=12",
                                                  "hybrid_layer_pattern=MM-M-M-M*-M-"};
  CHECK(refused(two).empty());
  auto piped = with(nemotron_h(), two);
  scenario::set(piped, "hybrid_layer_pattern=MM-M|M-M*|M-M-");
  scenario::set(piped, "num_layers=12");
  CHECK_THROWS_WITH_AS(scenario::check(piped), doctest::Contains("must be evenly divisible"), UsageError);
  scenario::set(piped, "hybrid_layer_pattern=MM-M|M-M*|M-M|-");
  CHECK_NOTHROW(scenario::check(piped));
  CHECK(scenario::num_chunks(piped) == 2);
  CHECK_THROWS_WITH_AS(scenario::check(with(piped, {"megatron_bridge=0.7.0"})), doctest::Contains("Bridge's hybrid"),
                       UsageError);
  CHECK_THROWS_WITH_AS(scenario::check(with(piped, {"megatron_core=0.16.0"})),
                       doctest::Contains("from Megatron Core 0.17"), UsageError);
  scenario::set(piped, "virtual_pipeline_model_parallel_size=3");
  CHECK_THROWS_WITH_AS(scenario::check(piped), doctest::Contains("conflicts with the 4 segments"), UsageError);
  CHECK(refused({"mamba_num_heads=12", "mamba_num_groups=8"}).find("divisible by ngroups") != std::string::npos);
  CHECK(refused({"tensor_model_parallel_size=16", "sequence_parallel=true", "num_gpus=16"}).find("ngroups (8)") !=
        std::string::npos);
}

// multi_token_prediction.py, MultiTokenPredictionLayer with a HybridStack: three norms and eh_proj beside its layers.
TEST_CASE("depths of multi-token prediction hold the layers of their letters, each its own or one for all") {
  const std::int64_t h = 4096;
  const auto count = [](const scenario::Scenario& s) { return parameters(pipewright::test::build(s)); };
  const auto plain = with(nemotron_h(), {"hybrid_layer_pattern=M-M-M*", "num_layers=6"});
  for (const std::string depth : {"*-", "M", "M-*", "-*M*"}) {
    CAPTURE(depth);
    auto longer = plain, deep = plain;
    scenario::set(longer, "hybrid_layer_pattern=M-M-M*" + depth);
    scenario::set(longer, "num_layers=" + std::to_string(6 + depth.size()));
    scenario::set(deep, "hybrid_layer_pattern=M-M-M*/" + depth + "/" + depth);
    scenario::set(deep, "mtp_num_layers=2");
    CHECK_NOTHROW(scenario::check(deep));
    CHECK_NOTHROW(scenario::refuse_unmodelled(deep));
    const std::int64_t each = count(longer) - count(plain) + 3 * h + 2 * h * h;
    CHECK(count(deep) - count(plain) == 2 * each);
    CHECK(count(with(deep, {"mtp_use_repeated_layer=true"})) - count(plain) == each);
    // Megatron-LM's hybrid_flops counts the layers and the logits of every depth.
    const double layers = model::step_flop(longer) - model::step_flop(plain),
                 logits = 6.0 * static_cast<double>(deep.settings.global_batch_size * deep.model.seq_length * h) *
                          static_cast<double>(scenario::padded_vocab_size(deep));
    CHECK(model::step_flop(deep) - model::step_flop(plain) == doctest::Approx(2 * (layers + logits)).epsilon(1e-12));
    check_variants(deep, {{},
                          {"fp8=hybrid", "fp8_recipe=tensorwise"},
                          {"recompute_granularity=selective", "recompute_modules=[core_attn, mlp]"},
                          {"tensor_model_parallel_size=2", "sequence_parallel=true", "num_gpus=2"},
                          {"pipeline_model_parallel_size=2", "num_gpus=2"}});
  }
  const auto refused = [&](std::initializer_list<const char*> settings) {
    try {
      scenario::check(with(plain, settings));
    } catch (const UsageError& e) {
      return e.message();
    }
    return std::string();
  };
  CHECK(refused({"hybrid_layer_pattern=M-M-M*/*-"}).find("1 depths") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M*/*-/*M", "mtp_num_layers=2"}).find("identical") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M*/*|-", "mtp_num_layers=1"}).find("no |") != std::string::npos);
  CHECK(refused({"hybrid_layer_pattern=M-M-M*/*-", "mtp_num_layers=1", "megatron_core=0.16.0"}).find("0.17") !=
        std::string::npos);
  const auto full = with(plain, {"hybrid_layer_pattern=M-M-M*/*-", "mtp_num_layers=1", "recompute_granularity=full",
                                 "recompute_method=uniform", "recompute_num_layers=1"});
  CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(full), doctest::Contains("under full recompute"), UsageError);
}

TEST_CASE("what of hybrids was not measured is refused by name") {
  using scenario::refuse_unmodelled;
  CHECK_NOTHROW(refuse_unmodelled(nemotron_h()));
  CHECK_NOTHROW(refuse_unmodelled(with(nemotron_h(), {"mamba_head_dim=80"})));
  CHECK_NOTHROW(refuse_unmodelled(with(nemotron_h(), {"mamba_state_dim=256"})));
  CHECK_THROWS_AS(refuse_unmodelled(with(nemotron_h(), {"mamba_head_dim=80", "mamba_state_dim=256"})), UsageError);
  for (const char* more : {"hybrid_layer_pattern=M-M-M-MG-M-", "hybrid_layer_pattern=M-M-M-M+-M-", "mtp_num_layers=1",
                           "optimizer=muon", "add_bias_linear=true", "transformer_impl=local", "mamba_head_dim=96",
                           "mamba_state_dim=64", "fine_grained_activation_offloading=true", "delay_wgrad_compute=true",
                           "use_megatron_fsdp=true", "deterministic_mode=true"}) {
    CAPTURE(std::string(more));
    CHECK_THROWS_AS(refuse_unmodelled(with(nemotron_h(), {more})), UsageError);
  }
  CHECK_NOTHROW(refuse_unmodelled(with(nemotron_h(), {"num_gpus=2", "tensor_model_parallel_size=2"})));
  const auto context = with(nemotron_h(), {"num_gpus=2", "context_parallel_size=2"});
  CHECK_NOTHROW(refuse_unmodelled(context));
  CHECK_THROWS_AS(refuse_unmodelled(with(context, {"sft=true", "sequence_lengths=[512*8]"})), UsageError);
}

// ssm/mamba_context_parallel.py: z, x, B, C and dt travel apart; a group that several ranks share travels to each.
TEST_CASE(
    "context-parallel ranks exchange all that a mixer projects, and scan whole sequences of a share of its heads") {
  constexpr std::int64_t heads = 128, groups = 8, state = 128, width = 64;
  for (const std::int64_t t : {1, 2})
    for (const std::int64_t cp : {1, 2, 4, 8, 16})
      for (const std::int64_t b : {1, 2}) {
        CAPTURE(t);
        CAPTURE(cp);
        CAPTURE(b);
        auto s = nemotron_h();
        for (const auto& [name, value] : {std::pair("tensor_model_parallel_size", t),
                                          {"context_parallel_size", cp},
                                          {"num_gpus", t * cp},
                                          {"gpus_per_node", t * cp},
                                          {"micro_batch_size", b}})
          scenario::set(s, std::string(name) + "=" + std::to_string(value));
        if (t > 1) scenario::set(s, "sequence_parallel=true");
        const auto stages = pipewright::test::build(s);
        check_all(stages);
        const Piece& layer = mamba_layer(stages);
        std::int64_t there = 0, back = 0;
        for (const auto& kernel : layer.kernels) {
          const auto& dims = kernel.key.dims;
          if (kernel.key.family == "mamba.chunks.forward" || kernel.key.family == "mamba.chunks.backward")
            CHECK(dims == std::vector<std::int64_t>{b * 4096 / cp * heads / t, width, state});
          if (kernel.key.family == "mamba.states.backward")
            CHECK(dims == std::vector<std::int64_t>{4096, b * heads / t / cp, width * state});
          if (kernel.name.find("all-to-all") != std::string::npos)
            (kernel.name.find("gradient") == std::string::npos ? there : back) += kernel.key.dims.back();
        }
        const std::int64_t of_groups = std::max(groups / t, cp) * state, inner = heads / t * width;
        CHECK(there == (cp == 1 ? 0 : 2 * b * 4096 / cp * (3 * inner + 2 * of_groups + heads / t)));
        CHECK(back == there);
      }
}

// cuda_graphs.py, _layer_is_graphable; mamba_layer.py: a mixer's forward as a whole.
TEST_CASE("graphs of a hybrid hold the layers whose modules are named, and launch the same kernels") {
  struct Case {
    const char* modules;
    const char* captured;  ///< letters
  };
  const auto mixture = with_all(
      nemotron_h(), {"hybrid_layer_pattern=ME-*ME-*MEM", "num_moe_experts=16", "moe_router_topk=2",
                     "moe_ffn_hidden_size=1856", "moe_grouped_gemm=true", "moe_shared_expert_intermediate_size=3712"});
  const auto kernels = [](const model::Stages& stages) {
    std::map<std::string, int> all;
    for (const auto& chunk : stages.ranks[0].chunks)
      for (const auto piece : chunk.pieces)
        for (const auto& kernel : stages.pieces[piece].kernels)
          if (kernel.name.find("CUDA graph") == std::string::npos) ++all[kernel.name];
    return all;
  };
  const auto eager = pipewright::test::build(mixture);
  for (const auto& [modules, captured] : {Case{"[attn]", "*"},
                                          {"[mlp]", "-"},
                                          {"[mamba]", "M"},
                                          {"[moe_router]", "E"},
                                          {"[attn, mamba]", "M*"},
                                          {"[moe_router, moe_preprocess]", "E"},
                                          {"[attn, mamba, moe_router, moe_preprocess]", "M*E"}}) {
    CAPTURE(std::string(modules));
    const auto graphed =
        pipewright::test::build(with_all(mixture, {"cuda_graph_impl=transformer_engine", "use_te_rng_tracker=true",
                                                   "cuda_graph_modules=" + std::string(modules)}));
    check_all(graphed);
    CHECK(kernels(graphed) == kernels(eager));
    const std::string pattern = "ME-*ME-*MEM";
    for (const auto& chunk : graphed.ranks[0].chunks)
      for (std::size_t i = 0; i < chunk.pieces.size(); ++i) {
        if (chunk.layers[i] < 0) continue;
        const char letter = pattern[static_cast<std::size_t>(chunk.layers[i])];
        const bool holds = std::string(captured).find(letter) != std::string::npos;
        int replays = 0, copies = 0, masks = 0, alone = 0, within = 0;
        for (const auto& kernel : graphed.pieces[chunk.pieces[i]].kernels) {
          replays += kernel.name == "CUDA graph forward" || kernel.name == "CUDA graph backward";
          copies += kernel.name == "CUDA graph mask";
          masks += kernel.name == "CUDA graph attention mask";
          (kernel.graphed ? within : alone) += kernel.name.find("CUDA graph") == std::string::npos;
        }
        CAPTURE(letter);
        CHECK(replays == (holds ? 2 : 0));
        CHECK((within > 0) == holds);
        CHECK(copies == (holds && letter == '*' ? 1 : 0));
        // A TransformerLayer is called with a mask where attention is captured; a mixer never.
        CHECK(masks == (holds && letter != 'M' && std::string(captured).find('*') != std::string::npos ? 1 : 0));
        if (holds && letter != 'E') {  // all but what adds the small weights' gradients
          for (const auto& kernel : graphed.pieces[chunk.pieces[i]].kernels) {
            CAPTURE(kernel.name);
            CHECK((kernel.graphed || kernel.name.find("CUDA graph") != std::string::npos ||
                   kernel.name.find("gradient accumulation") != std::string::npos));
          }
        }
      }
  }
}

TEST_CASE("a hybrid's depths of multi-token prediction are launched one by one beside graphs of its layers") {
  const auto graphed = with_all(
      nemotron_h(), {"hybrid_layer_pattern=M-M-M-M*-M-/*-", "mtp_num_layers=1", "cuda_graph_impl=transformer_engine",
                     "cuda_graph_modules=[attn, mamba, mlp]", "use_te_rng_tracker=true"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(graphed));
  const auto stages = pipewright::test::build(graphed);
  check_all(stages);
  int depths = 0;
  for (const auto& chunk : stages.ranks[0].chunks)
    for (std::size_t i = 0; i < chunk.pieces.size(); ++i) {
      const auto& piece = stages.pieces[chunk.pieces[i]];
      if (chunk.layers[i] >= 0) continue;
      for (const auto& kernel : piece.kernels) {
        CHECK(!kernel.graphed);
        depths += kernel.name == "mtp.hidden_states joined";
      }
    }
  CHECK(depths == 1);
}

TEST_CASE("a mixer's projections overlap with their collectives by the MLP's buffers") {
  for (const char* fp8 : {"fp8=none", "fp8=hybrid"}) {
    const auto apart = with_all(nemotron_h(), {"num_gpus=2", "tensor_model_parallel_size=2", "sequence_parallel=true",
                                               "expert_tensor_parallel_size=none", fp8});
    const auto beside = with_all(apart, {"tp_comm_overlap=true"});
    CHECK_NOTHROW(scenario::refuse_unmodelled(beside));
    const auto stages = pipewright::test::build(beside);
    check_all(stages);
    int mixers = 0;
    for (const auto& piece : stages.pieces) {
      if (!launches(piece, "mamba.chunks.forward")) continue;
      ++mixers;
      for (const auto& kernel : piece.kernels) {
        CAPTURE(kernel.name);
        CHECK(kernel.name.find("in_proj output all-gather") == std::string::npos);
        if (kernel.name == "mamba.in_proj all-gather") CHECK(kernel.stream != model::Stream::compute);
      }
    }
    CHECK(mixers > 0);
    const auto of = [](const model::Stages& all) {
      std::size_t steps = 0;
      for (const auto& piece : all.pieces) steps += piece.kernels.size();
      return steps;
    };
    CHECK(of(stages) > of(pipewright::test::build(apart)));  // in pieces
  }
}

TEST_CASE("of packed sequences a mixer runs the kernels of a full row, and attention its sequences' own") {
  const auto packed = with(nemotron_h(), {"sft=true", "sequence_lengths=[512*64, 1024*32]"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(packed));
  const auto kernels = [](const scenario::Scenario& s) {
    std::map<std::string, model::Kernel> all;
    const auto stages = pipewright::test::build(s);
    check_all(stages);
    for (const auto& piece : stages.pieces)
      for (const auto& kernel : piece.kernels) all.emplace(kernel.name, kernel);
    return all;
  };
  const auto whole = kernels(nemotron_h()), rows = kernels(packed);
  using As = model::Kernel::TimedAs;
  for (const char* name :
       {"mamba.conv forward", "mamba.chunks forward", "mamba.products backward", "mamba.states again"}) {
    CAPTURE(name);
    CHECK(rows.at(name).key == whole.at(name).key);
    CHECK(whole.at(name).timed_as == As::itself);
    CHECK(rows.at(name).timed_as == As::equal_lengths);
  }
  CHECK(rows.at("attention.core forward").key.family == "attention.thd.forward.bf16");
  CHECK(rows.at("mamba.norm forward").timed_as == As::itself);
}

}  // namespace hybrid_test
