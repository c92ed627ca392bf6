// Whatever is done to a command line, a launch script, a model_config.yaml or Bridge overrides: it is read or refused
// by a UsageError of one line, never anything else; and what comes out of an odd value is one word, one literal, one
// line.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "../../src/emit/python.hpp"
#include "../../src/emit/shell_words.hpp"
#include "../draws.hpp"
#include "../mutate.hpp"
#include "../plan/bases.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/fields.hpp"

namespace hostile_test {

using namespace pipewright;

namespace {

const emit::Machine machine = {8, 8, "h200-sxm", ""};

constexpr const char* flags =
    "CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 --nnodes=2 pretrain_gpt.py --num-layers 32 "
    "--hidden-size "
    "4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 128256 --swiglu --micro-batch-size 1 --num-experts 8 "
    "--moe-layer-freq ([0]*2+[1]*30) --recompute-granularity selective --recompute-modules mlp core_attn --bf16 "
    "--rotary-base 500000 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*7|t*8|t*8|t*9L'";

constexpr const char* script =
    "#!/bin/bash\n#SBATCH --nodes=4 --ntasks-per-node=8\nexport CUDA_DEVICE_MAX_CONNECTIONS=1\nTP=${TP:-2}\n"
    "WORLD=$(($TP * 4))\nMODEL_ARGS=(\n  --num-layers 32 # layers\n  --hidden-size 4096\n  \"--seq-length 4096\"\n)\n"
    "if [[ \"$TP\" -gt 1 && -n \"$WORLD\" ]]; then\n  MODEL_ARGS+=(--sequence-parallel)\nelse\n  exit 1\nfi\n"
    "for x in bf16 swiglu; do EXTRA+=\" --$x\"; done\ncase $TP in 1) A=1;; 2|4) A=2;; *) A=3;; esac\n"
    "cat <<EOF > x\nanything \" ' ( goes\nEOF\nrun() { echo $1; }\nrun now | tee log 2>&1\n"
    "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL_ARGS[@]} $EXTRA \\\n  --num-attention-heads 32 \\\n"
    "  --tensor-model-parallel-size $TP --micro-batch-size $A --vocab-size 32000 \"$@\"\n";

constexpr const char* model_config =
    "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\nMODEL_ARGS:\n  --num-layers: 16 # layers\n  --hidden-size: 1024\n"
    "  --num-attention-heads: 32\n  --seq-length: 4096\n  --micro-batch-size: 4\n  --vocab-size: 51200\n  --swiglu: "
    "true\n"
    "  --recompute-modules: \"[mlp core_attn]\"\n  --recompute-granularity: selective\n  --moe-layer-freq: "
    "([0]*1+[1]*15)\n"
    "  --num-experts: 32\nTEST_TYPE: regular\n";

constexpr const char* bridge =
    "from x import y\ncfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
    "cfg.model.seq_length = 4096\ncfg.dataset.seq_length = 4096\ncfg.model.vocab_size = 128256  # padded\n"
    "cfg.model.num_moe_experts = 8\ncfg.model.moe_layer_freq = [0]*3 + [1]*29\n"
    "cfg.model.recompute_granularity = 'selective'\ncfg.model.recompute_modules = [\n    \"mlp\",\n    "
    "\"core_attn\",\n]\n"
    "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False)\ncfg.comm_overlap.delay_wgrad_compute = True\n"
    "cfg.mixed_precision = get_mixed_precision_config(\"bf16_mixed\")\ncfg.env_vars[\"A\"] = \"x\\\"y\"\n"
    "cfg.train.micro_batch_size = 1; cfg.train.global_batch_size = 16\n";

/// Reads mutants of a good text; returns how many were read, not refused.
int survivors(const char* seed, const std::function<emit::Import(const std::string&)>& read) {
  read(seed);  // good as it stands
  int count = 0;
  for (unsigned round = 0; round < test::draws(1500); ++round) {
    test::Mutator mutate(round);
    const std::string text = mutate(seed);
    CAPTURE(text);
    try {
      read(text);
      ++count;
    } catch (const UsageError& error) {
      CHECK(std::string_view(error.what()).size() < 4000);
    } catch (const std::exception& error) {
      FAIL(error.what());
    }
  }
  return count;
}

}  // namespace

TEST_CASE("mutated command lines, scripts and overrides are read or refused") {
  const int some = test::few() ? 4 : 50;
  CHECK(survivors(flags, [](const std::string& text) { return emit::from_megatron(text, machine); }) > some);
  CHECK(survivors(script, [](const std::string& text) { return emit::from_launch_file(text, "a.sh", machine); }) >
        some);
  CHECK(survivors(model_config, [](const std::string& text) {
          return emit::from_launch_file("MODEL_ARGS:\n" + text, "a.yaml", machine);
        }) > some);
  // Fewer: what is done to another name than the configuration's is refused.
  CHECK(survivors(bridge, [](const std::string& text) { return emit::from_bridge_text(text, "a.py", machine); }) >
        some / 2);
}

TEST_CASE("Python that never ends, or is larger than any list") {
  const auto refused = [](const std::string& text) {
    CHECK_THROWS_AS(emit::parse_python(text, {"a.py", 1}, "x"), UsageError);
  };
  refused("[0]*9223372036854775807");
  refused("[0,0,0,0]*4611686018427387904");
  refused(std::string(100'000, '['));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "[{";
  refused(deep);
  refused("9223372036854775807*9223372036854775807");
  refused("1e999");
  CHECK(emit::parse_python("[]*9223372036854775807", {}, "x").items.empty());
  CHECK(emit::parse_python("[1]*-5", {}, "x").items.empty());
  CHECK(emit::parse_python("([0]*3+[1]*29)", {}, "x").items.size() == 32);
  CHECK(emit::parse_python("1, 2,", {}, "x").items.size() == 2);
  CHECK(emit::parse_python("4*4096", {}, "x").text == "16384");
}

TEST_CASE("odd values come out as one shell word, one Python literal and one comment line") {
  const std::string letters = "ab \"'\\$`\n\t;|&#(){}[]<>*?!~\x01\x7f=%";
  test::Mutator random(7);
  for (unsigned round = 0; round < test::draws(500); ++round) {
    std::string value = "v";
    for (std::size_t n = random.below(12); n > 0; --n) value += letters[random.below(letters.size())];
    CAPTURE(value);
    CHECK(emit::split_shell("X=" + emit::quoted(value)) == std::vector<std::string>{"X=" + value});
    const auto literal = emit::python_string(value);
    CHECK(literal.find('\n') == std::string::npos);
    CHECK(emit::parse_python(literal, {"a.py", 1}, "x").text == value);
    CHECK(emit::unquoted(scenario::yaml_scalar(value)) == value);

    auto s = test::scenario("dense", "");
    s.environment = {{"ODD", value}};
    std::string printed;
    for (const auto& word : emit::words(emit::bridge(s))) printed += word + "\n";
    CHECK(emit::from_bridge_text(printed, "b", machine).scenario.environment.at("ODD") == value);
    const auto words = emit::split_shell(emit::text(emit::environment(s), false));
    CHECK(std::ranges::count(words, "ODD=" + value) == 1);
    s.settings.other["config_logger_dir"] = scenario::yaml_scalar(value);
    const auto remarks = emit::text(emit::megatron(s), true);
    for (std::size_t at = remarks.find("config_logger_dir"); at != std::string::npos;
         at = remarks.find("config_logger_dir", at + 1))
      CHECK(remarks.rfind("# ", at) + 2 == at);
  }
}

}  // namespace hostile_test
