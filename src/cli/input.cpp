// The scenario of a command line.
#include "input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "commands.hpp"
#include "embedded.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/rack.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::cli {

void add_profile_option(Command& command, std::vector<std::string>& profiles) {
  command.add_option("--profile", profiles, "measured profile, name or file; repeatable, the first has precedence")
      .repeatable()
      .reads();
}

namespace {

/// What is known of a GPU by its profile's name; without counts where neither a data sheet nor a profile has it.
profile::Device gpu_of(const std::string& name) {
  for (const auto& sheet : profile::data_sheets())
    if (sheet.profile == name) return sheet.device;
  try {
    return profile::load(name, {"--profile", 0}).device;
  } catch (const UsageError&) {  // a configuration can be checked where its profile is not
    return {};
  }
}

/// What an import needs to know of --set before it is applied: flags may only name the tokenizer. Throws UsageError for
/// a name or value that none can have: a slip is told as one, not as what it leaves unsaid.
void tell(emit::Machine& machine, const std::vector<std::string>& set, std::string_view option = "--set") {
  scenario::Scenario stated;
  for (const auto& text : set) {
    scenario::set(stated, text, option);
    const auto name = text.substr(0, text.find('='));
    machine.stated.push_back(
        scenario::full_name(name.substr(name.find('.') == std::string::npos ? 0 : name.find('.') + 1)));
  }
  if (stated.model.vocab_size != 0) machine.vocab_size = stated.model.vocab_size;
}

/// What --profile says stands in the scenario, too: files that are written of it are read again without.
void name_profiles(scenario::Scenario& scenario, const std::vector<std::string>& profiles) {
  if (profiles.empty()) return;
  scenario.cluster.profile = profiles.front();
  scenario.cluster.more_profiles.assign(profiles.begin() + 1, profiles.end());
}

scenario::Scenario read_file_of(const std::string& path, const std::vector<std::string>& profiles,
                                const std::vector<std::string>& set, std::string_view option) {
  const std::string content = content_of(path);
  const bool configuration = emit::is_bridge_text(content);
  if (!configuration && !emit::is_launch_file(path, content)) {
    auto read = scenario::parse(content, path);
    name_profiles(read, profiles);
    return read;
  }
  emit::Machine machine;
  if (!profiles.empty()) machine.profile = profiles.front();
  tell(machine, set, option);
  auto import =
      configuration ? emit::from_bridge_text(content, path, machine) : emit::from_launch_file(content, path, machine);
  emit::require_known_flags(import);
  name_profiles(import.scenario, profiles);
  return std::move(import.scenario);
}

}  // namespace

void name_gpu(scenario::Scenario& scenario, const std::vector<std::string>& profiles) {
  predict::name_gpu(scenario, gpu_of(profiles.empty() ? scenario.cluster.profile : profiles.front()));
}

scenario::Scenario read_scenario(const std::string& path, const std::vector<std::string>& profiles,
                                 const std::vector<std::string>& set, std::string_view option) {
  auto read = read_file_of(path, profiles, set, option);
  for (const auto& text : set) scenario::set(read, text, option);
  name_gpu(read, profiles);
  return read;
}

std::string broken_rule(const scenario::Scenario& scenario) {
  for (const auto& finding : plan::check(scenario)) {
    if (finding.severity != plan::Severity::violation) continue;
    return fmt::format("{} ({}): {} `pipewright check` lists every rule that is broken", finding.rule,
                       fmt::join(finding.settings, ", "), plan::with_fix(finding.message, finding.fix));
  }
  return "";
}

std::vector<std::string> scenario_files(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  std::set<std::filesystem::path> known;
  for (const auto& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      out.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      const auto extension = entry.path().extension();
      if (extension == ".yaml" || extension == ".yml") inside.push_back(entry.path().string());
    }
    if (inside.empty()) throw UsageError({path, 0}, {}, "no scenario files (*.yaml) in this directory");
    std::sort(inside.begin(), inside.end());
    out.insert(out.end(), inside.begin(), inside.end());
  }
  std::erase_if(out, [&](const std::string& path) {
    std::error_code none;
    const auto file = std::filesystem::canonical(path, none);
    return !none && !known.insert(file).second;
  });
  return out;
}

