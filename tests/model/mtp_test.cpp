// Multi-token prediction: where its pieces stand, what they save, hold and cost.
#include <random>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace mtp_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;

namespace {

constexpr std::int64_t tokens = 8192, t = 4, row = tokens / t, h = 8192, q = 8192, kv = 1024, f = 28672, heads = 64,
                       vocab = 128256;
constexpr std::int64_t layer = row * (8 * h + 4 * q + 4 * kv + 6 * f + 4 * heads + 8) + 16;

scenario::Scenario predicting(std::initializer_list<const char*> settings = {}) {
  return with(with(llama70b(), {"mtp_num_layers=1"}), settings);
}

const Piece* find(const model::Stages& stages, const model::Chunk& chunk, const std::string& name) {
  for (const auto index : chunk.pieces) {
    if (stages.pieces[index].name == name) return &stages.pieces[index];
  }
  return nullptr;
}

const Piece& mtp_piece(const model::Stages& stages) {
  const auto* piece = find(stages, stages.ranks.back().chunks.back(), "mtp");
  REQUIRE(piece != nullptr);
  return *piece;
}

}  // namespace

TEST_CASE("the last stage ends with final norm, depths, head; the loss reads all hidden states") {
  const auto stages = test::build(predicting());
  const auto& chunk = stages.ranks[3].chunks[0];
  std::vector<std::string> names;
  for (auto it = chunk.pieces.end() - 4; it != chunk.pieces.end(); ++it) names.push_back(stages.pieces[*it].name);
  CHECK(names == std::vector<std::string>{"layer", "final norm", "mtp", "head"});
  CHECK(mtp_piece(stages).tensors[Piece::output].bytes == 2 * stages.boundary_bytes);
  CHECK(stages.pieces[chunk.pieces.back()].tensors[Piece::input].bytes == 2 * stages.boundary_bytes);
}

TEST_CASE("a depth saves embedding, both halves joined, the gathered projection, its layer and its output") {
  const std::int64_t depth = row * (2 * h + 4 * h + 2 * h + 3 * 4) + 2 * tokens * h + 2 * 8 * tokens;
  CHECK(saved(mtp_piece(test::build(predicting()))) == row * 2 * h + depth + layer - row * 2 * h);
  // The second depth reads the first one's hidden states again.
  CHECK(saved(mtp_piece(test::build(predicting({"mtp_num_layers=2"})))) ==
        row * 2 * h + 2 * (depth + layer - row * 2 * h) + row * 2 * h);
  // A checkpoint keeps the embedding alone; method block does not reach these layers.
  CHECK(saved(mtp_piece(test::build(
            predicting({"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1"})))) ==
        row * 2 * h + row * 2 * h + 2 * 8 * tokens);
  CHECK(saved(mtp_piece(test::build(
            predicting({"recompute_granularity=full", "recompute_method=block", "recompute_num_layers=1"})))) ==
        row * 2 * h + depth + layer - row * 2 * h);
}

TEST_CASE("every depth has a loss of its own, kept until the main loss is done") {
  const auto head = [](const model::Stages& stages) {
    return saved(stages.pieces[stages.ranks[3].chunks[0].pieces.back()]);
  };
  const std::int64_t loss = tokens * (4 * vocab / t + 1 + 8);
  CHECK(head(test::build(llama70b())) == row * (4 * h + 4) + loss);
  CHECK(head(test::build(predicting())) == 2 * row * 2 * h + 2 * loss);
}

TEST_CASE("parameters: a layer, three norms, the projection, and a copy of the embedding") {
  const std::int64_t norms = 5 * h, share = 2 * h * q + 2 * h * 8 * kv / 4 + 3 * h * f;
  const auto sum = [](std::initializer_list<const char*> settings) {
    return parameters(test::build(predicting(settings)));
  };
  const auto none = parameters(test::build(llama70b()));
  const std::int64_t depth = (h * (q + 2 * kv) + q * h + 3 * h * f) / t + 2 * h * h / t + norms;
  (void)share;
  CHECK(sum({}) - none == depth + vocab * h / t);
  CHECK(sum({"mtp_num_layers=3"}) - none == 3 * depth + vocab * h / t);
  CHECK(sum({"mtp_num_layers=3", "mtp_use_repeated_layer=true"}) - none == depth + vocab * h / t);
  // Without a pipeline the first stage's embedding serves both.
  const auto whole = [&](const char* setting) {
    return parameters(test::build(with(llama70b(), {"pipeline_model_parallel_size=1", setting})));
  };
  CHECK(whole("mtp_num_layers=1") - whole("mtp_num_layers=none") == depth);
}

