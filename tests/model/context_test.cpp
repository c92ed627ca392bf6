// How context-parallel ranks share attention: what each kind launches, moves and keeps, by hand formulas.
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "pipewright/effects.hpp"
#include "support.hpp"

namespace context_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Piece;

namespace {

constexpr std::int64_t sequence = 8192, heads = 32, groups = 8, width = 128;

scenario::Scenario ranks(std::int64_t cp, const std::string& kind, const std::string& more = "clip_grad=1.0") {
  auto s = scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 4096, ffn_hidden_size: 14336, num_attention_heads: 32, num_query_groups: 8,
  seq_length: 8192, vocab_size: 32000, gated_linear_unit: true, normalization: RMSNorm, add_bias_linear: false,
  untie_embeddings_and_output_weights: true, position_embedding_type: rope, make_vocab_size_divisible_by: 1}
settings: {micro_batch_size: 1, global_batch_size: 32, bf16: true, use_distributed_optimizer: true,
  gradient_accumulation_fusion: true, grad_reduce_in_fp32: true, hidden_dropout: 0.0, attention_dropout: 0.0,
  apply_rope_fusion: true, bias_activation_fusion: true, bias_dropout_fusion: true}
cluster: {profile: h200-sxm, num_gpus: 32, gpus_per_node: 8, nvlink_domain: 8, inter_node_link: infiniband}
)",
                           "context.yaml");
  for (const auto& each : {"context_parallel_size=" + std::to_string(cp), "cp_comm_type=[" + kind + "]", more})
    scenario::set(s, each);
  return s;
}

scenario::Scenario levels(std::int64_t exchanging, std::int64_t ring) {
  return ranks(
      exchanging * ring, "a2a+p2p",
      "hierarchical_context_parallel_sizes=[" + std::to_string(exchanging) + ", " + std::to_string(ring) + "]");
}

Piece layer(const scenario::Scenario& s) {
  const auto stages = pipewright::test::build(s);
  return stages.pieces[stages.ranks[0].chunks[0].pieces[2]];
}

/// Everything a layer does, in order: sizes, kernels, links.
std::string told(const scenario::Scenario& s) {
  const Piece piece = layer(s);
  std::string text;
  for (const auto& tensor : piece.tensors) text += std::to_string(tensor.bytes.value) + " ";
  for (const auto& kernel : piece.kernels) {
    text += "\n" + kernel.name + " " + kernel.key.family + " " + kernel.link + " " + std::to_string(kernel.share);
    for (const auto dim : kernel.key.dims) text += " " + std::to_string(dim);
    if (kernel.exchange) text += " leaves " + std::to_string(kernel.exchange->stride);
  }
  for (const auto* steps : {&piece.forward, &piece.backward})
    for (const auto& step : *steps)
      text += "\n" + std::to_string(static_cast<int>(step.kind)) + " " + std::to_string(step.index);
  return text;
}

/// Bytes that leave a rank for context parallelism, forward and backward: of a gathered or scattered buffer all parts
/// but its own, of an all-to-all likewise, of a ring's step all.
std::int64_t moved(const Piece& piece, const std::string& family = {}) {
  std::int64_t bytes = 0;
  for (const auto& kernel : piece.kernels) {
    if (kernel.purpose != model::Purpose::cp || !kernel.key.family.starts_with(family)) continue;
    const auto& dims = kernel.key.dims;
    bytes += dims.size() == 1 ? dims[0] : dims[1] / dims[0] * (dims[0] - 1);
  }
  return bytes;
}

/// Pairs of a query and a key, over all heads, in forward and backward.
double pairs(const Piece& piece, const std::string& pass = "") {
  double sum = 0;
  for (const auto& kernel : piece.kernels)
    if (kernel.key.family.starts_with("attention." + pass)) {
      const auto& dims = kernel.key.dims;
      sum +=
          kernel.share * static_cast<double>(dims[1]) * static_cast<double>(dims[2]) / 2 * static_cast<double>(dims[3]);
    }
  return sum;
}

}  // namespace

TEST_CASE("on one rank every kind of context parallelism is none") {
  for (const char* kind : {"a2a", "all_gather"}) CHECK(told(ranks(1, kind)) == told(ranks(1, "p2p")));
  CHECK(told(levels(1, 1)) == told(ranks(1, "p2p")));
}

TEST_CASE("a level of one rank is none: [1, n] is the ring, [n, 1] the all-to-all") {
  for (const std::int64_t n : {2, 4, 8}) {
    CAPTURE(n);
    CHECK(told(levels(1, n)) == told(ranks(n, "p2p")));
    CHECK(told(levels(n, 1)) == told(ranks(n, "a2a")));
  }
}

