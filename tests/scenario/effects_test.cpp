// The tables of effects: complete over the fields, one class a name, and reasons that read as such.
#include "pipewright/effects.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>

#include "../../src/scenario/effects_families.hpp"
#include "../../src/scenario/effects_refused.hpp"
#include "../../src/scenario/field_rows.hpp"
#include "../plan/bases.hpp"
#include "pipewright/scenario/io.hpp"

namespace effects_test {

using namespace pipewright;
using scenario::Effect;

TEST_CASE("every field has an effect") {
  for (const auto& field : scenario::table()) {
    if (field.section == std::string_view("search")) continue;  // pipewright's own: what may change
    CAPTURE(field.name);
    CHECK(scenario::effect_of(field.name) != nullptr);
  }
  for (const auto& field : scenario::known_fields()) {
    CAPTURE(field.name);
    CHECK(scenario::effect_of(field.name) != nullptr);
  }
}

TEST_CASE("every row says why") {
  for (const auto& row : scenario::effects()) {
    CAPTURE(row.name);
    CHECK(row.text.size() > 3);
  }
}

TEST_CASE("every move is of a name that can be set") {
  for (const auto& move : scenario::moves()) {
    CAPTURE(std::string(move.name));
    const auto* row = scenario::effect_of(move.name);
    REQUIRE(row != nullptr);
    CHECK(row->effect == Effect::modelled);
    CHECK(std::string_view(move.from) != move.to);
  }
}

TEST_CASE("names: flags, negations, fields and variables") {
  CHECK(scenario::effect_of("--deterministic-mode")->effect == Effect::refused);
  CHECK(scenario::effect_of("--no-save-optim")->effect == Effect::none);
  CHECK(scenario::effect_of("--tensor-model-parallel-size")->effect == Effect::modelled);
  CHECK(scenario::effect_of("NCCL_DEBUG_SUBSYS")->effect == Effect::none);
  CHECK(scenario::effect_of("NCCL_SOMETHING_NEW")->effect == Effect::modelled);
  CHECK(scenario::effect_of("NVTE_SOMETHING_NEW")->effect == Effect::refused);
  CHECK(scenario::effect_of("WANDB_API_KEY") == nullptr);
}

TEST_CASE("what only sets other fields is not taken for a setting without effect") {
  int aliases = 0;
  for (const auto& row : scenario::effects()) {
    if (!scenario::sets_others(row) || row.name == "cuda_graph_scope") continue;
    CAPTURE(row.name);
    scenario::Scenario s;
    CHECK_THROWS_WITH_AS(scenario::set(s, "settings." + row.name + "=true"), doctest::Contains("as a flag it sets"),
                         UsageError);
    ++aliases;
  }
  CHECK(aliases > 20);
}

TEST_CASE("ignore takes refused names only, and is written and read") {
  scenario::Scenario s;
  CHECK_THROWS_WITH_AS(scenario::ignore(s, "--lr", {"--ignore", 0}),
                       "--ignore: --lr: nothing to ignore: it is of the class \"no effect\" (numbers change, the work "
                       "does not)",
                       UsageError);
  CHECK_THROWS_AS(scenario::ignore(s, "window_sice", {"--ignore", 0}), UsageError);
  scenario::ignore(s, "--window-size", {"--ignore", 0});
  scenario::ignore(s, "NVTE_FUNNY", {"--ignore", 0});
  scenario::ignore(s, "window_size", {"--ignore", 0});
  CHECK(s.ignore == scenario::Strings{"window_size", "NVTE_FUNNY"});
  const auto text = scenario::write(s);
  CHECK(text.find("ignore: [window_size, NVTE_FUNNY]\n") != std::string::npos);
}

TEST_CASE("what was measured alone: every feature beside it is modelled or refused by its name") {
  using scenario::Family;
  const std::map<Family, std::pair<const char*, const char*>> refused_by = {
      {Family::delta_nets,
       {"experimental_attention_variant", "experimental_attention_variant=gated_delta_net; linear_attention_freq=[2]"}},
      {Family::hybrids, {"hybrid_layer_pattern", "hybrid_layer_pattern=M*M-"}},
      {Family::fsdp, {"use_megatron_fsdp", "use_megatron_fsdp=true"}},
      {Family::host_optimizer, {"optimizer_cpu_offload", "optimizer_cpu_offload=true; pin_cpu_grads=true"}}};
  for (const auto& [family, by] : refused_by) {
    const auto lists = [&, field = std::string(by.first)](const scenario::Scenario& s) {
      for (const auto& one : scenario::unmodelled(s))
        if (one.name == field) return one.missing;
      return std::string();
    };
    auto alone = scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 2048, num_attention_heads: 16, seq_length: 4096, vocab_size: 32000,
  normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true}
settings: {micro_batch_size: 1, global_batch_size: 8, bf16: true, use_distributed_optimizer: true}
cluster: {num_gpus: 8}
)",
                                 "alone.yaml");
    test::change(alone, by.second);
    CAPTURE(std::string(by.first));
    CHECK(lists(alone).empty());
    for (const auto& feature : scenario::features()) {
      CAPTURE(std::string(feature.name));
      if (family == Family::delta_nets && std::string_view(feature.example).starts_with("experimental")) continue;
      CHECK_FALSE((feature.in_use(alone) && !scenario::modelled_beside(family, feature)));
      auto beside = alone;
      test::change(beside, feature.example);
      CHECK(feature.in_use(beside));
      const auto said = lists(beside);
      if (scenario::modelled_beside(family, feature)) continue;
      CHECK(said.find(feature.name) != std::string::npos);
    }
  }
}

