// How uneven routing may be until a rank runs out of memory: by replays of all ranks at once, against whole predictions
// of one rank after the other.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace imbalance_test {

using namespace pipewright;

namespace {

/// Dense layers on the first ranks: those that hold the most need not be those that grow with the imbalance.
scenario::Scenario mixture(const std::string& moe_layers, const std::string& limit) {
  auto s = scenario::parse(R"(scenario: 1
model: {num_layers: 8, hidden_size: 2048, ffn_hidden_size: 8192, num_attention_heads: 16, seq_length: 4096,
  vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false, num_moe_experts: 8,
  moe_router_topk: 2, moe_ffn_hidden_size: 4096, untie_embeddings_and_output_weights: true,
  position_embedding_type: rope}
settings: {pipeline_model_parallel_size: 4, expert_model_parallel_size: 8, micro_batch_size: 1, global_batch_size: 64,
  bf16: true, use_distributed_optimizer: true, hidden_dropout: 0.0, attention_dropout: 0.0, moe_grouped_gemm: true,
  moe_token_dispatcher_type: alltoall}
cluster: {profile: h100-sxm, num_gpus: 32, gpus_per_node: 8}
)",
                           "mixture.yaml");
  scenario::set(s, "moe_layer_freq=" + moe_layers);
  if (!limit.empty()) scenario::set(s, "search.memory_limit=" + limit);
  return s;
}

/// The same search by what a whole prediction says of one rank at a time.
double by_predictions(const predict::Prediction& prediction, const scenario::Scenario& scenario,
                      const profile::Profiles& profiles) {
  const auto fits = [&](std::size_t rank, double imbalance) {
    auto uneven = scenario;
    uneven.settings.moe_load_imbalance = imbalance;
    return predict::predict_memory(uneven, profiles, prediction).ranks[rank].fits;
  };
  std::vector<std::size_t> order(prediction.ranks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t r) {
    return prediction.ranks[r].walk.peak_reserved + prediction.ranks[r].outside_allocator;
  });
  double largest = 8;
  for (const auto rank : order) {
    if (fits(rank, largest)) continue;
    double works = 1, fails = largest;
    while (fails - works > 0.1) {
      const double middle = (works + fails) / 2;
      (fits(rank, middle) ? works : fails) = middle;
    }
    largest = works;
  }
  return largest == 8 ? 8 : std::floor(largest / 0.1) * 0.1;
}

}  // namespace

TEST_CASE("a mixture fits up to the imbalance that predictions of each rank allow") {
  const profile::Profiles profiles({profile::load("h100-sxm", {"test", 0})});
  bool decided = false;
  for (const auto* moe_layers : {"1", "([0]*4+[1]*4)", "([1]*4+[0]*4)"}) {
    const auto needed = predict::predict(mixture(moe_layers, ""), profiles).most_needed();
    for (const std::int64_t spare_mib : {200, 700, 2500, 20000}) {
      CAPTURE(moe_layers);
      CAPTURE(spare_mib);
      const auto s = mixture(moe_layers, std::to_string(needed.value / (1 << 20) * 101 / 100 + spare_mib) + " MiB");
      predict::Run run;
      const auto prediction = predict::predict(s, profiles, &run);
      REQUIRE(prediction.fits);
      const auto found = predict::find_imbalance(prediction, s, profiles, run);
      REQUIRE(found);
      const double expected = by_predictions(prediction, s, profiles);
      CHECK(found->largest == expected);
      CHECK(found->any == (expected == 8));
      decided = decided || !found->any;
    }
  }
  CHECK(decided);
}

}  // namespace imbalance_test