TEST_CASE("every kind computes the same pairs on every rank, and moves what it says") {
  for (const auto& [exchanging, ring] : std::vector<std::pair<std::int64_t, std::int64_t>>{{2, 2}, {4, 2}, {2, 4}}) {
    const std::int64_t cp = exchanging * ring, tokens = sequence / cp;
    CAPTURE(cp);
    const double whole = 1. * sequence * sequence / 2 * heads, of_rank = whole / static_cast<double>(cp);
    for (const auto& s : {ranks(cp, "p2p"), ranks(cp, "a2a"), levels(exchanging, ring)})
      CHECK(pairs(layer(s)) == doctest::Approx(2 * of_rank));
    // Of gathered keys backward runs the whole rectangles of both chunks: 2 CP + 1 of (2 CP)^2 squares.
    const auto gathered = layer(ranks(cp, "all_gather"));
    CHECK(pairs(gathered, "forward") == doctest::Approx(of_rank));
    CHECK(pairs(gathered, "backward") ==
          doctest::Approx(2 * whole * static_cast<double>(2 * cp + 1) / static_cast<double>(4 * cp * cp)));
    const std::int64_t q = 2 * tokens * heads * width, kv = 2 * tokens * groups * width;  // bytes of a rank's part
    // k and v gathered twice, their gradients scattered once.
    CHECK(moved(layer(ranks(cp, "all_gather"))) == 6 * kv * (cp - 1));
    CHECK(moved(layer(ranks(cp, "all_gather")), "reduce_scatter") == 2 * kv * (cp - 1));
    const auto both = layer(levels(exchanging, ring));
    // q, k, v and the output there, their gradients back; the ring moves k and v of one rank a step, in backward their
    // gradients too.
    CHECK(moved(both, "all_to_all") == 2 * (2 * q + 2 * kv) / exchanging * (exchanging - 1));
    CHECK(moved(both, "send_recv") == 3 * 2 * kv * (ring - 1));
    CHECK(moved(layer(ranks(cp, "p2p"))) == 3 * 2 * kv * (cp - 1));
  }
}

TEST_CASE("two levels: the exchange stays inside a node where its ranks do, the ring crosses nodes") {
  const auto links = [](const scenario::Scenario& s, const std::string& family) {
    std::set<std::string> result;
    for (const auto& kernel : layer(s).kernels)
      if (kernel.purpose == model::Purpose::cp && kernel.key.family.starts_with(family)) result.insert(kernel.link);
    return result;
  };
  using Links = std::set<std::string>;
  CHECK(links(levels(8, 2), "all_to_all") == Links{"nvlink"});
  CHECK(links(levels(8, 2), "send_recv") == Links{"infiniband"});
  CHECK(links(levels(2, 4), "send_recv") == Links{"nvlink"});
  CHECK(links(levels(2, 8), "send_recv") == Links{"infiniband"});  // 8 ranks, two apart
  CHECK(links(ranks(16, "all_gather"), "all_gather") == Links{"infiniband"});
  // TP ranks are neighbours: an exchange over 4 ranks spans 16 GPUs.
  auto wide = levels(4, 2);
  for (const char* each : {"tensor_model_parallel_size=4", "sequence_parallel=true", "num_query_groups=16"})
    scenario::set(wide, each);
  CHECK(links(wide, "all_to_all") == Links{"infiniband"});
}

TEST_CASE("gathered keys: a layer keeps its own part only, as the ring does, whatever is recomputed") {
  const auto gathers = ranks(4, "all_gather"), ring = ranks(4, "p2p");
  // A second random state, and statistics of two chunks instead of one: the same bytes.
  CHECK(saved(layer(gathers)) - saved(layer(ring)) >= 0);
  CHECK(saved(layer(gathers)) - saved(layer(ring)) <= 512);
  for (const char* more :
       {"clip_grad=1.0", "qk_layernorm=true", "qk_l2_norm=true", "no_rope_freq=[2]", "attention_dropout=0.1",
        "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1",
        "recompute_granularity=selective; recompute_modules=[core_attn]"}) {
    CAPTURE(std::string(more));
    for (auto s : {gathers, levels(2, 2)}) {
      for (std::size_t from = 0, to; from != std::string::npos; from = to == std::string::npos ? to : to + 2) {
        to = std::string(more).find("; ", from);
        scenario::set(s, std::string(more).substr(from, to == std::string::npos ? to : to - from));
      }
      for (const auto& piece : pipewright::test::build(s).pieces) check_balance(piece);
    }
  }
}