void require_legal(const scenario::Scenario& scenario) {
  const auto broken = broken_rule(scenario);
  if (!broken.empty()) throw Refused("refused: " + broken);
}

void Input::add_to(Command& command) {
  command.add_option("SCENARIO", path,
                     "scenario file (YAML), launch script (.sh), Megatron's model_config.yaml, Bridge's "
                     "run_config.yaml or overrides; -: standard input");
  const char* forms = "Instead of SCENARIO";
  command.add_option("--megatron", megatron_, "a Megatron-LM command line, as one word").group(forms);
  command
      .add_option("--bridge", bridge_,
                  "file of Megatron Bridge overrides (cfg.x.y = value); beside a command that runs a recipe: its "
                  "run_config.yaml")
      .group(forms)
      .reads();
  command.add_option("--hf", hf_, "a Hugging Face config.json, or its folder").group(forms).reads();
  command.add_option("--gpus", gpus_, "number of GPUs").group(forms);
  command.add_option("--gpus-per-node", gpus_per_node_, "GPUs of one node (8)").group(forms);
  command.add_option("--megatron-core", megatron_core_, "version of Megatron Core").group(forms);
  add_profile_option(command, profiles_);
  command
      .add_option("--set", set_,
                  "NAME=VALUE: any setting (also tp, pp, vpp, cp, ep, mbs, gbs), overrides the input; repeatable")
      .repeatable();
  command.add_option("--env", env_, "NAME=VALUE: any environment variable; repeatable").repeatable();
  command.add_option("--arguments", arguments_, "\"WORDS\": those of a launch script ($1, $2, ..., $@), as one word");
  command
      .add_option("--ignore", ignore_, "NAME: go on without what is not modelled of it; no interval then; repeatable")
      .repeatable();
}

