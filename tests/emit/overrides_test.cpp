// Emitted overrides are those that Megatron Bridge's own configuration took. data/overrides.txt holds them: a line for
// each base and, for each change of a setting, the statements that come and go. bridge_config.py writes the file, and
// writes it only if Bridge's runtime_config_update() took every line of it.
#include <doctest/doctest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "../predict/moves.hpp"
#include "changes.hpp"
#include "pipewright/emit.hpp"

namespace overrides_test {

using namespace pipewright;

namespace {

constexpr const char* version = "0.7.0";

/// Models whose provider takes what it builds by names of its own, small and whole.
const std::vector<const char*> models = {
    "num_layers=8; kv_channels=256; qk_layernorm=true; activation_func=fast_gelu; bias_activation_fusion=false; "
    "layernorm_zero_centered_gamma=true; post_layernorm=true; apply_embedding_scaling=true; "
    "untie_embeddings_and_output_weights=false; window_size=[1023, 0]; window_attn_skip_freq=[6]",
    "num_layers=8; kv_channels=128; qk_layernorm=true; activation_func=fast_gelu; bias_activation_fusion=false; "
    "layernorm_zero_centered_gamma=true; post_layernorm=true; apply_embedding_scaling=true; "
    "untie_embeddings_and_output_weights=false; window_size=[511, 0]; window_attn_skip_freq=[4]; hidden_dropout=0.1"};

std::set<std::string> statements(const scenario::Scenario& s) {
  std::set<std::string> all = {"gpus=" + std::to_string(s.cluster.num_gpus)};
  for (const auto& line : emit::words(emit::bridge(s))) all.insert(line);
  return all;
}

std::set<std::string> emitted() {
  std::set<std::string> lines;
  std::map<std::string, std::set<std::string>> of_base;
  const auto start = [](const std::string& base) {
    auto s = test::base_of(base);
    scenario::set(s, std::string("megatron_bridge=") + version);
    return s;
  };
  const std::vector<std::string> bases = {"dense", "tensor", "single", "moe", "mla", "combined"};
  for (const auto& base : bases) {
    of_base[base] = statements(start(base));
    std::string line = "base\t" + base + "\t" + version;
    for (const auto& one : of_base[base]) line += "\t" + one;
    lines.insert(line);
  }
  const auto tried = [&](const std::string& base, auto&& changed) {
    auto s = start(base);
    try {
      changed(s);
    } catch (const UsageError&) {  // not in this version
      return;
    }
    if (s.software.megatron_bridge != version || !test::legal(s)) return;
    const auto delta = test::difference(of_base[base], statements(s));
    if (!delta.empty()) lines.insert("change\t" + base + "\t" + version + delta);
  };
  for (const scenario::Move& move : scenario::moves())
    for (const char* value : {move.from, move.to})
      tried(move.base, [&](scenario::Scenario& s) {
        test::change(s, move.setup);
        test::assign(s, move.name, value);
      });
  for (const char* changes : test::changes)
    for (const auto& base : bases) tried(base, [&](scenario::Scenario& s) { test::change(s, changes); });
  for (const char* model : models)
    for (const char* base : {"dense", "tensor", "single"})
      tried(base, [&](scenario::Scenario& s) { test::change(s, model); });
  return lines;
}

}  // namespace

TEST_CASE("every emitted override is one that Bridge's own configuration took") {
  const auto now = emitted();
  if (const char* to = std::getenv("PIPEWRIGHT_EMITTED")) {  // bridge_config.py asks
    std::ofstream out(to);
    for (const auto& line : now) out << line << "\n";
    return;
  }
  std::set<std::string> taken;
  std::istringstream in(read_file(std::string(std::getenv("PIPEWRIGHT_TEST_DATA")) + "/overrides.txt"));
  for (std::string line; std::getline(in, line);)
    if (!line.starts_with('#')) taken.insert(line);
  CHECK(taken.size() > 250);
  for (const auto& line : now) {
    INFO("Bridge has not seen this line yet: run tests/emit/bridge_config.py");
    CAPTURE(line);
    CHECK(taken.contains(line));
  }
  for (const auto& line : taken) {
    INFO("no longer emitted: run tests/emit/bridge_config.py");
    CAPTURE(line);
    CHECK(now.contains(line));
  }
}

}  // namespace overrides_test