TEST_CASE("what is refused for one of several reasons says which of them hold") {
  const auto base = scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 2048, num_attention_heads: 16, seq_length: 4096, vocab_size: 32000,
  normalization: RMSNorm, add_bias_linear: false, position_embedding_type: rope}
settings: {micro_batch_size: 1, global_batch_size: 8, bf16: true, use_distributed_optimizer: true}
cluster: {num_gpus: 8}
)",
                                    "base.yaml");
  std::vector<std::string> uses = {"attention_output_gate=true",
                                   "sft=true; sequence_lengths=[512*8]",
                                   "lora_target_modules=[linear_proj]",
                                   "cuda_graph_impl=transformer_engine; cuda_graph_modules=[attn]",
                                   "cuda_graph_impl=transformer_engine; cuda_graph_modules=[moe]; num_moe_experts=8",
                                   "cuda_graph_impl=local; num_moe_experts=8",
                                   "optimizer_cpu_offload=true",
                                   "num_moe_experts=8; moe_latent_size=512",
                                   "experimental_attention_variant=gated_delta_net; linear_attention_freq=[2]",
                                   "hybrid_layer_pattern=M*M-",
                                   "position_embedding_type=mrope",
                                   "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1",
                                   "fp4=e2m1; quant_recipe=['*=bf16']",
                                   "window_size=[127, 0]; attention_dropout=0.1",
                                   "use_megatron_fsdp=true"};
  std::map<std::string, int> told;
  for (const auto& use : uses)
    for (const auto& feature : scenario::features()) {
      auto s = base;
      test::change(s, use);
      test::change(s, feature.example);
      for (const auto& row : scenario::refused_fields()) {
        if (!row.in_use(s) || row.now == nullptr) continue;
        CAPTURE(use);
        CAPTURE(std::string(feature.example));
        const auto now = row.now(s);
        CHECK_FALSE(now.empty());
        CHECK(now.back() != ' ');
        CHECK(now != row.missing);
        ++told[row.name];
      }
    }
  for (const auto& row : scenario::refused_fields())
    if (row.now != nullptr) CHECK_MESSAGE(told[row.name] > 0, row.name);
}

}  // namespace effects_test
