// Every schedule recorded from Megatron-LM core_r0.19.0's own scheduling code, and some of other versions (data/*.json,
// form in src/schedule/SYNTAX.md), is built op for op, and what Megatron refuses is refused with its words.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "pipewright/base.hpp"
#include "pipewright/schedule.hpp"

namespace golden_test {

using namespace pipewright;
using nlohmann::json;

namespace {

const std::string data = SCHEDULE_DATA;

template <class T>
std::optional<T> optional(const json& entry, const char* key) {
  if (!entry.contains(key) || entry[key].is_null()) return std::nullopt;
  return entry[key].get<T>();
}

schedule::Config config(const json& entry) {
  schedule::Config c;
  c.stages = entry["p"];
  c.chunks = optional<int>(entry, "v");
  c.microbatches = entry["m"];
  c.group_size = optional<int>(entry, "N");
  c.overlap_p2p = entry["overlap_p2p"];
  c.warmup_flush = entry["warmup_flush"];
  c.ep_overlap = entry["ep_overlap"];
  c.batched = entry.value("batched", !c.overlap_p2p);
  c.overlap_grad_reduce = entry.value("hooks", false);
  c.align_grad_reduce = c.align_param_gather = entry.value("align", false);
  c.delay_wgrad_compute = entry.value("delay_wgrad", false);
  c.ep_overlap_early_attn_memory_release = entry.value("early_release", false);
  const std::string version = entry.value("version", "0.19.0");
  c.from_0_18 = version != "0.16.0" && version != "0.17.0" && version != "pr-4268";
  c.overlap_p2p_backward_on_comm_stream = entry.value("overlap_p2p_backward_on_comm_stream", false);
  c.overlap_p2p_with_transformer_layer_wgrad = entry.value("overlap_p2p_with_transformer_layer_wgrad", false);
  c.overlap_p2p_wgrad_delayed_layer_number = entry.value("overlap_p2p_wgrad_delayed_layer_number", 1);
  if (entry.value("detail", false)) {
    const auto chunks = static_cast<std::size_t>(c.chunks.value_or(1));
    const json& layers = entry["layers"];
    if (layers.is_array() && layers[0].is_array()) {  // every layer by itself
      for (const json& rank : layers) {
        auto& own = c.layers.emplace_back();
        for (const json& chunk : rank) {
          own.emplace_back();
          for (const json& layer : chunk) own.back().push_back({.moe = layer[0], .mtp = layer[1]});
        }
      }
      return c;
    }
    std::vector<std::vector<schedule::Layer>> rank(chunks);
    for (std::size_t chunk = 0; chunk < chunks; ++chunk)
      rank[chunk].resize(layers.is_array() ? layers[chunk].get<std::size_t>() : layers.get<std::size_t>());
    c.layers.assign(static_cast<std::size_t>(c.stages), rank);
  }
  return c;
}

json load(const std::string& name) { return json::parse(read_file(data + "/" + name)); }

std::string first_difference(const std::vector<std::string>& built, const std::vector<std::string>& recorded) {
  for (std::size_t i = 0; i < std::max(built.size(), recorded.size()); ++i) {
    const std::string b = i < built.size() ? built[i] : "(end)", r = i < recorded.size() ? recorded[i] : "(end)";
    if (b != r) return "op " + std::to_string(i) + ": built " + b + ", recorded " + r;
  }
  return {};
}

}  // namespace

TEST_CASE("recorded schedules") {
  const struct {
    const char* file;
    std::size_t schedules;
  } files[] = {{"1f1b.json", 4},
               {"interleaved-sync.json", 2},
               {"interleaved-overlap.json", 9},
               {"interleaved-flush.json", 2},
               {"ep-overlap.json", 5},
               {"hooks-and-frees.json", 4},
               {"ep-nodes.json", 3},
               {"versions.json", 5}};
  for (const auto& file : files) {
    const json content = load(file.file);
    REQUIRE(content["schedules"].size() == file.schedules);
    for (const json& entry : content["schedules"]) {
      INFO(file.file, " p ", entry["p"].dump(), " v ", entry["v"].dump(), " m ", entry["m"].dump(), " N ",
           entry["N"].dump());
      const auto program = schedule::build(config(entry));
      REQUIRE(program.ranks.size() == entry["ranks"].size());
      for (std::size_t rank = 0; rank < program.ranks.size(); ++rank) {
        INFO("rank ", rank);
        CHECK(program.ranks[rank].warmup == entry["warmup"][rank].get<int>());
        const auto words = schedule::text(program.ranks[rank], entry.value("hooks", false), entry.value("free", false));
        CHECK(first_difference(words, entry["ranks"][rank].get<std::vector<std::string>>()) == "");
      }
    }
  }
}

TEST_CASE("refused configurations") {
  const json content = load("rejected.json");
  REQUIRE(content["rejected"].size() == 6);
  for (const json& entry : content["rejected"]) {
    const std::string expected = entry["error"].get<std::string>() + ": " + entry["text"].get<std::string>();
    try {
      schedule::build(config(entry));
      FAIL("not refused: " << expected);
    } catch (const UsageError& error) {
      CHECK(error.message() == expected);
    }
  }
}

}  // namespace golden_test
