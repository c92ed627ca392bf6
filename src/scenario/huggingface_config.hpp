// A config.json's keys, typed; which were asked for.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

/// Kinds of a hybrid's layers as transformers names them one by one (layers_block_type), those of releases before 5
/// first.
inline const Strings hybrid_kinds = {"mamba", "attention", "mlp", "moe", "linear_attention", "full_attention"};

/// Names as they are read here -> as a file writes them, one or several.
using HfNames = std::multimap<std::string, std::string>;

/// Renames keys that transformers' class of the family takes under several names (its attribute_map, which decides what
/// transformers 5 writes) to those that are read here. Throws what `error` makes of two that differ.
HfNames take_other_names(nlohmann::json& json, const std::string& family,
                         const std::function<UsageError(const std::string& key, const std::string& why)>& error);

class HfConfig {
 public:
  HfConfig(const std::string& path, const std::string& text, const nlohmann::json& json, HfNames written = {})
      : path_(path), text_(text), json_(json), written_(std::move(written)) {}
  /// Throws what `integer` did not find, all in one message.
  void require() const;
  /// An object within, whose errors name the same file.
  HfConfig within(const std::string& key) const;

  UsageError error(const std::string& key, const std::string& message, const Strings& allowed = {},
                   const std::string& nearest = {}) const;
  /// The key's first line in the text: the parser keeps none. Missing: that of the object in which it would stand, or
  /// 0.
  int line_of(const std::string& key) const;
  Position position_of(const std::string& key) const { return {path_, line_of(key)}; }
  const nlohmann::json* object(const std::string& key) const;
  /// Of an object that `within` entered.
  const nlohmann::json& json() const { return json_; }
  const nlohmann::json* list(const std::string& key) const;
  bool has(const std::string& key) const;
  void lacks(const std::string& key) const { missing_.push_back(key); }
  /// Keys that the family has, read or not.
  void knows(std::initializer_list<const char*> keys) const { read_.insert(keys.begin(), keys.end()); }
  const std::set<std::string>& read() const { return read_; }  ///< keys asked for so far
  /// `least` where the key is missing: `require` says so once all are known.
  Int integer(const std::string& key, Int least = 1, Int most = Int{1} << 30) const;
  OptInt optional_integer(const std::string& key, Int least = 1) const;
  double number(const std::string& key, double otherwise) const;
  bool boolean(const std::string& key, bool otherwise) const;
  /// The name under which the file has it.
  const std::string& written(const std::string& key) const {
    const auto other = written_.find(key);
    return other == written_.end() ? key : other->second;
  }
  /// A list of `count` numbers; empty where the key is missing or the list is.
  Ints integers(const std::string& key, Int count) const;
  /// A list of these words; empty where the key is missing.
  Strings strings(const std::string& key, const Strings& allowed) const;
  std::string string(const std::string& key, const std::string& otherwise) const;

 private:
  const std::string& path_;
  const std::string& text_;
  const nlohmann::json& json_;
  HfNames written_;
  std::string above_;  ///< "rope_scaling." of what stands in it
  mutable std::set<std::string> read_;
  mutable Strings missing_;
};

/// What family and configuration say of the model (and of settings, where a family fixes them). `notes`: what of it is
/// in no field.
Model model_of(const HfConfig& config, const std::string& family, Scenario& scenario, Strings& notes);

/// What its experts, its kinds of attention and of layers add.
void mixture_of(const HfConfig& config, const std::string& family, Scenario& scenario, Model& model, Strings& notes);

/// Llama 4's and SmolLM3's no_rope_layers, whose 1 rotates, or no_rope_layer_interval.
void layers_without_rotation(const HfConfig& config, Model& model);
/// The shortest pattern that says which layers see the whole sequence: none, every n-th, or one number a layer.
Ints skip_pattern(const std::vector<bool>& windowed);
/// Of a family whose activation Megatron's provider fixes.
void activation_is(const HfConfig& config, const Strings& names);

/// Is it one of these names, which spaces part?
bool among(const char* names, const std::string& name);

/// Notes on keys whose value Megatron Bridge does not take for this family, where config.json says another than it has.
Strings other_in_bridge(const HfConfig& config, const std::string& family, const Model& model);

}  // namespace pipewright::scenario
