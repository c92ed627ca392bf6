// Which layers stand where; each case is a drawing of ranks (rows) and chunks (columns).
#include <doctest/doctest.h>

#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace layout_test {

using namespace pipewright;
using namespace pipewright::scenario;

namespace {

Scenario pipeline(Int layers, Int p, OptInt v = {}) {
  Scenario s;
  s.model.num_layers = layers;
  s.settings.pipeline_model_parallel_size = p;
  s.settings.virtual_pipeline_model_parallel_size = v;
  return s;
}

// "E0-1 4-5\n2-3 6-7L\n": a row a rank, E embedding, L loss, m an MTP layer, . nothing.
std::string drawing(const Scenario& s) {
  std::string out;
  for (Int rank = 0; rank < s.settings.pipeline_model_parallel_size; ++rank) {
    for (Int chunk = 0; chunk < num_chunks(s); ++chunk) {
      const Stage held = stage(s, rank, chunk);
      std::string cell = held.embedding ? "E" : "";
      if (held.layers.size() == 1) cell += std::to_string(held.layers[0]);
      if (held.layers.size() > 1)
        cell += std::to_string(held.layers.front()) + "-" + std::to_string(held.layers.back());
      cell += std::string(static_cast<std::size_t>(held.mtp_layers), 'm') + (held.loss ? "L" : "");
      out += (chunk > 0 ? " " : "") + (cell.empty() ? "." : cell);
    }
    out += "\n";
  }
  return out;
}

std::string refusal(const Scenario& s) {
  Scenario whole = s;  // what check() wants beside the split
  whole.model.hidden_size = 64;
  whole.model.num_attention_heads = 4;
  whole.model.seq_length = whole.model.vocab_size = 64;
  whole.cluster.num_gpus = s.settings.pipeline_model_parallel_size;
  whole.settings.global_batch_size = 4 * s.settings.pipeline_model_parallel_size;
  try {
    check(whole);
  } catch (const UsageError& e) {
    return e.message();
  }
  return "runs";
}

}  // namespace

TEST_CASE("even splits") {
  CHECK(drawing(pipeline(8, 1)) == "E0-7L\n");
  CHECK(drawing(pipeline(8, 2)) == "E0-3\n4-7L\n");
  CHECK(drawing(pipeline(8, 2, 2)) ==
        "E0-1 4-5\n"
        "2-3 6-7L\n");
  CHECK(drawing(pipeline(8, 2, 4)) ==
        "E0 2 4 6\n"
        "1 3 5 7L\n");
  CHECK(refusal(pipeline(9, 2)) == "num_layers 9 must be divisible by pipeline_model_parallel_size 2");
  CHECK(refusal(pipeline(8, 2, 3)).starts_with("number of layers on each pipeline rank 4 must be divisible"));
  CHECK(refusal(pipeline(8, 2, 4)) == "runs");
}

TEST_CASE("uneven first and last stages") {
  Scenario s = pipeline(14, 4);
  s.settings.num_layers_in_first_pipeline_stage = 2;
  CHECK(drawing(s) == "E0-1\n2-5\n6-9\n10-13L\n");
  s.model.num_layers = 13;
  s.settings.num_layers_in_last_pipeline_stage = 3;
  CHECK(drawing(s) == "E0-1\n2-5\n6-9\n10-12L\n");
  CHECK(refusal(s) == "runs");
  s.model.num_layers = 12;
  CHECK(refusal(s).starts_with("number of layers at middle stage: 7 must be divisible"));
  s.model.num_layers = 4;
  CHECK(refusal(s).starts_with("Mismatch: -1 middle layers"));
  s = pipeline(12, 3, 2);
  s.settings.num_layers_in_last_pipeline_stage = 4;
  CHECK(drawing(s) ==
        "E0-1 6-7\n"
        "2-3 8-9\n"
        "4-5 10-11L\n");
  s.settings.num_layers_in_last_pipeline_stage = 3;
  CHECK(refusal(s) == "3 layers must be divisible by virtual pipeline parallel degree 2");
}

TEST_CASE("a virtual pipeline of a first and a last stage alone") {
  // Megatron Core divides by the number of stages between them, whatever the number of chunks.
  for (const Int v : {1, 2, 3}) {
    Scenario s = pipeline(8 * v, 2, v);
    s.settings.num_layers_in_first_pipeline_stage = 6 * v;
    CHECK(refusal(s) == "runs");
    s.settings.num_layers_in_last_pipeline_stage = 2 * v;
    CHECK(refusal(s).starts_with("ZeroDivisionError"));
    s.settings.virtual_pipeline_model_parallel_size.reset();
    CHECK(refusal(s) == "runs");
  }
}

TEST_CASE("embedding and loss count as layers") {
  Scenario s = pipeline(14, 4);
  s.settings.account_for_embedding_in_pipeline_split = s.settings.account_for_loss_in_pipeline_split = true;
  CHECK(drawing(s) == "E0-2\n3-6\n7-10\n11-13L\n");
  s.settings.virtual_pipeline_model_parallel_size = 2;
  CHECK(drawing(s) ==
        "E0 7-8\n"
        "1-2 9-10\n"
        "3-4 11-12\n"
        "5-6 13L\n");
  CHECK(refusal(s) == "runs");
  s.settings.num_layers_in_first_pipeline_stage = 2;
  CHECK(refusal(s).starts_with("cannot be set at the same time"));
  s = pipeline(16, 4);
  s.settings.account_for_loss_in_pipeline_split = true;
  CHECK(refusal(s).starts_with("17 layers, embedding or loss among them, must be divisible"));
}

