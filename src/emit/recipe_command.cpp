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
    Option{"--nccl-ub", "ddp.nccl_ub={}"},
    Option{"--moe-a2a-overlap",
           "comm_overlap.overlap_moe_expert_parallel_comm=true comm_overlap.delay_wgrad_compute=true "
           "model.moe_shared_expert_overlap=false"},
    Option{
        "--use-megatron-fsdp",
        "ddp.use_megatron_fsdp=true ddp.data_parallel_sharding_strategy=optim_grads_params "
        "ddp.keep_fp8_transpose_cache=false ddp.average_in_collective=false model.gradient_accumulation_fusion=true"}};

/// An option that has a few values; true and false are argparse's spellings of them.
struct ValuedOption {
  std::string_view name, value, overrides;
};
// Megatron Bridge: utils/overrides.py, training/flex_dispatcher_backend.py, training/utils/moe_token_drop.py.
constexpr std::array valued_options = {
    ValuedOption{"--cuda-graph-impl", "none", "model.cuda_graph_impl=none model.cuda_graph_modules=[]"},
    ValuedOption{"--cuda-graph-impl", "local", "model.cuda_graph_impl=local model.use_te_rng_tracker=true"},
    ValuedOption{"--cuda-graph-impl", "transformer_engine",
                 "model.cuda_graph_impl=transformer_engine model.use_te_rng_tracker=true"},
    ValuedOption{"--moe-flex-dispatcher-backend", "None", "model.moe_token_dispatcher_type=alltoall"},
    ValuedOption{"--moe-flex-dispatcher-backend", "deepep",
                 "model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend=deepep "
                 "model.moe_shared_expert_overlap=false"},
    ValuedOption{"--moe-flex-dispatcher-backend", "hybridep",
                 "model.moe_token_dispatcher_type=flex model.moe_flex_dispatcher_backend=hybridep "
                 "model.moe_shared_expert_overlap=false"},
    ValuedOption{"--use-tokendrop", "true",
                 "model.moe_expert_capacity_factor=1.0 model.moe_pad_expert_input_to_capacity=true "
                 "model.moe_router_force_load_balancing=false"},
    ValuedOption{"--use-tokendrop", "false",
                 "model.moe_expert_capacity_factor=null model.moe_pad_expert_input_to_capacity=false "
                 "model.moe_router_force_load_balancing=true"}};
/// Options whose overrides depend on the recipe's own settings.
constexpr std::string_view scope_option = "--cuda-graph-scope", dense_layers_option = "--first-k-dense-replace",
                           layers_option = "--num-layers";
constexpr scenario::Int most_layers = 100'000;  // of a list in Python's syntax
constexpr std::array graph_scopes = {"full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba"};

// Of the rest: what takes a value and what takes none, without effect on a step; GPUs are the launcher's business.
constexpr std::string_view silent_values =
    "--data --dataset --lr --min-lr --warmup-iters --pretrained-checkpoint --save-dir --load-dir --save-interval "
    "--most-recent-k --account -a --partition -p --time --time-limit -t --container-image -i --mount --custom-mounts "
    "-cm --srun-arg --custom-srun-args -cs --custom-bash-cmds -cb --experiment-name --gres --packager --csp "
    "--additional-slurm-params -lmc --peak-mem-clk -lgc --lock-gpu-freq -vb --enable-vboost --step-func "
    "--dataset-root --dataset-name --tokenizer-model --hf-token -hf -wdk -wdp -wde -wdj -wds --log-dir -l "
    "--save-config-filepath --max-retries --nemo-home -nh --distributed-timeout-minutes --preempt-time --detach "
    "--pytorch-profiler -pyp --record-memory-history -mh --golden-values-path --enable-pct-binding --c4-root "
    "--c4-train-shards --index-mapping-dir --timing-threshold --skip-first-percent-time --correlation-threshold "
    "--high-loss-tolerance --medium-loss-tolerance --low-loss-tolerance --final-loss-tolerance --max-outlier-ratio "
    "--outlier-threshold --skip-first-percent-loss --memory-threshold --eval-time-start-step --eval-time-end-step";
constexpr std::string_view silent_switches =
    "--dry-run --dryrun -d --dump-env --wait --submission-dry-run --no-gpu-resource-request --offline --enable-nsys "
    "-en --export-nsys-sqlite --profiling-gpu-metrics --is-long-convergence-run --use-recipes "
    "--retry-on-testing-failure --head-only";
constexpr std::array silent_beginnings = {"--kubeflow-", "--wandb-", "--profiling-", "--nsys-"};
/// Which recipe.
constexpr std::string_view of_recipe =
    "--recipe --model --mode -m --model-family-name -mr --model-recipe-name -g --gpu -c --compute-dtype --task -cv "
    "--config-variant --optimizer-type";
