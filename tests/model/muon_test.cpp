// Muon: which parameters it updates, what they keep, what their Newton-Schulz steps cost, and who owns them.
#include "muon.hpp"

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "pipewright/effects.hpp"
#include "support.hpp"

namespace muon_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Buffer;
using model::Parameter;

namespace {

constexpr std::int64_t h = 8192, q = 2048, kv = 256, f = 7168;  // of a tensor-parallel rank of four
constexpr std::int64_t layers = 20;                             // of a pipeline rank
constexpr std::int64_t matrices = (q + 2 * kv) * h + h * q + 2 * f * h + h * f, norms = 2 * h;

/// 0.18: pretrain_gpt.py of 0.19 lays nothing out.
scenario::Scenario muon(std::initializer_list<const char*> more = {}) {
  return with(with(llama70b(), {"optimizer=muon", "software.megatron_core=0.18.0"}), more);
}

std::int64_t bytes(const model::Stages& stages, const std::vector<model::Tensor>& list, const std::string& owner) {
  std::int64_t sum = 0;
  for (const auto& tensor : list)
    if (stages.owners[tensor.owner] == owner) sum += tensor.bytes.value;
  return sum;
}

/// Of all products of a rank's optimizer step.
double flop(const model::Rank& rank) {
  double sum = 0;
  for (const auto& kernel : rank.optimizer)
    if (kernel.key.family.starts_with("gemm."))
      sum += kernel.share * profile::family(kernel.key.family).flop(kernel.key.dims);
  return sum;
}

/// Five steps of X X', A A and B X.
double steps(double m, double n) { return 5 * (2 * m * m * n + 2 * m * m * m + 2 * m * m * n); }

}  // namespace

TEST_CASE("on every data-parallel rank: one moment of matrices, two of norms, products of every matrix") {
  const auto stages = test::build(muon({"use_distributed_optimizer=false"}));
  const auto& inner = stages.ranks[1];
  CHECK(bytes(stages, inner.optimizer_state, "optimizer moments") == layers * (4 * matrices + 8 * norms));
  // q, k and v apart; the smaller side is the one that is multiplied by itself.
  const double layer = steps(q, h) + 2 * steps(kv, h) + steps(q, h) + steps(h, 2 * f) + steps(f, h);
  CHECK(flop(inner) == doctest::Approx(layers * layer));
  const auto whole = test::build(muon({"use_distributed_optimizer=false", "muon_split_qkv=false"}));
  CHECK(flop(whole.ranks[1]) - flop(inner) ==
        doctest::Approx(layers * (steps(q + 2 * kv, h) - steps(q, h) - 2 * steps(kv, h))));
  const auto more = test::build(muon({"use_distributed_optimizer=false", "muon_num_ns_steps=8"}));
  CHECK(flop(more.ranks[1]) == doctest::Approx(flop(inner) * 8 / 5));
  // The largest matrix's result, scaled and scaled again, and the result of the matrix before, in fp32.
  CHECK(model::test::most_in_update(stages, inner, "orthogonalization") == 12 * 2 * f * h + 4 * (q + 2 * kv) * h);
  const auto nesterov = test::build(muon({"use_distributed_optimizer=false", "muon_nesterov=true"}));
  CHECK(model::test::most_in_update(nesterov, nesterov.ranks[1], "orthogonalization") ==
        16 * 2 * f * h + 4 * (q + 2 * kv) * h);
}

TEST_CASE("embedding and output layer are Adam's") {
  const auto stages = test::build(muon({"use_distributed_optimizer=false"}));
  const std::int64_t vocabulary = 128256 / 4 * h;
  const auto moments = [&](std::size_t rank) {
    return bytes(stages, stages.ranks[rank].optimizer_state, "optimizer moments");
  };
  CHECK(moments(0) - moments(1) == 8 * vocabulary);
  CHECK(moments(3) - moments(1) == 8 * (vocabulary + h));  // and the final norm
  CHECK(flop(stages.ranks[0]) == doctest::Approx(flop(stages.ranks[1])));
  for (const auto& kernel : stages.ranks[0].optimizer)
    if (kernel.name == "adam") CHECK(kernel.key.dims[0] == vocabulary + layers * norms);
}