Loaded Input::load() const {
  const Position where = {"command line", 0};
  const std::string content = path.empty() ? "" : content_of(path);
  const bool launch = !path.empty() && emit::is_launch_file(path, content);
  const bool of_recipe = !bridge_.empty() && (launch || !megatron_.empty());  // what its command puts settings over
  const int forms = !path.empty() + !megatron_.empty() + (!bridge_.empty() && !of_recipe) + !hf_.empty();
  if (forms == 0) throw UsageError(where, {}, "no scenario given", {"SCENARIO", "--megatron", "--bridge", "--hf"});
  if (forms > 1) throw UsageError(where, {}, "more than one of SCENARIO, --megatron, --bridge and --hf given");
  for (const auto& [option, given] : {std::pair("--gpus", gpus_), {"--gpus-per-node", gpus_per_node_}})
    if (given && *given < 1)
      throw UsageError(where, option, fmt::format("a number of GPUs must be positive, not {}", *given));
  const bool configuration = !path.empty() && emit::is_bridge_text(content);
  const bool scenario_file = !path.empty() && !launch && !configuration;
  if (scenario_file && scenario::is_hf(content))
    throw UsageError({path, 1}, {}, "a config.json of Hugging Face, which describes a model: --hf " + path);
  if (scenario_file && (gpus_ || gpus_per_node_ || !megatron_core_.empty())) {
    scenario::parse(content, path);  // says so if it is no scenario at all
    throw UsageError(where, {},
                     "a scenario file states its machine and versions itself; --set num_gpus=, "
                     "gpus_per_node= or megatron_core= overrides them");
  }

  Loaded loaded;
  std::set<std::string> dropped;  // of --ignore, done with
  emit::Machine machine;
  machine.num_gpus = gpus_.value_or(0);
  if (!profiles_.empty()) machine.profile = profiles_.front();
  const auto rack = profile::rack_of(machine.profile);
  if (rack) machine.gpus_per_node = rack->gpus_per_node;
  if (gpus_per_node_) machine.gpus_per_node = *gpus_per_node_;
  machine.node_is_said = rack || gpus_per_node_;
  machine.megatron_core = megatron_core_;
  for (const auto& name : ignore_) machine.ignore.push_back(name);
  if (arguments_ && !launch) throw UsageError(where, "--arguments", "are a launch script's, and none is given");
  machine.arguments = arguments_;
  if (of_recipe) machine.recipe = bridge_;
  tell(machine, set_);
  if (scenario_file) {
    loaded.scenario = scenario::parse(content, path);
  } else if (!hf_.empty()) {
    loaded = model_alone(machine);
  } else {
    emit::Import import = launch               ? emit::from_launch_file(content, path, machine, variables())
                          : configuration      ? emit::from_bridge_text(content, path, machine)
                          : !megatron_.empty() ? emit::from_megatron(megatron_, machine)
                                               : emit::from_bridge(bridge_, machine);
    loaded.scenario = std::move(import.scenario);
    loaded.notes = std::move(import.notes);
    loaded.findings = std::move(import.findings);
    loaded.gpus_guessed = import.gpus_guessed;
    dropped = std::move(import.dropped);
    if (launch) loaded.script = content;
  }
  name_profiles(loaded.scenario, profiles_);
  for (const auto& text : set_) scenario::set(loaded.scenario, text);
  stand_in_racks(loaded);
  for (const auto& text : env_) scenario::set_env(loaded.scenario, text);
  const bool from_flags = !megatron_.empty() || !bridge_.empty() || launch || configuration;  // machine.ignore's names
  for (const auto& name : ignore_)
    if ((!from_flags || scenario::effect_of(name) != nullptr) && !dropped.contains(name))
      scenario::ignore(loaded.scenario, name, {"--ignore", 0});
  if (!hf_.empty()) complete(loaded);
  name_gpu(loaded.scenario);
  return loaded;
}

void Input::require_no_overrides() const {
  const std::pair<const char*, bool> given[] = {{"--set", !set_.empty()},
                                                {"--env", !env_.empty()},
                                                {"--arguments", arguments_.has_value()},
                                                {"--ignore", !ignore_.empty()},
                                                {"--megatron", !megatron_.empty()},
                                                {"--bridge", !bridge_.empty()},
                                                {"--hf", !hf_.empty()},
                                                {"--megatron-core", !megatron_core_.empty()},
                                                {"--gpus", gpus_.has_value()},
                                                {"--gpus-per-node", gpus_per_node_.has_value()}};
  for (const auto& [option, is_given] : given)
    if (is_given)
      throw UsageError({"command line", 0}, option,
                       "has no effect on " + path + ", whose scenarios are ready to run: give it to `pipewright plan`");
}

Loaded Input::model_alone(const emit::Machine& machine) const {
  Loaded loaded;
  loaded.scenario = scenario::from_hf(hf_, &loaded.notes);
  const auto set = [&](const std::string& name, const std::string& value, const char* option) {
    scenario::set(loaded.scenario, name + "=" + value, option);
  };
  if (!megatron_core_.empty()) set("software.megatron_core", megatron_core_, "--megatron-core");
  if (gpus_) {
    set("cluster.num_gpus", std::to_string(*gpus_), "--gpus");
    set("cluster.gpus_per_node", std::to_string(machine.gpus_per_node), "--gpus-per-node");
  }
  return loaded;
}

