// Sizes inside each field's range, together far outside of any machine: a prediction or a UsageError, soon.
#include <doctest/doctest.h>

#include <ctime>

#include "../draws.hpp"
#include "../mutate.hpp"
#include "../plan/bases.hpp"
#include "pipewright/predict.hpp"

namespace hostile_test {

using namespace pipewright;

// CPU seconds that a prediction may take, whatever else the machine does; sanitizers make it five times as long.
const double patience = test::sanitized() ? 600 : 120;

TEST_CASE("extreme sizes are predicted or refused") {
  const auto folder = std::string(SOURCE_ROOT) + "/profiles/";
  const profile::Profiles profiles({profile::load(folder + "h200-sxm.json", {})});
  const std::vector<std::string> names = {"hidden_size",
                                          "ffn_hidden_size",
                                          "num_attention_heads",
                                          "num_query_groups",
                                          "kv_channels",
                                          "seq_length",
                                          "vocab_size",
                                          "micro_batch_size",
                                          "global_batch_size",
                                          "num_layers",
                                          "num_moe_experts",
                                          "moe_ffn_hidden_size",
                                          "moe_router_topk",
                                          "moe_shared_expert_intermediate_size",
                                          "make_vocab_size_divisible_by",
                                          "recompute_num_layers",
                                          "bucket_size",
                                          "num_gpus",
                                          "gpus_per_node",
                                          "pipeline_model_parallel_size",
                                          "tensor_model_parallel_size",
                                          "context_parallel_size",
                                          "expert_model_parallel_size"};
  // One draw, of 1000 GPUs, has all but the largest batch that is simulated: 65536 would make it two, twice as dear.
  const std::vector<std::string> values = {"1",      "2",      "3",       "16",       "64",        "1000",
                                           "131072", "262144", "1000000", "10000000", "500000000", "1000000000"};
  int predicted = 0, refused = 0;
  for (unsigned round = 0; round < test::draws(400); ++round) {
    test::Mutator random(round);
    std::string changes;
    for (std::size_t n = 1 + random.below(3); n > 0; --n)
      changes +=
          (changes.empty() ? "" : "; ") + names[random.below(names.size())] + "=" + values[random.below(values.size())];
    const char* base = round % 2 == 0 ? "moe" : "dense";
    CAPTURE(changes);
    CAPTURE(std::string(base));
    const auto begin = std::clock();
    try {
      const auto s = test::scenario(base, changes);
      const auto prediction = predict::predict(s, profiles);
      CHECK(prediction.step_ns > 0);
      for (const auto& rank : prediction.ranks) {
        CHECK(rank.walk.static_bytes.value > 0);
        CHECK(rank.walk.peak_allocated >= rank.walk.static_bytes);
        CHECK(rank.walk.peak_reserved.value > 0);
      }
      ++predicted;
    } catch (const UsageError&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
    CHECK(static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC < patience);
  }
  CHECK(predicted > static_cast<int>(test::draws(10)));
  CHECK(refused > static_cast<int>(test::draws(10)));
}

TEST_CASE("sizes of a few elements are predicted or refused, whatever parts a layer has") {
  const profile::Profiles profiles({profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {})});
  const char* const parts[] = {"add_bias_linear=true",    "add_qkv_bias=true",       "qk_layernorm=true",
                               "post_layernorm=true",     "gated_linear_unit=false", "multi_latent_attention=true",
                               "normalization=LayerNorm", "transformer_impl=local",  "attention_backend=unfused"};
  const char* const sizes[] = {"hidden_size", "ffn_hidden_size", "moe_ffn_hidden_size", "kv_channels", "vocab_size"};
  int predicted = 0;
  unsigned nth = 0;
  for (const char* base : {"moe", "dense"})
    for (const char* part : parts)
      for (const char* size : sizes)
        for (const char* value : {"1", "3"}) {
          if (!test::taken(nth++)) continue;
          const std::string changes =
              std::string(part) + "; hidden_dropout=0.1; global_batch_size=8; " + size + "=" + value;
          CAPTURE(changes);
          CAPTURE(std::string(base));
          try {
            CHECK(predict::predict(test::scenario(base, changes), profiles).step_ns > 0);
            ++predicted;
          } catch (const UsageError&) {  // not modelled
          }
        }
  CHECK(predicted > static_cast<int>(test::draws(20)));
}

}  // namespace hostile_test
