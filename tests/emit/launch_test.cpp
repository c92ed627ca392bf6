// What trains, and what a launch script would run: programs that train other models are refused by name, whatever the
// input; a script's own words for the same command give the same scenario.
#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "../../src/emit/field_table.hpp"
#include "../../src/emit/programs.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace launch_test {

using namespace pipewright;

namespace {

const emit::Machine machine{0, 8, "h100-sxm", ""};
const std::string flags =
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 2048 "
    "--micro-batch-size 1 --global-batch-size 64 --vocab-size 32000 --bf16 --tensor-model-parallel-size 2 "
    "--sequence-parallel --use-distributed-optimizer";

scenario::Scenario of_script(const std::string& text) {
  return emit::from_launch_file(text, "train.sh", machine).scenario;
}
std::string refusal(const std::string& command) {
  try {
    emit::from_megatron(command, machine);
  } catch (const UsageError& error) {
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("a program that trains something else is refused by its name and what it does") {
  for (const char* program :
       {"pretrain_bert.py", "/opt/megatron/pretrain_t5.py", "pretrain_vlm.py", "examples/multimodal/train.py",
        "./examples/mimo/train.py", "pretrain_hybrid_flex.py", "train_rl.py", "pretrain_vision_dino.py",
        "tools/run_text_generation_server.py", "examples/inference/advanced/gpt_static_inference.py",
        "tools/run_hybrid_text_generation_server.py", "text_generation_ptq.py", "hf2mcore_qwen2.py",
        "pretrain_llava.py", "evaluate_megatron_llama.py"}) {
    CAPTURE(program);
    REQUIRE_FALSE(emit::other_work(program).empty());
    const std::string name = std::string(program).substr(std::string(program).rfind('/') + 1);
    const auto said = refusal(std::string("torchrun --nproc_per_node 8 ") + program + " " + flags);
    CHECK(said.find(name) != std::string::npos);
    CHECK(said.find(emit::other_work(program)) != std::string::npos);
  }
  CHECK(refusal("torchrun --nproc_per_node 8 pretrain_gpt.py " + flags).empty());
  CHECK(refusal("torchrun --nproc_per_node 8 my/train.py " + flags).empty());  // a note says what it is taken for
}

TEST_CASE("hybrids are trained by their own program, GPT models by theirs") {
  const std::string pattern = " --hybrid-layer-pattern 'M-M-M-M*'";
  for (const char* program : {"pretrain_hybrid.py", "./pretrain_mamba.py"}) {
    CAPTURE(program);
    const std::string run = std::string("torchrun --nproc_per_node 8 ") + program + " " + flags;
    CHECK(refusal(run + pattern).empty());
    CHECK(refusal(run).find("--hybrid-layer-pattern: is missing") != std::string::npos);
  }
  CHECK(refusal("torchrun --nproc_per_node 8 pretrain_gpt.py " + flags + pattern).find("builds no hybrid") !=
        std::string::npos);
  CHECK(refusal(flags + pattern).empty());
}

TEST_CASE("flags that only other programs read say so where no program is named") {
  int tried = 0;
  for (const auto& flag : emit::other_flags()) {
    const auto* effect = scenario::effect_of(flag.name);
    REQUIRE(effect != nullptr);
    if (!effect->text.starts_with("read by programs other than pretrain_gpt.py")) continue;
    CAPTURE(std::string(flag.name));
    CHECK_FALSE(emit::other_model_of_flag(flag.name).empty());
    const std::string takes(flag.takes), word = takes.find('|') < takes.size() ? takes.substr(0, takes.find('|')) : "1";
    const std::string with = flags + " " + std::string(flag.name) + (takes.empty() ? "" : " " + word);
    CHECK(refusal(with).find(flag.name) != std::string::npos);
    CHECK(refusal("pretrain_gpt.py " + with).empty());
    ++tried;
  }
  CHECK(tried > 30);
  CHECK(refusal(flags + " --tokenizer-type BertWordPieceLowerCase").find("BERT") != std::string::npos);
  CHECK(refusal(flags + " --vocab-file vocab.txt").find("BERT") != std::string::npos);
  CHECK(refusal(flags + " --vocab-file vocab.json --merge-file merges.txt").empty());
}

TEST_CASE("the folder of a functional test says what runs it, and its MODE whether it trains") {
  const auto read = [](const std::string& folder, const std::string& head) {
    const std::string text = head +
                             "MODEL_ARGS:\n  --num-layers: 8\n  --hidden-size: 1024\n  --num-attention-heads: 16\n"
                             "  --seq-length: 2048\n  --micro-batch-size: 1\n  --vocab-size: 32000\n  --bf16: true\n";
    return emit::from_launch_file(text, "tests/functional_tests/test_cases/" + folder + "/x/model_config.yaml", machine)
        .scenario.model.num_layers;
  };
  for (const char* folder : {"gpt", "moe", "mixtral", "of-ones-own"}) CHECK(read(folder, "") == 8);
  CHECK(read("gpt", "MODE: pretraining\n") == 8);
  CHECK_THROWS_WITH_AS(
      emit::from_launch_file("MODEL_ARGS: {--num-layers: 8, --hidden-size: 1024}\n", "a.yaml", machine),
      "a.yaml:1: MODEL_ARGS: expected NAME: VALUE, each in a line of its own below it", UsageError);
  for (const char* folder : {"bert", "t5", "multimodal-llava", "mimo", "hybrid", "nemotron", "gpt-nemo"}) {
    CAPTURE(folder);
    CHECK_THROWS_AS(read(folder, ""), UsageError);
  }
  CHECK_THROWS_WITH_AS(read("gpt", "MODE: inference\n"), doctest::Contains("MODE: inference is not modelled"),
                       UsageError);
}

TEST_CASE("one command in a script's many spellings") {
  const auto said = of_script("torchrun --nproc_per_node 8 pretrain_gpt.py " + flags + "\n");
  CHECK(said.cluster.num_gpus == 8);
  const std::string run = "torchrun --nproc_per_node 8 pretrain_gpt.py ";
  for (const std::string& script : {
           "CMD=\"" + run + flags + "\"\necho $CMD\neval $CMD\n",
           "read -r -d '' ARGS <<EOF\n" + flags + "\nEOF\n" + run + "$ARGS\n",
           "read -r -d '' ARGS << 'END'\n" + flags + "\nEND\n" + run + "${ARGS} 2>&1 | tee log\n",
           "args() { echo \"" + flags + "\"; }\n" + run + "$(args)\n",
           "args() {\n  local tp=$1\n  echo " + flags.substr(0, flags.find("--tensor")) +
               "\n  echo --tensor-model-parallel-size $tp --sequence-parallel --use-distributed-optimizer\n}\nX=$(args "
               "2)\n" +
               run + "$X\n",
           "declare -A OF=([7B]=\"" + flags + "\" [70B]=\"--num-layers 80\")\nSIZE=7B\n" + run + "${OF[$SIZE]}\n",
           "declare -A OF\nOF[small]=\"" + flags + "\"\n" + run + "${OF[small]}\n",
           "N=`expr 4 \\* 2`\ntorchrun --nproc_per_node $N pretrain_gpt.py " + flags + "\n",
           "while read line; do echo $line; done <<< \"$LIST\"\n" + run + flags + "\n",
           "#!/bin/bash\nARGS=\"" + flags +
               "\"\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --gpus-per-node=8\n#SBATCH --nodes=1\n" +
               "srun --container-image=x bash -x -c \"cd /m;\npython pretrain_gpt.py ${ARGS}\" 2>&1 | tee "
               "log\nEOF\nset -e\n",
           "cat <<'EOF' > job.sh\n#!/bin/bash\n" + run + flags + "\nEOF\nsbatch job.sh\n",
           "bash << END\n" + run + flags + "\nEND\n",
           "cat <<'PY' > x.py\nif (: \"\nPY\n" + run + flags + "\n",
       }) {
    CAPTURE(script);
    CHECK(of_script(script) == said);
  }
  const auto exported = of_script("export NCCL_DEBUG=WARN\nCMD=\"" + run + flags + "\"\neval ${CMD}\n");
  CHECK(exported.environment.at("NCCL_DEBUG") == "WARN");
}

TEST_CASE("how many nodes and GPUs there are is told, never taken to be one where it depends on the machine") {
  const std::string run = " pretrain_gpt.py " + flags + "\n";
  for (const std::string head :
       {"", "NNODES=$(wc -l < hosts)\n", "NODES=($(scontrol show hostnames))\nNNODES=${#NODES[@]}\n",
        "mapfile -t NODES < <(scontrol show hostnames)\nNNODES=${#NODES[@]}\n",
        "while read -r h; do NODES+=(\"$h\"); done < <(scontrol show hostnames)\nNNODES=${#NODES[@]}\n",
        "NNODES=0\nwhile read -r h; do NNODES=$((NNODES + 1)); done < hosts\n",
        "NNODES=0\nwhile read -r h; do ((NNODES++)); done < hosts\n",
        "IFS=, read -ra NODES <<< \"$HOSTS\"\nNNODES=${#NODES[@]}\n"}) {
    CAPTURE(head);
    const std::string of_nodes = head + "torchrun --nnodes $NNODES --nproc_per_node 8" + run;
    const std::string of_gpus = head + "torchrun --nproc_per_node=$NNODES" + run;
    const std::string of_all = head + "mpirun -np $NNODES python" + run;
    for (const auto& script : {of_nodes, of_gpus, of_all}) {
      CHECK_THROWS_WITH_AS(of_script(script), doctest::Contains("--env NNODES=VALUE"), UsageError);
      CHECK(emit::from_launch_file(script, "train.sh", {16, 8, "h100-sxm", ""}).scenario.cluster.num_gpus == 16);
    }
    CHECK(of_script("#SBATCH -N 2\n" + of_nodes).cluster.num_gpus == 16);
    CHECK(of_script(head + "srun -N 2 --ntasks-per-node 8 torchrun --nnodes $NNODES" + run).cluster.num_gpus == 16);
  }
  const auto elastic = emit::from_launch_file("torchrun --nnodes 1:4 --nproc_per_node 8" + run, "train.sh", machine);
  CHECK(elastic.gpus_guessed);
  CHECK(elastic.notes.front() == "--nnodes 1:4 is no number of GPUs or nodes: say it with --gpus");
  // A script that reads its own arguments in a loop has none.
  CHECK(of_script("N=2\nwhile [[ $# -gt 0 ]]; do case $1 in --n) N=$2; shift 2;; esac; done\ntorchrun --nnodes $N "
                  "--nproc_per_node 8" +
                  run)
            .cluster.num_gpus == 16);
}

TEST_CASE("a script that ends where nobody says whether it does is followed on, and one that ends told with its line") {
  const std::string run = "torchrun --nproc_per_node 8 pretrain_gpt.py " + flags + "\n";
  // What decides depends on a variable that nobody sets, on the machine, or on a program.
  const std::vector<std::string> open = {
      "[ -z $SLURM_JOB_ID ]", "[[ -z \"${SLURM_JOB_ID}\" ]]",      "[ ! -n \"$DATA\" ]",
      "[ \"$DATA\" = \"\" ]", "[[ $MODEL != llama && -z $DATA ]]", "mkdir -p logs",
      "[ -z \"${DATA:-}\" ]"};
  const std::vector<std::string> known = {"true", "[ -z '' ]", "[ 3 -eq 3 ]", "[[ llama == ll* ]]"};
  const auto guards = [](const std::string& test) {
    return std::vector<std::string>{"if " + test + "; then\n  sbatch \"$0\"\n  exit\nfi\n",
                                    test + " && exit 1\n",
                                    test + " && { echo usage; exit 1; }\n",
                                    "if ! " + test + "; then :; else exit 1; fi\n",
                                    "if false; then :; elif " + test + "; then exit 1; else :; fi\n",
                                    "usage() { echo usage; exit 1; }\nif " + test + "; then usage; fi\n",
                                    "for x in 1 2; do if " + test + "; then exit 2; fi; done\n",
                                    "if " + test + "; then if true; then exit 3; fi; fi\n"};
  };
  for (const auto& test : open)
    for (const auto& guard : guards(test)) {
      CAPTURE(guard);
      CHECK(scenario::write(of_script(guard + run)) == scenario::write(of_script(run)));
    }
  for (const auto& test : known)
    for (const auto& guard : guards(test)) {
      CAPTURE(guard);
      CHECK_THROWS_WITH_AS(of_script(guard + run), doctest::Contains("the script ends here"), UsageError);
    }
  CHECK_THROWS_WITH_AS(of_script("N=1\nexit 0\n" + run), doctest::Contains("train.sh:2: the script ends here"),
                       UsageError);
  // What stands behind the end in its own branch runs no more than the end.
  const std::string tp = run.substr(0, run.size() - 1) + " --tensor-model-parallel-size $TP\n";
  CHECK(of_script("TP=1\nif [ -z $JOB ]; then exit; TP=4; fi\n" + tp).settings.tensor_model_parallel_size == 1);
}

TEST_CASE("files that a script sources are followed, by the folders that it names them by") {
  const auto folder = std::filesystem::temp_directory_path() / ("sourced-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder / "models");
  const auto write = [&](const std::string& name, const std::string& text) { std::ofstream(folder / name) << text; };
  write("models/small.sh", "MODEL=(" + flags + ")\nreturn 0\nMODEL=()\n");
  write("odd.sh", "MODEL=()\nif then ((\n");
  const auto path = (folder / "train.sh").string();
  const std::string run = "torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL[@]}\n";
  const auto scenario_of = [&](const std::string& head) {
    auto s = emit::from_launch_file(head + run, path, machine).scenario;
    s.origin = {};
    return scenario::write(s);
  };
  const auto expected = scenario_of("MODEL=(" + flags + ")\n");
  for (const std::string& head : std::vector<std::string>{
           "source models/small.sh\n", ". ./models/small.sh\n", "source $(dirname $0)/models/small.sh\n",
           "DIR=\"$( cd \"$( dirname \"${BASH_SOURCE[0]}\" )\" >/dev/null 2>&1 && pwd )\"\nsource "
           "\"$DIR/models/small.sh\"\n",
           "HERE=$(dirname \"$(realpath \"$0\")\")\nNAME=small\n. $HERE/models/${NAME}.sh\n",
           "HERE=$(dirname $(readlink -f $0))\nsource ${HERE}/models/$(basename /x/small.sh)\n",
           "f() { source models/small.sh; }\nf\n", "MODEL=(" + flags + ")\nsource odd.sh\nsource none.sh\n"}) {
    CAPTURE(head);
    CHECK(scenario_of(head) == expected);
  }
  // Places are the script's own.
  write("models/small.sh", "MODEL=(\n --num-layers x)\n");
  CHECK_THROWS_WITH_AS(scenario_of("\nsource models/small.sh\n"), doctest::Contains("train.sh:2: --num-layers"),
                       UsageError);
  std::filesystem::remove_all(folder);
}

TEST_CASE("a script's own arguments are those that are given") {
  const std::string run = "TP=$1 N=${2:-1}\ntorchrun --nnodes $N --nproc_per_node 8 pretrain_gpt.py " + flags +
                          " --tensor-model-parallel-size $TP \"${@:3}\"\n";
  const auto with = [&](const char* arguments) {
    emit::Machine given = machine;
    given.arguments = arguments;
    return emit::from_launch_file(run, "train.sh", given).scenario;
  };
  CHECK(with("4 2 --swiglu").cluster.num_gpus == 16);
  CHECK(with("4 2 --swiglu --rotary-percent '0.5'").model.gated_linear_unit);
  CHECK(with("4").settings.tensor_model_parallel_size == 4);
  CHECK_FALSE(with("4").model.gated_linear_unit);
  CHECK_THROWS_WITH_AS(of_script(run), doctest::Contains("${1} is not set: give what it holds with --arguments"),
                       UsageError);
}

TEST_CASE("what a command says that nobody can run is asked for by the variable that keeps it") {
  for (const std::string value :
       {"$(nvidia-smi -L | wc -l)", "`wc -l < x`", "$(($SLURM_NNODES * 2))", "${#NODES[@]}"}) {
    CAPTURE(value);
    const std::string script = (value.find('#') == std::string::npos ? "" : "mapfile -t NODES < hosts\n") +
                               ("B=" + value + "\ntorchrun --nproc_per_node 8 pretrain_gpt.py ") + flags +
                               " --global-batch-size $B\n";
    const std::string name = value.find("SLURM") == std::string::npos ? "B" : "SLURM_NNODES";
    CHECK_THROWS_WITH_AS(of_script(script), doctest::Contains(("--env " + name + "=VALUE").c_str()), UsageError);
    const auto given = emit::from_launch_file(script, "train.sh", machine, {{name, "64"}}).scenario;
    CHECK(given.settings.global_batch_size == (name == "B" ? 64 : 128));
  }
}

TEST_CASE(
    "a value that no version takes of a flag without effect is told with the unknown flags, and dropped as asked") {
  const std::string odd = "--tokenizer-type HFTokenizer --lr abc";
  const auto said = refusal(flags + " --tokenizer-type HFTokenizer --patch-tokenizer-type x");
  for (const char* part : {"\"HFTokenizer\"", "--patch-tokenizer-type", "--ignore --tokenizer-type"})
    CHECK(said.find(part) != std::string::npos);
  emit::Machine without = machine;
  without.ignore = {"--tokenizer-type", "--lr"};
  const auto read = emit::from_megatron(flags + " " + odd, without);
  CHECK(read.dropped == std::set<std::string>{"--lr", "--tokenizer-type"});
  CHECK(scenario::write(read.scenario) == scenario::write(emit::from_megatron(flags, machine).scenario));
  CHECK(refusal(flags + " --log-batch-size-to-tensorboard --no-query-key-layer-scaling --data-impl mmap").empty());
}

TEST_CASE("GPUs that are said beside a launcher stand in its nodes, unless those are said too") {
  const std::string run = "torchrun --nnodes 2 --nproc_per_node 4 pretrain_gpt.py " + flags + "\n";
  emit::Machine said{16, 8, "h100-sxm", ""};
  CHECK(emit::from_launch_file(run, "train.sh", said).scenario.cluster.gpus_per_node == 4);
  CHECK(emit::from_megatron(run, said).scenario.cluster.gpus_per_node == 4);
  said.node_is_said = true;
  CHECK(emit::from_launch_file(run, "train.sh", said).scenario.cluster.gpus_per_node == 8);
}

TEST_CASE("a line that was not continued is told: bash would train without its flags") {
  const std::string run = "torchrun --nproc_per_node 8 pretrain_gpt.py " + flags;
  for (const std::string& script :
       {run + "\n  --swiglu --disable-bias-linear\n", run + " \\ \n  --swiglu\n",
        "ARGS=\"" + flags + "\n--swiglu\"\nbash -c \"torchrun --nproc_per_node 8 p.py $ARGS\"\n"}) {
    CAPTURE(script);
    CHECK_THROWS_WITH_AS(of_script(script), doctest::Contains("--swiglu: begins a command of its own"), UsageError);
  }
  CHECK_THROWS_WITH_AS(of_script(run + " \\ \n"), doctest::Contains("a word of blanks"), UsageError);
}

TEST_CASE("variables that only the machine knows are no values") {
  const std::string text =
      "export MASTER_ADDR=$(hostname) CUDA_DEVICE_MAX_CONNECTIONS=${CONNECTIONS} LD_LIBRARY_PATH=/x:$LD_LIBRARY_PATH\n"
      "export NCCL_DEBUG=WARN\ntorchrun --nproc_per_node 8 pretrain_gpt.py " +
      flags + "\n";
  const auto import = emit::from_launch_file(text, "train.sh", machine);
  for (const auto& [name, value] : import.scenario.environment) {
    CAPTURE(name);
    CHECK(value.find("${") == std::string::npos);
  }
  CHECK(import.scenario.environment.at("NCCL_DEBUG") == "WARN");
  CHECK(std::ranges::find(import.notes,
                          "known only where the script runs, taken as not set: CUDA_DEVICE_MAX_CONNECTIONS, "
                          "LD_LIBRARY_PATH, MASTER_ADDR (--env NAME=VALUE says one)") != import.notes.end());
  const auto said = emit::from_launch_file(text, "train.sh", machine, {{"CONNECTIONS", "1"}});
  CHECK(said.scenario.environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "1");
}

TEST_CASE("a recipe of Megatron Bridge is told for one") {
  for (const char* command :
       {"torchrun --nproc_per_node=8 scripts/training/run_recipe.py --recipe llama3_8b\n",
        "srun bash -c \"cd x; uv run python run_recipe.py --recipe=llama3_8b --micro_batch_size 2 "
        "model.tensor_model_parallel_size=2\"\n"})
    CHECK_THROWS_WITH_AS(of_script(command), doctest::Contains("a recipe of Megatron Bridge trains"), UsageError);
}

TEST_CASE("what no version has is told at once, with the way to go on without it") {
  const auto said = refusal(flags + " --model-types GPT --max-padding-lengths 4096 --recompute-module mlp");
  for (const char* part :
       {"--model-types", "so are --max-padding-lengths", "--recompute-module (did you mean --recompute-modules?)",
        "without them: --ignore --model-types --ignore --max-padding-lengths --ignore --recompute-module"})
    CHECK_MESSAGE(said.find(part) != std::string::npos, said);
  auto without = machine;
  without.ignore = {"--model-types", "--max-padding-lengths", "--recompute-module"};
  CHECK_NOTHROW(
      emit::from_megatron(flags + " --model-types GPT --max-padding-lengths 4096 --recompute-module mlp", without));
}

TEST_CASE("commands within words end") {
  CHECK_THROWS_AS(of_script("bash <<A\n" + flags + " $( \nA\n"), UsageError);
  CHECK_THROWS_AS(of_script("f() { echo $(f)$(f); }\n$(f)\n"), UsageError);
  CHECK_THROWS_AS(of_script("f() { echo 1; }\nX=$(g)\ntorchrun pretrain_gpt.py --num-layers $X\n"), UsageError);
}

TEST_CASE("what a flag's value breaks is said with the flag's line") {
  const std::string script = "ARGS=\"--deterministic-mode\"\ntorchrun --nproc_per_node 8 pretrain_gpt.py \\\n  " +
                             flags + " \\\n  --num-distributed-optimizer-instances 3 $ARGS\n";
  const auto s = of_script(script);
  CHECK(scenario::position(s, "settings.num_distributed_optimizer_instances").line == 4);
  CHECK(scenario::position(s, "settings.deterministic_mode").line == 1);
  CHECK(scenario::position(s, "settings.deterministic_mode").file == "train.sh");
  for (const auto& [name, where] : s.positions.all()) CHECK(where.file != "--set");
  CHECK_THROWS_WITH_AS(scenario::check(s),
                       doctest::Contains("train.sh:4: settings.num_distributed_optimizer_instances"), UsageError);
}

TEST_CASE("patterns of MoE layers are Megatron's") {
  const auto layers = [](const std::string& pattern) {
    const auto s =
        emit::from_megatron(flags + " --num-experts 8 --moe-layer-freq \"" + pattern + "\"", machine).scenario;
    scenario::check(s);
    return s.model.moe_layer_freq;
  };
  CHECK(layers("2") == scenario::Ints{2});
  CHECK(layers("([0]*3+[1]*5)") == scenario::Ints{0, 0, 0, 1, 1, 1, 1, 1});
  for (const char* wrong : {"[]", "[1]", "[1]*7", "[0]*9", "0", "[0]*7+[2]", "-1"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(layers(wrong), UsageError);
  }
}

}  // namespace launch_test
