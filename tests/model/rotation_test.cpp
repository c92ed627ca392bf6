// The rotation of queries and keys without a fused kernel, against what _apply_rotary_pos_emb_bshd and _thd launched,
// took and kept on an H100.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "pipewright/effects.hpp"
#include "support.hpp"

namespace rotation_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;
using model::Step;

namespace {

scenario::Scenario rotating(const nlohmann::json& one) {
  const auto cp = one.at("cp").get<int>();
  auto s = with(llama70b(), {"num_layers=4", "hidden_size=4096", "ffn_hidden_size=14336", "num_attention_heads=32",
                             "tensor_model_parallel_size=1", "pipeline_model_parallel_size=1",
                             "sequence_parallel=false", "global_batch_size=8", "apply_rope_fusion=false"});
  scenario::set(s, "context_parallel_size=" + std::to_string(cp));
  scenario::set(s, "num_gpus=" + std::to_string(cp));
  scenario::set(s, "gpus_per_node=" + std::to_string(cp));
  scenario::set(s, "software.megatron_core=" + one.at("version").get<std::string>());
  scenario::set(s, std::string("rotary_interleaved=") + (one.at("interleaved").get<bool>() ? "true" : "false"));
  scenario::set(s, "rotary_percent=" + std::to_string(one.at("rotated").get<double>() / 128));
  if (one.at("packed").get<bool>()) {
    std::string row;
    for (const auto& length : one.at("lengths")) row += (row.empty() ? "" : "+") + std::to_string(length.get<int>());
    scenario::set(s, "sft=true");
    scenario::set(s, "sequence_lengths=[" + row + "]");
  }
  return s;
}

Piece layer(const scenario::Scenario& s) {
  const auto stages = pipewright::test::build(s);
  const Piece& piece = stages.pieces[stages.ranks[0].chunks[0].pieces[2]];
  check_balance(piece);
  return piece;
}

struct Work {
  double us = 0;
  int launches = 0, waits = 0;
};

/// Of the rotation of queries ("q") or keys ("k").
Work rotation(const Piece& piece, const std::vector<Step>& steps, const std::string& of) {
  static const auto profile = profile::load("h100-sxm", {});
  Work work;
  for (const auto& step : steps) {
    if (step.kind == Step::Kind::synchronize) ++work.waits;
    if (step.kind != Step::Kind::launch || !step.runs(0)) continue;
    const auto& kernel = piece.kernels[step.index];
    const bool eager = kernel.host_family == "small" || kernel.host_family == "rotation";
    if (!eager || !kernel.name.starts_with("attention." + of + " ")) continue;
    work.us += kernel.share * profile.time(kernel.key)->ns / 1000;
    work.launches += kernel.launches;
  }
  return work;
}

}  // namespace

TEST_CASE("unfused rotation launches what it launched on an H100, for about as long") {
  std::ifstream file("data/rotation_kernels.json");
  const auto measured = nlohmann::json::parse(file);
  REQUIRE(measured.at("cases").size() == 31);
  for (const auto& one : measured.at("cases")) {
    const auto s = rotating(one);
    CHECK_NOTHROW(scenario::refuse_unmodelled(s));
    const Piece piece = layer(s);
    INFO(one.dump());
    const bool reads = one.at("packed").get<bool>() && one.at("version") != "main";
    CHECK(rotation(piece, piece.forward, "q").waits == (reads ? 4 : 0));  // twice for queries, twice for keys
    CHECK(rotation(piece, piece.backward, "q").waits == 0);
    const auto tokens = 8192 / one.at("cp").get<std::int64_t>();
    const auto tables = one.at("kept_bytes").get<std::int64_t>() - 2 * tokens * 128 * (one.at("of") == "q" ? 32 : 8);
    CHECK(saved(piece) - saved(layer(with(s, {"apply_rope_fusion=true"}))) == 2 * tables);
    for (const auto& [pass, steps] : {std::pair("forward", &piece.forward), {"backward", &piece.backward}}) {
      const Work work = rotation(piece, *steps, one.at("of"));
      CAPTURE(pass);
      // Of the last sequence nothing is put back into zeros: two launches less than modelled.
      CHECK(std::abs(work.launches - one.at(std::string(pass) + "_launches").get<int>()) <= 2);
      const double took = one.at(std::string(pass) + "_us");
      CAPTURE(work.us);
      CHECK(work.us > 0.8 * took);
      // All of 8 heads stays in the L2 cache from kernel to kernel, which profiles take to be cold.
      CHECK(work.us < (one.at("of") == "q" ? 1.25 : 1.6) * took);
    }
  }
}

// rope_utils.py, _apply_rotary_pos_emb_bshd with angles [sequence, batch, 1, channels] (MultimodalRotaryEmbedding); the
// fused kernel takes one row's (Megatron Bridge utils/fusions.py, validate_rope_fusion_compatibility).
TEST_CASE("M-RoPE rotates as without the fused kernel, every row by its own angles, which each chunk makes once") {
  for (const std::int64_t b : {1, 2, 4}) {
    CAPTURE(b);
    auto plain =
        with(llama70b(), {"num_layers=4", "hidden_size=4096", "ffn_hidden_size=14336", "num_attention_heads=32",
                          "tensor_model_parallel_size=1", "pipeline_model_parallel_size=2", "sequence_parallel=false",
                          "global_batch_size=8", "num_gpus=2", "gpus_per_node=2", "software.megatron_bridge=0.7.0"});
    scenario::set(plain, "micro_batch_size=" + std::to_string(b));
    const auto several = with(plain, {"position_embedding_type=mrope"});
    CHECK_NOTHROW(scenario::refuse_unmodelled(several));
    const auto unfused = with(plain, {"apply_rope_fusion=false"});
    CHECK(saved(layer(several)) - saved(layer(unfused)) == 2 * 2 * 2 * (b - 1) * 8192 * 128);  // cos, sin of q and k
    const auto stages = pipewright::test::build(several);
    check_all(stages);
    const auto ordinary = pipewright::test::build(unfused);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      std::vector<int> angles;
      std::size_t others = 0, expected = 0;
      for (const auto piece : stages.ranks[rank].chunks[0].pieces) {
        angles.push_back(0);
        for (const auto& kernel : stages.pieces[piece].kernels) {
          const bool is_angle = kernel.name.starts_with("rotary angles");
          angles.back() += is_angle ? 1 : 0;
          others += is_angle ? 0 : 1;
        }
      }
      for (const auto piece : ordinary.ranks[rank].chunks[0].pieces) expected += ordinary.pieces[piece].kernels.size();
      CHECK(others == expected);
      CHECK(std::ranges::count_if(angles, [](int n) { return n > 0; }) == 1);
      CHECK(angles[rank == 0 ? 1 : 0] == (b > 1 ? 6 : 5));  // in the first layer, behind the embedding
    }
  }
  const auto stock = with(llama70b(), {"position_embedding_type=mrope"});
  CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(stock), doctest::Contains("pretrain_gpt.py"), UsageError);
}

}  // namespace rotation_test
