// The vocabulary of Megatron Bridge's configurations: stated, or the tokenizer's, and which of them is padded.
#pragma once

#include <cstdint>
#include <string>

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

/// training/setup.py of every release (_validate_and_set_vocab_size) overwrites should_pad_vocab: the tokenizer's
/// vocabulary is padded, a stated one is not. What a run has written afterwards says which it was.
class BridgeVocabulary {
 public:
  /// False: cfg.SECTION.FIELD says nothing of it but, perhaps, cfg.model.vocab_size.
  bool takes(const std::string& section, const std::string& field, const Python& value, const Position& where);
  /// `resolved`: the configuration is what a run has written. Throws UsageError in `file` where there is no vocabulary,
  /// and where one that is stated is not divisible by TP.
  void settle(scenario::Scenario& scenario, bool resolved, const Position& file) const;

 private:
  bool pads_ = true, tokenizer_decides_ = false;
  std::int64_t of_tokenizer_ = 0;
};

}  // namespace pipewright::emit