// context_parallel.py, flash_attn_a2a_communicate_softmax_offset: a rank takes the sinks of its heads, their gradients
// are gathered.
TEST_CASE("sinks: exchanged heads have theirs, other kinds are refused as in Transformer Engine") {
  for (const std::int64_t cp : {2, 4, 8})
    for (const char* more : {"window_size=[]", "window_size=[127, 0]"}) {
      CAPTURE(cp);
      const auto plain = with(ranks(cp, "a2a"), {more}), sinks = with(plain, {"softmax_type=learnable"});
      CHECK_NOTHROW(scenario::refuse_unmodelled(sinks));
      check_all(pipewright::test::build(sinks));
      const Piece piece = layer(sinks);
      CHECK(moved(piece) == moved(layer(plain)) + 4 * heads / cp * (cp - 1));
      int kernels = 0;
      for (const auto& kernel : piece.kernels)
        if (kernel.key.family.starts_with("attention.sink.")) {
          ++kernels;
          CHECK(kernel.key.dims[1] == sequence);
          CHECK(kernel.key.dims[3] == heads / cp);
          CHECK(kernel.key.dims[4] == groups / cp);
        }
      CHECK(kernels == 2);
      // One parameter a head, whole on every rank.
      CHECK(parameters(pipewright::test::build(sinks)) == parameters(pipewright::test::build(plain)) + 4 * heads);
    }
  for (const auto& other : {ranks(2, "p2p"), ranks(2, "all_gather"), levels(2, 2)})
    CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(with(other, {"softmax_type=learnable"})),
                         doctest::Contains("softmax_type"), UsageError);
}

TEST_CASE("heads that the first level's ranks cannot share are refused") {
  CHECK_THROWS_WITH_AS(pipewright::test::build(with(levels(4, 2), {"num_query_groups=2"})),
                       doctest::Contains("hierarchical_context_parallel_sizes"), UsageError);
  CHECK_NOTHROW(pipewright::test::build(with(levels(2, 4), {"num_query_groups=2"})));
}

// data/context_kernels.json: what Transformer Engine launched, by rank; the slower rank is what a step waits for.
TEST_CASE("kernels of every kind at ten sizes take what they took on two H200") {
  std::ifstream file("data/context_kernels.json");
  const auto measured = nlohmann::json::parse(file);
  const auto profile = profile::load("h200-sxm", {});
  REQUIRE(measured.at("cases").size() == 30);
  for (const auto& each : measured.at("cases")) {
    const auto number = [&](const char* key) { return each.at(key).get<std::int64_t>(); };
    const std::string kind = each.at("kind");
    auto s = ranks(2, kind);
    for (const auto& [field, value] : {std::pair("seq_length", number("seq")),
                                       {"max_position_embeddings", number("seq")},
                                       {"micro_batch_size", number("batch")},
                                       {"num_attention_heads", number("heads")},
                                       {"num_query_groups", number("groups")},
                                       {"kv_channels", number("head_dim")}})
      scenario::set(s, std::string(field) + "=" + std::to_string(value));
    const Piece piece = layer(s);
    std::map<std::string, double> us;
    for (const auto& [pass, steps] : {std::pair("forward", &piece.forward), {"backward", &piece.backward}})
      for (const auto& step : *steps) {
        if (step.kind != model::Step::Kind::launch) continue;
        const auto& kernel = piece.kernels[step.index];
        if (kernel.purpose == model::Purpose::cp || !kernel.name.starts_with("attention.")) continue;
        const bool attends = kernel.key.family.starts_with("attention.");
        const bool beside =
            kernel.name.find(" order") != std::string::npos || kernel.name.find(" step") != std::string::npos ||
            kernel.name.find("zeros") != std::string::npos || kernel.name.find("chunk") != std::string::npos ||
            kernel.name.find(" exchange") != std::string::npos || kernel.name.find("joined") != std::string::npos ||
            kernel.name.find("corrected") != std::string::npos ||
            kernel.name.find("gradient added") != std::string::npos;
        if (attends || beside)
          us[std::string(attends ? "attention_" : "beside_") + pass + "_us"] +=
              kernel.share * profile.time(kernel.key)->ns / 1000;
      }
    for (const auto& [what, predicted] : us) {
      const double a = each.at("ranks")[0].at(what), b = each.at("ranks")[1].at(what);
      INFO(kind << " " << number("seq") << " x " << number("batch") << ", heads " << number("heads") << ": " << what
                << " " << predicted << ", measured " << a << " and " << b);
      // Beside attention some sizes ran kernels that torch.compile had made for the shapes before (never so in a run,
      // whose first shape is its only one): those took up to eight times as long.
      const bool attention = what.starts_with("attention");
      const bool compiled = attention || kind == "all_gather" || (number("heads") == 32 && number("seq") >= 4096);
      const double apart = attention ? 0.25 : 0.45;
      const bool hidden = kind == "p2p" && what == "beside_forward_us";  // the first step's copies
      if (compiled && !hidden) CHECK(predicted > std::min(a, b) * (1 - apart));
      CHECK(predicted < std::max(a, b) * (1 + apart));
    }
  }
}

}  // namespace context_test