TEST_CASE("layouts") {
  Scenario s = pipeline(8, 2);
  const auto layout = [&](const std::string& text) {
    s.settings.pipeline_model_parallel_layout = text;
    return refusal(s) == "runs" ? drawing(s) : refusal(s);
  };
  CHECK(layout("Ettt|tttttL") == "E0-2\n3-7L\n");
  CHECK(layout("Et*3|t*5,L") == "E0-2\n3-7L\n");
  CHECK(layout("E|tt|tt|ttttL") ==
        "E 2-3\n"
        "0-1 4-7L\n");
  CHECK(num_chunks(s) == 2);
  CHECK(interleaved(s));
  CHECK(layout("Et|(tt|)*2tttL") ==
        "E0 3-4\n"
        "1-2 5-7L\n");
  CHECK(layout("Etttt||tttt|L") ==
        "E0-3 4-7\n"
        ". L\n");
  CHECK(layout("Ett|tt|tttt,L").starts_with("pipeline_model_parallel_layout must be divisible"));
  CHECK(layout("t|EtttttttL") == "The first layer must be embedding");
  CHECK(layout("Ettttttt|Lt") == "The last layer must be loss");
  CHECK(layout("EEtttttttt|L") == "Embedding must be specified exactly once");
  CHECK(layout("Ettttttttt|L") == "Number of decoder layers 9 must match num_layers 8");
  CHECK(layout("Ettttm|ttttL") == "Number of mtp layers in layout must match mtp_num_layers");
  CHECK(layout("Etx|L") == "Invalid layer character: x");
  CHECK(layout("E(tt") == "a group in the layout is written (tt|)*4");
  CHECK(layout("Et*|L") == "a number must follow * in the layout");
  CHECK(layout("Et*99999999999999999999|L") == "a number must follow * in the layout");
  s.settings.virtual_pipeline_model_parallel_size = 3;
  CHECK(layout("E|tt|tt|ttttL").starts_with("virtual_pipeline_model_parallel_size conflicts"));
}

TEST_CASE("MTP layers") {
  Scenario s = pipeline(8, 2, 2);
  s.model.mtp_num_layers = 1;
  CHECK(drawing(s) == "E0-1 4-5\n2-3 6-7mL\n");
  s.settings.pipeline_model_parallel_layout = "Ettt|ttt|tt|mL";
  CHECK(drawing(s) == "E0-2 6-7\n3-5 mL\n");
  CHECK(refusal(s) == "runs");
  s.settings.pipeline_model_parallel_layout = "Ettt|ttt|ttm|L";
  CHECK(drawing(s) == "E0-2 6-7m\n3-5 L\n");
  CHECK(refusal(s) == "runs");
  s.settings.pipeline_model_parallel_layout = "Ettt|tttttm||L";
  CHECK(refusal(s).starts_with("Currently we restrict that the MTP"));
  s.settings.pipeline_model_parallel_layout = "Ettt|ttt|tm|tL";
  CHECK(refusal(s) == "decoder layers must be placed before MTP layers");
}

TEST_CASE("shapes are exchanged where MTP layers stand before the last rank, whatever mtp_standalone says") {
  Scenario s = pipeline(8, 2, 2);
  s.model.mtp_num_layers = 1;
  for (const bool stated : {false, true}) {
    s.settings.mtp_standalone = stated;
    s.settings.pipeline_model_parallel_layout.reset();
    CHECK(exchanges_shapes(s) == stated);
    s.settings.pipeline_model_parallel_layout = "Ettt|ttt|tt|mL";
    CHECK_FALSE(exchanges_shapes(s));
    s.settings.pipeline_model_parallel_layout = "Ettt|ttt|ttm|L";
    CHECK(exchanges_shapes(s));
  }
}

TEST_CASE("MTP layers beside no decoder layer have experts") {
  Scenario s = pipeline(8, 2, 2);
  s.model.mtp_num_layers = 1;
  s.model.num_moe_experts = 4;
  s.model.moe_layer_freq = {2};  // the last layer is dense
  CHECK_FALSE(is_moe_mtp(s));
  s.settings.pipeline_model_parallel_layout = "Ettt|ttt|t|tmL";
  CHECK_FALSE(is_moe_mtp(s));
  s.settings.pipeline_model_parallel_layout = "Ettt|ttt|tt|mL";
  CHECK(is_moe_mtp(s));
  s.software.megatron_bridge = "0.6.0";  // builds the last decoder layer's kind there, too
  CHECK_FALSE(is_moe_mtp(s));
  s.model.moe_layer_freq = {1};
  CHECK(is_moe_mtp(s));
  s.model.num_moe_experts.reset();
  CHECK_FALSE(is_moe_mtp(s));
}

TEST_CASE("one chunk a rank") {
  Scenario s = pipeline(8, 2, 1);
  CHECK_FALSE(interleaved(s));  // arguments.py makes it none
  s.software.megatron_bridge = "0.6.0";
  CHECK(interleaved(s));
  s.settings.virtual_pipeline_model_parallel_size.reset();
  CHECK_FALSE(interleaved(s));
}

TEST_CASE("every layer has exactly one place") {
  for (const Int p : {1, 2, 3, 4, 6}) {
    for (const Int v : {1, 2, 4}) {
      Scenario s = pipeline(48, p, p > 1 ? OptInt(v) : std::nullopt);
      std::vector<int> seen(48, 0);
      for (Int rank = 0; rank < p; ++rank) {
        for (Int chunk = 0; chunk < num_chunks(s); ++chunk) {
          for (const Int layer : layers_of(s, rank, chunk)) ++seen.at(static_cast<std::size_t>(layer));
        }
      }
      CHECK(seen == std::vector<int>(48, 1));
    }
  }
}

}  // namespace layout_test