// torch/csrc/autograd/input_buffer.cpp sums what one parameter gets from several places, in its own type, before its
// hook adds the sum to the main gradient; a stand-in counts as a gradient (tensor_parallel/layers.py).
TEST_CASE("a weight that several parts read has its gradients summed once, and added once") {
  std::mt19937 random(611);
  for (int round = 0; round < 40; ++round) {
    const bool pipeline = random() % 2 == 0, tied = random() % 2 == 0, fused = random() % 2 == 0;
    const int depths = static_cast<int>(random() % 3);
    auto s = with(llama70b(), {"sequence_parallel=true"});
    const auto say = [&](const std::string& line) { scenario::set(s, line); };
    say(std::string("pipeline_model_parallel_size=") + (pipeline ? "4" : "1"));
    say(std::string("untie_embeddings_and_output_weights=") + (tied ? "false" : "true"));
    say(std::string("gradient_accumulation_fusion=") + (fused ? "true" : "false"));
    if (depths > 0) say("mtp_num_layers=" + std::to_string(depths));
    CAPTURE(pipeline);
    CAPTURE(tied);
    CAPTURE(fused);
    CAPTURE(depths);
    const auto stages = test::build(s);
    const std::int64_t table = vocab * h / t;
    std::map<std::string, int> count;
    for (const auto& rank : stages.ranks)
      for (const auto& chunk : rank.chunks)
        for (const auto piece : chunk.pieces)
          for (const auto& step : stages.pieces[piece].backward) {
            if (step.kind != model::Step::Kind::launch) continue;
            const auto& key = stages.pieces[piece].kernels[step.index].key;
            if (key.dims == std::vector<std::int64_t>{table}) ++count[key.family];
            if (key.family == "fill" && key.dims[0] == 2 * table) ++count["fill"];
          }
    // Uses of the embedding's table on the rank that has it, of the output layer's, and of both where they are one.
    const int heads = 1 + depths;
    int sums = 0, added = 0;
    if (!pipeline && tied) {
      sums = heads + (1 + depths) - 1;
      added = 1;
    } else {
      sums = (heads - 1) + (pipeline ? std::max(depths - 1, 0) : depths);
      added = (fused ? 0 : 1) + 1 + (pipeline && depths > 0 ? 1 : 0);
    }
    CHECK(count["add"] == sums);
    CHECK(count["add.f32"] == added);
    CHECK(count["fill"] == (!pipeline && tied && fused ? heads : 0));
  }
}

TEST_CASE("copies of the embedding are reduced over the stages that hold them") {
  const auto ranks = [](const model::Stages& stages, std::size_t rank) -> std::int64_t {
    for (const auto& kernel : stages.ranks[rank].finalize) {
      if (kernel.name == "embedding gradients all-reduce") return kernel.key.dims[0];
    }
    return 1;
  };
  const auto stages = test::build(predicting());
  CHECK(ranks(stages, 0) == 2);
  CHECK(ranks(stages, 1) == 1);
  CHECK(ranks(stages, 3) == 2);
  // On a stage of its own, and with the output layer tied: three stages hold a copy.
  const auto apart = test::build(predicting(
      {"num_layers=4", "untie_embeddings_and_output_weights=false", "pipeline_model_parallel_layout=\"Ett|tt|m|L\""}));
  CHECK(ranks(apart, 0) == 3);
  CHECK(ranks(apart, 1) == 1);
  CHECK(ranks(apart, 2) == 3);
  CHECK(ranks(apart, 3) == 3);
  CHECK(find(apart, apart.ranks[1].chunks[0], "final norm") != nullptr);
  CHECK(find(apart, apart.ranks[2].chunks[0], "mtp") != nullptr);
}

