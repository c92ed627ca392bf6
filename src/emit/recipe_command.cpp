#include "recipe_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <sstream>

#include "pipewright/scenario/io.hpp"
#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

/// An option and the overrides that it stands for, {} its value; without {} what it switches on.
struct Option {
  std::string_view names;  ///< all of them, in blanks; underscores count as dashes
  std::string_view overrides;
};
// run_recipe.py, COMMON_OVERRIDE_FIELDS; scripts/performance/argument_parser.py with utils/overrides.py, by which the
// last two groups go.
constexpr std::array options = {
    Option{"-ms --max-steps", "train.train_iters={}"},
    Option{"-gb --global-batch-size", "train.global_batch_size={}"},
    Option{"-mb --micro-batch-size", "train.micro_batch_size={}"},
    Option{"-sl --seq-length", "dataset.seq_length={}"},
    Option{"-tp --tensor-model-parallel-size", "model.tensor_model_parallel_size={}"},
    Option{"-pp --pipeline-model-parallel-size", "model.pipeline_model_parallel_size={}"},
    Option{"-cp --context-parallel-size", "model.context_parallel_size={}"},
    Option{"-vp --virtual-pipeline-model-parallel-size", "model.virtual_pipeline_model_parallel_size={}"},
    Option{"-ep --expert-model-parallel-size", "model.expert_model_parallel_size={}"},
    Option{"-etp -et --expert-tensor-parallel-size", "model.expert_tensor_parallel_size={}"},
    Option{"--pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout={}"},
    Option{"--num-layers", "model.num_layers={}"},
    Option{"--hidden-size", "model.hidden_size={}"},
    Option{"--num-moe-experts", "model.num_moe_experts={}"},
    Option{"-rl --recompute-num-layers",
           "model.recompute_granularity=full model.recompute_method=block model.recompute_num_layers={}"},
    Option{"-ol --activation-offload-layers",
           "model.cpu_offloading=true model.cpu_offloading_weights=false model.cpu_offloading_num_layers={}"},
    Option{"--recompute-modules", "model.recompute_granularity=selective model.recompute_modules=[{}]"},
    Option{"--cuda-graph-impl", "model.cuda_graph_impl={}"},
    Option{"--nccl-ub", "ddp.nccl_ub={}"},
    Option{"--moe-a2a-overlap",
           "comm_overlap.overlap_moe_expert_parallel_comm=true comm_overlap.delay_wgrad_compute=true "
           "model.moe_shared_expert_overlap=false"},
    Option{
        "--use-megatron-fsdp",
        "ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params "
        "ddp.keep_fp8_transpose_cache=false ddp.average_in_collective=false model.gradient_accumulation_fusion=true"}};

// Of the rest: what takes a value and what takes none, without effect on a step; GPUs are the launcher's business.
constexpr std::string_view silent_values =
    "--data --dataset --lr --min-lr --warmup-iters --pretrained-checkpoint --save-dir --load-dir --save-interval "
    "--most-recent-k --account -a --partition -p --time --time-limit -t --container-image -i --mount --custom-mounts "
    "-cm --srun-arg --custom-srun-args -cs --custom-bash-cmds -cb --experiment-name --gres --packager --csp "
    "--additional-slurm-params -lmc --peak-mem-clk -lgc --lock-gpu-freq -vb --enable-vboost --step-func "
    "--dataset-root --dataset-name --tokenizer-model --hf-token -hf -wdk -wdp -wde -wdj -wds --log-dir -l "
    "--save-config-filepath --max-retries --nemo-home -nh --distributed-timeout-minutes --preempt-time --detach "
    "--pytorch-profiler -pyp --record-memory-history -mh --golden-values-path --enable-pct-binding";
constexpr std::string_view silent_switches =
    "--dry-run --dryrun -d --dump-env --wait --submission-dry-run --no-gpu-resource-request --offline --enable-nsys "
    "-en --export-nsys-sqlite --profiling-gpu-metrics --is-long-convergence-run --use-recipes "
    "--retry-on-testing-failure";
constexpr std::array silent_beginnings = {"--kubeflow-", "--wandb-", "--profiling-", "--nsys-"};
/// Which recipe.
constexpr std::string_view of_recipe =
    "--recipe --model --mode -m --model-family-name -mr --model-recipe-name -g --gpu -c --compute-dtype --task";
constexpr std::string_view gpus = "-ng --num-gpus", gpus_of_node = "-gn --gpus-per-node", nodes = "--nodes";

bool among(std::string_view names, std::string_view name) {
  return (' ' + std::string(names) + ' ').find(' ' + std::string(name) + ' ') != std::string::npos;
}

scenario::Strings known_options() {
  scenario::Strings all;
  const auto add = [&](std::string_view names) {
    std::istringstream words{std::string(names)};
    for (std::string word; words >> word;)
      if (word.starts_with("--")) all.push_back(word);
  };
  for (const auto& option : options) add(option.names);
  for (const auto names : {silent_values, silent_switches, of_recipe, gpus, gpus_of_node, nodes}) add(names);
  return all;
}

/// The command as overrides, a name for the recipe and numbers of GPUs.
class Reader {
 public:
  explicit Reader(const Launch& launch) : launch_(launch) {
    for (at_ = 0; at_ < launch.words.size(); ++at_) word(launch.words[at_].text);
  }
  const std::vector<Override>& overrides() const { return overrides_; }
  const std::string& recipe() const { return recipe_; }
  const Launch& launch() const { return launch_; }
  const std::map<std::string, std::string>& variables() const { return variables_; }

