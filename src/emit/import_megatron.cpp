// A Megatron-LM command line as a scenario: the argument parser's defaults, the flags, then what validate_args and
// core_transformer_config_from_args make of them (megatron/training/arguments.py, argument_utils.py of core_r0.19.0).
#include <algorithm>
#include <charconv>
#include <set>

#include "emitted.hpp"
#include "field_table.hpp"
#include "flag_words.hpp"
#include "hybrid.hpp"
#include "launch.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "programs.hpp"
#include "python.hpp"
#include "recipe_command.hpp"
#include "said_flags.hpp"
#include "shell_words.hpp"

namespace pipewright::emit {

namespace {

const Position from_flags = {"--megatron", 0};

constexpr std::string_view gpt2_tokenizer = "GPT2BPETokenizer";

class FlagImporter {
 public:
  FlagImporter(const Machine& machine)
      : dropped_(machine.ignore), node_is_said_(machine.node_is_said), vocabulary_(machine.vocab_size) {
    if (!machine.megatron_core.empty())
      scenario::set(s_, "software.megatron_core=" + machine.megatron_core, "--megatron-core");
    s_.name = "megatron";
    s_.origin = from_flags;
    s_.cluster.num_gpus = machine.num_gpus;
    s_.cluster.gpus_per_node = machine.gpus_per_node;
    s_.cluster.profile = machine.profile;
  }

  Import run(const Launch& launch) {
    machine(launch);
    read(launch);
    // What the parser's defaults are worth can depend on other flags (those of MLA), so flags are read twice.
    Scenario structure = s_;
    require_variables(structure);
    finish(structure);
    for (const auto& flag : flags()) {
      if (is_special(flag) || flag.parser_default.empty() || !has(flag.versions, s_.software)) continue;
      if (!matters(flag.field, structure)) continue;
      scenario::set(s_, std::string(flag.field) + "=" + default_of(flag, s_.software));
    }
    s_.positions.erase_if([](const auto& one) { return one.second.file == "--set"; });  // the parser's, not stated
    for (const auto& given : given_) apply(given, s_);
    finish(s_);
    settle_batch();
    judge_program(launch);
    judge_flags();
    require();
    note();
    result_.scenario = std::move(s_);
    return std::move(result_);
  }

 private:
  /// What was said beside the flags wins over the launcher's options.
  void machine(const Launch& launch) {
    s_.origin = {launch.file, 0};
    result_.notes = launch.notes;
    std::string unknown;
    for (const auto& [name, value] : launch.variables) {
      if (is_open(value)) {
        unknown += (unknown.empty() ? "" : ", ") + name;
        continue;
      }
      scenario::set_env(s_, name + "=" + value);
      s_.positions["environment." + name] = s_.origin;
    }
    if (!unknown.empty())
      result_.notes.push_back("known only where the script runs, taken as not set: " + unknown +
                              " (--env NAME=VALUE says one)");
    if (s_.cluster.num_gpus > 0) return take_node(launch);
    const bool unsaid = !(launch.gpus_of_node && launch.nodes) && !launch.gpus && !launch.unknown.empty();
    if (unsaid) {
      const auto& [text, line] = launch.unknown.begin()->second;
      if (is_open(text)) {
        how_many_ = Given{text, {}, {launch.file, line}};
        return;
      }
      result_.notes.push_back(text + " is no number of GPUs or nodes: say it with --gpus");
    }
    if (launch.gpus_of_node && launch.nodes)
      s_.cluster.num_gpus = *launch.gpus_of_node * *launch.nodes;
    else if (launch.gpus)
      s_.cluster.num_gpus = *launch.gpus;
    else if (launch.gpus_of_node && !unsaid)
      s_.cluster.num_gpus = *launch.gpus_of_node;  // torchrun's --nnodes is 1 by default
    result_.gpus_guessed = s_.cluster.num_gpus == 0;
    if (result_.gpus_guessed) return;
    if (launch.gpus_of_node) s_.cluster.gpus_per_node = std::min(*launch.gpus_of_node, s_.cluster.num_gpus);
    result_.notes.push_back("GPUs as launched: " + std::to_string(s_.cluster.num_gpus) + ", " +
                            std::to_string(std::min(s_.cluster.gpus_per_node, s_.cluster.num_gpus)) + " a node");
  }

