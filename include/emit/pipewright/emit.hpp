// A scenario as what users type: Megatron-LM flags of the stated version, Megatron Bridge overrides, options of the
// Bridge performance harness, environment variables; and the way back from flags and overrides to a scenario.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/plan.hpp"
#include "pipewright/scenario/types.hpp"

namespace pipewright::emit {

/// One flag with its values, one override, one variable; or only a remark (no words).
struct Line {
  std::vector<std::string> words;  ///< {"--recompute-modules", "mlp", "core_attn"}; {"cfg.model.x = 4"}; {"NAME=value"}
  std::string comment;             ///< what to know: the version lacks it, where it must be set, ...
};
struct Group {
  std::string title;  ///< "Parallelism", "Recompute", ...
  std::vector<Line> lines;
};
using Groups = std::vector<Group>;

/// Only flags that scenario.software.megatron_core has, in its spelling; what it lacks is a comment that says so.
Groups megatron(const scenario::Scenario& scenario);
/// `cfg.section.field = value` in the place that takes effect.
Groups bridge(const scenario::Scenario& scenario);
/// Options of scripts/performance of Megatron Bridge; what it has no option for are overrides (`model.x=...`).
Groups harness(const scenario::Scenario& scenario);
/// The scenario's variables, those that Megatron insists on, and the queues that expert-parallel overlap needs.
std::map<std::string, std::string> variables(const scenario::Scenario& scenario);
/// The same as NAME=value, the value quoted as for a shell.
Groups environment(const scenario::Scenario& scenario);

std::string quoted(const std::string& word);              ///< as one word of a shell
std::vector<std::string> words(const Groups& groups);     ///< all words in order (JSON); a bridge override is one
std::vector<std::string> comments(const Groups& groups);  ///< all remarks
/// Remarks without words: what these leave out of the scenario, what Megatron refuses of it, what they are for.
std::vector<std::string> unsaid(const Groups& groups);
/// Lines with `# title` and `# comment`; `continued` ends flag lines with a backslash for the shell.
std::string text(const Groups& groups, bool continued);

// ---- The way back

/// What command lines and overrides do not say.
struct Machine {
  scenario::Int num_gpus = 0;  ///< 0: the fewest that the parallelism needs
  scenario::Int gpus_per_node = 8;
  std::string profile;
  std::string megatron_core;             ///< empty: the default version
  std::vector<std::string> ignore = {};  ///< flags that no version has, or not with this value, dropped as asked
  std::vector<std::string> stated = {};  ///< settings that are said beside the input (--set)
  scenario::Int vocab_size = 0;          ///< of the tokenizer, for flags that only name it; 0: not known
  bool node_is_said = false;             ///< gpus_per_node is more than the default, which a launcher's number replaces
  std::string recipe = {};  ///< file that holds what the recipe sets which a launch script or command line trains
  /// $1, $2, ... of a launch script, quoted as for a shell; nullopt: nobody says.
  std::optional<std::string> arguments = {};
};

struct Import {
  scenario::Scenario scenario;          ///< not yet checked
  std::vector<std::string> notes;       ///< flags outside the modelled areas, and other assumptions
  std::vector<plan::Finding> findings;  ///< flags that this version lacks: violations
  std::set<std::string> dropped =
      {};                     ///< names of Machine::ignore whose flags have no effect, and had an unknown value
  bool gpus_guessed = false;  ///< nobody says how many: the fewest that the parallelism needs
};

/// A command line, quoted as for a shell: the words after `pretrain_gpt.py`, and of torchrun or srun before it the
/// number of GPUs. Throws UsageError for a near miss of a known flag, a
/// value of the wrong type, a missing vocabulary.
Import from_megatron(std::string_view flags, const Machine& machine);
/// A launch script of bash, or a model_config.yaml of Megatron's functional tests, by its text. `variables`: those that
/// the script takes from outside. Errors name the script's line.
Import from_launch_file(std::string_view text, const std::string& path, const Machine& machine,
                        const std::map<std::string, std::string>& variables = {});
bool is_launch_file(const std::string& path, std::string_view text);
/// The lines of such a file that differ for `planned`, "-" and "+" before them under "@@ line N @@"; what no line says
/// is a remark ("# ...") in front. `given`: what from_launch_file made of it.
std::string script_diff(std::string_view script, const scenario::Scenario& given, const scenario::Scenario& planned);
/// A file of lines `cfg.section.field = value`, or what Bridge wrote of a run: run_config.yaml, a log that prints it.
Import from_bridge(const std::string& path, const Machine& machine);
Import from_bridge_text(std::string_view text, const std::string& file, const Machine& machine);
/// Either of them, by its text.
bool is_bridge_text(std::string_view text);
/// Throws the first violation as a UsageError; for commands that need a scenario which runs.
void require_known_flags(const Import& import);

}  // namespace pipewright::emit