/// By these scripts/performance is known, whose options win over overrides.
constexpr std::string_view of_harness = "-m --model-family-name -mr --model-recipe-name";
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
  for (const auto& choice : valued_options) add(choice.name);
  for (const auto name : {scope_option, dense_layers_option}) add(name);
  for (const auto names : {silent_values, silent_switches, of_recipe, gpus, gpus_of_node, nodes}) add(names);
  return all;
}

/// The command as overrides, a name for the recipe and numbers of GPUs.
class Reader {
 public:
  explicit Reader(const Launch& launch) : launch_(launch) {
    for (at_ = 0; at_ < launch.words.size(); ++at_) word(launch.words[at_].text);
  }
  /// Those that win last. `recipe`: its settings without this command's, where they are known.
  std::vector<Override> overrides(const scenario::Scenario* recipe) const {
    auto all = harness_ ? stated_ : options_;
    const auto& rest = harness_ ? options_ : stated_;
    all.insert(all.end(), rest.begin(), rest.end());
    constexpr std::string_view tensor = "model.tensor_model_parallel_size=";
    for (const auto& [text, where] : options_)  // set_user_overrides
      if (harness_ && text.starts_with(tensor))
        all.emplace_back(text.ends_with("=1") ? "model.sequence_parallel=false" : "model.sequence_parallel=true",
                         where);
    if (recipe != nullptr) {
      if (scope_) add_graph_scope(*recipe, all);
      if (dense_ || (harness_ && layers_)) add_pattern_of_experts(*recipe, all);
    }
    return all;
  }
  /// Do they depend on the recipe's settings?
  bool asks_recipe() const { return scope_ || dense_ || (harness_ && layers_); }
  const std::string& recipe() const { return recipe_; }
  const Launch& launch() const { return launch_; }
  const std::map<std::string, std::string>& variables() const { return variables_; }

 private:
  Position here() const { return {launch_.file, launch_.words[at_].line}; }

  void word(const std::string& text) {
    if (!text.starts_with('-')) {
      if (text.find('=') == std::string::npos)
        throw UsageError(here(), text, "expected an option, or an override SECTION.FIELD=VALUE");
      stated_.emplace_back(text, here());
      return;
    }
    const auto equals = text.find('=');
    std::string name = text.substr(0, equals);
    if (name.starts_with("--")) std::replace(name.begin() + 2, name.end(), '_', '-');
    if (among(silent_switches, name)) return;
    if (name == "--deterministic") {
      options_.emplace_back("model.deterministic_mode=true", here());
      return;
    }
    const auto where = here();
    const auto value = [&]() -> std::string {
      if (equals != std::string::npos) return text.substr(equals + 1);
      if (at_ + 1 >= launch_.words.size()) throw UsageError(where, name, "a value is missing");
      return launch_.words[++at_].text;
    };
    if (among(of_harness, name)) harness_ = true;
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
    if (name == scope_option) {
      scope_ = {value(), where};
      scopes_of(*scope_);
      return;
    }
    if (name == dense_layers_option) {
      dense_ = {value(), where};
      return;
    }
    if (std::ranges::find(valued_options, name, &ValuedOption::name) != valued_options.end())
      return choice(name, value(), where);
    const auto found = std::ranges::find_if(options, [&](const Option& one) { return among(one.names, name); });
    if (found == options.end())
      throw UsageError(where, name,
                       "is no option of Megatron Bridge's run_recipe.py, or not read: say what it sets as an override "
                       "SECTION.FIELD=VALUE",
                       {}, nearest_name(name, known_options()));
    std::string said = value();
    if (said == "None") said = "null";
    if (name == layers_option) layers_ = {said, where};
    if (found->overrides.find("{}") == std::string_view::npos) {
      const auto on = truth(said);
      if (!on) throw UsageError(where, name, "expected true or false, found " + said.substr(0, 60));
      if (!*on) return;
    }
    add(found->overrides, said, where);
  }

  void choice(const std::string& name, std::string said, const Position& where) {
    if (const auto on = truth(said)) said = *on ? "true" : "false";
    scenario::Strings allowed;
    for (const auto& one : valued_options) {
      if (one.name != name) continue;
      if (one.value == said) return add(one.overrides, said, where);
      allowed.emplace_back(one.value);
    }
    throw UsageError(where, name, "unknown value \"" + said.substr(0, 60) + '"', allowed, nearest_name(said, allowed));
  }

  void add(std::string_view overrides, const std::string& said, const Position& where) {
    std::istringstream each{std::string(overrides)};
    for (std::string one; each >> one;) {
      if (const auto hole = one.find("{}"); hole != std::string::npos) one.replace(hole, 2, said);
      options_.emplace_back(one, where);
    }
  }