  /// How many GPUs are said beside the launcher, which still knows how many stand in a node.
  void take_node(const Launch& launch) {
    const auto of_node = launch.gpus_of_node.value_or(0);
    if (!node_is_said_ && of_node > 1 && s_.cluster.num_gpus % of_node == 0 && !launch.unknown.contains(Count::of_node))
      s_.cluster.gpus_per_node = of_node;
  }

  void read(const Launch& launch) {
    given_ = flags_in(launch.words, launch.file, result_.notes);
    if (const Given* type = given("--tokenizer-type"); type != nullptr && type->values.size() == 1)
      tokenizer_ = type->values.front();
    else if (was_given("--merge-file"))
      tokenizer_ = gpt2_tokenizer;  // what pretrain_gpt.py takes where none is named
    trains_hybrids_ = launch.trains_hybrids;
    if (!launch.trains_gpt && !trains_hybrids_) judge_model();
    said_ = given_;
    std::erase_if(given_, [this](const Given& given) { return !accept(given); });
    if (!foreign_.empty() || odd_) refuse_foreign(foreign_, odd_);
  }

  /// Without a program's name the flags say whether they are pretrain_gpt.py's.
  void judge_model() const {
    const auto refuse = [](const Given& given, const std::string& why) {
      throw UsageError(given.where, given.name,
                       why +
                           ", and what trains is not said: only what pretrain_gpt.py trains is modelled (where it "
                           "does, name it before the flags)");
    };
    for (const auto& given : given_)
      if (const auto model = other_model_of_flag(given.name); !model.empty())
        refuse(given, "is read where " + std::string(model) + " are trained");
    const Given* type = given("--tokenizer-type");
    if (tokenizer_.starts_with("BertWordPiece")) refuse(*type, tokenizer_ + " is BERT's and T5's tokenizer");
    const Given* entries = given("--vocab-file");
    if (entries != nullptr && tokenizer_.empty())
      refuse(*entries, "a file of entries without --merge-file is BERT's vocabulary");
  }

  /// The program decides which model is built, the flags which layers it has.
  void judge_program(const Launch& launch) const {
    const bool hybrid = scenario::is_hybrid(s_);
    if ((launch.trains_hybrids || was_given("--is-hybrid-model")) && !hybrid)
      throw UsageError(s_.origin, "--hybrid-layer-pattern", "is missing: a hybrid is what is trained");
    if (launch.trains_gpt && hybrid)
      throw UsageError(s_.origin, "--hybrid-layer-pattern",
                       "pretrain_gpt.py builds no hybrid: pretrain_hybrid.py does (pretrain_mamba.py before 0.18)");
  }

  /// What validate_args asks of the flags themselves, and a scenario does not show any more.
  void judge_flags() {
    const auto find = [this](const char* flag, const char* other, const std::string& message, const std::string& fix) {
      if (was_given(flag) && was_given(other)) add_finding("flag.beside", flag, message, fix);
    };
    for (auto& [rule, flag, message, fix] : clashes(said_, s_)) add_finding(rule, flag, message, fix);
    const char *layers = "--num-layers-per-virtual-pipeline-stage", *stages = "--num-virtual-stages-per-pipeline-rank",
               *layout = "--pipeline-model-parallel-layout";
    for (const auto& [one, other] : {std::pair(layers, stages), std::pair(layers, layout), std::pair(stages, layout)})
      find(
          one, other,
          "No more than one of the following arguments can be set at the same time: " + std::string(one) + ", " + other,
          "keep one of the two");
    for (const auto* uneven : {"--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"})
      find(layers, uneven,
           "please use --num-virtual-stages-per-pipeline-rank to specify virtual pipeline parallel "
           "degree when enable uneven pipeline parallelism",
           "use --num-virtual-stages-per-pipeline-rank");
    find("--multi-latent-attention", "--group-query-attention",
         "Group query attention is mutually exclusive with multi latent attention.", "remove --group-query-attention");
    if (s_.settings.bf16 && was_given("--accumulate-allreduce-grads-in-fp32") && s_.settings.main_grads_dtype != "fp32")
      add_finding("flag.beside", "--main-grads-dtype",
                  "--main-grads-dtype can only be fp32 when --accumulate-allreduce-grads-in-fp32 is set",
                  "remove one of the two");
    if (s_.settings.cuda_graph_impl == "full_iteration" && !s_.settings.fp16 &&
        !was_given("--no-check-for-nan-in-loss-and-grad"))
      add_finding(
          "flag.missing", "--cuda-graph-impl",
          "--no-check-for-nan-in-loss-and-grad should be set with --cuda-graph-impl=full_iteration for training.",
          "add --no-check-for-nan-in-loss-and-grad");
    if (const Given* impl = given("--cuda-graph-impl");
        impl != nullptr && one(*impl) == "full_iteration" && graphs_have_scopes(s_.software))
      add_finding("version.value", "--cuda-graph-impl",
                  "--cuda-graph-impl full_iteration does not exist in Megatron Core " + s_.software.megatron_core +
                      "; versions with it: 0.18 and newer",
                  "--cuda-graph-impl local --cuda-graph-scope full_iteration");
  }