/// Where nobody states them, nodes and NVLink domain of GPUs that are sold as racks are the rack's.
void Input::stand_in_racks(Loaded& loaded) {
  auto& s = loaded.scenario;
  const auto rack = profile::rack_of(s.cluster.profile);
  if (!rack || s.cluster.nvlink_domain) return;
  const auto assume = [&](const char* name, scenario::Int value) {
    scenario::set(s, fmt::format("cluster.{}={}", name, value));
    s.assumed.push_back(fmt::format("{}: {}", name, value));
  };
  // A file's own default is a server of eight; what an import says is the launcher's or --gpus-per-node.
  const bool stated = s.positions.contains("cluster.gpus_per_node") || s.cluster.gpus_per_node != 8;
  if (!stated) assume("gpus_per_node", rack->gpus_per_node);
  // Jobs that do not fill racks are placed in equal segments of them (Slurm's block topology), by powers of two; so are
  // those that a part of a segment holds, of which a sweep or a plan may ask for more GPUs.
  const auto whole = rack->nvlink_domain;
  const auto segment = static_cast<scenario::Int>(std::bit_floor(static_cast<std::uint64_t>(whole)));
  const auto gpus = s.cluster.num_gpus;
  const bool segments = gpus % whole != 0 && (gpus % segment == 0 || segment % gpus == 0);
  assume("nvlink_domain", segments ? segment : whole);
}

/// What a config.json cannot say is the same in every command, and said.
void Input::complete(Loaded& loaded) const {
  std::vector<std::string> absent, add;
  if (!gpus_) {
    absent.emplace_back("--gpus");
    add.emplace_back("--gpus N");
  }
  for (const auto& [section, name] : {std::pair("model", "seq_length"), {"settings", "global_batch_size"}}) {
    if (loaded.scenario.positions.contains(fmt::format("{}.{}", section, name))) continue;
    absent.emplace_back(name);
    add.push_back(fmt::format("--set {}=N", name));
  }
  if (!absent.empty())
    throw UsageError(
        {"command line", 0}, fmt::format("{}", fmt::join(absent, ", ")),
        fmt::format("missing: --hf describes a model, neither its run nor a machine; add {}", fmt::join(add, " ")));
  const auto before = loaded.scenario;
  loaded.scenario = plan::proposed(std::move(loaded.scenario));
  auto& assumed = loaded.scenario.assumed;
  for (const auto& field : scenario::fields()) {
    if (field.section != "settings") continue;
    const std::string value = scenario::get(loaded.scenario, field.name);
    if (value != scenario::get(before, field.name)) assumed.push_back(field.name + ": " + value);
  }
  for (const auto& [name, value] : loaded.scenario.environment)
    if (!before.environment.contains(name)) assumed.push_back(name + ": " + value);
  std::string all;
  for (const auto& one : assumed) all += (all.empty() ? "" : ", ") + one;
  if (!all.empty()) loaded.notes.insert(loaded.notes.begin(), "assumed, as a config.json does not say: " + all);
}

std::map<std::string, std::string> Input::variables() const {
  std::map<std::string, std::string> all;
  for (const auto& text : env_)
    if (const auto equals = text.find('='); equals != std::string::npos)
      all[text.substr(0, equals)] = text.substr(equals + 1);
  return all;
}

Loaded Input::runnable() const {
  Loaded loaded = load();
  if (!loaded.findings.empty()) {
    emit::require_known_flags({loaded.scenario, loaded.notes, loaded.findings});
  }
  if (loaded.gpus_guessed && !loaded.scenario.positions.contains("cluster.num_gpus"))
    loaded.notes.push_back(
        fmt::format("nobody says how many GPUs: the fewest that the parallelism needs, {} (--gpus N)",
                    loaded.scenario.cluster.num_gpus));
  if (!(propose && loaded.scenario.search.parallelism == "auto")) scenario::check(loaded.scenario);
  return loaded;
}

Loaded Input::legal() const {
  Loaded loaded = runnable();
  require_legal(loaded.scenario);
  return loaded;
}

profile::Profiles Input::profiles(const scenario::Scenario& scenario) const {
  if (profiles_.empty() && scenario.cluster.profile.empty())
    throw UsageError({"command line", 0}, "--profile", "missing: name the GPU", profile::known_profiles());
  return predict::profiles_of(scenario, profiles_);
}

}  // namespace pipewright::cli
