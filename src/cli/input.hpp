// The scenario of a command line, in any of its forms, with overrides.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "options.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::cli {

/// What was read; not yet checked as a whole.
struct Loaded {
  scenario::Scenario scenario;
  std::vector<std::string> notes;       ///< assumptions of the importers
  std::vector<plan::Finding> findings;  ///< flags that the stated version lacks
  bool gpus_guessed = false;            ///< by an importer
  std::string script;                   ///< the text of a launch script or model_config.yaml
};

/// Of --profile, else the scenario's own: rules and emitted overrides depend on it.
void name_gpu(scenario::Scenario& scenario, const std::vector<std::string>& profiles);

/// SCENARIO, or --megatron, --bridge or --hf with a machine; --set and --env; --profile.
class Input {
 public:
  /// Declares the options on a command. Must outlive the parse (keep it in the command's shared state).
  void add_to(Command& command);

  Loaded load() const;
  /// load(), refused if the version lacks a flag or Megatron Core cannot run it.
  Loaded runnable() const;
  /// runnable(), refused (Refused) if it breaks a rule of Megatron's: a prediction would be of what cannot run.
  Loaded legal() const;
  /// The profiles to predict with: --profile, else the scenario's own.
  profile::Profiles profiles(const scenario::Scenario& scenario) const;

  /// Tells a scenario that was read elsewhere what GPU it runs on.
  void name_gpu(scenario::Scenario& scenario) const { cli::name_gpu(scenario, profiles_); }

  /// Where the scenarios are those of a plan, what would change them or make others is refused.
  void require_no_overrides() const;

  bool states_a_run() const { return hf_.empty(); }  ///< not only a model

  bool propose = false;  ///< what the search leaves open is not checked before it
  std::string path;      ///< SCENARIO; check's --symptom hands a stray word over

 private:
  Loaded model_alone(const emit::Machine& machine) const;
  static void stand_in_racks(Loaded& loaded);
  void complete(Loaded& loaded) const;
  std::map<std::string, std::string> variables() const;  ///< --env, as a script sees them

  std::string megatron_, bridge_, hf_, megatron_core_;
  std::optional<int> gpus_, gpus_per_node_;
  std::optional<std::string> arguments_;
  std::vector<std::string> profiles_, set_, env_, ignore_;
};

/// The first of Megatron's rules that it breaks, in words; empty: none.
std::string broken_rule(const scenario::Scenario& scenario);
/// Files as given, directories as the YAML files in them by name; each once.
std::vector<std::string> scenario_files(const std::vector<std::string>& paths);
/// Throws Refused where there is one: a prediction would be of what cannot run.
void require_legal(const scenario::Scenario& scenario);

/// A scenario file, a launch script or a model_config.yaml, where a command takes scenarios as options, with what
/// `option` sets; not yet checked.
scenario::Scenario read_scenario(const std::string& path, const std::vector<std::string>& profiles,
                                 const std::vector<std::string>& set = {}, std::string_view option = "--set");

/// Declares --profile where there is no scenario on the command line (validate).
void add_profile_option(Command& command, std::vector<std::string>& profiles);

}  // namespace pipewright::cli