  /// False for what is noted or found, and not applied.
  bool accept(const Given& given) {
    const Flag* flag = find_flag(given.name);
    if (flag != nullptr && has(flag->versions, s_.software)) return true;
    const OtherFlag* other = find_other_flag(given.name);
    if (flag != nullptr || (other != nullptr && !has(other->versions, s_.software))) {
      const auto versions = flag != nullptr ? flag->versions : other->versions;
      add_finding("version.flag", given.name,
                  given.name + " does not exist in Megatron Core " + s_.software.megatron_core +
                      "; versions with it: " + versions_text(versions),
                  "remove it, or say the version that runs: --megatron-core " + newest_of(versions));
      return false;
    }
    if (is_gone(given.name)) {
      gone_.insert(given.name);
      return false;
    }
    for (const auto& legend : legends())
      if (given.name == legend.name) {
        add_finding("flag.unknown", given.name, given.name + " exists in no version of Megatron",
                    "what exists: " + std::string(legend.instead));
        return false;
      }
    const bool dropped = std::ranges::any_of(dropped_, [&](const std::string& name) {
      return scenario::effect_name(name) == scenario::effect_name(given.name);
    });
    if (other != nullptr) {
      try {
        refuse_values(given, other->takes);
      } catch (const UsageError& error) {
        if (dropped) {  // only of what has no effect; the rest may be ignored further on
          const auto* row = scenario::effect_of(given.name);
          if (row == nullptr || scenario::may_act(given.name, list(given.values, " "))) throw;
          result_.dropped.insert(given.name);
          silent_.insert(given.name);
        } else {
          if (error.allowed().empty()) throw;  // a slip, not another program's choice
          if (!odd_) odd_ = error;
        }
        return false;
      }
    }
    if (carried_of_flag(given.name) != nullptr) {
      keep(given);
      return false;
    }
    if (other == nullptr) {
      if (!dropped)
        foreign_.push_back(given);
      else
        unknown_.insert(given.name);
      return false;
    }
    const scenario::EffectRow* effect = scenario::effect_of(given.name);
    if (effect == nullptr) throw InternalError("no effect of " + given.name);
    const std::string value = given.values.empty() ? "true" : list(given.values, " ");
    // scenario::refuse_unmodelled() and the rules say so when it counts.
    if (scenario::may_act(given.name, value)) {
      s_.settings.other[effect->name] = value;
      s_.positions["settings." + effect->name] = given.where;
    } else {
      silent_.insert(given.name);
    }
    return false;
  }

  void keep(const Given& given) {
    const Carried* row = carried_of_flag(given.name);
    s_.model.other[std::string(row->field)] = given.values.empty() ? "true" : given.values.front();
  }

  void add_finding(std::string rule, const std::string& flag, std::string message, std::string fix) {
    result_.findings.push_back({std::move(rule),
                                plan::Severity::violation,
                                {flag},
                                std::move(message),
                                std::move(fix),
                                "megatron/training/arguments.py (" + s_.software.megatron_core + ")"});
  }