TEST_CASE("sharded by whole matrices, a rank has about its part of state and products") {
  const auto whole = test::build(muon({"use_distributed_optimizer=false"}));
  const auto stages = test::build(muon());  // two data-parallel ranks
  const auto moments = [](const model::Stages& all) {
    return bytes(all, all.ranks[1].optimizer_state, "optimizer moments");
  };
  CHECK(moments(stages) >= moments(whole) / 2);
  CHECK(moments(stages) <= moments(whole) / 2 + 4 * 2 * f * h);  // one matrix more
  CHECK(flop(stages.ranks[1]) >= flop(whole.ranks[1]) / 2 * (1 - 1e-9));
  CHECK(flop(stages.ranks[1]) < flop(whole.ranks[1]) * 0.6);
  const auto adam = test::build(llama70b());
  CHECK(100 * moments(stages) < 55 * moments(adam));
}

TEST_CASE("experts and router are matrices; of them, too, each is one rank's") {
  const auto s = with(llama70b(), {"optimizer=muon", "num_moe_experts=8", "moe_ffn_hidden_size=4096",
                                   "moe_grouped_gemm=true", "expert_model_parallel_size=2",
                                   "expert_tensor_parallel_size=1", "moe_token_dispatcher_type=alltoall"});
  const auto stages = test::build(s);
  const auto apart = test::build(with(s, {"use_distributed_optimizer=false"}));
  const double expert = steps(h, 8192) + steps(4096, h), router = steps(8, h);
  const double dense = steps(q, h) + 2 * steps(kv, h) + steps(q, h);
  CHECK(flop(apart.ranks[1]) == doctest::Approx(layers * (4 * expert + router + dense)));
  CHECK(flop(stages.ranks[1]) < flop(apart.ranks[1]));
  CHECK(flop(stages.ranks[1]) > flop(apart.ranks[1]) / 4);
}

TEST_CASE("of any matrices: each whole in one shard, aligned, shards alike, no more padding than a matrix a shard") {
  std::mt19937 chance(11);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(chance); };
  for (int round = 0; round < 200; ++round) {
    const std::int64_t ranks = std::int64_t{1} << draw(0, 6);
    std::vector<Parameter> parameters(static_cast<std::size_t>(draw(1, 60)));
    std::vector<std::size_t> which;
    std::int64_t all = 0, largest = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      auto& p = parameters[i];
      p.rows = draw(1, 300), p.cols = draw(1, 300);
      p.elements = p.rows * p.cols;
      p.layer = static_cast<int>(i);
      all += p.elements;
      largest = std::max(largest, p.elements);
    }
    for (std::size_t i = parameters.size(); i-- > 0;) which.push_back(i);
    const std::int64_t bucket = draw(0, 1) == 1 ? draw(1, 500'000) : 0;
    const std::int64_t divisor = std::lcm(ranks, std::int64_t{128});
    Buffer buffer;
    model::lay_out_whole(buffer, parameters, which, bucket, ranks, divisor);
    CAPTURE(ranks);
    CAPTURE(bucket);
    REQUIRE(buffer.of.size() == parameters.size());
    CHECK(buffer.buckets.back().second == buffer.elements);
    if (bucket == 0) CHECK(buffer.buckets.size() == 1);
    std::vector<bool> seen(parameters.size(), false);
    std::vector<std::pair<std::int64_t, std::int64_t>> spans;
    std::int64_t before = static_cast<std::int64_t>(parameters.size());
    for (std::size_t b = 0; b < buffer.buckets.size(); ++b) {
      const auto [begin, end] = buffer.buckets[b];
      CHECK((end - begin) % divisor == 0);
      CHECK(buffer.last_layers[b] < before);  // buckets are completed in the order of the backward pass
      before = buffer.last_layers[b];
      const std::int64_t shard = (end - begin) / ranks;
      CHECK(shard % 64 == 0);
      for (std::size_t i = 0; i < buffer.of.size(); ++i) {
        const auto [start, stop] = buffer.parameters[i];
        if (start < begin || start >= end) continue;
        CHECK_FALSE(seen[buffer.of[i]]);
        seen[buffer.of[i]] = true;
        CHECK(start % 64 == 0);
        CHECK(stop - start == parameters[buffer.of[i]].elements);
        CHECK(start >= begin + buffer.owners[i] * shard);
        CHECK(stop <= begin + (buffer.owners[i] + 1) * shard);
        spans.emplace_back(start, stop);
      }
    }
    CHECK(std::ranges::all_of(seen, [](bool one) { return one; }));
    std::ranges::sort(spans);
    for (std::size_t i = 1; i < spans.size(); ++i) CHECK(spans[i].first >= spans[i - 1].second);
    // Largest first to the least loaded: a shard exceeds the mean by no more than the largest, but for alignment.
    const auto buckets = static_cast<std::int64_t>(buffer.buckets.size());
    CHECK(buffer.elements <=
          all + ranks * buckets * (largest + divisor) + 64 * static_cast<std::int64_t>(parameters.size()) * ranks);
  }
}