TEST_CASE("what is born dies, whatever the depths are made of") {
  const std::vector<std::vector<const char*>> kinds = {
      {},
      {"mtp_num_layers=3"},
      {"sequence_parallel=false"},
      {"tensor_model_parallel_size=1", "sequence_parallel=false"},
      {"hidden_dropout=0.1", "position_embedding_type=learned_absolute", "micro_batch_size=2"},
      {"defer_embedding_wgrad_compute=true"},
      {"cross_entropy_loss_fusion=true", "cross_entropy_fusion_impl=te"},
      {"fp8=hybrid", "fp8_recipe=tensorwise"},
      {"transformer_impl=local"},
      {"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=1", "mtp_num_layers=2"}};
  for (const auto& kind : kinds) {
    auto scenario = predicting();
    std::string all;
    for (const auto* setting : kind) scenario::set(scenario, setting), all += std::string(setting) + " ";
    CAPTURE(all);
    check_all(test::build(scenario));
  }
}

TEST_CASE("what Megatron cannot run is refused") {
  CHECK_THROWS_WITH_AS(
      test::build(predicting({"recompute_granularity=full", "recompute_method=uniform", "recompute_num_layers=2"})),
      doctest::Contains("MTP recompute"), UsageError);
}

// cuda_graphs.py, _discover_layers: a depth's layer is captured as the decoder's are; what stands before and after is
// not.
TEST_CASE("graphs hold a depth's layer, and nothing else of the depth") {
  for (const char* depths : {"mtp_num_layers=1", "mtp_num_layers=2"})
    for (const char* modules : {"[attn]", "[mlp]", "[attn, mlp]", "[]"}) {
      CAPTURE(depths);
      CAPTURE(modules);
      const std::string named = std::string("cuda_graph_modules=") + modules;
      const auto stages = test::build(
          predicting({depths, "cuda_graph_impl=transformer_engine", "use_te_rng_tracker=true", named.c_str()}));
      check_all(stages);
      int replays = 0, outside = 0;
      for (const auto& kernel : mtp_piece(stages).kernels) {
        replays += kernel.name == "CUDA graph forward" || kernel.name == "CUDA graph backward";
        if (kernel.name.starts_with("mtp.")) {
          CHECK(!kernel.graphed);
          ++outside;
        }
      }
      CHECK(replays == (std::string(depths).back() - '0') * 2);
      CHECK(outside > 0);
    }
}

// multi_token_prediction.py, _roll_tensor_packed_seq: token and position ids before a depth, labels and loss mask
// behind it, sequence by sequence; every end of a slice is a value that the host waits for.
TEST_CASE("packed sequences are shifted one by one, and the host reads four ends of each") {
  for (const int sequences : {1, 2, 7, 64})
    for (const int depths : {1, 2}) {
      CAPTURE(sequences);
      CAPTURE(depths);
      std::string row;
      for (int i = 0; i < sequences; ++i) row += (i > 0 ? "+" : "") + std::to_string(tokens / sequences);
      auto s = predicting({"apply_rope_fusion=true", "sft=true"});
      scenario::set(s, "mtp_num_layers=" + std::to_string(depths));
      scenario::set(s, "sequence_lengths=[" + row + "]");
      CHECK_NOTHROW(scenario::refuse_unmodelled(s));
      const auto stages = test::build(s);
      check_all(stages);
      const auto& chunk = stages.ranks.back().chunks.back();
      for (const char* name : {"mtp", "head"}) {
        int reads = 0, shifts = 0, waits = 0;
        const Piece& piece = *find(stages, chunk, name);
        for (const auto& step : piece.forward) {
          waits += step.kind == model::Step::Kind::synchronize;
          if (step.kind != model::Step::Kind::launch || !step.runs(0)) continue;
          const auto& kernel = piece.kernels[step.index];
          if (kernel.name.ends_with("ends read")) reads += kernel.launches;
          if (kernel.name.ends_with("of sequences shifted")) shifts += kernel.launches;
        }
        CHECK(reads + 2 * 2 * depths == 2 * depths * 4 * sequences);  // two more are waited for by themselves
        CHECK(shifts == 2 * depths * 3 * sequences);
        CHECK(waits >= 2 * 2 * depths);
      }
    }
  for (const char* change : {"context_parallel_size=2", "software.megatron_core=dev"}) {
    CAPTURE(change);
    const auto s = predicting({"sft=true", "sequence_lengths=[512*64]", change});
    CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(s), doctest::Contains("MTP"), UsageError);
  }
}

}  // namespace mtp_test