  /// Applies the flags; variables that nobody sets are asked for all at once, those that say how many GPUs too.
  void require_variables(Scenario& s) const {
    std::vector<std::string> unset;
    const Given* first = nullptr;
    const auto add = [&](const std::string& word) {
      if (is_unset_variable(word) && std::ranges::find(unset, word) == unset.end()) unset.push_back(word);
    };
    for (const auto& given : given_) {
      try {
        apply(given, s);
      } catch (const UsageError&) {
        if (std::ranges::none_of(given.values, is_unset_variable)) throw;
        if (first == nullptr) first = &given;
        std::ranges::for_each(given.values, add);
      }
    }
    if (how_many_) add(how_many_->name.substr(how_many_->name.find("${")));  // "--nnodes ${N}"
    const bool alone = how_many_ && first == nullptr;
    if (unset.empty() && !alone) return;
    const std::string settings = to_say(unset);
    if (alone)
      throw UsageError(how_many_->where, how_many_->name,
                       "nobody says how many these are: give what it holds with" + settings + ", or --gpus N");
    throw UsageError(
        first->where, first->name,
        list(unset, ", ") +
            (unset.size() == 1 ? " is not set: give what it holds with" : " are not set: give what they hold with") +
            settings);
  }

  static void set(Scenario& s, const Given& given, const std::string& field, const std::string& value) {
    try {
      scenario::set(s, field + "=" + value);
    } catch (const UsageError& error) {
      throw UsageError(given.where, given.name, error.message(), error.allowed(), error.nearest());
    }
    s.positions.restate(field, given.where);
  }

  std::string one(const Given& given) const {
    if (given.values.size() != 1)
      throw UsageError(given.where, given.name, "takes one value, found " + std::to_string(given.values.size()));
    return given.values.front();
  }

  void apply(const Given& given, Scenario& s) const {
    const Flag& flag = *find_flag(given.name);
    const std::string field(flag.field);
    if (!takes_values(given.name) && !given.values.empty())
      throw UsageError(given.where, given.name, "takes no value, found " + given.values.front());
    switch (flag.kind) {
      case Kind::on:
        return set(s, given, field, "true");
      case Kind::off:
        return set(s, given, field, "false");
      case Kind::value:
        return set(s, given, field, one(given));
      case Kind::list: {
        if (given.values.empty()) throw UsageError(given.where, given.name, "takes at least one value");
        return set(s, given, field, list(given.values));
      }
      case Kind::python:
        return set(s, given, field, list(python_values(one(given), given.name, given.where)));
      case Kind::special:
      case Kind::mark:
        return apply_special(given, s);
    }
  }

  static std::string list(const std::vector<std::string>& values, const char* separator) {
    std::string text;
    for (const auto& value : values) text += (text.empty() ? "" : separator) + value;
    return text;
  }
  static std::string list(const std::vector<std::string>& values) { return "[" + list(values, ", ") + "]"; }

  void apply_special(const Given& given, Scenario& s) const {
    const std::string& name = given.name;
    auto& settings = s.settings;
    if (name == "--swiglu") {
      s.model.gated_linear_unit = true;
    } else if (name == "--quick-geglu") {
      s.model.gated_linear_unit = true;
      set(s, given, "activation_func", "quick_gelu");
    } else if (name == "--squared-relu") {
      set(s, given, "activation_func", "squared_relu");
    } else if (name == "--hybrid-override-pattern") {
      if (was_given("--hybrid-layer-pattern"))
        throw UsageError(given.where, name,
                         "cannot be specified beside --hybrid-layer-pattern, whose deprecated name it is");
      set(s, given, "hybrid_layer_pattern", one(given));
    } else if (name == "--spec") {
      if (is_hybrid_spec(given.values)) return;
      settings.other["spec"] = list(given.values, " ");
      s.positions["settings.spec"] = given.where;
    } else if (name == "--num-query-groups") {
      if (was_given("--group-query-attention")) set(s, given, "num_query_groups", one(given));
    } else if (name == "--cuda-graph-scope") {
      auto modules = given.values;
      std::erase(modules, "full");
      set(s, given, "cuda_graph_modules", list(modules));
    } else if (name == "--enable-cuda-graph") {
      set(s, given, "cuda_graph_impl", "local");
    } else if (name == "--external-cuda-graph") {
      set(s, given, "cuda_graph_impl", "transformer_engine");
    } else if (name == "--fp8-param-gather") {
      settings.fp8_param = settings.fp8_param_gather = true;
    } else if (name == "--fp4-param-gather") {
      settings.fp4_param = settings.fp4_param_gather = true;
    } else if (name == "--padded-vocab-size") {
      set(s, given, "vocab_size", one(given));
    } else if (name == "--step-batch-size-schedule") {
      set(s, given, "global_batch_size", last_batch(given));
    } else if (name == "--use-rotary-position-embeddings") {
      s.model.position_embedding_type = "rope";
    }
  }