TEST_CASE("dealt as Megatron's comment says: ten parameters to four ranks") {
  // [[p0, p7, p8], [p1, p6, p9], [p2, p5], [p3, p4]] after sorting by size
  const std::vector<std::int64_t> sizes = {90, 10, 20, 30, 40, 50, 60, 70, 80, 100};
  CHECK(model::dealt(sizes, 4) == std::vector<std::int64_t>{0, 0, 1, 2, 3, 3, 2, 1, 0, 1});
  CHECK(model::dealt({5, 5, 5}, 1) == std::vector<std::int64_t>{0, 0, 0});
}

TEST_CASE("of any parameters dealt to ranks: each has one, counts differ by two at most, the largest by one") {
  std::mt19937 chance(5);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = std::uniform_int_distribution<std::int64_t>(1, 64)(chance);
    std::vector<std::int64_t> sizes(std::uniform_int_distribution<std::size_t>(1, 300)(chance));
    for (auto& size : sizes) size = std::uniform_int_distribution<std::int64_t>(1, 50)(chance);
    const auto owners = model::dealt(sizes, ranks);
    std::vector<std::int64_t> count(static_cast<std::size_t>(ranks)), held(count);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      REQUIRE(owners[i] >= 0);
      REQUIRE(owners[i] < ranks);
      ++count[static_cast<std::size_t>(owners[i])], held[static_cast<std::size_t>(owners[i])] += sizes[i];
    }
    CHECK(std::ranges::max(count) - std::ranges::min(count) <= 2);
    CHECK(std::ranges::max(held) - std::ranges::min(held) <= 2 * std::ranges::max(sizes));
  }
}

TEST_CASE("dist_muon: buffers whole on every rank, state of dealt parameters, one gather of all at the end") {
  const auto apart = test::build(muon({"use_distributed_optimizer=false"}));
  const auto stages = test::build(muon({"optimizer=dist_muon", "use_distributed_optimizer=false"}));
  const auto& inner = stages.ranks[1];
  // Layers are alike and two ranks share them: of each pair of equal matrices one is this rank's.
  CHECK(bytes(stages, inner.optimizer_state, "optimizer moments") == layers / 2 * (4 * matrices + 8 * norms));
  CHECK(flop(inner) == doctest::Approx(flop(apart.ranks[1]) / 2));
  // Its own flattened and the other rank's.
  CHECK(bytes(stages, inner.after_update, "gathered parameters") == 2 * layers * (matrices + norms));
  const auto before =
      test::build(muon({"optimizer=dist_muon", "use_distributed_optimizer=false", "software.megatron_core=0.16.0"}));
  CHECK(bytes(before, before.ranks[1].after_update, "gathered parameters") == 3 * layers * (matrices + norms));
  std::int64_t gathered = 0, copied = 0;
  for (const auto& kernel : inner.optimizer) {
    if (kernel.name == "parameter all-gather") gathered += kernel.key.dims.back();
    if (kernel.name == "parameters from gathered ones") copied += kernel.key.dims[0];
    CHECK(kernel.name.find("reduce-scatter") == std::string::npos);
  }
  CHECK(gathered == 2 * layers * (matrices + norms));
  CHECK(copied == layers * (matrices + norms));
  for (const auto& kernel : inner.chunks[0].gradient_sync) CHECK(kernel.key.family != "reduce_scatter");
}