 private:
  Position here() const { return {launch_.file, launch_.words[at_].line}; }

  void word(const std::string& text) {
    if (!text.starts_with('-')) {
      if (text.find('=') == std::string::npos)
        throw UsageError(here(), text, "expected an option, or an override SECTION.FIELD=VALUE");
      overrides_.emplace_back(text, here());
      return;
    }
    const auto equals = text.find('=');
    std::string name = text.substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
    if (among(silent_switches, name)) return;
    if (name == "--deterministic") {
      overrides_.emplace_back("model.deterministic_mode=true", here());
      return;
    }
    const auto where = here();
    const auto value = [&]() -> std::string {
      if (equals != std::string::npos) return text.substr(equals + 1);
      if (at_ + 1 >= launch_.words.size()) throw UsageError(where, name, "a value is missing");
      return launch_.words[++at_].text;
    };
    if (among(of_recipe, name)) {
      recipe_ += (recipe_.empty() ? "" : " ") + name + ' ' + value();
    } else if (among(gpus, name)) {
      launch_.gpus = number(name, value(), where);
    } else if (among(gpus_of_node, name)) {
      launch_.gpus_of_node = number(name, value(), where);
    } else if (among(nodes, name)) {
      launch_.nodes = number(name, value(), where);
    } else if (name == "--env" || name == "-E" || name == "-ce" || name == "--custom-env-vars") {
      const std::string said = value();
      if (const auto is = said.find('='); is != std::string::npos) variables_[said.substr(0, is)] = said.substr(is + 1);
    } else if (among(silent_values, name) ||
               std::ranges::any_of(silent_beginnings, [&](const char* with) { return name.starts_with(with); })) {
      value();
    } else {
      option(name, value, where);
    }
  }

  template <typename Value>
  void option(const std::string& name, const Value& value, const Position& where) {
    const auto found = std::ranges::find_if(options, [&](const Option& one) { return among(one.names, name); });
    if (found == options.end())
      throw UsageError(where, name,
                       "is no option of Megatron Bridge's run_recipe.py, or not read: say what it sets as an override "
                       "SECTION.FIELD=VALUE",
                       {}, nearest_name(name, known_options()));
    std::string said = value();
    if (said == "None") said = "null";
    if (found->overrides.find("{}") == std::string_view::npos) {
      constexpr std::array on = {"true", "True", "1", "yes"}, off = {"false", "False", "0", "no"};
      if (std::ranges::find(off, said) != off.end()) return;
      if (std::ranges::find(on, said) == on.end())
        throw UsageError(where, name, "expected true or false, found " + said.substr(0, 60));
    }
    std::istringstream each{std::string(found->overrides)};
    for (std::string one; each >> one;) {
      if (const auto hole = one.find("{}"); hole != std::string::npos) one.replace(hole, 2, said);
      overrides_.emplace_back(one, where);
    }
  }

  static scenario::Int number(const std::string& name, const std::string& text, const Position& where) {
    scenario::Int found = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), found);
    if (error != std::errc() || end != text.data() + text.size() || found < 1 || found > 10'000'000)
      throw UsageError(where, name, "expected a number, found " + text.substr(0, 60));
    return found;
  }

  Launch launch_;
  std::size_t at_ = 0;
  std::vector<Override> overrides_;
  std::string recipe_;
  std::map<std::string, std::string> variables_;
};

}  // namespace

bool runs_recipe(std::string_view program) {
  constexpr std::array names = {"run_recipe.py", "setup_experiment.py", "performance/run_script.py",
                                "training/train.sh"};
  return std::ranges::any_of(names, [&](std::string_view name) { return program.ends_with(name); });
}

Import from_recipe_command(const Launch& given, const Machine& machine) {
  const Reader command(given);
  const auto& launch = command.launch();
  Machine known = machine;
  if (known.num_gpus == 0)
    known.num_gpus = launch.gpus.value_or(launch.gpus_of_node.value_or(0) * launch.nodes.value_or(1));
  if (launch.gpus_of_node && !machine.node_is_said) known.gpus_per_node = *launch.gpus_of_node;
  if (known.num_gpus > 0) known.gpus_per_node = std::min(known.gpus_per_node, known.num_gpus);
  if (machine.recipe.empty()) {
    judge_overrides(given.file, known, command.overrides());  // what is wrong with them is said first
    throw UsageError(
        {given.file, given.words.empty() ? 0 : given.words.front().line},
        command.recipe().empty() ? "run_recipe.py" : command.recipe(),
        fmt::format("a recipe of Megatron Bridge trains, which is Python and not read: --bridge FILE gives "
                    "its settings (the run_config.yaml beside a checkpoint, or what its --dry-run prints); "
                    "this command's own ({}) are put over them",
                    command.overrides().size()));
  }
  auto import = read_overrides(read_file(machine.recipe), machine.recipe, known, command.overrides());
  scenario::Strings said;
  for (const auto& [text, where] : command.overrides()) said.push_back(text);
  import.notes.insert(import.notes.begin(), launch.notes.begin(), launch.notes.end());
  import.notes.push_back(
      fmt::format("{}: settings of {}{}{}; what Megatron Bridge derives from them beyond these fields "
                  "is as the file has it",
                  command.recipe().empty() ? "the recipe" : command.recipe(), machine.recipe,
                  said.empty() ? "" : ", over them ", fmt::join(said, " ")));
  for (const auto* variables : {&launch.variables, &command.variables()})
    for (const auto& [name, value] : *variables)
      if (!is_open(value)) scenario::set_env(import.scenario, name + "=" + value);
  return import;
}

}  // namespace pipewright::emit