  bool was_given(std::string_view name) const { return std::ranges::find(given_, name, &Given::name) != given_.end(); }
  bool states_batch() const { return was_given("--global-batch-size") || was_given("--step-batch-size-schedule"); }
  const Given* given(std::string_view name) const {
    const auto at = std::ranges::find(given_, name, &Given::name);
    return at == given_.end() ? nullptr : &*at;
  }

  bool states_vocabulary() const { return was_given("--vocab-size") || was_given("--padded-vocab-size"); }

  /// The tokenizer's entries. Up to 0.17 NullTokenizer adds one for the end of a document (null_tokenizer.py).
  void count_vocabulary(Scenario& s) const {
    if (!states_vocabulary())
      s.model.vocab_size = vocabulary_ == 0 && tokenizer_ == gpt2_tokenizer ? 50257 : vocabulary_;
    if (was_given("--vocab-size") && adds_an_entry()) ++s.model.vocab_size;
  }
  bool adds_an_entry() const {
    return tokenizer_ == "NullTokenizer" && scenario::core_version(s_.software) < scenario::Version::v0_18;
  }

  /// A written list stands for itself whatever its length; as a field one element means every n-th layer.
  void check_pattern(const Scenario& s) const {
    const Given* pattern = given("--moe-layer-freq");
    if (pattern == nullptr || pattern->values.size() != 1 || pattern->values[0].find('[') == std::string::npos) return;
    const auto layers = python_values(pattern->values[0], pattern->name, pattern->where).size();
    if (s.model.num_moe_experts && layers != static_cast<std::size_t>(s.model.num_layers))
      throw UsageError(pattern->where, pattern->name,
                       "Invalid length of moe_layer_pattern: " + std::to_string(layers) + ", expected " +
                           std::to_string(s.model.num_layers));
  }

  double ratio(const char* flag) const {
    const Given* stated = given(flag);
    if (stated == nullptr) return 0;
    const std::string value = one(*stated);
    double ratio = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), ratio);
    if (error != std::errc() || end != value.data() + value.size() || ratio < 0 || ratio > 1)
      throw UsageError(stated->where, flag, "expected a number from 0 to 1, found \"" + value + "\"");
    return ratio;
  }

  /// arguments.py: from 0.17 on the pattern says how many layers there are; before, ratios may stand for it.
  void count_layers(Scenario& s) const {
    const Given* spec = given("--spec");
    const double attention = ratio("--hybrid-attention-ratio"), mlp = ratio("--hybrid-mlp-ratio");
    const bool hybrid = trains_hybrids_ || attention + mlp > 0 || was_given("--is-hybrid-model") ||
                        (spec != nullptr && is_hybrid_spec(spec->values));
    if (hybrid && !s.model.hybrid_layer_pattern && scenario::core_version(s.software) < scenario::Version::v0_17)
      s.model.hybrid_layer_pattern = pattern_from_ratios(s.model.num_layers, attention, mlp);
    if (s.model.hybrid_layer_pattern && scenario::core_version(s.software) >= scenario::Version::v0_17) {
      join_depths(s);
      s.model.num_layers = static_cast<scenario::Int>(scenario::hybrid_layers(s).size());
    }
  }

  /// arguments.py from 0.18 on: dist_muon is muon with the distributed optimizer; training.py,
  /// wrap_model_chunks_with_ddp: without a layout its parameters are dealt as dist_muon's were. 0.19 never has one
  /// (training/models/dist_utils.py).
  void share_muon(Scenario& s) const {
    auto& o = s.settings;
    const bool layer_wise = o.optimizer == "dist_muon" || (o.optimizer == "muon" && o.use_distributed_optimizer);
    if (!layer_wise || !has(*find_flag("--no-use-layer-wise-param-layout"), s.software)) return;
    const bool alone = scenario::data_parallel_size(s) == 1;
    const bool lays_out = scenario::core_version(s.software) != scenario::Version::v0_19 || alone;
    o.use_distributed_optimizer = lays_out && !was_given("--no-use-layer-wise-param-layout");
    o.optimizer = o.use_distributed_optimizer ? "muon" : "dist_muon";
  }

