// Buffers and buckets of gradients as Megatron Core itself lays out the same parameters (data/buckets.json), and who
// has a copy of the embedding.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "parameters.hpp"
#include "pipewright/base.hpp"
#include "pipewright/effects.hpp"
#include "support.hpp"

namespace buckets_test {

using namespace pipewright;
using namespace pipewright::model::test;
using nlohmann::json;

namespace {

bool says(const json& kind, const char* word) { return kind.get<std::string>().find(word) != std::string::npos; }

std::vector<model::Buffer> buffers_of(const json& entry) {
  std::vector<model::Parameter> parameters;
  for (const json& row : entry["parameters"]) {
    model::Parameter& p = parameters.emplace_back();
    p.elements = row[0];
    p.layer = row[1];
    p.fp8 = says(row[2], "fp8"), p.expert = says(row[2], "expert"), p.shared_embedding = says(row[2], "shared");
  }
  auto buffers = model::layout(parameters, entry["bucket_size"], entry["ranks"][0], entry["ranks"][1],
                               entry["distributed"], entry["pad"]);
  model::group_buckets(buffers, entry["one_group"]);
  return buffers;
}

json written(const model::Buffer& buffer) {
  json out{{"kind", std::string(buffer.fp8 ? "fp8" : "") + (buffer.fp8 && buffer.expert ? " " : "") +
                        (buffer.expert ? "expert" : "")}};
  for (std::size_t i = 0; i < buffer.buckets.size(); ++i)
    out["buckets"].push_back({buffer.buckets[i].first, buffer.buckets[i].second, buffer.last_layers[i]});
  for (std::size_t i = 0; i < buffer.of.size(); ++i)
    out["parameters"].push_back({buffer.of[i], buffer.parameters[i].first, buffer.parameters[i].second});
  return out;
}

/// The layers whose backward completes a bucket group of a chunk, lowest first.
std::set<int> completing(const scenario::Scenario& s, std::size_t rank, std::size_t chunk = 0) {
  const auto stages = pipewright::test::build(s);
  const auto& layers = stages.ranks[rank].chunks[chunk].gradient_sync_layers;
  return {layers.begin(), layers.end()};
}

scenario::Scenario tied(std::initializer_list<const char*> more = {}) {
  return with(with(llama70b(), {"untie_embeddings_and_output_weights=false", "overlap_grad_reduce=true"}), more);
}

}  // namespace

TEST_CASE("buffers and buckets of Megatron Core") {
  const json table = json::parse(read_file("data/buckets.json"));
  REQUIRE(table["cases"].size() == 48);
  for (const json& entry : table["cases"]) {
    CAPTURE(entry.dump());
    json built = json::array();
    for (const auto& buffer : buffers_of(entry)) built.push_back(written(buffer));
    CHECK(built == entry["buffers"]);
  }
}

TEST_CASE("a copy of the embedding is reduced apart from its stage") {
  using Layers = std::set<int>;
  const int after = 20;  // layers of a stage: the output layer comes behind them
  CHECK(completing(tied(), 3) == Layers{0, after});
  CHECK(completing(tied(), 1) == Layers{0});
  CHECK(completing(tied({"untie_embeddings_and_output_weights=true"}), 3) == Layers{0});
  CHECK(completing(tied({"use_distributed_optimizer=false"}), 3) == Layers{0});
  // The first stage's copy ends what is collected before it.
  CHECK(completing(tied({"bucket_size=2000000000000"}), 0) == Layers{-1, 0});
  CHECK(completing(tied({"bucket_size=2000000000000", "untie_embeddings_and_output_weights=true"}), 0) == Layers{-1});
  // Multi-token prediction has a copy of the embedding, and the output layer then is none.
  CHECK(completing(tied({"mtp_num_layers=1", "untie_embeddings_and_output_weights=true"}), 3) == Layers{-1, 0});
  // Chunks after the first reduce all their buckets at once, one stage has no copy.
  CHECK(completing(tied({"virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"}), 3, 1) == Layers{0});
  CHECK(completing(tied({"pipeline_model_parallel_size=1", "global_batch_size=8", "bucket_size=2000000000000"}), 0) ==
        Layers{-1});
}

// training/training.py, resolve_ddp_bucket_size: num_parameters // num_buckets, of all chunks of the rank.
TEST_CASE("a number of buckets is a size of buckets: the rank's parameters by it") {
  for (const char* pipeline : {"pipeline_model_parallel_size=1", "pipeline_model_parallel_size=4"}) {
    const auto base = with(llama70b(), {pipeline, "num_layers=16", "overlap_grad_reduce=true", "megatron_core=0.19.0"});
    const auto reductions = [](const scenario::Scenario& s) {
      const auto stages = pipewright::test::build(s);
      std::vector<std::vector<std::int64_t>> found;
      for (const auto& kernel : stages.ranks[0].chunks[0].gradient_sync) found.push_back(kernel.key.dims);
      return found;
    };
    const auto rank = pipewright::test::build(base).ranks[0];
    std::int64_t all = 0;
    for (const auto& chunk : rank.chunks) all += chunk.parameters;
    for (const std::int64_t buckets : {1, 2, 7, 40}) {
      CAPTURE(buckets);
      auto by_number = base, by_size = base;
      by_number.settings.num_buckets = buckets;
      by_size.settings.bucket_size = all / buckets;
      CHECK(reductions(by_number) == reductions(by_size));
      CHECK_NOTHROW(scenario::refuse_unmodelled(by_number));
    }
  }
}

TEST_CASE("parameters in 16 bits are reduced with the last ones in FP8") {
  const auto fp8 =
      with(llama70b(), {"pipeline_model_parallel_size=1", "global_batch_size=8", "overlap_grad_reduce=true",
                        "fp8=hybrid", "fp8_recipe=tensorwise", "fp8_param=true", "fp8_param_gather=true"});
  CHECK(completing(with(fp8, {"bucket_size=2000000000000"}), 0) == std::set<int>{-1});
  const auto stages = pipewright::test::build(fp8);
  const auto& chunk = stages.ranks[0].chunks[0];
  // Output layer and embedding are larger than a bucket each, and wait for the first layer's matrices all the same.
  CHECK(std::ranges::max(chunk.gradient_sync_layers) < 80);
  CHECK(std::ranges::count(chunk.gradient_sync_layers, -1) > 1);
}

}  // namespace buckets_test
