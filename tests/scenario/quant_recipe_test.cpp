// Precision by module: patterns as Python matches them, and which layers they name.
#include "pipewright/scenario/quant_recipe.hpp"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>

#include "pipewright/scenario/io.hpp"

namespace quant_recipe_test {

using namespace pipewright;

namespace {

scenario::Scenario small(const std::string& entries, bool hybrid = false) {
  return scenario::parse(
      "scenario: 1\nmodel: {num_layers: 4, hidden_size: 1024, num_attention_heads: 8, seq_length: "
      "1024, vocab_size: 1024, mtp_num_layers: 1" +
          std::string(hybrid ? ", hybrid_layer_pattern: M*M-/*-, mamba_num_heads: 16" : "") +
          "}\nsettings: {bf16: true, fp4: e2m1, micro_batch_size: 1, global_batch_size: 1, quant_recipe: " + entries +
          "}\ncluster: {profile: gb200-nvl72, num_gpus: 1, gpus_per_node: 1}\n",
      "small.yaml");
}

std::string recipe_of(const scenario::Scenario& s, const std::string& module, bool mtp) {
  for (const auto& entry : scenario::module_recipes(s))
    if (entry.module == module && entry.mtp == mtp) return entry.recipe;
  return "";
}

}  // namespace

TEST_CASE("patterns match what Python's fnmatch matches") {
  std::ifstream in("data/fnmatch.txt");
  int lines = 0;
  for (std::string line; std::getline(in, line); ++lines) {
    std::istringstream words(line);
    bool matches = false;
    std::string pattern, name;
    words >> matches >> pattern >> name;
    CAPTURE(line);
    CHECK(scenario::matches_glob(pattern, name) == matches);
  }
  CHECK(lines > 600);
}

TEST_CASE("the first entry that matches says a module's recipe; others have none of their own") {
  for (const bool hybrid : {false, true}) {
    const auto s = small("['*.linear_qkv=bf16', 'mtp.*=mxfp8', '*_proj=tensorwise']", hybrid);
    CHECK(recipe_of(s, "self_attention.linear_qkv", false) == "bf16");
    CHECK(recipe_of(s, "self_attention.linear_qkv", true) == "bf16");
    CHECK(recipe_of(s, "self_attention.linear_proj", false) == "tensorwise");
    CHECK(recipe_of(s, "self_attention.linear_proj", true) == "mxfp8");
    CHECK(recipe_of(s, "mlp.linear_fc1", false).empty());
    CHECK(recipe_of(s, "eh_proj", true) == "mxfp8");
    CHECK(recipe_of(s, "mixer.out_proj", false) == "tensorwise");
  }
}

TEST_CASE("entries that name single layers are told from those that name modules") {
  for (const char* every : {"['*.linear_qkv=bf16']", "['decoder.layers.*.mlp.linear_fc1=bf16']", "['mtp.*=bf16']"})
    CHECK_FALSE(scenario::tells_layers_apart(small(every)));
  for (const char* one : {"['*layers.1.*=bf16']", "['decoder.layers.[01].mlp*=mxfp8']", "['*.3.*=bf16', '*=mxfp8']"})
    CHECK(scenario::tells_layers_apart(small(one)));
  CHECK_FALSE(scenario::tells_layers_apart(small("['*=bf16', '*layers.1.*=mxfp8']")));  // never reached
}

TEST_CASE("Megatron asserts the width of a Mamba layer's projection in FP8 whatever recipe its modules have") {
  auto s = small("['*.linear_qkv=bf16']", true);
  for (const char* setting : {"fp4=null", "fp8=hybrid", "fp8_recipe=tensorwise", "mamba_num_heads=8"})
    scenario::set(s, setting);
  CHECK_THROWS_WITH_AS(scenario::check(s), doctest::Contains("innermost"), UsageError);
}

TEST_CASE("what is no entry is refused where it stands") {
  for (const char* wrong : {"['*.linear_qkv']", "['=bf16']", "['*=int8']", "['*=delayed']", "['*=']"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(scenario::quant_recipe(small(wrong)), doctest::Contains("settings.quant_recipe"), UsageError);
  }
}

}  // namespace quant_recipe_test