  void finish(Scenario& s) const {
    auto& settings = s.settings;
    auto& model = s.model;
    count_vocabulary(s);
    if (was_given("--padded-vocab-size")) s.model.make_vocab_size_divisible_by = 1;
    check_pattern(s);
    count_layers(s);
    if (const auto* per_stage = given("--num-layers-per-virtual-pipeline-stage")) {
      set(s, *per_stage, "virtual_pipeline_model_parallel_size", one(*per_stage));
      const auto each = std::max<std::int64_t>(1, *settings.virtual_pipeline_model_parallel_size);
      const auto layers = model.num_layers + (settings.account_for_embedding_in_pipeline_split ? 1 : 0) +
                          (settings.account_for_loss_in_pipeline_split ? 1 : 0);
      const auto of_rank = layers / std::max<std::int64_t>(1, settings.pipeline_model_parallel_size);
      if (of_rank % each != 0)
        throw UsageError(per_stage->where, per_stage->name,
                         "number of layers per pipeline stage must be divisible number of layers per virtual pipeline "
                         "stage");
      settings.virtual_pipeline_model_parallel_size = of_rank / each;
    }
    if (settings.virtual_pipeline_model_parallel_size == 1) settings.virtual_pipeline_model_parallel_size.reset();
    const bool interleaved = settings.virtual_pipeline_model_parallel_size || settings.pipeline_model_parallel_layout ||
                                     scenario::is_hybrid(s)
                                 ? scenario::interleaved(s)
                                 : false;
    settings.overlap_p2p_comm = interleaved && !was_given("--no-overlap-p2p-communication");
    settings.align_param_gather = interleaved && settings.overlap_param_gather && !was_given("--no-align-param-gather");
    settings.batch_p2p_comm.reset();
    settings.deallocate_pipeline_outputs = true;
    if (settings.tensor_model_parallel_size == 1) settings.sequence_parallel = false;
    settings.cpu_offloading = settings.cpu_offloading_num_layers > 0;
    share_muon(s);
    if (was_given("--recompute-activations")) settings.recompute_granularity = "selective";  // whatever else is said
    const bool in_fp32 = was_given("--accumulate-allreduce-grads-in-fp32");
    settings.grad_reduce_in_fp32 =
        settings.bf16 ? !was_given("--grad-reduce-in-bf16") && (in_fp32 || settings.main_grads_dtype == "fp32")
                      : in_fp32;
    settings.persist_layer_norm = !was_given("--no-persist-layer-norm");
    settings.bias_activation_fusion = was_given("--swiglu")
                                          ? !was_given("--no-bias-swiglu-fusion")
                                          : model.add_bias_linear && !was_given("--no-bias-gelu-fusion");
    // Those that do not rotate have nothing to fuse.
    if (model.position_embedding_type == "yarn") settings.apply_rope_fusion = false;
    if (settings.cuda_graph_impl != "none" &&
        (settings.transformer_impl == "transformer_engine" || settings.cuda_graph_impl == "transformer_engine"))
      settings.use_te_rng_tracker = true;
    // arguments.py: with --swiglu the default width is 2/3 of 4 h, down to a multiple of 64.
    if (!model.ffn_hidden_size && was_given("--swiglu"))
      model.ffn_hidden_size = static_cast<std::int64_t>(4.0 * static_cast<double>(model.hidden_size) * 2 / 3) / 64 * 64;
    if (s.cluster.num_gpus == 0)
      s.cluster.num_gpus = settings.pipeline_model_parallel_size *
                           std::max(settings.tensor_model_parallel_size * settings.context_parallel_size,
                                    settings.expert_model_parallel_size * scenario::expert_tensor_parallel_size(s));
    if (!states_batch())
      settings.global_batch_size =
          settings.micro_batch_size * std::max<std::int64_t>(1, scenario::data_parallel_size(s));
  }
  void settle_batch() {
    if (std::ranges::find(said_, "--decrease-batch-size-if-needed", &Given::name) == said_.end()) return;
    if (const auto said = lower_batch(s_); !said.empty()) result_.notes.push_back(said);
  }