  static std::optional<bool> truth(const std::string& said) {
    constexpr std::array on = {"true", "True", "1", "yes"}, off = {"false", "False", "0", "no"};
    if (std::ranges::find(on, said) != on.end()) return true;
    if (std::ranges::find(off, said) != off.end()) return false;
    return {};
  }

  static scenario::Strings scopes_of(const Override& said) {
    std::istringstream each{said.first};
    scenario::Strings all;
    for (std::string one; std::getline(each, one, ',');) all.push_back(one);
    for (const auto& one : all)
      if (std::ranges::find(graph_scopes, one) == graph_scopes.end())
        throw UsageError(said.second, std::string(scope_option), "unknown value \"" + one.substr(0, 60) + '"',
                         {graph_scopes.begin(), graph_scopes.end()});
    if (all.size() > 1 && std::ranges::find(all, "full_iteration") != all.end())
      throw UsageError(said.second, std::string(scope_option), "full_iteration cannot be combined with other scopes");
    return all;
  }

  /// _set_cuda_graph_overrides: without graphs a scope says nothing.
  void add_graph_scope(const scenario::Scenario& recipe, std::vector<Override>& all) const {
    constexpr std::string_view field = "model.cuda_graph_impl=";
    std::string impl = recipe.settings.cuda_graph_impl;
    for (const auto& [text, where] : all)
      if (text.starts_with(field)) impl = text.substr(field.size());
    if (impl == "none") return;
    const auto said = scopes_of(*scope_);
    if (said == scenario::Strings{"full_iteration"}) {
      if (impl == "transformer_engine")
        throw UsageError(scope_->second, std::string(scope_option),
                         "full_iteration cannot use cuda_graph_impl transformer_engine: --cuda_graph_impl local");
      all.emplace_back("model.cuda_graph_impl=full_iteration", scope_->second);
      all.emplace_back("model.cuda_graph_modules=[]", scope_->second);
    } else {
      all.emplace_back(fmt::format("model.cuda_graph_modules=[{}]", fmt::join(said, ",")), scope_->second);
    }
  }

  /// set_user_overrides: layers in front without experts, as many as are said or as the recipe has in all.
  void add_pattern_of_experts(const scenario::Scenario& recipe, std::vector<Override>& all) const {
    const auto& pattern = recipe.model.moe_layer_freq;
    const auto& where = dense_ ? dense_->second : layers_->second;
    if (!recipe.model.num_moe_experts) {
      if (dense_) throw UsageError(where, std::string(dense_layers_option), "the recipe's model has no experts");
      return;
    }
    if (!dense_ && pattern.size() == 1) return;
    const auto of = [](const Override& said, std::string_view name) {
      return said.first == "0" ? 0 : number(std::string(name), said.first, said.second);
    };
    const auto count = layers_ ? of(*layers_, layers_option) : recipe.model.num_layers;
    const auto dense = dense_ ? of(*dense_, dense_layers_option) : std::ranges::count(pattern, 0);
    if (dense > count || count > most_layers)
      throw UsageError(where, std::string(dense_ ? dense_layers_option : layers_option),
                       fmt::format("{} layers without experts of {} layers", dense, count));
    scenario::Strings each(static_cast<std::size_t>(count), "1");
    std::fill_n(each.begin(), dense, "0");
    all.emplace_back(fmt::format("model.moe_layer_freq=[{}]", fmt::join(each, ",")), where);
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
  std::vector<Override> stated_, options_;  ///< SECTION.FIELD=VALUE of the command, and what its options stand for
  std::optional<Override> scope_, dense_, layers_;
  bool harness_ = false;
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
  if (machine.recipe.empty()) {
    judge_overrides(given.file, known, command.overrides(nullptr));  // what is wrong with them is said first
    throw UsageError(
        {given.file, given.words.empty() ? 0 : given.words.front().line},
        command.recipe().empty() ? "run_recipe.py" : command.recipe(),
        fmt::format("a recipe of Megatron Bridge trains, which is Python and not read: --bridge FILE gives "
                    "its settings (the run_config.yaml beside a checkpoint, or what its --dry-run prints); "
                    "this command's own ({}) are put over them",
                    command.overrides(nullptr).size()));
  }
  const std::string text = read_file(machine.recipe);
  std::optional<scenario::Scenario> own;
  if (command.asks_recipe()) own = read_overrides(text, machine.recipe, known, {}).scenario;
  const auto overrides = command.overrides(own ? &*own : nullptr);
  auto import = read_overrides(text, machine.recipe, known, overrides);
  scenario::Strings said;
  for (const auto& [override, where] : overrides) said.push_back(override);
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