// _flatten_dense_tensors dequantizes, copy_ quantizes: the owner from fp32, the others from the gathered bf16.
TEST_CASE("dist_muon: FP8 parameters are gathered in bf16 and quantized where they arrive") {
  const auto s = muon({"optimizer=dist_muon", "use_distributed_optimizer=false", "fp8=hybrid", "fp8_recipe=tensorwise",
                       "fp8_param=true", "fp8_param_gather=true"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(s));
  const auto stages = test::build(s);
  check_all(stages);
  const auto& inner = stages.ranks[1];
  std::int64_t gathered = 0, flattened = 0, copied = 0, cast = 0, read = 0;
  std::map<std::string, std::int64_t> quantized;
  for (const auto& kernel : inner.optimizer) {
    const auto n = kernel.key.dims.empty() ? 0 : kernel.key.dims[0];
    if (kernel.name == "parameter all-gather") gathered += kernel.key.dims.back();
    if (kernel.name == "FP8 parameters in 16 bits") flattened += n;
    if (kernel.name == "parameters from gathered ones") copied += n;
    if (kernel.name == "parameters from main parameters") cast += n;
    if (kernel.name.ends_with(" quantized")) quantized[kernel.name] += n;
    if (kernel.key.family == "amax") read += n;
    CHECK(kernel.name.find("amax all-reduce") == std::string::npos);
  }
  CHECK(gathered == 2 * layers * (matrices + norms));
  CHECK(flattened == layers / 2 * matrices);
  CHECK((copied == layers * norms && cast == layers / 2 * norms));
  // Four bytes in and two out of its own (the family's four are two in, two out), two and two of the others'.
  CHECK(quantized["parameters quantized"] == layers / 2 * matrices * 6 / 4);
  CHECK(quantized["gathered parameters quantized"] == layers / 2 * matrices);
  CHECK(read == layers / 2 * matrices * 3);
  CHECK(bytes(stages, inner.after_update, "main parameters in 16 bits") == 0);
  // Both copies are written there; no microbatch transposes.
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) CHECK(!kernel.name.ends_with("weight transpose"));
  for (const char* change : {"fp8_recipe=delayed", "fp8_recipe=blockwise", "optimizer=muon"})
    CHECK_THROWS_AS(scenario::refuse_unmodelled(with(s, {change})), UsageError);
}

TEST_CASE("dist_muon: experts on one data-parallel rank each are all its own") {
  const auto s = with(llama70b(), {"optimizer=dist_muon", "use_distributed_optimizer=false", "num_moe_experts=8",
                                   "moe_ffn_hidden_size=4096", "moe_grouped_gemm=true", "expert_model_parallel_size=8",
                                   "expert_tensor_parallel_size=1", "moe_token_dispatcher_type=alltoall"});
  const auto stages = test::build(s);
  const double expert = steps(h, 8192) + steps(4096, h), router = steps(8, h);
  const double dense = steps(q, h) + 2 * steps(kv, h) + steps(q, h);
  CHECK(flop(stages.ranks[1]) == doctest::Approx(layers * expert + layers / 2 * (router + dense)));
}

TEST_CASE("Muon otherwise than modelled is refused") {
  CHECK_NOTHROW(scenario::refuse_unmodelled(muon()));
  CHECK_NOTHROW(scenario::refuse_unmodelled(muon({"muon_tp_mode=blockwise"})));
  for (const char* core : {"software.megatron_core=0.16.0", "software.megatron_core=0.17.0",
                           "software.megatron_core=0.18.0", "software.megatron_core=0.19.0"})
    CHECK_NOTHROW(scenario::refuse_unmodelled(
        muon({"optimizer=dist_muon", "use_distributed_optimizer=false", "overlap_param_gather=false", core})));
  for (const char* change :
       {"optimizer=dist_muon", "optimizer=adaptive_muon", "optimizer=soap", "optimizer=lion",
        "software.megatron_core=0.17.0", "software.megatron_core=0.19.0", "fp8_param_gather=true",
        "use_precision_aware_optimizer=true", "muon_tp_mode=distributed", "muon_scalar_optimizer=lion",
        "muon_fp32_matmul_prec=high", "muon_coefficient_type=cubic5"}) {
    CAPTURE(change);
    CHECK_THROWS_AS(scenario::refuse_unmodelled(muon({change})), UsageError);
  }
}

}  // namespace muon_test