  void require() const {
    std::vector<std::string> absent;
    for (const auto* flag :
         {"--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--micro-batch-size"})
      if (!was_given(flag) && (s_.model.num_layers == 0 || flag != std::string_view("--num-layers")))
        absent.emplace_back(flag);
    const bool vocabulary = s_.model.vocab_size != 0 || states_vocabulary();
    if (absent.empty() && vocabulary) return;
    const std::string add =
        "the vocabulary is missing: add --vocab-size N (the tokenizer's entries) or --padded-vocab-size N to the "
        "flags, or --set vocab_size=N";
    if (absent.empty()) throw UsageError(s_.origin, "--vocab-size", add);
    throw UsageError(s_.origin, list(absent, ", "),
                     (absent.size() == 1 ? "is missing" : "are missing") + (vocabulary ? "" : "; " + add));
  }

  void note() {
    if (!states_vocabulary() && vocabulary_ == 0) {
      s_.assumed.push_back("vocab_size: " + std::to_string(s_.model.vocab_size));
      result_.notes.push_back("assumed: vocab_size " + std::to_string(s_.model.vocab_size) + ", GPT-2's, for " +
                              std::string(gpt2_tokenizer) + "; --set vocab_size=N says another");
    }
    if (was_given("--vocab-size") && adds_an_entry())
      result_.notes.push_back("NullTokenizer of Megatron Core " + s_.software.megatron_core +
                              " adds an entry to --vocab-size: " + std::to_string(s_.model.vocab_size));
    const auto name_all = [&](const std::string& what, const std::set<std::string>& flags) {
      if (!flags.empty()) result_.notes.push_back(what + list({flags.begin(), flags.end()}, " "));
    };
    name_all("without effect on time and memory: ", silent_);
    name_all("of no version of Megatron-LM known here, and dropped: ", unknown_);
    name_all("of releases before Megatron Core 0.16 alone, and without effect on time and memory: ", gone_);
    if (was_given("--step-batch-size-schedule"))
      result_.notes.push_back("the last batch of --step-batch-size-schedule: " +
                              std::to_string(s_.settings.global_batch_size));
    if (!states_batch())
      result_.notes.push_back("--global-batch-size is not given: micro batch times data-parallel size, " +
                              std::to_string(s_.settings.global_batch_size));
    if (was_given("--num-query-groups") && !was_given("--group-query-attention"))
      result_.notes.emplace_back("--num-query-groups is not read without --group-query-attention");
  }

  Scenario s_;
  Import result_;
  std::vector<Given> given_, said_;  ///< what sets fields; all of them
  std::vector<std::string> dropped_;
  bool trains_hybrids_ = false, node_is_said_;
  scenario::Int vocabulary_;
  std::string tokenizer_;
  std::set<std::string> silent_, unknown_, gone_;
  std::optional<Given> how_many_;  ///< GPUs or nodes: what depends on what nobody says
  std::vector<Given> foreign_;     ///< flags that no version has and nobody said to ignore
  std::optional<UsageError> odd_;  ///< of the first value that no version takes
};

}  // namespace

Import from_launch(const Launch& launch, const Machine& machine) {
  if (launch.trains_recipe) return from_recipe_command(launch, machine);
  if (!machine.recipe.empty())
    throw UsageError({launch.file, 0}, {}, "trains no recipe of Megatron Bridge, whose settings --bridge gives");
  return FlagImporter(machine).run(launch);
}

Import from_megatron(std::string_view flags, const Machine& machine) {
  std::vector<ShellWord> words;
  for (auto& word : split_shell(flags)) words.push_back({std::move(word), 0});
  return from_launch(launch_of_words(std::move(words), from_flags.file), machine);
}

Import from_launch_file(std::string_view text, const std::string& path, const Machine& machine,
                        const std::map<std::string, std::string>& variables) {
  std::optional<std::vector<std::string>> arguments;
  if (machine.arguments) arguments = split_shell(*machine.arguments);
  return from_launch(is_model_config(text) ? launch_of_model_config(text, path, variables)
                                           : launch_of_script(text, path, variables, arguments),
                     machine);
}

}  // namespace pipewright::emit
